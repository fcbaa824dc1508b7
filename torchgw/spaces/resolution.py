"""What rounding leaves of a space: how well its points can be told apart.

To match i with the partner of j instead of its own costs

    Delta_ij = sum_k p_k (D_ik - D_jk)^2

more, in a linearised cost whose terms are sums S_i = sum_k p_k D_ik^2. One point far from all others makes S large
beside Delta, and float64 keeps no more than 2^-52 of S. Of a few points, each with the most similar one among them,
the median of Delta over that of S is the resolution that a space needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.runtime.transfer import fetched, sent
from torchgw.spaces.scale import largest_of
from torchgw.types import DistanceProvider, is_graph, is_provider

SAMPLED = 16
# Of copies with one far point, 12 to 1000 points: above 1e-12 all are matched right, from there on fewer and fewer.
RESOLUTION = 2.0**-40
SPACINGS = 4  # of floats, which coordinates of neighbours must differ by


def needed(rows: Tensor, weight: Tensor) -> float:
    """The median of the least positive Delta over that of S, of rows (m, d) with weights (d,); 1 where all coincide."""
    x = rows.double() * weight.double().sqrt()
    squares = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart, sums = (each.numpy() for each in fetched(squares, x.square().sum(1)))
    least = np.where(apart > 0, apart, np.inf).min(1)
    least = np.sort(least[least < np.inf])
    size = float(np.sort(sums)[(len(sums) - 1) // 2])
    return float(least[(len(least) - 1) // 2]) / size if len(least) and size > 0 else 1.0


def sample(n: int) -> Tensor:
    """Indices (m,) of a few of n points, evenly spread."""
    return torch.linspace(0, n - 1, min(SAMPLED, n), dtype=torch.float64).round().long()


def unresolved(name: str, space: DistanceProvider, mass: Tensor) -> str:
    """Why a solve cannot tell most points of a space apart, and what to do; nothing where it can. O(N) memory.

    mass : (N,), positive, on the device that solves.
    """
    index = sent(sample(len(mass)), mass.device)
    rows = space.to(mass.device, torch.float64 if len(mass) < 2**17 else torch.float32).rows(index)
    wanted, resolution = needed(rows, mass), getattr(space, "resolution", RESOLUTION)
    if wanted >= resolution:
        return ""
    far = int((rows.double().square().sum(0) * mass).argmax())
    if wanted >= RESOLUTION:
        what = f"landmark distances, which are right to {resolution**0.5:g} of the largest, do not tell"
        remedy = "take distances='precomputed' or 'euclidean', or "
    else:
        what, remedy = "float64 does not tell", ""
    return (
        f"{what} most points of {name} apart, so their matches may be wrong: the largest distance, "
        f"{largest_of(space):.3g}, is too large beside those of most points, and squares of differences are "
        f"{wanted:.1g} of squares; point {far} is farthest from the others: {remedy}leave out such points or give "
        f"them no mass, or align parts that lie far apart one by one"
    )


def coarse(name: str, given: Any, points: Any) -> str:
    """Why floats do not tell most points apart so far from the origin, and what to do; nothing where they do.

    given : the space as it was given. Only of points (N, D), ``points`` once they are checked, are there coordinates.
    """
    unit = validate.resolution_of(given)
    if unit == 0 or is_provider(points) or is_graph(points):
        return ""
    few = torch.from_numpy(points[sample(len(points)).numpy()])  # a copy, whatever strides points have
    if needed(few, few.new_ones(few.shape[1])) >= (SPACINGS * unit) ** 2:
        return ""
    return (
        f"coordinates of {name} reach {float(few.abs().max()):.3g}, where numbers of its dtype (rounding unit "
        f"{unit:.1g}) do not tell most points apart; subtract their mean in float64, before they are rounded"
    )
