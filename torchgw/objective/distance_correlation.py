"""How far distances of points agree with those of their matches: the
bias-corrected distance correlation

    r = sum_ij A_ij B_ij / sqrt(sum_ij A_ij^2 sum_ij B_ij^2),        A = U(R_X), B = U(R_Y at the matches),

of Szekely and Rizzo (2013, "The distance correlation t-test of independence in
high dimension"), with entries

    U(R)_ij = R_ij - (sum_k R_ik + sum_k R_kj) / (n - 2) + sum_kl R_kl / ((n - 1) (n - 2)),    0 on the diagonal,

of the ranks R of distances, as in Spearman's correlation. It is 1 for copies,
and 0 on average for matchings that know nothing. A point far away from all
others can be nearly all of the product plan's value; here it counts no more
than another one, since its ranks are constant and U takes means of rows and
columns away.

r has n (n - 3) / 2 degrees of freedom, so a few points agree by luck. Two
standard errors are taken off, by Fisher's transform: tanh(artanh r - 2 / sqrt(n
(n - 3) / 2 - 1)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchgw.kernels.blocks import parts
from torchgw.kernels.sampling import sample_evenly
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.spaces.landmark import move_to_storage
from torchgw.spaces.scale import without_scale
from torchgw.types import Coupling, DistanceProvider

LOOKED_AT, SEARCHED = 120, 64  # points that stand for all; fewer where each row of distances is a search
LEAST = 8  # points, below which distances of unrelated ones agree too often
RESOLVED = 1e-6  # of the largest distance: distances that differ by less have one rank
GIVES = 0.1  # of the largest share of its mass that a point gives: points that give less are left out


def sample_matched_distances(
    plan: Coupling, spaces: tuple[DistanceProvider, DistanceProvider], rows: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `distance_correlation` is told of a plan. 120 points, drawn evenly
    by mass, stand for more; 64 where each row of distances is a search.

    Parameters
    ----------
    plan : the coupling (N, K).
    spaces : the two providers.
    rows : (N,) masses that leave the points.
    p : (N,) masses of the points.
    """
    most = LOOKED_AT if all(space.stored for space in spaces) else SEARCHED
    return _sample_distance_submatrices(plan, without_scale(spaces[0]), without_scale(spaces[1]), rows, p, most)


def distance_correlation(D: Tensor, E: Tensor, share: Tensor, index: Tensor) -> float:
    """The distance correlation of points and the targets that get most of their
    mass, less two standard errors.

    NaN of fewer than eight points, and where all distances are the same. Points
    that give next to nothing are left out.

    Parameters
    ----------
    D, E : distances (m, m) between the points, and between their matches, on
        the host as the others.
    share : (m,) what they give of their masses.
    index : (m,) which points they are, those that were drawn several times one
        after another.
    """
    some = share > GIVES * share.max()
    some[1:] &= index.diff() > 0  # a point of much mass is drawn several times
    n = int(some.sum())
    if n < LEAST:
        return math.nan
    A, B = (_centre_ranks(side[some][:, some]) for side in (D, E))
    scale = float(A.norm() * B.norm())
    if scale == 0:
        return math.nan
    r = min(max(float((A * B).sum()) / scale, -1.0), 1.0)
    return r if abs(r) == 1 else math.tanh(math.atanh(r) - 2 / math.sqrt(max(n * (n - 3) / 2 - 1, 1)))


@as_cuda_graph()
def _sample_distance_submatrices(
    plan: Coupling, source: DistanceProvider, target: DistanceProvider, rows: Tensor, p: Tensor, most: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Distances (m, m) between at most so many points, drawn evenly by mass,
    and between their matches; which shares of their masses they give (m,), and
    which points they are (m,)."""
    every = torch.arange(len(rows), device=rows.device)
    index = every if len(rows) <= most else sample_evenly(rows, most)[0]
    matches = torch.cat([plan.rows(part).argmax(1) for part in parts(index, plan.shape[1])])
    return _submatrix(source, index), _submatrix(target, matches), rows[index] / p[index], index


def _submatrix(space: DistanceProvider, index: Tensor) -> Tensor:
    """Distances (m, m) between the points ``index`` (m,)."""
    space = move_to_storage(space, index.device)
    return torch.cat([space.rows(part)[:, index] for part in parts(index, space.size)])


def _centre_ranks(D: Tensor) -> Tensor:
    """U(R) (n, n) of the ranks of the entries off the diagonal, see the head of
    this file: zeros where all are equal. Entries that are equal up to rounding
    have the mean of their ranks."""
    n, off = len(D), ~torch.eye(len(D), dtype=torch.bool)
    D = D.double()
    steps = (D[off] / (RESOLVED * D.abs().max()).clamp_min(torch.finfo(D.dtype).tiny)).round()
    _, place, count = torch.unique(steps, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    R = torch.zeros(D.shape, dtype=torch.float64)
    R[off] = (last - (count.double() - 1) / 2)[place] - (len(steps) + 1) / 2  # less their mean, which U takes away
    found = R - (R.sum(1)[:, None] + R.sum(0)) / (n - 2) + R.sum() / ((n - 1) * (n - 2))
    return found - torch.diag(found.diagonal())
