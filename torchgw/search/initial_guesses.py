"""Many first guesses for a small problem, as one batch of linear costs (B, L, L').

- the distributions of distances seen from each point (Memoli's third lower bound), and their means alone;
- classical scaling coordinates with every combination of signs: symmetric shapes differ by these;
- two to four random pairs of points, matched, and everything else by its distances to them.

The first two kinds come twice, for the two temperatures that neighbours in the batch are annealed from.

The product plan, which no cost gives, is added by the caller.

Sources: F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011; W. Torgerson,
"Multidimensional scaling", 1952.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels.sampling import draw
from torchgw.linalg.centring import centred_modes

N_QUANTILES = 16
N_COORDINATES = 3
SMALLEST_EIGENVALUE = 1e-3


def start_costs(DX: Tensor, DY: Tensor, p: Tensor, q: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` costs for distances DX (L, L), DY (L', L') and masses p, q; each has mean 1 under the product plan."""
    costs = [_between(quantiles(DX, p, N_QUANTILES), quantiles(DY, q, N_QUANTILES))]
    costs.append(_between((DX @ p)[:, None], (DY @ q)[:, None]))
    x, y = _coordinates(DX, p), _coordinates(DY, q)
    shared = min(x.shape[1], y.shape[1])
    for code in range(2**shared):
        signs = torch.tensor([1.0 - 2.0 * (code >> bit & 1) for bit in range(shared)]).to(x)
        costs.append(_between(x[:, :shared] * signs, y[:, :shared]))
    costs = [cost for cost in costs for _ in range(2)]  # neighbours in the batch are annealed from two temperatures
    while len(costs) < count:
        pairs = 2 + len(costs) % 3
        i, j = draw(p, pairs, generator), draw(q, pairs, generator)
        costs.append(_between(DX[:, i], DY[:, j]))
    batch = torch.stack(costs[:count])
    mean = torch.einsum("i,bij,j->b", p, batch, q)[:, None, None]
    return batch / mean.clamp_min(torch.finfo(p.dtype).tiny)


def quantiles(D: Tensor, mass: Tensor, count: int) -> Tensor:
    """Means of each row's quantile function over ``count`` equal intervals, (N, count), rows weighted by ``mass``.

    By Jensen's inequality squared differences of these bound the squared Wasserstein distance of two rows from below.
    """
    value, order = D.sort(dim=1)
    weight = mass[order]
    level = torch.nn.functional.pad(weight.cumsum(1), (1, 0))
    level = level / level[:, -1:]
    area = torch.nn.functional.pad((value * weight).cumsum(1), (1, 0)) / weight.sum(1, keepdim=True)
    cuts = torch.linspace(0, 1, count + 1, dtype=D.dtype, device=D.device).expand(len(D), -1).contiguous()
    above = torch.searchsorted(level, cuts).clamp(1, D.shape[1])
    low, high = level.gather(1, above - 1), level.gather(1, above)
    share = ((cuts - low) / (high - low).clamp_min(torch.finfo(D.dtype).tiny)).clamp(0.0, 1.0)
    low_area = area.gather(1, above - 1)
    cumulative = low_area + share * (area.gather(1, above) - low_area)
    means: Tensor = (cumulative[:, 1:] - cumulative[:, :-1]) * count
    return means


def _coordinates(D: Tensor, mass: Tensor) -> Tensor:
    """The leading classical scaling coordinates (L, 3) of distances D under masses, fewer where fewer matter."""
    values, modes = centred_modes(-0.5 * D.square(), mass)
    count = max(1, min(N_COORDINATES, int((values > SMALLEST_EIGENVALUE * values[-1]).sum())))
    leading = modes[:, -count:] * values[-count:].clamp_min(0.0).sqrt()
    return leading.flip(1).to(D.dtype)


def _between(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared differences of feature rows."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square() / x.shape[1]
