"""Warnings point at the line of whoever called the library, and name a remedy that fits."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import torchgw
from torchgw import AmbiguityWarning, ConvergenceWarning, GraphWarning, GWOptions, SpaceOptions, StoppingOptions

PARTS = np.concatenate((np.random.default_rng(0).normal(size=(30, 2)), np.random.default_rng(1).normal(9, 1, (30, 2))))
RING = np.roll(np.eye(12), 1, 0) + np.roll(np.eye(12), -1, 0)
CUT = np.kron(np.where(np.eye(2), 1.0, np.inf), np.ones((4, 4)))  # two parts, no path between them
np.fill_diagonal(CUT, 0.0)
EVEN = np.linspace(0, 1, 20)[:, None]
LINE = EVEN**2
DOUBLED = np.repeat(np.arange(6.0), 2)[:, None]
ONCE = GWOptions(stopping=StoppingOptions(max_iter=1, min_iter=1), gradient="sampled", coarse=None)


def straight(X: Any, Y: Any = LINE, **more: Any) -> Callable[[], object]:
    return lambda: torchgw.gw_align(X, Y, random_state=0, **({"distances": "euclidean"} | more))


def fitted() -> object:
    return torchgw.GromovWasserstein(random_state=0).fit(PARTS, LINE)


CASES = {
    "stitched": (GraphWarning, "distances='euclidean' measures them", straight(PARTS, distances="auto")),
    "stitched, in the estimator": (GraphWarning, "distances='euclidean'", fitted),
    "stitched, in a provider": (GraphWarning, "distances='euclidean'", lambda: torchgw.HeatDistances(PARTS)),
    "infinite": (GraphWarning, "distances='euclidean'", lambda: torchgw.PrecomputedDistances(CUT)),
    "a bridge": (
        GraphWarning,
        "use k=None",
        straight(
            *(torchgw.datasets.make_swiss_roll(300, random_state=1)[0], LINE),
            distances=("auto", "euclidean"),
            options=GWOptions(spaces=SpaceOptions(k=40)),
        ),
    ),
    "a symmetry": (AmbiguityWarning, "supervision=", straight(EVEN, EVEN)),
    "a symmetry, without entropy": (AmbiguityWarning, "supervision=", straight(EVEN, EVEN, epsilon=0)),
    "too short": (ConvergenceWarning, "max_iter", straight(LINE, options=ONCE)),
    "zeros and ones": (GraphWarning, r"csr_matrix\(X\)", straight(RING, distances=("auto", "euclidean"))),
    "weights": (GraphWarning, r"csr_matrix\(X\)", straight(0.7 * RING, distances=("auto", "euclidean"))),
    "two of them": (GraphWarning, "X and Y taken", straight(RING, RING, distances="auto")),
    "a sparse matrix of similarities": (
        GraphWarning,
        r"distances='adjacency' compares similarities",
        straight(csr_matrix(np.exp(-np.abs(LINE - LINE.T))), distances=("auto", "euclidean")),
    ),
    "zeros and ones among many": (
        GraphWarning,
        r"csr_matrix\(spaces\[1\]\)",
        lambda: torchgw.gw_pairwise([LINE, RING]),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_warning_points_here_and_names_a_remedy(name: str) -> None:
    category, remedy, call = CASES[name]
    with pytest.warns(category, match=remedy) as caught:
        returned = call()
    if isinstance(returned, torchgw.GWResult):
        given = [(warning.category.__name__, str(warning.message)) for warning in caught]
        assert sorted((warning.category, warning.text) for warning in returned.warnings) == sorted(given)
    (found,) = [warning for warning in caught if issubclass(warning.category, category)]
    lines, first = inspect.getsourcelines(call)
    assert found.filename == __file__
    assert first <= found.lineno < first + len(lines)


def test_a_gradient_is_warned_of_where_backward_is_called() -> None:
    X = torch.from_numpy(LINE).requires_grad_()
    mode = torchgw.Implicit(trusted_error=1e-300)
    result = torchgw.gw_align(X, LINE + 1, distances="euclidean", epsilon=0.1, gradient_mode=mode, random_state=0)
    with pytest.warns(torchgw.GradientWarning) as caught:
        result.plan.square().sum().backward()
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_is_warned_of_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    straight(LINE, options=ONCE, checkpoint=folder, callback=lambda _: True)()
    (folder / "lock").unlink()
    (folder / "lock").mkdir()
    with pytest.warns(torchgw.CheckpointWarning, match="cannot be written") as caught:
        torchgw.resume(folder)
    (found,) = [warning for warning in caught if issubclass(warning.category, torchgw.CheckpointWarning)]
    assert found.filename == __file__


def test_every_warning_of_the_package_takes_that_way() -> None:
    package = Path(torchgw.__file__).parent
    direct = [
        path.name
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "warnings.warn"
    ]
    assert direct == ["caller.py"]


@pytest.mark.parametrize(
    "meant",
    [
        {"X": RING, "distances": ("precomputed", "euclidean")},
        {"X": csr_matrix(RING), "distances": ("auto", "euclidean")},
        {"X": 1 - np.eye(12), "distances": ("auto", "euclidean")},  # every pair has its edge: both readings agree
        {"X": 2 * (1 - np.eye(12)) + RING, "distances": ("auto", "euclidean")},
        {"X": np.abs(DOUBLED - DOUBLED.T), "distances": ("auto", "euclidean")},
    ],
    ids=["said", "a graph", "complete", "other numbers", "duplicated points"],
)
@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_what_is_no_adjacency_matrix_or_is_meant_is_not_warned_of(meant: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GraphWarning)
        torchgw.gw_align(Y=LINE, random_state=0, **meant)
