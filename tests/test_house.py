"""What the pages say of the code is there: the file and function of each formula, and every file that is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
ROOT, PAGE = HOME / "torchgw", HOME / "docs" / "architecture.md"
PAGES = (
    PAGE,
    HOME / "CONTRIBUTING.md",
    *(HOME / "docs" / name for name in ("objectives.md", "gradients.md", "lanczos.md")),
    HOME / "benchmarks" / "GPU_PENDING.md",
    *sorted(ROOT.glob("kernels/*/README.md")),
)


def formulas(text: str) -> list[tuple[str, str, list[str]]]:
    """Formula, file and names of each line of the table of formulas."""
    table = text.partition("## Where each formula stands")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    return [(row[0].strip(), row[2].strip(" `"), re.findall(r"`([^`]+)`", row[3])) for row in rows]


def defined(file: Path) -> set[str]:
    """Functions, classes and methods (Class.method) of a file."""
    tree = ast.parse(file.read_text())
    kinds = ast.FunctionDef | ast.ClassDef
    found = {node.name for node in tree.body if isinstance(node, kinds)}
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        found |= {f"{owner.name}.{node.name}" for node in owner.body if isinstance(node, ast.FunctionDef)}
    return found


def missing(text: str) -> list[str]:
    """The lines of the table whose file or function is not there."""
    rows = formulas(text)
    assert len(rows) >= 20
    return [
        formula
        for formula, file, names in rows
        if not names or not (ROOT / file).is_file() or not set(names) <= defined(ROOT / file)
    ]


def named_files(text: str) -> set[str]:
    """Files of the package that a text names by their path in it, and those of the tests."""
    found = set(re.findall(r"`((?:torchgw|tests|benchmarks)/[\w/]+\.(?:py|md))`", text))
    return found | {f"torchgw/{name}" for name in re.findall(r"(?<![\w/.])([a-z_]+/[\w/]*\w\.py)", text)}


def is_there(name: str) -> bool:
    return any((HOME / folder / name.removeprefix("torchgw/")).is_file() for folder in ("torchgw", ".", "docs"))


def test_each_formula_stands_where_the_page_says() -> None:
    assert not missing(PAGE.read_text())


@pytest.mark.parametrize(
    ("name", "other"), [("`kl`", "`kullback`"), ("`objective/exact.py`", "`objective/inexact.py`")]
)
def test_a_formula_that_is_gone_is_seen(name: str, other: str) -> None:
    assert len(missing(PAGE.read_text().replace(name, other, 1))) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    found = named_files(page.read_text())
    assert found
    assert not [name for name in sorted(found) if name.islower() and not is_there(name)]  # FAMILY/BACKEND.py is none
