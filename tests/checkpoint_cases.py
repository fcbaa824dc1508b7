"""Solves of every kind that are ended and gone on with, and what makes two results the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist

from tests.problems import ROLL, SPIRAL, quietly
from torchgw import (
    FeatureCost,
    GWOptions,
    GWResult,
    LadderOptions,
    LowRankOptions,
    Partial,
    Progress,
    SamplingOptions,
    SemiRelaxed,
    StoppingOptions,
    Supervision,
    Unbalanced,
    datasets,
    gw_align,
)
from torchgw.spaces.graph import neighbour_graph

CLOUD, NOISE = np.random.default_rng(0).normal(size=(2, 45, 2))
BRIEF = GWOptions(stopping=StoppingOptions(max_iter=6))
CASES: dict[str, dict[str, Any]] = {
    "exact gradient": {},
    "sampled gradient": {"options": GWOptions(gradient="sampled", stopping=StoppingOptions(max_iter=12))},
    "averaged samples of matrices": {
        "X": cdist(SPIRAL, SPIRAL),
        "Y": cdist(ROLL, ROLL),
        "options": GWOptions(
            gradient="sampled",
            coarse=None,
            sampling=SamplingOptions(cost_ema=0.3),
            stopping=StoppingOptions(max_iter=9, check_every=2),
        ),
    },
    "no entropy": {"epsilon": 0},
    "an epsilon that falls": {
        "X": CLOUD,
        "Y": (CLOUD + 0.05 * NOISE)[:40],
        "distances": "euclidean",
        "epsilon": "auto",
        "marginals": SemiRelaxed(1.0),
    },
    "streaming": {
        "X": datasets.make_spiral(700)[0],
        "Y": datasets.make_swiss_roll(800, random_state=1)[0],
        "options": GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=32, marginal_tol=5e-4)),
    },
    "low rank": {
        "distances": "landmark",
        "epsilon": 0,
        "options": GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4, max_iter=8)),
    },
    "unbalanced": {"marginals": Unbalanced(0.05, 0.05), "options": BRIEF},
    "partial, masses": {"marginals": Partial(0.8), "p": np.full(len(SPIRAL), 1 / len(SPIRAL)), "options": BRIEF},
    "features": {"cost": FeatureCost(SPIRAL, ROLL[:, :2]), "alpha": 0.7},
    "stored cost": {"cost": np.random.default_rng(0).random((len(SPIRAL), len(ROLL)))},
    "rules": {"supervision": Supervision(pairs=[(0, 3)], forbidden=[(5, 5)], strength=0.1)},
    "given start": {"init": np.arange(len(SPIRAL)), "options": GWOptions(gradient="sampled")},
    "searched distances": {
        "distances": "dijkstra",
        "options": GWOptions(gradient="sampled", stopping=StoppingOptions(max_iter=6)),
    },
    "straight distances": {"distances": "euclidean", "options": BRIEF},
    "graph": {"X": neighbour_graph(SPIRAL, 5)},
}


class Killed(BaseException):
    """Stands for a signal that nothing survives."""


def align(arguments: dict[str, Any], **more: Any) -> GWResult:
    given = {"X": SPIRAL, "Y": ROLL, "epsilon": 1e-3, "random_state": 0} | arguments | more
    return quietly(gw_align, given.pop("X"), given.pop("Y"), **given)


def assert_same(one: GWResult, other: GWResult) -> None:
    """Not a bit differs but for times."""
    for name, tensor in one.coupling.tensors().items():  # type: ignore[attr-defined]
        assert torch.equal(tensor, other.coupling.tensors()[name]), name  # type: ignore[attr-defined]
    for name in ("value", "value_quad", "value_linear", "marginal_error", "status", "n_iter", "n_iter_sinkhorn"):
        assert repr(getattr(one, name)) == repr(getattr(other, name)), name
    assert repr(one.certificate) == repr(other.certificate)
    assert [basin.energy for basin in one.basins] == [basin.energy for basin in other.basins]
    for name in ("iteration", "cost", "marginal_error", "epsilon"):
        assert getattr(one.history, name) == getattr(other.history, name)
    steps = ([(step.epsilon, step.value, step.moved) for step in found.path] for found in (one, other))
    assert next(steps) == next(steps)
    assert [rung.cells for rung in one.ladder] == [rung.cells for rung in other.ladder]


GRADIENTS = ("exact gradient", "sampled gradient")
REPEATED = ("partial, masses", "stored cost", "searched distances")  # what they keep, others do too
LOOPS = (*GRADIENTS, "no entropy", "streaming", "low rank")
Whole = tuple[GWResult, int]


@cache
def left_alone(name: str) -> Whole:
    """The result of a case, and how often its callback is called."""
    heard: list[Progress] = []
    return align(CASES[name], callback=heard.append), len(heard)
