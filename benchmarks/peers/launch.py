"""One run of a solver: a process of its own, in its environment, with pinned threads and a time limit."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.solvers import Solver
from benchmarks.threads import cores, pinned

ASK = "import sys, importlib.metadata; print(importlib.metadata.version(sys.argv[1]))"


@dataclass(frozen=True)
class Run:
    """How a run ended ("ok", "time limit", "failed" or "not installed"), why, and what was measured."""

    status: str
    reason: str = "-"
    seconds: float | None = None
    warm_up_seconds: float | None = None
    peak_mib: float | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a plan."""
        return self.status == "ok"


def environment(threads: int | None = None) -> dict[str, str]:
    """This process's variables, with every thread pool at ``threads``, by default the cores that may be used.

    Without GPUs, which not all of them can use, and without PYTHONPATH, so that each environment imports its own
    packages.
    """
    threads = threads or cores()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    xla = f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()}"
    return kept | pinned(threads) | {"XLA_FLAGS": xla, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}


@functools.cache
def installed(python: Path, package: str) -> str | None:
    """The version of ``package`` in the environment of ``python``, None where either is missing."""
    if not python.exists():
        return None
    asked = subprocess.run([str(python), "-I", "-c", ASK, package], capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else None


def launch(solver: Solver, inputs: Sequence[Path], out: Path, limit: float) -> Run:
    """Run a solver on two files of points or distances; its plan is ``out`` / plan.npy.

    ``limit`` seconds hold for everything, start and warm-up included; then the process goes, and all it has started.
    """
    if installed(solver.python, solver.package) is None:
        return Run("not installed", _missing(solver))
    command = [solver.python, solver.script, solver.method, json.dumps(dict(solver.settings)), out, *inputs]
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=out,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return Run("time limit", f"not done after {limit:g} s")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        return Run("failed", _why(process.returncode, said))
    if not (out / "report.json").exists():
        return Run("failed", "it ended without a report")
    return Run("ok", **json.loads((out / "report.json").read_text()))


def _why(code: int, said: str) -> str:
    """The last line of what a failed process said."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit code {code} without a word"


def _missing(solver: Solver) -> str:
    """What to do, or what pip said when it was tried."""
    home = solver.python.parent.parent
    log = home / "install.log"
    errors = [line for line in log.read_text().splitlines() if "ERROR: " in line] if log.exists() else []
    said = errors[-1].split("ERROR: ", 1)[1] if errors else "run `make bench-env`"
    return f"{solver.package} is not in {home.name}: {said}"
