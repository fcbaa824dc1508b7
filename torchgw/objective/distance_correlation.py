"""How far distances of points agree with those of their matches: the bias-corrected distance correlation

    sum_ij A_ij B_ij / sqrt(sum_ij A_ij^2 sum_ij B_ij^2),        A = U(D_X), B = U(D_Y at the matches),

of Szekely and Rizzo (2013, "The distance correlation t-test of independence in high dimension"), with entries

    U(D)_ij = D_ij - (sum_k D_ik + sum_k D_kj) / (n - 2) + sum_kl D_kl / ((n - 1) (n - 2)),    0 on the diagonal.

It is 1 for copies, and 0 on average for matchings that know nothing. A point far away from all others adds to sums of
rows and columns alone, so it does not count, whereas it can be nearly all of the product plan's value.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchgw.kernels.blocks import parts
from torchgw.runtime.ranks import ranks_of
from torchgw.runtime.transfer import fetched, sent
from torchgw.spaces.landmark import placed
from torchgw.spaces.resolution import evenly_spread
from torchgw.types import Coupling, DistanceProvider

LOOKED_AT, SEARCHED = 120, 64  # points that stand for all; fewer where each row of distances is a search
LEAST = 4  # points, below which the correction has no meaning


def distance_correlation(plan: Coupling, spaces: tuple[DistanceProvider, DistanceProvider], rows: Tensor) -> float:
    """Of points and the targets that most of their mass goes to; NaN of fewer than four points, and where all distances
    are the same. 120 points stand for more, 64 where each row of distances is a search.

    Parameters
    ----------
    plan : the coupling (N, K).
    spaces : the two providers.
    rows : (N,) masses that leave the points; those that give nothing are left out.
    """
    most = LOOKED_AT if all(space.stored for space in spaces) else SEARCHED
    index = sent(evenly_spread(len(rows), most), rows.device)
    matches = torch.cat([plan.rows(part).argmax(1) for part in parts(index, plan.shape[1])])
    *found, mass = fetched(_between(spaces[0], index), _between(spaces[1], matches), rows[index])
    gives = mass > 0
    if int(gives.sum()) < LEAST:
        return math.nan
    A, B = (_centred(D[gives][:, gives].double()) for D in found)
    scale = float(A.norm() * B.norm())
    return float((A * B).sum()) / scale if scale > 0 else math.nan


def _between(space: DistanceProvider, index: Tensor) -> Tensor:
    """Distances (m, m) between the points ``index`` (m,)."""
    space = placed(space, index.device)
    factors = space.factors() if ranks_of(space).count == 1 else None
    if factors is not None:
        F, signs = factors[0][index], factors[1]
        return (F * signs) @ F.T
    return torch.cat([space.rows(part)[:, index] for part in parts(index, space.size)])


def _centred(D: Tensor) -> Tensor:
    """U(D); see the head of this file."""
    n = len(D)
    D = D - torch.diag(D.diagonal())
    found = D - (D.sum(1)[:, None] + D.sum(0)) / (n - 2) + D.sum() / ((n - 1) * (n - 2))
    return found - torch.diag(found.diagonal())
