"""What rounding leaves of a space: how well its points can be told apart.

To match i with the partner of j instead of its own costs

    Delta_ij = sum_k p_k (D_ik - D_jk)^2

more, in a linearised cost whose terms are sums S_i = sum_k p_k D_ik^2. One point
far from all others makes S large beside Delta, and float64 keeps no more than 2^-52
of S. Of a few points, each with the most similar one among them, the median of
Delta over that of S is the resolution that a space needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgw import validate
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_device
from torchgw.spaces.euclidean import EuclideanDistances
from torchgw.spaces.landmark import move_to_storage
from torchgw.spaces.scale import largest_of, without_scale
from torchgw.types import DistanceProvider

# Of copies with one far point, 12 to 1000 points: above 1e-12 all are matched
# right, from there on fewer and fewer.
RESOLUTION = 2.0**-40
SINGLE = float(torch.finfo(torch.float32).eps)


def measure_resolution(rows: Tensor, weight: Tensor) -> Tensor:
    """The median of the least positive Delta over that of S, of rows (m, d) with
    weights (d,); 1 where all coincide. A tensor (), for which nothing waits."""
    return median_ratio(*differences(rows, weight))


def differences(rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Delta (m, m) between rows (m, d) with weights (d,), and S (m,)."""
    x = rows.double() * weight.double().sqrt()
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square(), x.square().sum(1)


def median_ratio(apart: Tensor, sums: Tensor) -> Tensor:
    """The resolution () that the differences between rows measure, see `measure_resolution`."""
    least = torch.where(apart > 0, apart, torch.inf).amin(1).sort().values
    middle = (least.isfinite().sum() - 1).clamp_min(0) // 2
    found = least.index_select(0, middle.view(1))[0] / sums.sort().values[(len(sums) - 1) // 2]
    return torch.where(found.isfinite(), found, 1.0)


def pick_evenly(n: int, count: int = 16) -> Tensor:
    """Indices of ``count`` of n points, evenly spread, or of all."""
    return torch.linspace(0, n - 1, min(count, n), dtype=torch.float64).long()


def sample_differences(
    spaces: Sequence[DistanceProvider], masses: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Distances (m, N) from a few points of each space, with masses (N,), and the
    `differences` of all of them one after another. O(N) memory."""
    rows, apart = list[Tensor](), list[Tensor]()
    for space, mass in zip(spaces, masses, strict=True):
        index = to_device(pick_evenly(len(mass)), mass.device)
        some, *between = _sample_rows(without_scale(move_to_storage(space, mass.device)), mass, index)
        rows.append(some)
        apart += between
    return rows, apart


def explain_unresolved_points(
    names: Sequence[str],
    spaces: Sequence[DistanceProvider],
    masses: Sequence[Tensor],
    rows: Sequence[Tensor],
    apart: Sequence[Tensor],
    numbers: Sequence[Tensor | None] | None = None,
) -> list[str]:
    """Why a solve cannot tell most points of each space apart, and what to do; nothing where it can.

    masses : (N,) of each, positive, on the device that solves.
    rows, apart : what `sample_differences` returned, the differences on the host.
    numbers : (N,) of each, what its points are called; None where they are counted
        from 0.
    """
    measured = (median_ratio(*pair).numpy() for pair in zip(apart[::2], apart[1::2], strict=True))
    numbers = [None] * len(rows) if numbers is None else numbers
    sides = zip(names, spaces, masses, rows, map(float, measured), numbers, strict=True)
    return [_explain(*side) for side in sides]


@as_cuda_graph()
def _sample_rows(space: DistanceProvider, mass: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances (m, N) from a few points, and their `differences`."""
    rows = space.rows(index)
    return rows, *differences(rows, mass)


def _explain(
    name: str, space: DistanceProvider, mass: Tensor, rows: Tensor, wanted: float, numbers: Tensor | None
) -> str:
    resolution = getattr(space, "resolution", RESOLUTION)
    if wanted >= resolution:
        return ""
    far = int((rows.double().square().sum(0) * mass).argmax())
    far = far if numbers is None else int(numbers[far])
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


def explain_rounded_coordinates(space: Any, given: Any) -> str:
    """Why floats do not tell most points apart so far from the origin, and what to do; nothing where they do.

    space : once it is validated, a `torchgw.spaces.prepare.InputSpace`; only of
        points are there coordinates.
    given : the same as it was given.
    """
    provided, unit = isinstance(space.data, EuclideanDistances), validate.resolution_of(given)
    points = space.data.coordinates if provided else space.data
    if points is None or not (provided or (space.is_points and unit > 0)):
        return ""
    few = torch.from_numpy(points[pick_evenly(space.size).numpy()])  # a copy, whatever strides points have
    whole = torch.equal(few, few.round()) and float(few.abs().max()) <= 2 / SINGLE  # which float32 holds unrounded
    if torch.equal(few, few.float().double()) and not whole:  # whatever has made float64 of them
        unit = max(unit, SINGLE)
    if unit == 0 or float(measure_resolution(few, few.new_ones(few.shape[1]))) >= (4 * unit) ** 2:  # four spacings
        return ""
    return (
        f"coordinates of {space.name} reach {float(few.abs().max()):.3g}, where numbers of their precision (rounding "
        f"unit {unit:.1g}) do not tell most points apart; subtract their mean in float64, before they are rounded"
    )
