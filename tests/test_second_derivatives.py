"""Second derivatives: refused wherever the plan would count as a constant, right where iterations are recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from tests.gradient_mode_cases import (
    COST,
    ENVELOPE,
    IMPLICIT,
    LEAVES,
    UNROLLED,
    X,
    align,
    cloud,
    direction,
    gradient,
    leaf,
    problem,
    slope,
)
from torchgw import GWOptions, SpaceOptions
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


REFUSED = r"second derivatives .* not available .* use gradient_mode=Unrolled\(\)"
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


def second_derivative(of: Callable[[Tensor], Tensor], at: Tensor, along: Tensor) -> Tensor:
    given = leaf(at)
    (first,) = torch.autograd.grad(of(given), given, create_graph=True)
    (second,) = torch.autograd.grad((first * along).sum(), given)
    return second


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        *((name, "loss") for name in ("squared points", "matrix", "p", "cost")),
        ("squared points", "plan"),
        ("alpha", "plan"),
    ],
)
def test_recorded_iterations_have_second_derivatives(name: str, reading: str) -> None:
    at, of, along = problem(name, reading, UNROLLED)
    once = problem(name, reading, IMPLICIT)[1]
    found = second_derivative(of, at, along)
    expected = slope(lambda given: gradient(once, given), at, along)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    assert float(expected.abs().max()) > 1e-3


def test_recorded_iterations_have_second_derivatives_in_points_at_euclidean_distances() -> None:
    at, of, along = problem("X", "loss", UNROLLED)
    expected = slope(lambda given: gradient(problem("X", "loss", ENVELOPE)[1], given), at, along)
    torch.testing.assert_close(second_derivative(of, at, along), expected, rtol=0, atol=1e-4)


def test_second_derivatives_in_points_at_landmark_distances_are_right_or_refused() -> None:
    points, along = cloud(12, 2, 20), direction(cloud(12, 2, 20))
    options = GWOptions(spaces=SpaceOptions(k=4, n_landmarks=6), coarse=None)

    def loss(x: Tensor, mode: GradientMode) -> Tensor:
        return align(x, cloud(11, 2, 21), init=None, distances="landmark", mode=mode, options=options).loss

    expected = slope(lambda x: gradient(partial(loss, mode=ENVELOPE), x), points, along)
    try:
        found = second_derivative(partial(loss, mode=UNROLLED), points, along)
    except RuntimeError:
        return
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))
