"""What each gradient mode promises and refuses, on problems small enough for finite differences."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.gradient_mode_cases import (
    ALPHA,
    COMMON,
    COST,
    ENVELOPE,
    IMPLICIT,
    INIT,
    LEAVES,
    MODES,
    READINGS,
    G,
    P,
    Q,
    X,
    Y,
    align,
    cloud,
    direction,
    gradient,
    leaf,
    masses,
    of_providers,
    problem,
    slope,
    squared,
)
from tests.problems import in_turn
from torchgw import (
    Balanced,
    Envelope,
    EuclideanDistances,
    GradientWarning,
    GWOptions,
    GWResult,
    Implicit,
    Partial,
    PrecomputedDistances,
    Unbalanced,
    gw_align,
    gw_loss,
)
from torchgw.align import Arguments
from torchgw.gradients.modes import GradientMode
from torchgw.marginals import Marginals
from torchgw.request.combinations import KINDS, facts_of
from torchgw.request.request import build_problem


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0}, "epsilon must be > 0 with a gradient mode, got 0"),
        ({"options": GWOptions(gradient="sampled")}, "options.gradient must be 'auto' or 'exact' .*, got 'sampled'"),
        (
            {"options": GWOptions(strategy="low-rank")},
            "options.strategy must be 'auto', 'dense' or 'streaming' .*'low-rank'",
        ),
        (
            {"options": GWOptions(strategy="streaming")},
            "X must have factored distances with the streaming strategy and a gradient mode",
        ),
        ({"mode": "unrolled"}, r"gradient_mode must be None, Envelope\(\) or Implicit\(\), got str"),
        ({"mode": Implicit}, r"gradient_mode must be None, Envelope\(\) or .*, got the class Implicit"),
        ({"mode": True}, r"gradient_mode must be .*, got bool"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_has_no_gradient_is_refused_and_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        align(leaf(X), **options)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (lambda: Envelope(tol=0), "tol must be a finite number > 0"),
        (lambda: Implicit(tol="tight"), "tol must be a number"),  # type: ignore[arg-type]
        (lambda: Implicit(max_iter=0), "max_iter must be >= 1"),
        (lambda: Implicit(max_iter=2.5), "max_iter must be an integer"),  # type: ignore[arg-type]
        (lambda: Implicit(n_lanczos=1), "n_lanczos must be >= 2"),
        (lambda: Implicit(trusted_error=0), "trusted_error must be a finite number > 0"),
    ],
)
def test_bad_options_of_a_mode_are_refused(mode: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        mode()


def test_a_loss_without_a_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"loss needs gw_align\(\.\.\., gradient_mode=Envelope\(\)\)"):
        _ = align(mode=None).loss


CASES = [
    *(("implicit", name) for name in LEAVES),
    *(("envelope", name) for name in ("X", "p", "cost", "alpha", "matrix")),
]


@pytest.mark.parametrize(("mode", "name"), CASES)
def test_gradients_are_those_of_finite_differences(mode: str, name: str) -> None:
    readings = [READINGS[reading] for reading in (("loss",) if mode == "envelope" else READINGS)]
    at, aligned = LEAVES[name]
    along = direction(at, closed=name in "pq")

    def values(given: Tensor) -> Tensor:
        result = aligned(given, mode=ENVELOPE)
        return torch.stack([of(result) for of in readings])

    given = leaf(at)
    result = aligned(given, mode=MODES[mode])
    for of, expected in zip(readings, slope(values, at, along).tolist(), strict=True):
        (found,) = torch.autograd.grad(of(result), given, retain_graph=True)
        assert float((found * along).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert abs(expected) > 1e-4


@pytest.mark.parametrize("mode", [ENVELOPE, IMPLICIT], ids=["envelope", "implicit"])
def test_gradcheck_passes_for_the_loss(mode: GradientMode) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return gw_loss(x, y, gradient_mode=mode, distances="euclidean", **COMMON)

    assert torch.autograd.gradcheck(loss, (leaf(X), leaf(Y)), eps=1e-5, atol=1e-7, rtol=1e-6, fast_mode=True)


def test_a_training_loop_that_begins_at_its_last_result_is_one_over_plans() -> None:
    common: dict[str, Any] = COMMON | {"distances": "euclidean"}
    del common["init"]

    def trained(step: Callable[[Tensor, GWResult | None], tuple[Tensor, GWResult]]) -> tuple[list[float], GWResult]:
        points, result, losses = leaf(X), None, []
        for _ in range(3):
            loss, result = step(points, result)
            (slope,) = torch.autograd.grad(loss, points)
            points = leaf(points.detach() - 0.1 * slope)
            losses.append(loss.item())
        assert result is not None
        return losses, result

    def direct(points: Tensor, last: GWResult | None) -> tuple[Tensor, GWResult]:
        init = None if last is None else last.plan
        found = gw_align(points, Y, init=init, gradient_mode=ENVELOPE, **common)
        return found.loss, found

    losses, result = trained(
        lambda points, last: gw_loss(points, Y, init=last, return_result=True, gradient_mode=ENVELOPE, **common)
    )
    assert result.basins == ()  # the last steps did not search
    assert losses == trained(direct)[0]
    assert losses[2] < losses[0]


def test_every_argument_of_an_alignment_reaches_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, built = (inspect.signature(function).parameters for function in (gw_align, build_problem))
    assert list(taken) == list(built)
    for name, each in taken.items():
        assert each.default == built[name].default
        assert each.annotation == built[name].annotation or name == "init"
    given, found = {name: object() for name in taken}, dict[str, object]()

    def build(X: object, Y: object, **others: object) -> None:
        found.update(others, X=X, Y=Y)
        raise InterruptedError

    monkeypatch.setattr("torchgw.align.build_problem", build)
    with pytest.raises(InterruptedError):
        gw_align(**given)  # type: ignore[arg-type]
    assert found == given


def test_a_checkpoint_keeps_every_argument_but_four() -> None:
    own = {"gradient_mode", "random_state", "callback", "checkpoint"}
    assert build_problem(X, Y).checkpoint_arguments().keys() == inspect.signature(gw_align).parameters.keys() - own


def test_a_loss_takes_what_an_alignment_takes() -> None:
    told = {name: each.annotation for name, each in inspect.signature(gw_align).parameters.items()}
    kinds = set(inspect.signature(facts_of).parameters) - {"options", "epsilon"}
    assert kinds < set(told)
    assert kinds | {"epsilon", "X", "Y"} == {name for name in KINDS if "." not in name}
    assert {name: each.__forward_arg__ for name, each in Arguments.__annotations__.items()} == {
        name: kind for name, kind in told.items() if name not in ("X", "Y", "gradient_mode")
    }


def test_gradcheck_passes_for_the_plan() -> None:
    def plan(x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> Tensor:
        return align(x, y, p=p / p.sum(), q=q / q.sum()).plan

    given = leaf(X), leaf(Y), leaf(P), leaf(Q)
    assert torch.autograd.gradcheck(plan, given, eps=1e-5, atol=1e-7, rtol=1e-6, fast_mode=True)


def test_the_plan_of_the_envelope_is_a_constant() -> None:
    x, p = leaf(X), leaf(P)
    result = align(x, p=p, q=Q, mode=ENVELOPE)
    assert result.loss.requires_grad
    assert not result.plan.requires_grad
    assert not result.push(X).requires_grad  # type: ignore[union-attr]
    assert not result.pull(Y).requires_grad  # type: ignore[union-attr]
    assert not result.marginal().requires_grad  # type: ignore[union-attr]
    assert not result.coupling.to_dense().requires_grad


@pytest.mark.parametrize("mode", MODES)
def test_nothing_but_what_was_asked_for_gets_a_gradient(mode: str) -> None:
    x, y = leaf(X), Y.clone()
    result = align(x, y, p=P, q=Q, mode=MODES[mode])
    (result.loss + result.plan.square().sum()).backward()
    assert x.grad is not None
    assert y.grad is None
    assert P.grad is None
    assert not result.coupling.to_dense().requires_grad


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_without_gradients_gives_the_same_numbers(mode: str) -> None:
    with torch.no_grad():
        plain = align(leaf(X), p=leaf(P), q=Q, mode=MODES[mode])
        loss, plan = plain.loss, plain.plan
    tracked = align(leaf(X), p=leaf(P), q=Q, mode=MODES[mode])
    assert not loss.requires_grad
    assert not plan.requires_grad
    assert torch.equal(loss, tracked.loss.detach())
    assert torch.equal(plan, tracked.plan.detach())


def test_a_plan_that_was_looked_at_without_gradients_still_has_them() -> None:
    result = align(leaf(X))
    with torch.no_grad():
        _ = result.plan
    assert result.plan.requires_grad


@pytest.mark.parametrize("mode", MODES)
def test_numpy_input_has_a_plain_loss(mode: str) -> None:
    result = align(X.numpy(), Y.numpy(), mode=MODES[mode])
    assert not result.loss.requires_grad
    assert result.loss.dtype == torch.float64
    assert float(result.loss) == pytest.approx(float(align(leaf(X), mode=MODES[mode]).loss.detach()), rel=1e-12)
    assert isinstance(result.push(X.numpy()), np.ndarray)


@pytest.mark.parametrize("mode", MODES)
def test_the_value_of_the_loss_is_the_objective_with_its_entropy(mode: str) -> None:
    result = align(p=P, q=Q, mode=MODES[mode])
    T = result.plan
    entropy = (T * (T / (P[:, None] * Q)).log()).sum()
    assert float(result.loss) == pytest.approx(result.value + 2 * COMMON["epsilon"] * float(entropy), rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_plan_of_a_mode_is_that_without_one(mode: str) -> None:
    plain = align(mode=None, p=P, q=Q).plan
    torch.testing.assert_close(align(mode=MODES[mode], p=P, q=Q).plan, plain, rtol=0, atol=1e-4)


@pytest.mark.parametrize("reading", ["loss", "plan", "push", "pull"])
def test_float32_leaves_get_float32_gradients(reading: str) -> None:
    x = X.float().requires_grad_()
    found = READINGS[reading](align(x, Y.float()))
    found.backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    wide = gradient(lambda given: READINGS[reading](align(given)), X)
    torch.testing.assert_close(x.grad.double(), wide, rtol=0, atol=1e-4 * float(wide.abs().max()))


def test_leaves_of_two_precisions_get_each_its_own() -> None:
    x, p = X.float().requires_grad_(), leaf(P)
    result = align(x, p=p, q=Q)
    assert result.plan.dtype == result.loss.dtype == torch.float64
    (result.loss + (G * result.plan).sum()).backward()
    assert x.grad is not None
    assert p.grad is not None
    assert (x.grad.dtype, p.grad.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize("reading", READINGS)
def test_gradients_reach_the_weights_of_an_encoder_and_add_up(reading: str) -> None:
    raw, encoder = cloud(6, 4, 40), torch.nn.Linear(4, 3).double()
    with torch.no_grad():
        encoder.weight.copy_(cloud(3, 4, 41))
        encoder.bias.zero_()
    of = READINGS[reading]
    of(align(encoder(raw))).backward()
    expected = gradient(lambda z: of(align(z)), encoder(raw)).T @ raw
    assert encoder.weight.grad is not None
    torch.testing.assert_close(encoder.weight.grad, expected, rtol=1e-8, atol=1e-12)
    of(align(encoder(raw))).backward()
    torch.testing.assert_close(encoder.weight.grad, 2 * expected, rtol=1e-8, atol=1e-12)


def test_one_tensor_given_twice_gets_both_gradients() -> None:
    both = gradient(lambda x: (G[:, :6] * align(x, x, cost=COST[:, :6], init=INIT[:, :6]).plan).sum(), X)
    one, other = leaf(X), leaf(X)
    (G[:, :6] * align(one, other, cost=COST[:, :6], init=INIT[:, :6]).plan).sum().backward()
    assert one.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(both, one.grad + other.grad, rtol=0, atol=1e-8 * float(both.abs().max()))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("carried", ["push", "pull"])
def test_what_is_carried_gets_a_gradient(mode: str, carried: str) -> None:
    result = align(leaf(X), mode=MODES[mode])
    V = leaf(cloud(6 if carried == "push" else 7, 2, 50))
    moved = getattr(result, carried)(V)
    weights = cloud(len(moved), 2, 51)
    (weights * moved).sum().backward()
    T = result.plan.detach().T if carried == "push" else result.plan.detach()
    torch.testing.assert_close(moved.detach(), (T @ V.detach()) / T.sum(1)[:, None])
    torch.testing.assert_close(V.grad, (T / T.sum(1)[:, None]).T @ weights)


def test_a_gradient_through_a_carried_value_is_that_through_the_plan() -> None:
    def through_plan(x: Tensor) -> Tensor:
        T = align(x).plan
        return ((T.T @ X / T.sum(0)[:, None]) ** 3).sum()

    one, other = gradient(through_plan, X), gradient(problem("X", "push", IMPLICIT)[1], X)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("reading", ["loss", "plan", "push", "pull"])
def test_points_without_mass_do_not_count(reading: str) -> None:
    p, q = P.clone(), Q.clone()
    p[2], q[5] = 0.0, 0.0
    p, q = p / p.sum(), q / q.sum()
    weights = {"push": X, "pull": Y}

    def of(x: Tensor) -> Tensor:
        result = align(x, p=p, q=q)
        if reading in weights:
            moved = getattr(result, reading)(weights[reading])
            return (moved[(q if reading == "push" else p) > 0] ** 3).sum()
        return READINGS[reading](result)

    found, along = gradient(of, X), direction(X)
    assert not bool(found[2].any())
    assert float((found * along).sum()) == pytest.approx(float(slope(of, X, along)), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("mode", ["envelope", "implicit"])
def test_masses_have_gradients_where_others_are_zero(mode: str) -> None:
    p, along = P.clone(), direction(P)
    p[2], along[2] = 0.0, 0.0
    p, along = p / p.sum(), along - along.sum() * p / p.sum()
    found = gradient(lambda given: align(p=given, q=Q, mode=MODES[mode]).loss, p)
    assert bool(torch.isfinite(found).all())
    expected = slope(lambda given: align(p=given, q=Q).loss, p, along)
    assert float((found * along).sum()) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("mode", "least", "marginals"), in_turn(list(MODES), [0.0, 1e-320], [Balanced(), Unbalanced(0.1, 0.1)])
)
def test_points_that_count_for_nothing_spoil_no_gradient(mode: str, least: float, marginals: Marginals) -> None:
    p = P.clone()
    p[2] = least
    x, p = leaf(X), leaf(p / p.sum())
    result = align(x, p=p, q=Q, mode=MODES[mode], marginals=marginals)
    moved = torch.nan_to_num(torch.as_tensor(result.pull(Y)))
    for found in torch.autograd.grad(result.loss + moved.sum(), (x, p)):
        assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_come_out_as_such(bad: float) -> None:
    x = leaf(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradientWarning)
        (bad * align(x).plan).sum().backward()
    assert x.grad is not None
    assert not bool(torch.isfinite(x.grad).all())


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12])
def test_gradients_scale_with_what_is_asked_of_the_plan(size: float) -> None:
    one, scaled = (gradient(lambda x, s=s: s * (G * align(x).plan).sum(), X) for s in (1.0, size))
    torch.testing.assert_close(scaled / size, one, rtol=0, atol=1e-9)


def test_a_constant_of_the_plan_has_no_gradient() -> None:
    x = leaf(X)
    result = align(x)
    (0 * result.plan).sum().backward(retain_graph=True)
    assert x.grad is not None
    assert not bool(x.grad.any())
    result.plan.sum().backward()
    assert float(x.grad.abs().max()) < 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_a_result_with_a_mode_is_saved_without_it(mode: str, tmp_path: Path) -> None:
    result = align(leaf(X), p=leaf(P), q=Q, cost=leaf(COST), alpha=leaf(ALPHA), mode=MODES[mode])
    result.save(tmp_path / "result.npz")
    loaded = GWResult.load(tmp_path / "result.npz")
    torch.testing.assert_close(loaded.plan, result.coupling.to_dense(), rtol=0, atol=1e-15)
    assert loaded.value == result.value
    assert loaded.alpha == float(ALPHA)
    assert loaded.options == result.options
    assert loaded.gradient_report is None
    with pytest.raises(ValueError, match="loss needs"):
        _ = loaded.loss


@pytest.mark.parametrize("reading", READINGS)
def test_providers_know_the_tensors_that_they_were_made_from(reading: str) -> None:
    of = READINGS[reading]
    by_provider = gradient(lambda x: of(of_providers(EuclideanDistances(x), EuclideanDistances(Y))), X)
    torch.testing.assert_close(by_provider, gradient(lambda x: of(align(x)), X), rtol=0, atol=1e-10)
    D = squared(X)
    by_matrix = gradient(lambda D: of(of_providers(PrecomputedDistances(D), Y)), D)
    torch.testing.assert_close(by_matrix, gradient(lambda D: of(of_providers(D, Y)), D), rtol=0, atol=1e-10)
    points = leaf(X)
    squared(points).backward(by_matrix)
    by_squares = gradient(lambda x: of(of_providers(EuclideanDistances(x, squared=True), Y)), X)
    torch.testing.assert_close(points.grad, by_squares, rtol=0, atol=1e-9)


def test_streamed_gradients_are_those_of_the_stored_plan() -> None:
    x, y, weights = cloud(40, 2, 70), cloud(50, 3, 71), cloud(40, 50, 72)

    def gradients(strategy: str) -> list[Tensor]:
        points = leaf(x), leaf(y)
        spaces = [EuclideanDistances(side, squared=True) for side in points]
        result = of_providers(*spaces, epsilon=0.05, init=None, options=GWOptions(strategy=strategy))
        assert result.strategy == strategy
        moved = result.push(x), result.pull(y)
        numbers = result.loss, (weights * result.plan).sum(), *((found**3).sum() for found in moved)
        return [found for number in numbers for found in torch.autograd.grad(number, points, retain_graph=True)]

    for streamed, stored in zip(gradients("streaming"), gradients("dense"), strict=True):
        torch.testing.assert_close(streamed, stored, rtol=0, atol=1e-6 * float(stored.abs().max()))


@pytest.mark.parametrize("mode", MODES)
def test_two_runs_have_the_same_bits(mode: str) -> None:
    def run() -> list[Tensor]:
        x, p = leaf(cloud(12, 2, 80)), leaf(masses(12, 81))
        result = align(x, cloud(10, 3, 82), p=p, q=masses(10, 83), init=None, mode=MODES[mode])
        (result.loss + result.plan.square().sum()).backward()
        assert x.grad is not None
        assert p.grad is not None
        return [result.loss.detach(), result.plan.detach(), x.grad, p.grad]

    assert all(torch.equal(one, other) for one, other in zip(run(), run(), strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side", ["p", "q"])
def test_a_mass_on_one_point_has_gradients(mode: str, side: str) -> None:
    single = torch.zeros(6 if side == "p" else 7, dtype=torch.float64)
    single[1] = 1.0

    def value(y: Tensor) -> Tensor:
        return of_providers(EuclideanDistances(X), EuclideanDistances(y), mode=MODES[mode], **{side: single}).loss

    found, along = gradient(value, Y), direction(Y)
    assert float((found * along).sum()) == pytest.approx(float(slope(value, Y, along)), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_a_partial_plan_of_little_mass_has_gradients(mode: str) -> None:
    def value(x: Tensor) -> Tensor:
        return of_providers(EuclideanDistances(x), Y, mode=MODES[mode], marginals=Partial(1e-3)).loss

    found = gradient(value, X)
    assert bool(torch.isfinite(found).all())
    assert bool(found.any())


def test_gradients_of_a_streaming_solve_whose_points_coincide_are_numbers() -> None:
    """Its factors have no columns."""
    points = torch.full((4, 2), 3.0, dtype=torch.float64)
    leaves = [side.requires_grad_() for side in (points, torch.randn(6, 3, dtype=torch.float64))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = gw_align(
            *leaves,
            distances="landmark",
            marginals=Unbalanced(0.5, 1.0),
            epsilon=1.0,
            gradient_mode=Implicit(),
            options=GWOptions(strategy="streaming"),
            random_state=0,
        )
        found = torch.autograd.grad(result.plan.square().sum() + result.loss, leaves)
    assert all(bool(side.isfinite().all()) for side in found)
