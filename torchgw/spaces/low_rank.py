"""Signed factors of low rank for stored distances, which have none of their own.

Plans see distances centred by their masses, D_c = D - u 1^T - 1 u^T with D_c m = 0.
Their leading eigenvectors, by randomised subspace iteration, give signed factors

    D_c ~ Q B Q^T = (Q V |lam|^1/2) diag(sign(lam)) (Q V |lam|^1/2)^T,        B = Q^T D_c Q = V diag(lam) V^T,
    D ~ F diag(s) F^T,    F = [Q V |lam|^1/2, (u + 1) / sqrt 2, (u - 1) / sqrt 2],    s = (sign(lam), 1, -1),

whose relative Frobenius error on centred distances is (1 - |B|^2 / |D_c|^2)^1/2,
because Q Q^T projects. A solve between such factors is one between factored
distances like any other, O(N K r) for each gradient.

Source: N. Halko, P.-G. Martinsson, J. Tropp, "Finding structure with randomness",
2011, algorithms 4.4 and 5.3, with the signs kept.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.kernels.sums import cumulative_sum
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.precomputed import PrecomputedDistances

logger = logging.getLogger("torchgw")

BLOCK, MOST_RANK, POINTS_A_RANK = 64, 512, 8  # vectors at a time; the most in all, and points for each of them
OVERSAMPLED = 8


def approximate_distances(
    space: PrecomputedDistances, mass: Tensor, generator: torch.Generator, residual: float, most: int | None = None
) -> tuple[FactoredDistances, float]:
    """Factored distances near those of a space, and their relative Frobenius error on centred distances.

    They have the least rank found that leaves at most this ``residual``, or the
    ``most``; masses (N,) have any sum. O(N^2 r) work and the memory of another
    matrix (N, N); in the dtype of the space. Draws from the generator.
    """
    D, n = space.matrix, space.size
    most = min(max(n // POINTS_A_RANK, 1), MOST_RANK) if most is None else most
    m = mass.to(D.dtype) / mass.sum().to(D.dtype)
    means = D @ m
    u = means - (m @ means) / 2
    centred = D - u
    centred -= u[:, None]
    whole = sum(float(centred[where].square().sum(dtype=torch.float64)) for where in blocks(n, 256))
    basis, image, kept = D.new_zeros(n, 0), D.new_zeros(n, 0), 0.0
    B, widest = D.new_zeros(0, 0, dtype=torch.float64), min(most + OVERSAMPLED, n)
    while basis.shape[1] < widest and whole - kept > residual**2 * whole:
        count = min(max(BLOCK, basis.shape[1]), widest - basis.shape[1])
        draws = torch.randn(n, count, generator=generator, device=D.device, dtype=D.dtype)
        for _ in range(2):  # a power of D_c
            draws = centred @ draws
            for _ in range(2):  # orthogonalised twice against the basis
                draws = torch.linalg.qr(draws - basis @ (basis.T @ draws))[0]
        basis, image = torch.cat((basis, draws), 1), torch.cat((image, centred @ draws), 1)
        B = (basis.T @ image).to(torch.float64)
        kept = float(B.square().sum())
    values, vectors = torch.linalg.eigh((B + B.T) / 2)
    order = values.abs().argsort(descending=True)
    left = (whole - cumulative_sum(values[order].square(), 0)).clamp_min(0.0)
    rank = min(int((left > residual**2 * whole).sum()) + 1, most, len(order))
    order = order[:rank]
    root, half = values[order].abs().sqrt().to(D.dtype), 0.5**0.5
    leading = basis @ vectors[:, order].to(D.dtype) * root
    F = torch.cat((leading, half * (u + 1)[:, None], half * (u - 1)[:, None]), 1)
    signs = torch.cat((values[order].sign().to(D.dtype), D.new_tensor([1.0, -1.0])))
    error = float(left[rank - 1] / whole) ** 0.5 if rank else 0.0
    logger.info("factors of %d points: rank %d, residual %.3g", n, rank, error)
    return FactoredDistances.of(F, signs, space.scale), error
