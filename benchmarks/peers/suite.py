"""A spiral and a Swiss roll, aligned by everybody: time, memory, value, marginals and matching.

All are given the same distances, or the points where they start from points. In the first round everybody runs, in the
others those that were quick, so a ratio compares runs of one round, and slow ones count once.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import paired, show, write
from benchmarks.peers.evaluate import Quality, evaluate
from benchmarks.peers.launch import Run, installed, launch
from benchmarks.peers.solvers import BASES, SOLVERS, Solver
from benchmarks.quality import geodesics, timed
from torchgw.datasets import make_spiral, make_swiss_roll

__all__ = ["BASES", "run"]

SIZES = ((400, 500), (1000, 1200), (2000, 2500), (4000, 5000))
LIMIT, QUICK_LIMIT = 60.0, 20.0  # seconds of a run; with two minutes for each, all sizes would take an hour
QUICK_SIZES = ((400, 500),)
ROUNDS, BRIEF = 3, 2.5  # a run that took longer than so many seconds is not repeated
FILES = {"points": ("X", "Y"), "distances": ("DX", "DY")}
Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """Files of points and distances in a folder, and the angles that tell the true matching."""

    folder: Path
    x: np.ndarray
    y: np.ndarray

    @classmethod
    def make(cls, folder: Path, n: int, k: int) -> tuple[Problem, float]:
        """Write a spiral of ``n`` and a roll of ``k`` points; with the seconds that the distances took."""
        X, x = make_spiral(n)
        Y, y = make_swiss_roll(k, random_state=1)
        (DX, DY), seconds = timed(lambda: geodesics(X, Y))
        for name, array in {"X": X, "Y": Y, "DX": DX, "DY": DY}.items():
            np.save(folder / f"{name}.npy", array)
        return cls(folder, x, y), seconds

    def inputs(self, source: str) -> list[Path]:
        """The two files that a solver is given."""
        return [self.folder / f"{name}.npy" for name in FILES[source]]

    def judge(self, plan: Path) -> Quality:
        """How good a stored plan is."""
        return evaluate(np.load(plan), *(np.load(file) for file in self.inputs("distances")), self.x, self.y)


def measure(
    solvers: Sequence[Solver], problem: Problem, rounds: int, limit: float, smaller: Sequence[Row] = ()
) -> list[Row]:
    """Run all solvers in rounds; a row for each. Those that ``smaller`` sizes show to pass the limit do not start."""
    runs: dict[str, list[Run]] = {solver.name: [] for solver in solvers}
    found: dict[str, Quality] = {}
    for number in range(rounds):
        for solver in solvers:
            done = runs[solver.name]
            if number and not (done[-1].ok and done[-1].seconds < BRIEF):
                continue
            if why := hopeless(solver, smaller, problem, limit):
                done.append(Run("time limit", why))
                continue
            with tempfile.TemporaryDirectory(dir=problem.folder) as out:
                done.append(launch(solver, problem.inputs(solver.source), Path(out), limit))
                if done[-1].ok and not number:
                    found[solver.name] = problem.judge(Path(out) / "plan.npy")
            print(f"# {solver.name}: {done[-1].seconds or done[-1].reason}", file=sys.stderr, flush=True)
    seconds = {name: [run.seconds for run in done if run.ok] for name, done in runs.items()}
    return [
        row(solver, problem, runs[solver.name], found.get(solver.name), seconds.get(solver.base, []))
        for solver in solvers
    ]


def hopeless(solver: Solver, smaller: Sequence[Row], problem: Problem, limit: float) -> str:
    """Why a solver need not be started: its time at a smaller size, times the growth of N K, which all plans have here.

    Empty where nothing speaks against it.
    """
    pairs = len(problem.x) * len(problem.y)
    below = [row for row in smaller if row["solver"] == solver.name and row["N"] * row["K"] < pairs]
    if not below:
        return ""
    last = max(below, key=lambda row: row["N"])
    growth, size = pairs / (last["N"] * last["K"]), f"{last['N']} x {last['K']}"
    if last["status"] == "time limit":
        return f"not started: it passed the limit at {size}"
    if last["status"] == "ok" and last["seconds"] * growth > limit:
        return f"not started: {last['seconds']:.0f} s at {size}, and N K is {growth:.1f} times that"
    return ""


def row(solver: Solver, problem: Problem, runs: Sequence[Run], quality: Quality | None, base: Sequence[float]) -> Row:
    """What is stored about a solver at one size; ``base`` are the seconds of the run that it is compared with.

    Runs and ``base`` begin with the first round and leave none out, so those at the same place are of the same round.
    """
    good = [run for run in runs if run.ok]
    times = [run.seconds for run in good]
    both = min(len(times), len(base))
    quality = quality or Quality(None, None, None)
    peaks = [run.peak_mib for run in good if run.peak_mib is not None]
    reasons = [quality.reason, *(run.reason for run in runs)]
    if good and not peaks:
        reasons.append("no peak memory: this system does not tell it")
    if good and not both:
        reasons.append(f"no ratio: no run of {solver.base}")
    status = "failed" if good and quality.value is None else runs[0].status
    version = installed(solver.python, solver.package)
    return {
        "solver": solver.name,
        "package": f"{solver.package} {version}" if version else solver.package,
        "from": solver.source,
        "N": len(problem.x),
        "K": len(problem.y),
        "status": status,
        "reason": "; ".join(reason for reason in reasons if reason != "-") or "-",
        "seconds": _median(times),
        "runs": len(good),
        "warm_up_seconds": _median([run.warm_up_seconds for run in good]),
        "peak_mib": _median(peaks),
        "value": _known(quality.value),
        "marginal_error": _known(quality.marginal_error),
        "rho": _known(quality.rho),
        "ratio": paired(times[:both], base[:both]) if both else "-",
        "against": solver.base,
        "settings": solver.text,
    }


def _median(values: Sequence[float]) -> float | str:
    return statistics.median(values) if values else "-"


def _known(value: float | None) -> float | str:
    return "-" if value is None else value


def summarise(rows: Iterable[Row]) -> list[Row]:
    """One line for each solver, one column for each size."""
    cells: dict[str, Row] = {}
    rows = list(rows)
    sizes = dict.fromkeys(f"{row['N']} x {row['K']}" for row in rows)
    for row in rows:
        empty = {"solver": row["solver"], "settings": row["settings"], **dict.fromkeys(sizes, "not measured")}
        cells.setdefault(row["solver"], empty)[f"{row['N']} x {row['K']}"] = cell(row)
    return list(cells.values())


def cell(row: Row) -> str:
    """Seconds, value and correlation, or why there are none."""
    if row["status"] != "ok":
        return f"{row['status']}: {row['reason']}"
    rho = row["rho"] if row["rho"] == "-" else f"{row['rho']:.3f}"
    return f"{row['seconds']:.3g} s, {row['value']:.3g}, rho {rho}"


def chosen(groups: Sequence[str] | None, quick: bool) -> list[tuple[int, int]]:
    """The sizes to run: all of them, or those named like "400x500"."""
    if not groups:
        return list(QUICK_SIZES if quick else SIZES)
    try:
        return [(int(n), int(k)) for n, k in (size.split("x") for size in groups)]
    except ValueError:
        raise SystemExit(f"groups are sizes like 400x500, got {' '.join(groups)}") from None


def run(groups: list[str] | None = None, quick: bool = False) -> None:
    """Measure the named sizes (all by default), and store the rows where all have run: one table is one run."""
    rows: list[Row] = []
    preparation: list[Row] = []
    for n, k in chosen(groups, quick):
        with tempfile.TemporaryDirectory() as folder:
            problem, seconds = Problem.make(Path(folder), n, k)
            rows += measure(SOLVERS, problem, 1 if quick else ROUNDS, QUICK_LIMIT if quick else LIMIT, rows)
        preparation.append({"N": n, "K": k, "seconds": seconds})
    if not groups:
        write("peers", rows, quick=quick, preparation=preparation, summary=summarise(rows))
    show([{key: value for key, value in r.items() if key != "settings"} for r in rows])
