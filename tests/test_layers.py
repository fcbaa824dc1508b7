"""Imports go downwards only, and importing the package stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "torchgw"

# The longest matching prefix gives the layer. `result` and `couplings` stand where what they import puts them.
LAYERS = {
    "_version": 0,
    "types": 0,
    "caller": 0,
    "once": 0,
    "sealed": 0.1,
    "allocation": 0,
    "entry": 1.5,
    "options": 0,
    "validate": 0,
    "validate_graph": 0,
    "ranges": 0,
    "losses": 0,
    "marginals": 0,
    "features": 2,
    "supervision": 2,
    "datasets": 0,
    "checkpoint": 0.3,
    "codec": 0.2,
    "watch": 0.3,
    "interrupt": 0.4,
    "threads": 0,
    "kernels": 1,
    "spaces": 2,
    "costs": 2,
    "couplings": 2,
    "gradients": 4,
    "reading": 2.5,
    "unseen": 2.5,
    "tiled": 2,
    "lowrank_coupling": 2,
    "status": 0,
    "evidence": 2.3,
    "storage": 2.4,
    "layout": 2.3,
    "report": 2.4,
    "recognised": 0,
    "values": 0,
    "words": 0,
    "grouped": 2,
    "result": 2.5,
    "sinkhorn": 3,
    "gw": 4,
    "demo": 5,
    "io": 5,
    "progress": 5,
    "guards": 0.1,
    "annotated": 4,
    "anndata": 5,
    "embedding": 5,
    "estimator": 5,
    "pairwise": 5,
    "plot": 5,
    "cli": 6,
    "__init__": 6,
    "__main__": 6,
}


def layer(module: str) -> float:
    parts = module.split(".")
    return LAYERS[parts[1] if len(parts) > 1 else "__init__"]


def package_imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found += [f"{module}.{alias.name}" for alias in node.names] if module == "torchgw" else [module]
    return [name for name in found if name.split(".")[0] == "torchgw"]


def arrows() -> list[tuple[str, str]]:
    pairs = []
    for path in sorted(ROOT.rglob("*.py")):
        module = ".".join(("torchgw", *path.relative_to(ROOT).with_suffix("").parts))
        pairs += [(module, target) for target in package_imports(path)]
    return pairs


def test_every_module_has_a_layer() -> None:
    for path in ROOT.rglob("*.py"):
        assert path.relative_to(ROOT).with_suffix("").parts[0] in LAYERS


def test_no_import_points_up() -> None:
    found = arrows()
    assert len(found) > 50
    upward = [
        (a, b)
        for a, b in found
        if layer(b) > layer(a) or (layer(a) == layer(b) == 5 and a.split(".")[1] != b.split(".")[1])
    ]
    assert not upward


def test_the_check_sees_an_upward_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from torchgw.gw.loop import solve\n    return solve\n")
    assert package_imports(bad) == ["torchgw.gw.loop"]
    assert layer("torchgw.gw.loop") > layer("torchgw.spaces.graph")


def test_files_stay_short() -> None:
    long = {path.name: n for path in ROOT.rglob("*.py") if (n := len(path.read_text().splitlines())) > 320}
    assert not long


def test_importing_the_package_loads_no_heavy_module() -> None:
    code = (
        "import sys, torchgw; "
        "heavy = ('triton', 'sklearn', 'matplotlib', 'joblib', 'anndata', 'pandas', 'h5py', 'plotly'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_importing_the_package_costs_under_half_of_torch_on_top() -> None:
    def median(module: str) -> float:
        code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
        runs = [
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
            for _ in range(7)
        ]
        return sorted(runs)[3]

    assert median("torchgw") < 1.5 * median("torch")
