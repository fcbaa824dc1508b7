"""Elementwise functions of eigenvalues, with the divided differences that derivatives of matrix functions are made of.

    f[x, y] = (f(x) - f(y)) / (x - y),    f[x, x] = f'(x)

Source: N. Higham, "Functions of Matrices", 2008, theorem 3.11 (Daleckii and Krein).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class ScalarFunction(Protocol):
    """An elementwise function of eigenvalues, with tensors of coefficients that broadcast against them, (M, m)."""

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        """f(x), in differentiable torch operations as far as coefficients need derivatives."""

    def divided(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        """(f(x) - f(y)) / (x - y), and f'(x) where x = y, of x (M, m, 1) and y (M, 1, n)."""


class Exponential:
    """exp(-t x), the heat kernel of eigenvalues; its one coefficient is the time t, () or (M, 1)."""

    def value(self, x: Tensor, *coefficients: Tensor) -> Tensor:
        return torch.exp(-coefficients[0] * x)

    def divided(self, x: Tensor, y: Tensor, *coefficients: Tensor) -> Tensor:
        t = coefficients[0] if coefficients[0].ndim == 0 else coefficients[0][..., None]
        s = t * (x - y).abs()
        mean = torch.where(s > 0, -torch.expm1(-s) / torch.where(s > 0, s, 1.0), 1.0)
        return -t * torch.exp(-t * torch.minimum(x, y)) * mean
