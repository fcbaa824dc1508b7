"""Traces and spectral densities of self-adjoint operators, by products with random vectors.

For isotropic z, E z^T z' = 1 in the operator's inner product,

    tr f(A) = E <z, f(A) z>,    <z, f(A) z> ~ |z|^2 sum_k (e_1 . y_k)^2 f(mu_k),

with the Ritz pairs (mu_k, y_k) of m Lanczos steps from z: Gauss quadrature, exact for polynomials of degree 2 m - 1.
The mean over z of these weights at these nodes is the density of the spectrum.

Sources: G. Golub, G. Meurant, "Matrices, moments and quadrature with applications", 2010; L. Lin, Y. Saad, C. Yang,
"Approximating spectral densities of large matrices", 2016; S. Ubaru, J. Chen, Y. Saad, "Fast estimation of tr(f(A)) via
stochastic Lanczos quadrature", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.linalg.lanczos import recurrence, ritz_pairs
from torchgw.linalg.operators import Operator
from torchgw.runtime.keywords import hide_constructor
from torchgw.types import Array

Isotropic: TypeAlias = Callable[[int, torch.Generator], Tensor]
"""Draws so many vectors (n, count) whose covariance is the inverse of an operator's metric."""


@hide_constructor
@dataclass(frozen=True)
class Quadrature:
    """Gauss quadrature of a spectrum from M random vectors.

    nodes : (M, m), ascending; tensors, as the functions of a spectrum take them.
    weights : (M, m), each row's sum is the squared length of its vector: on average the dimension.
    """

    nodes: Tensor
    weights: Tensor

    def trace(self, f: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """tr f(A), and its standard error."""
        values = (self.weights * f(self.nodes)).sum(1)
        error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return float(values.mean()), error

    @property
    def dimension(self) -> float:
        """Of the space, as far as it was drawn."""
        return float(self.weights.sum(1).mean())

    def shares_below(self, x: Array | Tensor | Sequence[float]) -> tuple[Array | Tensor, Array | Tensor]:
        """Which share of the spectrum is below each of x (d,), and the standard errors; tensors where x is one."""
        given, x = x, torch.as_tensor(x).to(self.nodes)
        shares = self.weights / self.weights.sum(1, keepdim=True)
        below = (shares[:, :, None] * (self.nodes[:, :, None] < x)).sum(1)
        error = below.std(0) / math.sqrt(len(below)) if len(below) > 1 else torch.full_like(x, math.nan)
        found = below.mean(0), error
        return found if isinstance(given, Tensor) else (found[0].cpu().numpy(), found[1].cpu().numpy())


def lanczos_quadrature(
    operator: Operator, isotropic: Isotropic, n_probes: int, n_steps: int, generator: torch.Generator
) -> Quadrature:
    """That of an operator, one vector after the other; O(n n_steps) memory."""
    nodes, weights = [], []
    for _ in range(n_probes):
        z = isotropic(1, generator)
        found = recurrence(operator, z, min(n_steps, operator.size))
        values, vectors = ritz_pairs(found.alphas, found.betas)
        nodes.append(values[0])
        weights.append(found.norm[0].square() * vectors[0, 0].square())
    return Quadrature(torch.stack(nodes), torch.stack(weights))
