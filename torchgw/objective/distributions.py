"""Distributions of distances: their quantile functions, and lower bounds on the values of many pairs by them.

With the points' root mean square distances (Memoli's first bound) or all distances (second) as distributions on the
line,

    value(X, Y) >= W_2(X, Y)^2 = integral of (quantile_X - quantile_Y)^2 >= mean_b (means_X,b - means_Y,b)^2,

where means_b are those of the quantile function over equal parts of [0, 1], by Jensen's inequality. So a space is a
short vector, and the bounds of all pairs are squared distances between vectors. One pair of large spaces is bounded by
histograms, which need no sorting: `torchgw.objective.bounds`.

Source: F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.sums import cumulative_sum
from torchgw.types import Array

PARTS = 512
ROUNDING = 1e-9
ROUNDING_OF_VALUES = 2e-14


def quantiles(D: Tensor, mass: Tensor, count: int) -> Tensor:
    """Means of each row's quantile function over ``count`` equal intervals, (N, count), rows weighted by ``mass``.

    By Jensen's inequality squared differences of these bound the squared Wasserstein distance of two rows from below.
    """
    value, order = D.sort(dim=1)
    weight = mass[order]
    level = torch.nn.functional.pad(cumulative_sum(weight, 1), (1, 0))
    level = level / level[:, -1:]
    area = torch.nn.functional.pad(cumulative_sum(value * weight, 1), (1, 0)) / weight.sum(1, keepdim=True)
    cuts = torch.linspace(0, 1, count + 1, dtype=D.dtype, device=D.device).expand(len(D), -1).contiguous()
    above = torch.searchsorted(level, cuts).clamp(1, D.shape[1])
    low, high = level.gather(1, above - 1), level.gather(1, above)
    share = ((cuts - low) / (high - low).clamp_min(torch.finfo(D.dtype).tiny)).clamp(0.0, 1.0)
    low_area = area.gather(1, above - 1)
    cumulative = low_area + share * (area.gather(1, above) - low_area)
    means: Tensor = (cumulative[:, 1:] - cumulative[:, :-1]) * count
    return means


def signature(distances: Array, mass: Array) -> Array:
    """What bounds take from a space of masses (N,) above zero: the means (512,) of the quantile function of the points'
    root mean square distances, those (512,) of all distances, and the mean squared distance. O(N^2 log N)."""
    D, p = torch.from_numpy(distances), torch.from_numpy(mass)
    eccentricity = (D.square() @ p).clamp_min(0.0).sqrt()
    first = quantiles(eccentricity[None], p, PARTS)[0]
    second = quantiles(D.reshape(1, -1), (p[:, None] * p).reshape(-1), PARTS)[0]
    return torch.cat((first, second, (p @ eccentricity.square())[None])).numpy()


def lower_bounds(rows: Sequence[Array], columns: Sequence[Array]) -> Array:
    """Values that no plan undercuts, (Q, n), from the signatures of both sides."""
    from scipy.spatial.distance import cdist  # late: it takes half the import of this package

    x, y = np.stack(rows), np.stack(columns)
    first, second = (cdist(x[:, part], y[:, part], "sqeuclidean") / PARTS for part in (slice(PARTS), slice(PARTS, -1)))
    # Quantiles are sums of up to N^2 rounded numbers; values that are nothing but rounding count as zero.
    rounding = ROUNDING_OF_VALUES * np.add.outer(x[:, -1], y[:, -1])
    found: Array = np.maximum(np.maximum(first, second) * (1 - ROUNDING) - rounding, 0.0)
    return found
