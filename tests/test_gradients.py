"""Gradients of losses and plans against finite differences of solves: argument x marginal model x mode x strategy."""

from __future__ import annotations

import warnings
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import torchgw
from tests.problems import uniform
from torchgw import Balanced, Envelope, GWOptions, Implicit, Partial, SemiRelaxed, SpaceOptions, Unbalanced

MODELS = {
    "balanced": Balanced(),
    "semi-relaxed": SemiRelaxed(0.1, "y"),
    "free": SemiRelaxed(0.0, "x"),
    "unbalanced": Unbalanced(0.2, 0.1),
    "partial": Partial(0.7),
}
MODES = {"envelope": Envelope(tol=1e-12), "implicit": Implicit(tol=1e-12)}
ARGUMENTS = {
    "points": ("X", "Y", "FX", "FY", "p", "q", "alpha"),
    "matrices": ("DX", "DY", "M"),
    "squared": ("X",),
    "precomputed": ("X",),
    "landmark": ("X",),
    "common scale": ("X",),
    "loss kl": ("DX",),
}
N, K = 15, 20
# Kinds of distances, arguments and marginal models meet in few lines of code, so most of their pairs can wait: all
# arguments where marginals are balanced, and every other model with one or two of them.
DAILY = {(kind, "balanced"): names for kind, names in ARGUMENTS.items()} | {
    ("points", "semi-relaxed"): ("q",),
    ("points", "free"): ("p",),
    ("points", "unbalanced"): ("FX", "alpha"),
    ("points", "partial"): ("Y",),
}
CASES = [
    pytest.param(kind, model, name, marks=() if name in DAILY.get((kind, model), ()) else pytest.mark.slow)
    for kind in ARGUMENTS
    for model in MODELS
    for name in ARGUMENTS[kind]
]


WEIGHTS = uniform(N, K, seed=9) - 0.5


def arguments(kind: str, model: str) -> dict[str, Tensor]:
    """What a problem is made of; masses do not sum alike where they need not."""
    X, Y = uniform(N, 3, seed=1), uniform(K, 2, seed=2)
    found = {"p": uniform(N, seed=3) + 0.5, "q": uniform(K, seed=4) + 0.5}
    found = {name: mass / mass.sum() for name, mass in found.items()}
    if model == "unbalanced":
        found["p"] = found["p"] * 1.3
    if kind in ("matrices", "loss kl"):
        found |= {"DX": torch.cdist(X, X), "DY": torch.cdist(Y, Y)}
    else:
        found |= {"X": X, "Y": Y}
    if kind == "points":
        found |= {"FX": uniform(N, 4, seed=5), "FY": uniform(K, 4, seed=6), "alpha": torch.tensor(0.6).double()}
    if kind == "matrices":
        found |= {"M": uniform(N, K, seed=7)}
    return found


def solve(kind: str, model: str, given: dict[str, Tensor], mode: Any, init: Tensor | None = None, **more: Any) -> Any:
    """The problem of these arguments."""
    spaces = "precomputed" if "DX" in given else "euclidean"
    X, Y = (given.get("DX"), given.get("DY")) if "DX" in given else (given["X"], given["Y"])
    if kind == "squared":
        X, Y = (torchgw.EuclideanDistances(side, squared=True) for side in (X, Y))
        spaces = "auto"
    elif kind in ("precomputed", "landmark"):
        spaces = kind
    if "FX" in given:
        more["cost"] = (given["FX"], given["FY"])
    elif "M" in given:
        more["cost"] = given["M"]
    options = GWOptions(
        spaces=SpaceOptions(scale="common" if kind == "common scale" else None, n_landmarks=8, k=5),
        loss="kl" if kind == "loss kl" else "square",
        strategy=more.pop("strategy", "dense"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchgw.AmbiguityWarning)
        return torchgw.gw_align(
            X,
            Y,
            distances=spaces,
            p=given["p"],
            q=given["q"],
            alpha=given.get("alpha"),
            epsilon=5e-2,
            marginals=MODELS[model],
            options=options,
            init=init,
            gradient_mode=mode,
            random_state=0,
            **more,
        )


@cache
def solution(kind: str, model: str) -> Tensor:
    """A plan in the basin of all solves of one problem."""
    found: Tensor = solve(kind, model, arguments(kind, model), Envelope()).plan
    return found


def outputs(result: Any) -> tuple[Tensor, Tensor]:
    """The loss, and a function of the plan."""
    plan = result.plan
    return result.loss, (plan * WEIGHTS).sum() + 3 * plan[2, 3] ** 2


@cache
def gradients(kind: str, model: str, mode: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Those of both outputs, by argument."""
    given = {name: value.clone().requires_grad_() for name, value in arguments(kind, model).items()}
    result = solve(kind, model, given, MODES[mode], solution(kind, model))
    wanted = [given[name] for name in ARGUMENTS[kind]]
    loss, function = outputs(result)
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    second = torch.autograd.grad(function, wanted) if function.requires_grad else first
    return dict(zip(ARGUMENTS[kind], zip(first, second, strict=True), strict=True))


def direction(name: str, model: str, of: tuple[Tensor, Tensor]) -> Tensor:
    """Along both gradients and a random vector, within what the argument may be."""
    found = sum((side / side.norm() for side in of), (uniform(*of[0].shape, seed=11) - 0.5) / of[0].numel() ** 0.5)
    if name in ("DX", "DY"):
        found = (found + found.T).fill_diagonal_(0.0)
    if name in ("p", "q") and MODELS[model].balanced:
        found = found - found.mean()
    return found / found.norm()


def slopes(kind: str, model: str, name: str) -> tuple[Tensor, list[float]]:
    """A direction and the derivatives of both outputs along it, by central differences of the fourth order."""
    given = arguments(kind, model)
    along = direction(name, model, gradients(kind, model, "implicit")[name])
    paths = kind in ("precomputed", "landmark")  # which are other ones a little further on
    h = 1e-5 if paths else 2e-4 if name in ("p", "q") else 2e-3

    def at(step: float) -> list[float]:
        moved = given | {name: (given[name] + step * along).requires_grad_()}
        result = solve(kind, model, moved, MODES["implicit"], solution(kind, model))
        return [float(side.detach()) for side in outputs(result)]

    ends = zip(at(h), at(-h), at(2 * h), at(-2 * h), strict=True)
    return along, [(8 * (a - b) - (c - d)) / (12 * h) for a, b, c, d in ends]


@pytest.mark.parametrize(("kind", "model", "name"), CASES)
def test_gradients_are_those_of_finite_differences(kind: str, model: str, name: str) -> None:
    along, expected = slopes(kind, model, name)
    for output, mode in [(0, "envelope"), (0, "implicit"), (1, "implicit")]:
        found = float((gradients(kind, model, mode)[name][output] * along).sum())
        assert abs(found - expected[output]) <= 1e-5 * abs(expected[output]), (output, mode)


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.slow if name in ("semi-relaxed", "free") else ()) for name in MODELS]
)
def test_streaming_gradients_are_the_dense_ones(model: str) -> None:
    """Of points, features, masses and alpha, through the loss and through what the plan carries."""
    found = []
    for strategy in ("dense", "streaming"):
        given = {name: value.clone().requires_grad_() for name, value in arguments("points", model).items()}
        result = solve("squared", model, given, Implicit(tol=1e-12), strategy=strategy)
        assert result.strategy == strategy
        carried = (result.push(uniform(N, 2, seed=12)) * uniform(K, 2, seed=13)).sum()
        carried = carried + (result.pull(given["Y"]) ** 2).sum()
        leaves = list(given.values())
        parts = (torch.autograd.grad(output, leaves, retain_graph=True) for output in (result.loss, carried))
        found.append([side for part in parts for side in part])
    for dense, streamed in zip(*found, strict=True):
        assert float((dense - streamed).norm()) <= 1e-6 * float(dense.norm())


@pytest.mark.parametrize("what", ["X", "p", "alpha"])
def test_gradcheck(what: str) -> None:
    """Of all entries, by torch's own finite differences."""
    given = {"X": uniform(6, 2, seed=1), "p": torch.zeros(6).double(), "alpha": torch.tensor(0.4).double()}
    Y, F = uniform(7, 3, seed=2), (uniform(6, 2, seed=3), uniform(7, 2, seed=4))

    def outputs_of(value: Tensor) -> tuple[Tensor, Tensor]:
        X, p, alpha = (value if name == what else given[name] for name in given)
        result = torchgw.gw_align(
            X,
            Y,
            distances="euclidean",
            p=p.softmax(0),
            cost=F,
            alpha=alpha,
            epsilon=0.1,
            gradient_mode=Implicit(tol=1e-12),
            options=GWOptions(coarse=None, annealing=torchgw.AnnealingOptions(n_iter=0)),
        )
        return result.loss, result.plan

    assert torch.autograd.gradcheck(outputs_of, given[what].requires_grad_(), eps=1e-4, atol=1e-7, rtol=1e-4)


def test_a_loss_is_the_value_and_its_entropy() -> None:
    result = solve("matrices", "balanced", arguments("matrices", "balanced"), Envelope(tol=1e-12))
    plan, given = result.plan, arguments("matrices", "balanced")
    relative = float((plan * (plan / torch.outer(given["p"], given["q"])).log()).sum())
    assert float(result.loss.detach()) == pytest.approx(
        result.value + 5e-2 * (result.alpha * 2 + 1 - result.alpha) * relative
    )


def test_steps_along_the_gradient_lower_the_loss() -> None:
    X, Y = uniform(40, 2, seed=1), uniform(50, 2, seed=2)
    losses, plan = [], torch.eye(40, 50) + 0.1
    options = GWOptions(spaces=SpaceOptions(scale=2.0))
    for _ in range(10):
        X = X.detach().requires_grad_()
        found = torchgw.gw_align(
            X, Y, distances="euclidean", epsilon=1e-2, init=plan, options=options, gradient_mode=Envelope(tol=1e-6)
        )
        (grad,) = torch.autograd.grad(found.loss, X)
        losses.append(float(found.loss.detach()))
        X, plan = X.detach() - 0.5 * 40 * grad, found.plan
    assert all(after < before for before, after in pairwise(losses))


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["dense", "streaming"])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_on_a_gpu_are_those_on_the_cpu(model: str, strategy: str) -> None:
    found = []
    for device in ("cpu", "cuda"):
        given = {name: side.to(device).requires_grad_() for name, side in arguments("points", model).items()}
        result = solve("squared", model, given, Implicit(tol=1e-11), strategy=strategy, device=device)
        carried = (result.push(uniform(N, 2, seed=12).to(device)) * uniform(K, 2, seed=13).to(device)).sum()
        leaves = list(given.values())
        parts = (torch.autograd.grad(output, leaves, retain_graph=True) for output in (result.loss, carried))
        found.append([side.cpu() for part in parts for side in part])
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm()) <= 1e-6 * float(one.norm())
