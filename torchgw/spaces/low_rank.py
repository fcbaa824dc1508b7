"""Signed factors of low rank, D ~ F diag(s) F^T, for distances that have none of their own.

*From landmarks* (Nystrom). With landmarks Z, W = D[Z, Z] = V diag(lam) V^T (indefinite),

    F = D[:, Z] V |lam|^(-1/2),    s = sign(lam),

exact at the landmarks up to the eigenvalues left out, from few rows of distances.

Derivatives. With C = D[:, Z] the distances are D = C f(W) C^T, f(lam) = 1 / lam for
eigenvalues that are kept and 0 for the others. Their differential is that of F
diag(s) F^T with

    dF = dC V_1 |lam_1|^(-1/2) + C V E |lam_1|^(1/2) diag(s),    E = P * (V^T dW V_1),

where V_1 are the kept eigenvectors and P has half the divided difference of f
between two kept eigenvalues, -1 / (2 a b), and the whole one between one left out,
j, and one kept, a: 1 / (a (a - j)). So a function of F diag(s) F^T has the right
gradient, and degenerate eigenvalues are harmless.

*From a stored matrix.* Plans see distances centred by their masses, D_c = D - u 1^T - 1 u^T with D_c m = 0.
Their leading Ritz vectors in a block Krylov space (`torchgw.linalg.lanczos`) give signed factors

    D_c ~ Q B Q^T = (Q V |lam|^1/2) diag(sign(lam)) (Q V |lam|^1/2)^T,        B = Q^T D_c Q = V diag(lam) V^T,
    D ~ F diag(s) F^T,    F = [Q V |lam|^1/2, (u + 1) / sqrt 2, (u - 1) / sqrt 2],    s = (sign(lam), 1, -1),

whose relative Frobenius error on centred distances is (1 - |B|^2 / |D_c|^2)^1/2,
because Q Q^T projects. A solve between such factors is one between factored
distances like any other, O(N K r) for each gradient.

Sources: C. Williams, M. Seeger, "Using the Nystrom method to speed up kernel machines", 2000, with the signs kept;
Y. Daleckii, S. Krein, 1965, see N. Higham, "Functions of Matrices", 2008, theorem 3.11; C. Musco, C. Musco, "Randomized
block Krylov methods for stronger and faster approximate singular value decomposition", 2015.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

from torchgw.kernels.blocks import blocks
from torchgw.linalg.centring import SMALLEST_EIGENVALUE, centred_modes
from torchgw.linalg.lanczos import lanczos
from torchgw.linalg.operators import Matrix
from torchgw.runtime.autograd import own_copies, reattach
from torchgw.runtime.transfer import to_device
from torchgw.spaces.coarsening import choose_landmarks
from torchgw.spaces.factored import FactoredDistances
from torchgw.spaces.precomputed import PrecomputedDistances
from torchgw.types import Array, DistanceProvider

logger = logging.getLogger("torchgw")

MOST_RANK, POINTS_A_RANK = 512, 8  # the most factors, and points for each of them
BLOCK, BEYOND = 16, 4  # vectors at a time, and blocks beyond the most factors, as the last ones have not converged
ONCE = "landmark distances have first derivatives only; take finite differences of gradients"
RESOLVED = 1e-12  # of the largest eigenvalue: the gap of two that are told apart


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


def centred_eigenpairs(space: DistanceProvider, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All eigenvalues (r,) of centred distances, their functions (N, r), orthonormal under the masses, and u (N,).

    Bounds need all of them, to rounding, where `approximate_distances` finds the leading ones.

    Masses (N,) are above zero and have the sum one. O(N r^2) work for a space with factors, else O(N^3).
    """
    factors = space.factors()
    if factors is None:
        D = PrecomputedDistances.of(space, mass.device).matrix
        means, (values, functions) = D @ mass, centred_modes(D, mass)
    else:
        (F, signs), root = factors, mass.sqrt()[:, None]
        mean = mass @ F
        means = (F * signs) @ mean
        basis, inner = torch.linalg.qr(root * (F - mean))
        values, turned = torch.linalg.eigh((inner * signs) @ inner.T)
        functions = basis @ turned / root
    return values, functions, means - mass @ means / 2


def nystrom_factors(
    space: DistanceProvider, mass: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """F (N, r) and signs (r,) from ``count`` farthest-point landmarks, in the dtype of the masses (N,).

    O(N count) memory, ``count`` rows. Draws from the generator.
    """
    chosen = choose_landmarks(space, mass, "farthest", count, generator)
    columns = chosen.features.T.double()
    F, signs = signed_factors(columns, columns[chosen.medoids].cpu().numpy())
    return F.to(mass), signs.to(mass)


def signed_factors(columns: Tensor, W: Array) -> tuple[Tensor, Tensor]:
    """F (N, r) and signs (r,) from the landmark columns (N, L) of a distance
    matrix, and their rows W (L, L) that belong to the landmarks themselves."""
    eigenvalues, V = np.linalg.eigh((W + W.T) / 2)
    keep = np.abs(eigenvalues) > SMALLEST_EIGENVALUE * np.abs(eigenvalues).max()
    back = V[:, keep] / np.sqrt(np.abs(eigenvalues[keep]))
    back, signs = (torch.from_numpy(part).to(columns.dtype) for part in (back, np.sign(eigenvalues[keep])))
    return columns @ to_device(back, columns.device), to_device(signs, columns.device)


def differentiable_factors(columns: Tensor, index: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`signed_factors` of tensors, with the ``rank`` eigenvalues largest in absolute value.

    The gradient in ``columns`` is right for functions of F diag(signs) F^T, the
    only ones that mean anything: each eigenvector's sign is arbitrary. First
    derivatives only.
    """
    own = own_copies([columns])
    C, W = own[0], (own[0][index] + own[0][index].T) / 2
    eigenvalues, V = torch.linalg.eigh(W.detach())
    order = eigenvalues.abs().argsort(descending=True)
    order = torch.cat((order[:rank].sort()[0], order[rank:]))
    eigenvalues, V = eigenvalues[order], V[:, order]
    signs, root = eigenvalues[:rank].sign(), eigenvalues[:rank].abs().sqrt()
    E = _divided_differences(eigenvalues, rank) * (V.T @ (W - W.detach()) @ V[:, :rank])  # zero, with its derivative
    F = C @ (V[:, :rank] / root) + C.detach() @ V @ (E * root * signs)
    return reattach([F], own, [columns], ONCE)[0], signs


def _divided_differences(eigenvalues: Tensor, rank: int) -> Tensor:
    """P (L, rank); zero where an eigenvalue left out cannot be told from one kept, since there f has no derivative."""
    kept, gap = eigenvalues[:rank], eigenvalues[:rank] - eigenvalues[rank:, None]
    resolved = gap.abs() > RESOLVED * eigenvalues.abs().max()
    left_out = torch.where(resolved, 1 / (kept * torch.where(resolved, gap, 1.0)), 0.0)
    return torch.cat((-0.5 / (kept * kept[:, None]), left_out))
