"""What pages and docstrings say of the code is there: each formula, every file that is named, the fields of records."""

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


def fields_without_words(code: str) -> list[str]:
    """Fields of dataclasses and named tuples, Class.field, that stand neither in the list of the docstring, before a
    colon, nor between backticks."""
    found = []
    for kind in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef)):
        marks = {ast.unparse(mark).partition("(")[0] for mark in (*kind.decorator_list, *kind.bases)}
        if marks & {"dataclass", "NamedTuple"}:
            text = ast.get_docstring(kind) or ""
            told = set(re.findall(r"\w+", " ".join(re.findall(r"^[\w, ]+(?= : )|``\w+``", text, re.MULTILINE))))
            members = (node.target for node in kind.body if isinstance(node, ast.AnnAssign))
            found += [f"{kind.name}.{m.id}" for m in members if isinstance(m, ast.Name) and m.id not in told]
    return found


def test_every_record_lists_its_fields() -> None:
    codes = [path.read_text() for path in ROOT.rglob("*.py")]
    assert sum(len(re.findall(r"^@dataclass|\(NamedTuple\)", code, re.MULTILINE)) for code in codes) > 80
    assert not [field for code in codes for field in fields_without_words(code)]


def test_a_field_that_is_not_listed_is_seen() -> None:
    code = 'class Plan(NamedTuple):\n    """A plan.\n\n    T : (N, K).\n    """\n    T: Tensor\n    g: Tensor\n'
    assert fields_without_words(code) == ["Plan.g"]


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
