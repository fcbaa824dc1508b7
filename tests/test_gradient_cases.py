"""Gradients where it is easy to be wrong without a word: loose tolerances, partial plans, supervision, alpha = 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchgw
from tests.problems import uniform
from torchgw import (
    Balanced,
    CoarseOptions,
    Envelope,
    EuclideanDistances,
    GWOptions,
    Implicit,
    Partial,
    StoppingOptions,
    Supervision,
    Unbalanced,
)

pytestmark = pytest.mark.filterwarnings("ignore::torchgw.types.TorchGWWarning")


def align(X: Any, Y: Any, mode: Any = Implicit(tol=1e-11), **more: Any) -> Any:  # noqa: B008
    return torchgw.gw_align(X, Y, gradient_mode=mode, random_state=0, **{"epsilon": 2e-2} | more)


@pytest.mark.parametrize("mode", [Envelope(), Implicit(trusted_error=10.0)])
def test_streaming_gradients_at_the_default_tolerance_are_near_the_exact_ones(mode: Any) -> None:
    """In mixed precision, as by default."""
    found = []
    for tol in (None, 1e-9):
        X, Y = uniform(350, 3, seed=1).requires_grad_(), uniform(300, 2, seed=2)
        spaces = (EuclideanDistances(side, squared=True) for side in (X, Y))
        options = GWOptions(strategy="streaming")
        result = align(*spaces, type(mode)(tol=tol) if tol else mode, options=options)
        output = result.loss if isinstance(mode, Envelope) else result.pull(Y).square().sum()
        found += torch.autograd.grad(output, X)
    assert float((found[0] - found[1]).norm()) < 0.5 * float(found[1].norm())


def test_points_of_a_partial_plan_are_told_apart_by_their_prices() -> None:
    """A loosely solved plan has sums that are off by more than what a free point keeps."""
    found = []
    for tol in (1e-9, 1e-6):
        p = torch.full((30,), 1 / 30, dtype=torch.float64, requires_grad=True)
        spaces = (EuclideanDistances(uniform(n, d, seed=n), squared=True) for n, d in ((30, 3), (35, 2)))
        few = CoarseOptions(n_landmarks=10, n_starts=4)
        options = GWOptions(strategy="streaming", mixed_precision=False, coarse=few)
        result = align(*spaces, Implicit(tol=tol), p=p, epsilon=1e-2, marginals=Partial(0.8), options=options)
        found += torch.autograd.grad(result.pull(uniform(35, 2, seed=35)).square().sum(), p)
    assert float((found[0] - found[1]).norm()) < 1e-4 * float(found[0].norm())


@pytest.mark.parametrize("marginals", [Balanced(), pytest.param(Unbalanced(0.1, 0.1), marks=pytest.mark.slow)])
def test_soft_supervision_is_part_of_the_loss_and_of_all_gradients(marginals: Any) -> None:
    X, Y, weights = uniform(12, 3, seed=1), uniform(14, 2, seed=2), uniform(12, 14, seed=3)
    rules = Supervision(pairs=[(0, 3), (5, 9)], forbidden=[(2, 2)], strength=0.02)

    def outputs(x: Tensor, p: Tensor, init: Tensor | None = None) -> tuple[Any, Any]:
        result = align(
            x, Y, Implicit(tol=1e-12), p=p, distances="euclidean", supervision=rules, marginals=marginals, init=init
        )
        plans.append(result.plan.detach())
        return result.loss, (result.plan * weights).sum()

    plans: list[Tensor] = []
    x, p = X.clone().requires_grad_(), torch.full((12,), 1 / 12, dtype=torch.float64, requires_grad=True)
    loss, function = outputs(x, p)
    gradients = [torch.autograd.grad(output, (x, p), retain_graph=True) for output in (loss, function)]
    along = uniform(12, 3, seed=4) - 0.5, uniform(12, seed=5) - uniform(12, seed=5).mean()
    h = 1e-3  # values of functions are off by 1e-12
    for i in (0, 1):

        def at(step: float, i: int = i) -> list[float]:
            moved = [X, p.detach()]
            moved[i] = moved[i] + step * along[i]
            return [float(side.detach()) for side in outputs(moved[0], moved[1], plans[0])]

        ends = zip(at(h), at(-h), at(2 * h), at(-2 * h), gradients, strict=True)
        for a, b, c, d, gradient in ends:
            expected = (8 * (a - b) - (c - d)) / (12 * h)
            assert float((gradient[i] * along[i]).sum()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tracked", [True, False])
def test_a_second_derivative_in_what_is_carried_is_refused(tracked: bool) -> None:
    X, V = uniform(10, 2, seed=1).requires_grad_(tracked), uniform(12, 2, seed=2).requires_grad_()
    result = align(X, uniform(12, 2, seed=3), distances="euclidean")
    (gradient,) = torch.autograd.grad(result.pull(V).square().sum() + V.pow(3).sum(), V, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(gradient.sum(), V)


def test_alpha_of_zero_has_no_use_for_distances_and_says_so() -> None:
    cost = uniform(10, 12, seed=1).requires_grad_()
    result = align(None, None, cost=cost, alpha=0.0)
    assert result.converged
    assert result.n_iter <= 4
    result.plan[0, 0].backward()
    assert result.gradient_report.trusted
    alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="alpha must be > 0 to be differentiated"):
        align(uniform(10, 2, seed=2), uniform(12, 2, seed=3), cost=cost, alpha=alpha)


def test_a_solve_that_was_cut_short_is_not_trusted() -> None:
    X = uniform(20, 3, seed=1).requires_grad_()
    options = GWOptions(coarse=None, stopping=StoppingOptions(max_iter=2))
    result = align(X, uniform(24, 2, seed=2), distances="euclidean", epsilon=1e-2, options=options)
    result.plan[0, 0].backward()
    assert not result.converged
    assert not result.gradient_report.trusted


def test_the_condition_number_is_that_of_the_system() -> None:
    """Ritz values of a short run overestimate the smallest eigenvalue where small ones crowd."""
    X, Y = uniform(150, 1, seed=1).requires_grad_(), uniform(160, 1, seed=2)
    result = align(None, None, cost=(X, Y), alpha=0.0, epsilon=1e-4)
    result.plan[0, 0].backward()
    respond = result.differentiated.adjoint.response
    exact = torch.linalg.eigvalsh(respond.system)[1]  # without the constants
    assert float(exact) <= respond.smallest_eigenvalue * 1.0001 <= 1.3 * float(exact)
