"""What pages and docstrings say of the code is there: formulas, files, fields of records. It only shrinks."""

from __future__ import annotations

import ast
import re
from collections import Counter
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


# The structure may only shrink. Whoever makes a figure smaller lowers its bound, so that it stays small.
BOUNDS = {
    "files": 282,
    "statements": 27_390,
    "constants": 727,
    "records": 193,
    "shared class names": 0,
    "participles": 21,
    "long signatures": 9,
}
MANY_ARGUMENTS = 8
PARTICIPLE = re.compile(
    r"[a-z]{2,}(?<!e)ed|begun|born|bred|done|drawn|found|given|gone|grown|held|kept|known|led|left|lost|made|met|put|seen|"
    r"sent|spread|taken|thought|thrown|told|won|worn"
)
NOUNS = {
    "bed",
    "embed",
    "exceed",
    "feed",
    "indeed",
    "need",
    "proceed",
    "seed",
    "shed",
    "speed",
}  # end as participles do


def is_participle(name: str) -> bool:
    """Whether the last word of a function's name is a participle."""
    last = name.strip("_").split("_")[-1]
    return last not in NOUNS and PARTICIPLE.fullmatch(last) is not None


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression is made of number literals alone; tuples and lists of them count."""
    if isinstance(node, ast.Tuple | ast.List):
        return bool(node.elts) and all(map(is_number, node.elts))
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def count_constants(module: ast.Module) -> int:
    """Names that a module binds to numbers."""
    bound: list[tuple[ast.expr, ast.expr | None]] = []
    for node in module.body:
        if isinstance(node, ast.AnnAssign):
            bound.append((node.target, node.value))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                bound += zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]
    return sum(isinstance(target, ast.Name) and is_number(value) for target, value in bound)


def is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(mark) for mark in (*node.decorator_list, *node.bases)]
    return any("dataclass" in mark or mark.endswith("NamedTuple") for mark in marks)


def structure(codes: list[str]) -> dict[str, int]:
    """The figures of `BOUNDS` for the files of a package."""
    modules = [ast.parse(code) for code in codes]
    nodes = [node for module in modules for node in ast.walk(module)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    arguments = [len(f.args.posonlyargs) + len(f.args.args) + len(f.args.kwonlyargs) for f in functions]
    return {
        "files": len(codes),
        "statements": sum(isinstance(node, ast.stmt) for node in nodes),
        "constants": sum(map(count_constants, modules)),
        "records": sum(map(is_record, classes)),
        "shared class names": sum(n > 1 for n in Counter(kind.name for kind in classes).values()),
        "participles": sum(is_participle(f.name) for f in functions),
        "long signatures": sum(n > MANY_ARGUMENTS for n in arguments),
    }


def test_the_structure_only_shrinks() -> None:
    figures = structure([path.read_text() for path in ROOT.rglob("*.py")])
    grown = {name: f"{figures[name]} > {bound}" for name, bound in BOUNDS.items() if figures[name] > bound}
    assert not grown, f"simplify what the change touches: {grown}"
    stale = {name: figures[name] for name, bound in BOUNDS.items() if figures[name] < 0.98 * bound - 1}
    assert not stale, f"lower the bounds to what has been reached: {stale}"


def test_each_figure_of_the_structure_counts() -> None:
    code = "A, B = 1.0, -2\nC: tuple = (1, 2 * 3)\nD = True\n@dataclass\nclass P: pass\nclass Q(NamedTuple): pass\n"
    code += "def taken(): pass\ndef seed_needed(): pass\ndef read_seed(a, b, c, d, e, f, g, *, h, i): pass\n"
    found = structure([code, "class P: x = 1\n"])
    assert found == dict(zip(BOUNDS, (2, 15, 3, 2, 1, 2, 1), strict=True))
