"""What a pair of distances costs: the square of their difference, or any loss that separates.

A loss L(a, b) = f1(a) + f2(b) - h1(a) h2(b) turns the four-index sum of the objective into products of matrices.

Source: G. Peyre, M. Cuturi, J. Solomon, "Gromov-Wasserstein averaging of kernel and distance matrices", 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 1e-16

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SeparableLoss:
    """L(a, b) = f1(a) + f2(b) - h1(a) h2(b), from functions that act on every entry of a tensor of scaled distances.

    It must not be negative: the certificate of a result takes zero for the lowest value that any plan can have.

    Parameters
    ----------
    f1, f2, h1, h2 : functions of a tensor of scaled distances (...), entry by entry, with results (...).
    name : what logs and files call it.
    """

    f1: Function
    f2: Function
    h1: Function
    h2: Function
    name: str = "separable"

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """L(a, b) of distances whose shapes broadcast."""
        return self.f1(a) + self.f2(b) - self.h1(a) * self.h2(b)


def _square(a: Tensor) -> Tensor:
    return a.square()


def _double(b: Tensor) -> Tensor:
    return 2 * b


def _same(a: Tensor) -> Tensor:
    return a


def _entropy(a: Tensor) -> Tensor:
    found: Tensor = torch.special.xlogy(a, a.clamp_min(SMALLEST)) - a
    return found


def _log(b: Tensor) -> Tensor:
    return b.clamp_min(SMALLEST).log()


SQUARE = SeparableLoss(_square, _square, _same, _double, "square")
KULLBACK_LEIBLER = SeparableLoss(_entropy, _same, _same, _log, "kl")
LOSSES = {"square": SQUARE, "kl": KULLBACK_LEIBLER}


def loss_factors(loss: SeparableLoss, D: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """u, v of distances, of any shapes, with L(a, b) = f1(a) + f2(b) - 2 u(a) v(b)."""
    return (D, E) if loss is SQUARE else (loss.h1(D) / 2, loss.h2(E))
