"""Float64 oracles of the kernel families, in NumPy and SciPy, and random problems for them."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from torchgw.kernels import LN2

SIZES = (1, 2, 63, 64, 65, 500, 1000)
RANKS = (1, 7, 16, 50, 64, 65, 130)
REACH = 200.0


def softmin_oracle(score: np.ndarray, bias: np.ndarray, axis: int) -> np.ndarray:
    """Base-2 logsumexp in float64."""
    exponent = score + (bias if axis == 1 else bias[:, None])
    with np.errstate(divide="ignore"):
        return np.asarray(logsumexp(exponent * LN2, axis=axis) / LN2)


def sweep_oracle(
    score: np.ndarray, g: np.ndarray, log_p: np.ndarray, f: np.ndarray, tau: float, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    """One Sinkhorn iteration but for the last step of g, in float64."""
    has_mass = np.isfinite(log_p)
    new = np.full_like(log_p, -np.inf)
    plain = log_p - tau * softmin_oracle(score, g, 1)
    new[has_mass] = f[has_mass] + weight * (plain[has_mass] - f[has_mass])
    return new, softmin_oracle(score, new, 0)


def transport_oracle(
    score: np.ndarray, log_p: np.ndarray, log_q: np.ndarray, f: np.ndarray, n_iter: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The plan and the potentials after Sinkhorn iterations in the log domain, in float64."""
    for _ in range(n_iter):
        g = np.where(np.isneginf(log_q), -np.inf, log_q - softmin_oracle(score, f, 0))
        f = np.where(np.isneginf(log_p), -np.inf, log_p - softmin_oracle(score, g, 1))
    return np.exp2(score + f[:, None] + g), f, g


def factors(n: int, k: int, rank: int, dtype: torch.dtype, seed: int, reach: float = REACH) -> tuple[Tensor, Tensor]:
    """A (n, rank), B (k, rank) whose product has entries between -reach and reach; the largest reaches it."""
    gen = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(size, rank, generator=gen, dtype=torch.float64) for size in (n, k))
    return (A * (reach / (A @ B.T).abs().max())).to(dtype), B.to(dtype)


def potential(n: int, dtype: torch.dtype, seed: int, spread: float = 20.0, holes: bool = False) -> Tensor:
    """A random potential (n,); with holes every third entry but the last is -inf."""
    gen = torch.Generator().manual_seed(seed)
    found = torch.randn(n, generator=gen, dtype=torch.float64) * spread
    if holes:
        found[: max(n - 1, 0) : 3] = -torch.inf
    return found.to(dtype)


def log_masses(n: int, dtype: torch.dtype, seed: int, holes: bool = False) -> Tensor:
    """Base-2 logarithms of random masses (n,) that sum to one; with holes some are zero."""
    gen = torch.Generator().manual_seed(seed)
    mass = torch.rand(n, generator=gen, dtype=torch.float64) + 0.1
    if holes:
        mass[: max(n - 1, 0) : 3] = 0.0
    return (mass / mass.sum()).log2().to(dtype)


def wide(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """The tensors in float64 NumPy."""
    return tuple(tensor.detach().cpu().double().numpy() for tensor in tensors)
