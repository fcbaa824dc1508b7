"""The pages for those who come from another package: their own code runs here, and beside that package its numbers.

A block that begins with an import of the other package is left out where that is not asked for. With it, a page runs in
a process of its own, so that no import of this one is changed; it finds the package in this environment, or in that of
the benchmarks (`make bench-env`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PEERS = {"from_pot.md": ("ot", "pot"), "from_ott.md": ("ott", "ott"), "from_scot.md": ("ot", "pot")}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_A_PEER = ("import ot\n", "import jax\n", "import ott\n")


def blocks(page: str) -> list[str]:
    """The Python blocks of a page, in order."""
    found = BLOCK.findall((DOCS / page).read_text())
    assert found, page
    return found


def own(page: str) -> list[str]:
    """Those that need no other package."""
    return [block for block in blocks(page) if not block.startswith(OF_A_PEER)]


def where(module: str, short: str) -> str | None:
    """The folder to append to the path for ``module``: "" where it is installed, None where it is nowhere."""
    if importlib.util.find_spec(module) is not None:
        return ""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = ROOT / f".venv-{short}" / "lib" / version / "site-packages"
    return str(folder) if (folder / module).is_dir() else None


@pytest.mark.parametrize("page", PEERS)
def test_what_needs_no_other_package_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, block in enumerate(own(page)):
        exec(compile(block, f"{page}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PEERS)
def test_numbers_are_compared_with_the_other_package(page: str) -> None:
    compared = [block for block in blocks(page) if block.startswith(OF_A_PEER)]
    assert compared
    assert all("assert " in block for block in compared), "a block beside another package that compares nothing"


def beside(page: str, code: str, folder: Path) -> None:
    """Run code in a process that finds the other package of a page; skip where that is nowhere."""
    module, short = PEERS[page]
    found = where(module, short)
    if found is None:
        pytest.skip(f"{module} is neither here nor in .venv-{short}; `make bench-env` makes that")
    script = folder / "page.py"
    script.write_text("\n".join([*([f"import sys; sys.path.append({found!r})"] if found else []), code]))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.peer
@pytest.mark.parametrize("page", PEERS)
def test_numbers_agree_with_the_other_package(page: str, tmp_path: Path) -> None:
    beside(page, "\n".join(blocks(page)), tmp_path)


# The fixed points of two functions of the plan T with marginals p and q, loss L and mass m: by default the gradient of
# the quadratic divergences, times the mass; without the correction that of a linear problem with relaxed marginals.
OF_OTT = """
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
from ott.geometry.geometry import Geometry
from ott.problems.quadratic.quadratic_problem import QuadraticProblem
from ott.solvers.linear.sinkhorn import Sinkhorn
from ott.solvers.quadratic.gromov_wasserstein import GromovWasserstein
from scipy.spatial.distance import cdist

rng = np.random.default_rng(0)
A, B = rng.gamma(2.0, size=(20, 3)), rng.gamma(2.0, size=(25, 2))
D, E = cdist(A, A), cdist(B, B)
D, E = D / D.max(), E / E.max()
a, b = rng.dirichlet(np.full(20, 3.0)), rng.dirichlet(np.full(25, 3.0))
epsilon, tau = 0.05, 0.9
rho = epsilon * tau / (1 - tau)


def solved(corrected):
    solver = GromovWasserstein(
        Sinkhorn(threshold=1e-10, max_iterations=50_000), epsilon=epsilon, max_iterations=500, threshold=1e-13
    )
    problem = QuadraticProblem(
        *map(Geometry, map(jax.numpy.asarray, (D, E))), a=jax.numpy.asarray(a), b=jax.numpy.asarray(b),
        tau_a=tau, tau_b=tau, **({} if corrected else {"gw_unbalanced_correction": False}),
    )
    return np.asarray(solver(problem).matrix)


def terms(T):
    p, q = T.sum(1), T.sum(0)
    L = (D**2 @ p)[:, None] + (E**2 @ q)[None] - 2 * D @ T @ E
    local = rho * np.log(p / a)[:, None] + rho * np.log(q / b)[None] + epsilon * np.log(T)
    whole = rho * (p @ np.log(p / a) + q @ np.log(q / b)) + epsilon * (T * np.log(T)).sum()
    return L, local, whole, T.sum()


L, local, whole, mass = terms(solved(True))
assert abs(mass - 1) > 0.1
assert np.abs(L + mass * local + mass * whole).max() < 1e-5
assert np.abs(L + mass * local + whole).max() > 1e-3  # what the quadratic divergences ask for
L, local, *_ = terms(solved(False))
assert np.abs(L + local).max() < 1e-4
"""


@pytest.mark.peer
def test_ott_jax_relaxes_marginals_as_the_page_of_objectives_says(tmp_path: Path) -> None:
    assert "multiplies the divergences in the local cost by the mass" in (DOCS / "objectives.md").read_text()
    beside("from_ott.md", OF_OTT, tmp_path)
