"""Who takes part, with which settings: documented ones, chosen by hand at 400 x 500.

"Entropic" rows have the entropy of our rows with epsilon 1e-3, beside which they stand; our defaults have none to name.
POT's gradient has a factor 2, so there it is 2e-3.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

BASES = {"points": "torchgw, from points", "distances": "torchgw, from distances"}
ENTROPIC = {"points": "torchgw epsilon=1e-3, from points", "distances": "torchgw epsilon=1e-3"}
SHARP, LOW_RANK = "torchgw epsilon=0", "torchgw low rank"
HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True, kw_only=True)
class Solver:
    """A method of a runner script, with the Python that runs it.

    ``source`` says whether it is given "points" or "distances", ``note`` what its settings do not, ``against`` which of
    our rows solves the same problem, if it is not the one without arguments from the same input.
    """

    name: str
    package: str
    python: Path
    script: Path
    method: str
    source: str = "distances"
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    against: str = ""

    @property
    def base(self) -> str:
        """The row that this one's time is compared with."""
        return self.against or BASES[self.source]

    @property
    def text(self) -> str:
        """The settings in words."""
        words = [f"{key}={value}" for key, value in self.settings.items()]
        return ", ".join([*words, *([self.note] if self.note else [])]) or "defaults"


def _runner(short: str) -> dict[str, Path]:
    return {"python": ROOT / f".venv-{short}" / "bin" / "python", "script": HERE / f"run_{short}.py"}


_ours = partial(Solver, package="torchgw", python=Path(sys.executable), script=HERE / "run_ours.py")
_pot = partial(Solver, package="POT", **_runner("pot"))
_ott = partial(Solver, package="ott-jax", **_runner("ott"))
_published = partial(Solver, package="torchgw", **_runner("published"))
_fugw = partial(Solver, package="fugw", **_runner("fugw"))

SOLVERS = (
    _ours(name="torchgw, from points", method="align", source="points"),
    _ours(name="torchgw, from distances", method="align"),
    *(_ours(name=name, method="align", source=source, settings={"epsilon": 1e-3}) for source, name in ENTROPIC.items()),
    _ours(name=f"{SHARP}, from points", method="align", source="points", settings={"epsilon": 0}),
    _ours(name=SHARP, method="align", settings={"epsilon": 0}),
    _ours(
        name="torchgw sampled",
        method="sampled",
        settings={"epsilon": 1e-3},
        note='gradient="sampled"',
        against=ENTROPIC["distances"],
    ),
    _ours(
        name=LOW_RANK, method="low_rank", source="points", settings={"rank": 20, "epsilon": 0, "distances": "landmark"}
    ),
    _pot(
        name="POT entropic",
        method="entropic",
        settings={"solver": "PGD", "epsilon": 2e-3, "tol": 1e-4, "numItermax": 300, "stopThr": 1e-6, "warmstart": True},
        against=ENTROPIC["distances"],
    ),
    _pot(
        name="POT proximal",
        method="entropic",
        settings={"solver": "PPA", "epsilon": 1e-3, "max_iter": 50, "numItermax": 100, "warmstart": True},
        against=SHARP,
    ),
    _pot(
        name="POT conditional gradient",
        method="conditional_gradient",
        settings={"tol_rel": 1e-5, "tol_abs": 1e-7},
        against=SHARP,
    ),
    _pot(name="POT BAPG", method="bapg", settings={"epsilon": 0.2, "max_iter": 200, "tol": 1e-6}, against=SHARP),
    _pot(
        name="POT sampled",
        method="sampled",
        settings={"epsilon": 0, "max_iter": 10, "nb_samples_grad": 100, "random_state": 0},
        against=SHARP,
    ),
    _pot(
        name="POT low rank",
        method="low_rank",
        settings={"rank": 20, "cost_rank": 10, "stopThr": 1e-10, "numItermax": 1000},
        note="distances factored by their largest eigenvalues",
        against=LOW_RANK,
    ),
    _ott(
        name="ott-jax entropic",
        method="entropic",
        settings={"epsilon": 1e-3, "warm_start": True},
        note="float32",
        against=ENTROPIC["distances"],
    ),
    _ott(
        name="ott-jax low rank",
        method="low_rank",
        settings={
            "rank": 20,
            "cost_rank": 10,
            "gamma": 100.0,
            "min_iterations": 200,
            "inner_iterations": 50,
            "max_iterations": 500,
        },
        note="float32, distances factored by their largest eigenvalues",
        against=LOW_RANK,
    ),
    _published(
        name="torchgw 0.4.2, from points",
        method="from_points",
        source="points",
        settings={"distance_mode": "landmark", "k": 5, "M": 80, "epsilon": 5e-3, "max_iter": 50},
        against=ENTROPIC["points"],
    ),
    _published(
        name="torchgw 0.4.2, from distances",
        method="from_distances",
        settings={"distance_mode": "precomputed", "M": 80, "epsilon": 1e-3, "max_iter": 50},
        against=ENTROPIC["distances"],
    ),
    _fugw(
        name="fugw",
        method="dense",
        settings={"alpha": 1.0, "rho": math.inf, "eps": 1e-3, "nits_bcd": 10, "nits_uot": 50, "tol_bcd": 1e-4},
        note="float32",
        against=ENTROPIC["distances"],
    ),
)


def named(name: str) -> Solver:
    """The solver of that name."""
    return next(solver for solver in SOLVERS if solver.name == name)
