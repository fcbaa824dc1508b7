"""Small problems with every kind of argument, each gradient mode, and finite differences to hold them against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.problems import generator, uniform
from torchgw import Envelope, EuclideanDistances, FeatureCost, GWResult, Implicit, Partial, Unbalanced, gw_align
from torchgw.gradients.modes import GradientMode


def cloud(n: int, d: int, seed: int) -> Tensor:
    return uniform(n, d, seed=seed)


def masses(n: int, seed: int) -> Tensor:
    found = cloud(n, 1, seed)[:, 0] + 0.5
    return found / found.sum()


X, Y, P, Q = cloud(6, 3, 0), cloud(7, 2, 1), masses(6, 3), masses(7, 4)
INIT, COST, G = cloud(6, 7, 2), cloud(6, 7, 8), cloud(6, 7, 5) - 0.5
ALPHA = torch.tensor(0.6, dtype=torch.float64)
FEATURES = cloud(7, 2, 31)
COMMON: dict[str, Any] = {"epsilon": 0.1, "init": INIT, "random_state": 0, "device": "cpu"}
ENVELOPE, IMPLICIT = Envelope(tol=1e-12), Implicit(tol=1e-12)
MODES = {"envelope": ENVELOPE, "implicit": IMPLICIT}


def align(x: Any = X, y: Any = Y, *, mode: GradientMode | None = IMPLICIT, **arguments: Any) -> GWResult:
    return gw_align(x, y, gradient_mode=mode, **(COMMON | {"distances": "euclidean"} | arguments))


def of_providers(x: Any, y: Any, **arguments: Any) -> GWResult:
    return align(x, y, **({"distances": "auto"} | arguments))


def leaf(given: Tensor) -> Tensor:
    return given.detach().clone().requires_grad_()


def squared(points: Tensor) -> Tensor:
    """Squared distances as a matrix, whose derivatives are all autograd's."""
    return (points[:, None] - points).square().sum(-1)


# What can be differentiated: its value, and the problem as a function of it.
LEAVES: dict[str, tuple[Tensor, Callable[..., GWResult]]] = {
    "X": (X, align),
    "Y": (Y, lambda y, **arguments: align(X, y, **arguments)),
    "p": (P, lambda p, **arguments: align(p=p, q=Q, **arguments)),
    "q": (Q, lambda q, **arguments: align(p=P, q=q, **arguments)),
    "features": (cloud(6, 2, 30), lambda a, **arguments: align(cost=FeatureCost(a, FEATURES), **arguments)),
    "cost": (COST, lambda cost, **arguments: align(cost=cost, **arguments)),
    "alpha": (ALPHA, lambda alpha, **arguments: align(cost=COST, alpha=alpha, **arguments)),
    "alpha, unbalanced": (
        ALPHA,
        lambda alpha, **arguments: align(cost=COST, alpha=alpha, marginals=Unbalanced(0.5, 0.3), **arguments),
    ),
    "partial": (X, lambda x, **arguments: align(x, marginals=Partial(0.7), **arguments)),
    "squared points": (X, lambda x, **arguments: of_providers(EuclideanDistances(x, squared=True), Y, **arguments)),
    "matrix": (squared(X), lambda D, **arguments: of_providers((D + D.T) / 2, Y, **arguments)),
}
READINGS: dict[str, Callable[[GWResult], Tensor]] = {
    "loss": lambda result: result.loss,
    "plan": lambda result: (G * result.plan).sum(),
    "push": lambda result: (result.push(X) ** 3).sum(),  # type: ignore[union-attr]
    "pull": lambda result: (result.pull(Y) ** 3).sum(),  # type: ignore[union-attr]
}


def gradient(of: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    given = leaf(at)
    (found,) = torch.autograd.grad(of(given), given)
    return found


def slope(of: Callable[[Tensor], Tensor], at: Tensor, along: Tensor, step: float = 1e-5) -> Tensor:
    """The derivative of a function along a direction, by central differences."""
    return (of(at + step * along).detach() - of(at - step * along).detach()) / (2 * step)


def direction(like: Tensor, seed: int = 9, closed: bool = False) -> Tensor:
    """A random direction, which keeps the sum where it is ``closed``; symmetric ones without a diagonal for matrices
    of distances."""
    found = torch.randn(like.shape, generator=generator(seed), dtype=torch.float64)
    if like.ndim == 2 and len(like) == like.shape[1]:
        found = (found + found.T).fill_diagonal_(0.0)
    return found - found.mean() if closed else found


def problem(name: str, reading: str, mode: GradientMode) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor]:
    """A leaf, a number as a function of it, and a direction in which it may move."""
    at, aligned = LEAVES[name]
    return at, lambda given: READINGS[reading](aligned(given, mode=mode)), direction(at, closed=name in "pq")
