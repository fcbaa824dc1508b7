"""Elementwise functions of eigenvalues, with the divided differences that derivatives of matrix functions are made of.

    f[x, y] = (f(x) - f(y)) / (x - y),    f[x, x] = f'(x)

Source: N. Higham, "Functions of Matrices", 2008, theorem 3.11 (Daleckii and Krein).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

NEAR = 1e-3
NODES = ((0.0694318442029737, 0.1739274225687269), (0.3300094782075719, 0.3260725774312731))


@runtime_checkable
class ScalarFunction(Protocol):
    """An elementwise function of eigenvalues, with tensors of coefficients that broadcast against them, (M, m)."""

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        """f(x), in differentiable torch operations as far as coefficients need derivatives."""

    def divided(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        """(f(x) - f(y)) / (x - y), and f'(x) where x = y, of x (M, m, 1) and y (M, 1, n)."""


@dataclass(frozen=True)
class Smooth:
    """Any function with a torch derivative.

    Divided differences are quotients where x and y differ by more than 1e-3 of the largest of them, and the mean of f'
    between them, by four Gauss-Legendre nodes, where they are closer.
    """

    function: Callable[..., Tensor]

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        return self.function(x, *coefficients)

    def divided(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        spread = [c if c.ndim == 0 else c[..., None] for c in coefficients]
        x, y = x.expand(-1, -1, y.shape[2]), y.expand(-1, x.shape[1], -1)
        near = (x - y).abs() <= NEAR * torch.maximum(x.abs(), y.abs()).amax((1, 2), keepdim=True)
        quotient = (self.function(x, *spread) - self.function(y, *spread)) / torch.where(near, 1.0, x - y)
        inner = torch.where(near, y, x)
        return torch.where(near, self._mean_slope(x, inner, spread), quotient)

    def _mean_slope(self, x: Tensor, y: Tensor, coefficients: Sequence[Tensor]) -> Tensor:
        total = torch.zeros_like(x)
        for node, weight in NODES:
            for place in (node, 1 - node):
                with torch.enable_grad():
                    at = (x + place * (y - x)).detach().requires_grad_()
                    (slope,) = torch.autograd.grad(self.function(at, *coefficients).sum(), at)
                total += weight * slope
        return total


class Exponential:
    """exp(-t x), the heat kernel of eigenvalues; its one coefficient is the time t, () or (M, 1)."""

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        return torch.exp(-coefficients[0] * x)

    def divided(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        t = coefficients[0] if coefficients[0].ndim == 0 else coefficients[0][..., None]
        s = t * (x - y).abs()
        mean = torch.where(s > 0, -torch.expm1(-s) / torch.where(s > 0, s, 1.0), 1.0)
        return -t * torch.exp(-t * torch.minimum(x, y)) * mean
