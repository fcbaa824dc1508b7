"""A linearised cost as a score of small rank: what large problems iterate on and keep.

The balanced score of C = -2 U V^T + row and column terms is A B^T = (2 log2 e / epsilon) U V^T, up to such terms.
Centred, its singular values, as an operator between the weighted spaces, fall fast: both distance matrices smooth. With
the Gram matrices G_U = L L^T and G_V = M M^T of the weighted, centred factors and L^T M = P diag(sigma) Q^T,

    A = U L^-T P diag(sigma)^1/2,     B = V M^-T Q diag(sigma)^1/2,     A B^T = U V^T,

and leading columns are kept until the largest entry of the rest, bounded by its row norms, is below a tolerance.
Every pair of points then costs that many multiplications, and |A_i - A_i'| measures how differently two points see the
other space, which is what cells and tiles should be cut by.

Source: the SVD of a product of tall factors, as in C. Eckart, G. Young, 1936, through the smaller Gram matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchgw.kernels import LOG2E
from torchgw.kernels.sums import cumulative_sum
from torchgw.persist.codec import storable
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.transfer import to_device, to_host
from torchgw.sinkhorn.costs import FactoredCost

BLOCK_POINTS = 2**16
DEPENDENT = 1e-13


@storable
@dataclass(frozen=True)
class FactoredScore:
    """A score of small rank, in bits.

    Attributes
    ----------
    A, B : (N, r), (K, r) with A B^T the centred score; the ranks' shares.
    row, column : (N,), (K,), what centring took off: the uncentred score is A B^T + row + column.
    epsilon : that the score is for, in units of the scaled cost.
    """

    A: Tensor
    B: Tensor
    row: Tensor
    column: Tensor
    epsilon: float


def factored_score(
    cost: FactoredCost, p: Tensor, q: Tensor, epsilon: float, tolerance: float, wide: bool = False, ranks: Ranks = ALONE
) -> FactoredScore:
    """The score of ``cost`` for float64 masses p (N,), q (K,), off by at most ``tolerance`` bits.

    In the dtype of the cost, whose factors are the ranks' shares, or float64 when ``wide``. O((N + K) r^2) work.
    """
    unit = 2 * LOG2E / epsilon
    (u0, v0), (row, column), grams = _moments(cost.U, cost.V, p, q, unit, ranks)
    # The few numbers of a rank come to the host: factorisations of so small matrices take a GPU longer.
    (near, far), device = to_host(*grams), u0.device
    (L, L_inverse), (M, M_inverse) = _gram_roots(near), _gram_roots(far)
    P, sigma, Q = torch.linalg.svd(unit * (L.T @ M), full_matrices=False)
    to_A, to_B = (to_device(side * sigma.sqrt(), device) for side in (L_inverse @ P, M_inverse @ Q.T))
    if len(sigma) == 0:  # all points of a space see the same distances
        to_A, to_B = torch.zeros_like(u0)[:, None], torch.zeros_like(v0)[:, None]
    ends = (cost.U, u0, to_A), (cost.V, v0, to_B)
    (rest,) = to_host(_truncation_bounds(ends, ranks))
    rank = max(int((rest > tolerance).sum()), 1)
    A, B = _leading_columns(ends, rank, torch.float64 if wide else cost.U.dtype)
    return FactoredScore(A, B, row, column, epsilon)


@as_cuda_graph()
def _moments(
    U: Tensor, V: Tensor, p: Tensor, q: Tensor, unit: float, ranks: Ranks
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Means (r,) of both factors, the terms (N,) and (K,) that taking these off takes off ``unit`` U V^T, and the Gram
    matrices (r, r) that are left."""
    # Means by mass in float64 make the rank small; `FactoredCost.centre_factors` takes plain ones, in single precision.
    p, q = p / p.sum(), q / q.sum()  # masses of a partial plan sum to much more than it does
    (n, own_p), (k, own_q) = ((len(mass), ranks.own(mass)) for mass in (p, q))
    u0, v0 = ranks.sum(_partial_mean(U, own_p)), ranks.sum(_partial_mean(V, own_q))
    row = unit * ranks.all_gather(_times(U, v0[:, None])[:, 0], n)
    column = unit * (ranks.all_gather(_times(V, u0[:, None])[:, 0], k) - u0 @ v0)
    return (
        (u0, v0),
        (row, column),
        (ranks.sum(_compute_weighted_scatter(U, u0, own_p)), ranks.sum(_compute_weighted_scatter(V, v0, own_q))),
    )


def _blocks(U: Tensor) -> list[Tensor]:
    return list(torch.split(U, BLOCK_POINTS))


def _partial_mean(U: Tensor, mass: Tensor) -> Tensor:
    return torch.stack([m @ block.double() for block, m in zip(_blocks(U), _blocks(mass), strict=True)]).sum(0)


def _times(U: Tensor, W: Tensor) -> Tensor:
    """U W in float64, a block of points at a time."""
    return torch.cat([block.double() @ W for block in _blocks(U)])


def _compute_weighted_scatter(U: Tensor, centre: Tensor, mass: Tensor) -> Tensor:
    total = centre.new_zeros(len(centre), len(centre))
    for block, weight in zip(_blocks(U), _blocks(mass), strict=True):
        centred = block.double() - centre
        total += centred.T @ (centred * weight[:, None])
    return total


def _gram_roots(gram: Tensor) -> tuple[Tensor, Tensor]:
    """L (r, s) with L L^T the Gram matrix, and its pseudo-inverse transposed; directions that vanish are left out."""
    values, vectors = torch.linalg.eigh(gram)
    keep = values > DEPENDENT * values[-1:].clamp_min(torch.finfo(values.dtype).tiny)
    root = values[keep].sqrt()
    return vectors[:, keep] * root, vectors[:, keep] / root


CentredFactors = tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@as_cuda_graph()
def _leading_columns(ends: CentredFactors, rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A (N, rank) and B (K, rank) from factors, their means, and what takes these to all columns."""
    (U, u0, to_A), (V, v0, to_B) = ends
    to_A, to_B = to_A[:, :rank], to_B[:, :rank]
    return (_times(U, to_A) - u0 @ to_A).to(dtype), (_times(V, to_B) - v0 @ to_B).to(dtype)


@as_cuda_graph()
def _truncation_bounds(ends: CentredFactors, ranks: Ranks) -> Tensor:
    """For each rank a bound on the entries of A B^T by the columns from there on, (r,)."""
    one, other = (ranks.most(_norms(*side)) for side in ends)
    return one * other


def _norms(U: Tensor, centre: Tensor, to_A: Tensor) -> Tensor:
    """For each rank the largest norm of a row's columns from there on, (r,)."""
    squares = ((block.double() @ to_A - centre @ to_A).square() for block in _blocks(U))
    norms = [cumulative_sum(each.flip(1), 1).flip(1).amax(0) for each in squares]
    return torch.stack(norms).amax(0).sqrt()
