"""Signed factors of low rank for stored distances, which have none of their own.

Plans see distances centred by their masses, D_c = D - u 1^T - 1 u^T with D_c m = 0.
Their leading Ritz vectors in a block Krylov space (`torchgw.linalg.lanczos`) give signed factors

    D_c ~ Q B Q^T = (Q V |lam|^1/2) diag(sign(lam)) (Q V |lam|^1/2)^T,        B = Q^T D_c Q = V diag(lam) V^T,
    D ~ F diag(s) F^T,    F = [Q V |lam|^1/2, (u + 1) / sqrt 2, (u - 1) / sqrt 2],    s = (sign(lam), 1, -1),

whose relative Frobenius error on centred distances is (1 - |B|^2 / |D_c|^2)^1/2,
because Q Q^T projects. A solve between such factors is one between factored
distances like any other, O(N K r) for each gradient.

Source: C. Musco, C. Musco, "Randomized block Krylov methods for stronger and faster
approximate singular value decomposition", 2015, with the signs kept.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.linalg.lanczos import lanczos
from torchgw.linalg.operators import Matrix
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.precomputed import PrecomputedDistances

logger = logging.getLogger("torchgw")

MOST_RANK, POINTS_A_RANK = 512, 8  # the most factors, and points for each of them
BLOCK, BEYOND = 16, 4  # vectors at a time, and blocks beyond the most factors, as the last ones have not converged


def approximate_distances(
    space: PrecomputedDistances, mass: Tensor, residual: float, most: int | None = None
) -> tuple[FactoredDistances, float]:
    """Factored distances near those of a space, and their relative Frobenius error on centred distances.

    They have the least rank found that leaves at most this ``residual``, or the
    ``most``; masses (N,) have any sum. O(N^2 r) work and the memory of another
    matrix (N, N); in the dtype of the space.
    """
    D, n = space.matrix, space.size
    most = min(max(n // POINTS_A_RANK, 1), MOST_RANK) if most is None else most
    m = mass.to(D.dtype) / mass.sum().to(D.dtype)
    means = D @ m
    u = means - (m @ means) / 2
    centred = D - u
    centred -= u[:, None]
    whole = sum(float(centred[where].square().sum(dtype=torch.float64)) for where in blocks(n, 256))
    allowed = residual**2 * whole
    unit = m / torch.linalg.vector_norm(m)  # without which the Krylov space is centred, as the range of D_c is
    operator = Matrix(centred.matmul, n, D.device, D.dtype, lambda V: V - unit[:, None] * (unit @ V))
    n_steps = -(-most // BLOCK) + BEYOND
    found = lanczos(
        operator,
        n_steps * BLOCK,
        block=min(BLOCK, n),
        max_steps=n_steps,
        enough=lambda values, _: whole - float(values.double().square().sum()) <= allowed,
    )
    order = found.values.abs().argsort(descending=True)
    left = whole - torch.nn.functional.pad(found.values[order].double().square().cumsum(0), (1, 0))
    rank = min(int((left[:-1] > allowed).sum()), most)
    error = max(float(left[rank]) / (whole or 1.0), 0.0) ** 0.5
    values, half = found.values[order[:rank]].to(D), 0.5**0.5
    leading = found.vectors[:, order[:rank]] * values.abs().sqrt()
    F = torch.cat((leading, half * (u + 1)[:, None], half * (u - 1)[:, None]), 1)
    logger.info("factors of %d points: rank %d, residual %.3g", n, rank, error)
    return FactoredDistances.of(F, torch.cat((values.sign(), D.new_tensor([1.0, -1.0]))), space.scale), error
