"""Who takes part, with which settings: the best of a small grid over their documented ones at 400 x 500.

"Entropic" rows have the entropy of our default, epsilon 1e-3. POT's gradient has a factor 2, so there it is 2e-3.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass(frozen=True, kw_only=True)
class Solver:
    """A method of a runner script, with the Python that runs it.

    ``source`` says whether it is given "points" or "distances", ``note`` what its settings do not.
    """

    name: str
    package: str
    python: Path
    script: Path
    method: str
    source: str = "distances"
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def text(self) -> str:
        """The settings in words."""
        words = [f"{key}={value}" for key, value in self.settings.items()]
        return ", ".join([*words, *([self.note] if self.note else [])]) or "defaults"


def _ours(name: str, method: str, **more: Any) -> Solver:
    return Solver(
        name=name, package="torchgw", python=Path(sys.executable), script=HERE / "run_ours.py", method=method, **more
    )


def _peer(name: str, package: str, short: str, method: str, **more: Any) -> Solver:
    python = ROOT / f".venv-{short}" / "bin" / "python"
    return Solver(name=name, package=package, python=python, script=HERE / f"run_{short}.py", method=method, **more)


COST_FACTORS = "distances factored by their largest eigenvalues"
SOLVERS = (
    _ours("torchgw, from points", "align", source="points"),
    _ours("torchgw, from distances", "align"),
    _ours("torchgw epsilon=0", "align", settings={"epsilon": 0}),
    _ours("torchgw sampled", "sampled", note='gradient="sampled"'),
    _ours("torchgw low rank", "low_rank", source="points", settings={"rank": 20}, note='epsilon=0, "landmark"'),
    _peer(
        "POT entropic",
        "POT",
        "pot",
        "entropic",
        settings={
            "solver": "PGD",
            "epsilon": 2e-3,
            "tol": 1e-4,
            "numItermax": 300,
            "stopThr": 1e-6,
            "warmstart": True,
        },
    ),
    _peer(
        "POT proximal",
        "POT",
        "pot",
        "entropic",
        settings={"solver": "PPA", "epsilon": 1e-3, "max_iter": 50, "numItermax": 100, "warmstart": True},
    ),
    _peer(
        "POT conditional gradient",
        "POT",
        "pot",
        "conditional_gradient",
        settings={"tol_rel": 1e-5, "tol_abs": 1e-7},
    ),
    _peer("POT BAPG", "POT", "pot", "bapg", settings={"epsilon": 0.2, "max_iter": 200, "tol": 1e-6}),
    _peer(
        "POT sampled",
        "POT",
        "pot",
        "sampled",
        settings={"epsilon": 0, "max_iter": 10, "nb_samples_grad": 100},
        note="random_state=0",
    ),
    _peer(
        "POT low rank",
        "POT",
        "pot",
        "low_rank",
        settings={"rank": 20, "cost_rank": 10, "stopThr": 1e-10, "numItermax": 1000},
        note=COST_FACTORS,
    ),
    _peer(
        "ott-jax entropic",
        "ott-jax",
        "ott",
        "entropic",
        settings={"epsilon": 1e-3, "warm_start": True},
        note="float32",
    ),
    _peer(
        "ott-jax low rank",
        "ott-jax",
        "ott",
        "low_rank",
        settings={
            "rank": 20,
            "cost_rank": 10,
            "gamma": 100.0,
            "min_iterations": 200,
            "inner_iterations": 50,
            "max_iterations": 500,
        },
        note=f"float32, {COST_FACTORS}",
    ),
    _peer(
        "torchgw 0.4.2, from points",
        "torchgw",
        "published",
        "from_points",
        source="points",
        settings={"distance_mode": "landmark", "k": 5, "M": 80, "epsilon": 5e-3, "max_iter": 50},
    ),
    _peer(
        "torchgw 0.4.2, from distances",
        "torchgw",
        "published",
        "from_distances",
        settings={"M": 80, "epsilon": 1e-3, "max_iter": 50},
    ),
    _peer(
        "fugw",
        "fugw",
        "fugw",
        "dense",
        settings={"eps": 1e-3, "nits_bcd": 10, "nits_uot": 50, "tol_bcd": 1e-4},
        note="alpha=1, rho=inf, float32",
    ),
)


def named(name: str) -> Solver:
    """The solver of that name."""
    return next(solver for solver in SOLVERS if solver.name == name)
