"""The house stands on its floors: imports point down, nothing goes in a circle, and importing it stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "torchgw"

# Packages and files at the top, from the ground up; each imports from floors below its own.
FLOORS = (
    ("types", "losses", "runtime", "_version"),
    ("validate", "ranges"),
    ("options", "marginals", "datasets", "progress", "persist", "linalg", "kernels"),
    ("entry", "couplings", "spaces"),
    ("views", "diagnostics", "sinkhorn", "embedding"),
    ("objective", "report"),
    ("problem",),
    ("solvers",),
    ("gradients", "search"),
    ("batched",),
    ("strategies",),
    ("request",),
    ("planner", "results"),
    ("align", "metrics", "plot", "unseen"),
    ("path", "certified", "estimator", "anndata", "pairwise", "distributed"),
    ("cli", "__init__"),
    ("__main__",),
)
WITHIN_A_FLOOR = {"validate": 1.2, "ranges": 1.1, "options": 2.1, "marginals": 2.1}
HEAVY = (
    *("triton", "sklearn", "matplotlib", "joblib", "anndata", "pandas", "h5py", "plotly"),
    *("scipy.optimize", "scipy.spatial", "scipy.special", "scipy.linalg", "scipy.cluster"),
)


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)] = path
    return found


def imports(root: Path) -> dict[str, set[str]]:
    """The modules of the package that each module imports, wherever in the file it does."""
    known, found = modules(root), {}
    for name, path in known.items():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                module = node.module or ""
                targets |= {f"{module}.{a.name}" if f"{module}.{a.name}" in known else module for a in node.names}
        found[name] = (targets & known.keys()) - {name}
    return found


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def floor_of(package: str) -> float:
    (number,) = (i for i, names in enumerate(FLOORS) if package in names)
    return WITHIN_A_FLOOR.get(package, number)


def upward(arrows: dict[str, set[str]]) -> list[tuple[str, str]]:
    pairs = [(a, b) for a, targets in arrows.items() for b in targets if package_of(a) != package_of(b)]
    return [(a, b) for a, b in pairs if floor_of(package_of(b)) >= floor_of(package_of(a))]


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """What is left when everything that stands on nothing of the rest is taken away, again and again."""
    left = {name: targets - {name} for name, targets in arrows.items()}
    while free := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in free}
    return sorted(left)


def between_packages(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, targets in arrows.items():
        found.setdefault(package_of(name), set()).update(map(package_of, targets))
    return {name: targets & found.keys() - {name} for name, targets in found.items()}


def house(folder: Path, **files: str) -> Path:
    root = folder / "torchgw"
    for name, text in files.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_every_module_has_a_floor() -> None:
    found = {path.relative_to(ROOT).with_suffix("").parts[0] for path in ROOT.rglob("*.py")}
    assert found == {name for names in FLOORS for name in names}


def test_imports_point_down() -> None:
    found = imports(ROOT)
    assert sum(map(len, found.values())) > 500
    assert not upward(found)


def test_no_circle_between_packages_or_files() -> None:
    found = imports(ROOT)
    assert not circle(between_packages(found))
    assert not circle(found)


def test_an_upward_import_is_seen(tmp_path: Path) -> None:
    code = "def f():\n    from torchgw.search.basins import find_basins\n    return find_basins\n"
    root = house(tmp_path, spaces__graph=code, search__basins="def find_basins(): pass\n")
    assert upward(imports(root)) == [("torchgw.spaces.graph", "torchgw.search.basins")]


def test_a_circle_is_seen(tmp_path: Path) -> None:
    root = house(
        tmp_path,
        a__one="from torchgw.b import two\n",
        b__two="from torchgw.a.three import x\n",
        a__three="x = 1\n",
        c__four="from torchgw.a import one\n",
    )
    found = imports(root)
    assert circle(between_packages(found)) == ["a", "b", "c"]
    assert circle(found) == []


def test_importing_the_solver_loads_no_heavy_module() -> None:
    code = f"import sys, torchgw.align; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_importing_the_solver_costs_under_half_of_torch_on_top() -> None:
    def median(module: str) -> float:
        code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        runs = [
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
            for _ in range(7)
        ]
        return sorted(runs)[3]

    assert median("torchgw.align") < 1.5 * median("torch")
