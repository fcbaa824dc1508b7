"""The examples of the gallery are in its format, import what is declared, and end well without a warning."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "examples"
EXAMPLES = sorted(FOLDER.glob("plot_*.py"))
# What torchgw and its "plot" extra bring, and what an example may need besides when it says so in its first lines.
BROUGHT = {"matplotlib", "numpy", "scipy", "sklearn", "torch", "torchgw"}
BESIDES = {"ase", "networkx", "nilearn"}

each = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def imported(tree: ast.Module) -> set[str]:
    """Packages from outside the standard library that a file imports, wherever it does."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module).split(".")[0])
    return names - sys.stdlib_module_names


def test_there_is_a_gallery() -> None:
    assert len(EXAMPLES) >= 8
    assert (FOLDER / "GALLERY_HEADER.rst").read_text().splitlines()[1].startswith("===")


@each
def test_an_example_has_a_title_a_figure_and_a_claim(path: Path) -> None:
    tree = ast.parse(path.read_text())
    title, line, *text = (ast.get_docstring(tree) or "").splitlines()
    assert title
    assert line == "=" * len(title)
    assert len(" ".join(text)) > 200
    calls = [node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "attr")]
    assert {"figure", "subplots", "subplot_mosaic"} & set(calls)
    assert calls.count("show") == 1
    assert "print" in {
        node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "id")
    }
    assert any(isinstance(node, ast.Assert) for node in tree.body)


@each
def test_an_example_imports_what_is_declared_and_names_what_it_needs(path: Path) -> None:
    tree = ast.parse(path.read_text())
    packages = imported(tree)
    assert packages <= BROUGHT | BESIDES
    needs = (ast.get_docstring(tree) or "").split("Needs", 1)[1]
    assert {name for name in BESIDES if f"``{name}``" in needs} == packages & BESIDES


@pytest.mark.slow
@each
def test_an_example_ends_well_without_a_warning(path: Path, tmp_path: Path) -> None:
    for package in imported(ast.parse(path.read_text())) & BESIDES:
        pytest.importorskip(package)
    quiet = [
        "-W",
        "error",
        "-W",
        "ignore:FigureCanvasAgg is non-interactive:UserWarning",
    ]  # plt.show() without a screen
    environment = os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *quiet, path], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not done.stderr
