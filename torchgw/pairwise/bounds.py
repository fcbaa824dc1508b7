"""Lower bounds on the values of many pairs at once, by Memoli's first and second bounds.

With the points' root mean square distances (first) or all distances (second) as distributions on the line,

    value(X, Y) >= W_2(X, Y)^2 = integral of (quantile_X - quantile_Y)^2 >= mean_b (means_X,b - means_Y,b)^2,

where means_b are those of the quantile function over equal parts of [0, 1], by Jensen's inequality. So a space is a
short vector, and the bounds of all pairs are squared distances between vectors.

Source: F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.spatial.distance import cdist

from torchgw.gw.starts import quantiles
from torchgw.types import Array

PARTS = 512
ROUNDING = 1e-9


def signatures(distances: Array, mass: Array) -> tuple[Array, Array]:
    """Means of the quantile functions of the points' root mean square distances and of all distances, both (512,).

    O(N^2 log N).
    """
    used = mass > 0
    D, p = torch.from_numpy(distances[np.ix_(used, used)]), torch.from_numpy(mass[used])
    eccentricity = (D.square() @ p).clamp_min(0.0).sqrt()
    every = quantiles(D.reshape(1, -1), (p[:, None] * p).reshape(-1), PARTS)
    return quantiles(eccentricity[None], p, PARTS)[0].numpy(), every[0].numpy()


def lower_bounds(rows: Sequence[tuple[Array, Array]], columns: Sequence[tuple[Array, Array]]) -> Array:
    """Values that no plan undercuts, (Q, n), from the signatures of both sides."""
    parts = [
        cdist(np.stack([one[kind] for one in rows]), np.stack([one[kind] for one in columns]), "sqeuclidean")
        for kind in (0, 1)
    ]
    found: Array = np.maximum(*parts) / PARTS
    # Quantiles are sums of up to N^2 rounded numbers.
    return np.maximum(found * (1 - ROUNDING) - np.finfo(float).tiny, 0.0)
