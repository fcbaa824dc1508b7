"""Second derivatives are refused, because the plan would count as a constant in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from tests.gradient_mode_cases import COST, ENVELOPE, IMPLICIT, LEAVES, X, align, leaf, problem
from torchgw.gradients.modes import GradientMode


def second_by_grad(of: Callable[[Tensor], Tensor], at: Tensor) -> None:
    given = leaf(at)
    (first,) = torch.autograd.grad(of(given), given, create_graph=True)
    torch.autograd.grad(first.sum(), given)


def second_by_hessian(of: Callable[[Tensor], Tensor], at: Tensor) -> None:
    hessian(of, at)


def second_by_penalty(of: Callable[[Tensor], Tensor], at: Tensor) -> None:
    given = leaf(at)
    (first,) = torch.autograd.grad(of(given), given, create_graph=True)
    first.square().sum().backward()


REFUSED = r"second derivatives .* not available .* take finite differences of gradients"
SECOND = [second_by_grad, second_by_hessian, second_by_penalty]
TWICE = [
    *((ENVELOPE, name, "loss") for name in ("X", "q", "features")),
    *((IMPLICIT, "X", reading) for reading in ("plan", "push")),
    (IMPLICIT, "p", "plan"),
]


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize(("mode", "name", "reading"), TWICE, ids=lambda given: str(given).split("(")[0])
def test_a_second_differentiation_is_refused(
    mode: GradientMode, name: str, reading: str, second: Callable[..., None]
) -> None:
    of = problem(name, reading, mode)[1]
    with pytest.raises(RuntimeError, match=REFUSED):
        second(of, LEAVES[name][0])


@pytest.mark.parametrize("second", [second_by_grad, second_by_hessian])
@pytest.mark.parametrize("name", ["cost", "alpha"])
def test_a_second_differentiation_in_a_weight_is_refused(name: str, second: Callable[..., None]) -> None:
    of = problem(name, "loss", ENVELOPE)[1]
    with pytest.raises(RuntimeError, match=REFUSED):
        second(of, LEAVES[name][0])


def test_a_mixed_second_differentiation_is_refused() -> None:
    x, cost = leaf(X), leaf(COST)
    (first,) = torch.autograd.grad(align(x, cost=cost).loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.autograd.grad(first.sum(), cost)


@pytest.mark.parametrize("mode", [ENVELOPE, IMPLICIT], ids=["envelope", "implicit"])
def test_a_second_differentiation_in_the_tensor_of_a_provider_is_refused(mode: GradientMode) -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        hessian(problem("squared points", "loss", mode)[1], X)
