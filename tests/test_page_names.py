"""Every name in code quotes on a page exists: attributes, parameters, flags and modules as what they are written as."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import torchgw
from torchgw.cli.parser import COMMANDS, build_parser

ROOT = Path(__file__).parent.parent
FOREIGN = {"from_pot.md", "from_ott.md", "from_scot.md", "changelog.md"}  # pages that name other packages' members
# Names that are neither ours nor Python's: variables of formulas and of shells, other packages' members.
KNOWN_ELSEWHERE = {
    *("activate", "adata", "expm", "export", "leiden", "milp", "obsp", "preprocessing", "reg", "reg_m", "safe_globals"),
    *(
        "set_output",
        "sqlite",
        "weights_only",
        "C_quad",
        "F_X",
        "F_Y",
        "FLOORS",
        "SHELL",
        "StandardScaler",
        "use_reentrant",
    ),
    *("DataLoader", "gw_unbalanced_correction", "rmm", "set_default_dtype", "spawn", "use_deterministic_algorithms"),
    *("TRITON_CACHE_DIR", "entropic_partial_wasserstein", "features_x", "features_y", "gw__cost"),
}
# Parameters of other packages' functions, which are named without them.
KEYWORDS_ELSEWHERE = {"fullgraph", "index", "n_jobs", "reg_type", "retain_graph", "subplot_kw", "use_reentrant", "cv"}
# What a variable on a page is: everywhere, or on one page.
RECORDS = {
    **{"result": "torchgw:GWResult", "result_": "torchgw:GWResult", "certificate": "torchgw:Certificate"},
    **{"options": "torchgw:GWOptions", "path": "torchgw:EpsilonPath", "mode": "torchgw:PlanMode"},
    **{"report": "torchgw:GradientReport", "model": "torchgw.objective.model:Model"},
    **{"problem": "torchgw.problem.problem:StoredProblem", "side": "torchgw.sinkhorn.sides:Side"},
    **{"watch": "torchgw.persist.watch:Watch", "np": "numpy", "plt": "matplotlib.pyplot"},
    **{"found curvature.md": "torchgw:PlanCurvature", "found embedding.md": "torchgw:JointEmbedding"},
    **{"found pairwise.md": "torchgw:PairwiseResult", "view anndata.md": "anndata:AnnData"},
}
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FLAG = r"(?<![\w-])--[a-z][a-z-]+"
FILES = r"[\w./*-]+/[\w./*-]*|\w+\.(?:py|md|json|sh|npz|npy|csv|html|h5ad|png|pt|sqlite)\b"


def spans() -> list[tuple[str, str]]:
    """Each piece of code within the prose of a page, with the page."""
    built = ROOT / "docs" / "_build"
    pages = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if built not in page.parents)]
    texts = {page: re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.M) for page in pages}
    return [
        (page.name, span) for page, text in texts.items() if page.name not in FOREIGN for span in SPAN.findall(text)
    ]


@cache
def words() -> set[str]:
    """Names that occur in the sources, and those of the files of tests."""
    paths = [path for folder in ("torchgw", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text() for path in (*paths, ROOT / "Makefile", ROOT / "pyproject.toml"))
    return set(re.findall(r"[A-Za-z_]\w*", text)) | {path.stem for path in (ROOT / "tests").rglob("*.py")}


@cache
def classes() -> dict[str, str]:
    """Where each class of the package is, by its name."""
    found = {}
    for path in (ROOT / "torchgw").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found |= {name: f"{module}:{name}" for name in re.findall(r"^class (\w+)", path.read_text(), flags=re.M)}
    return found


@cache
def flags() -> dict[str, set[str]]:
    """Those of each command, and under no name those of all of them, of the benchmarks and of the examples."""
    found = {}
    for name in COMMANDS:
        (commands,) = (action for action in build_parser()._actions if isinstance(action.choices, dict))
        command: Any = commands.choices[name]
        command.fill()
        found[name] = {flag for action in command._actions for flag in action.option_strings}
    texts = [path.read_text() for folder in ("benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    others = {flag for text in texts for flag in re.findall(r"add_argument\(\s*\"(--[a-z-]+)\"", text)}
    return found | {"": set().union(others, {"--version"}, *found.values())}


@cache
def parameters() -> dict[str, set[str]]:
    """Of public functions, classes and methods, by their names."""
    modules = [getattr(torchgw, name) for name in torchgw.MODULES]
    public = [getattr(torchgw, name) for name in torchgw.__all__] + [
        each for module in modules for name, each in vars(module).items() if not name.startswith("_")
    ]
    every = [each for each in public if callable(each) and getattr(each, "__module__", "").startswith("torchgw")]
    every += [
        method
        for each in every
        if isinstance(each, type)
        for name, method in inspect.getmembers(each, callable)
        if not name.startswith("_")
    ]
    found: dict[str, set[str]] = {}
    for each in every:
        found.setdefault(each.__name__, set()).update(keywords_of(each)[0])
    return found


def keywords_of(function: Callable[..., Any]) -> tuple[set[str], bool]:
    """Its parameters, and whether it has no others."""
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set(), False
    return set(found), all(each.kind is not each.VAR_KEYWORD for each in found.values())


@cache
def root_of(name: str, page: str) -> Any:
    """What the first name of a dotted one stands for: a module, a class, a function; None if this is not known."""
    known = RECORDS.get(f"{name} {page}") or RECORDS.get(name)
    if known is None and name in torchgw.__all__:
        known = f"torchgw:{name}"
    for place in (known, classes().get(name), f"torchgw.{name}", name):
        with suppress(ImportError):  # of a package that is not installed
            if place and (":" in place or importlib.util.find_spec(place)):
                return pkgutil.resolve_name(place)
    return None


@cache
def member(whole: Any, name: str) -> Any:
    """A module's or a class's member, of an attribute its type; raises AttributeError if there is none."""
    hints = {}
    if isinstance(whole, type):
        try:
            hints = typing.get_type_hints(whole)
        except (NameError, TypeError):  # of types that are imported for type checkers alone, or lie elsewhere
            hints = {key: None for each in whole.__mro__ for key in vars(each).get("__annotations__", {})}
        hints |= {key: None for key in re.findall(r"\bself\.(\w+)\b[^\n(=]*=", source_of(whole)) if key not in hints}
    if name in hints:
        return hints[name]
    found = getattr(whole, name, None)
    if found is None and inspect.ismodule(whole):
        try:
            found = importlib.import_module(f"{whole.__name__}.{name}")
        except ImportError as error:
            raise AttributeError(name) from error
    elif found is None and not hasattr(whole, name):
        raise AttributeError(name)
    if isinstance(found, property):
        found = typing.get_type_hints(found.fget).get("return")
    return found


def source_of(each: type) -> str:
    """The source of a class of the package, and of those it is derived from."""
    return "\n".join(inspect.getsource(base) for base in each.__mro__ if base.__module__.startswith("torchgw"))


def resolve(names: list[str], page: str) -> Any:
    """What a dotted name stands for, None as soon as this is not known; raises AttributeError if there is no such."""
    found = root_of(names[0], page)
    for name in names[1:]:
        if not (inspect.ismodule(found) or isinstance(found, type)):
            return None
        found = member(found, name)
    return found


def parsed(code: str) -> ast.AST:
    """A piece of code as an expression; one without any names if it is none."""
    whole = re.sub(r"=\s*(?=[,)])", "=...", code.strip().lstrip("."))
    for form in (whole, f"dict({whole})", f"dict({whole}...)"):
        with suppress(SyntaxError):
            return ast.parse(form, mode="eval")
    return ast.Constant(0)


def dotted(node: ast.AST) -> list[str]:
    """The names of a dotted one, none for other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else []


def wrong_keywords(call: ast.Call, page: str) -> Iterator[str]:
    """Keywords of a call that its function does not have; of functions elsewhere it is not known."""
    given, names = {each.arg for each in call.keywords if each.arg and not each.arg.isupper()}, dotted(call.func)
    if names == ["dict"]:
        known: set[str] | None = set().union(KEYWORDS_ELSEWHERE, KNOWN_ELSEWHERE, *parameters().values())
    elif len(names) == 1 and names[0] not in torchgw.__all__:
        known = parameters().get(names[0])
    else:
        try:
            function = resolve(names, page) if names else None
        except AttributeError:
            function = None  # which is said of the name itself
        taken, whole = keywords_of(function) if callable(function) else (set(), False)
        known = taken if whole else None
    yield from (f"{'.'.join(names)}({name}=)" for name in given if known is not None and name not in known)


def dead(span: str, page: str = "") -> set[str]:
    """The names in a piece of code that there are not."""
    command = re.match(r"(?:torchgw )?(\w+)", span)
    known = flags().get(command[1] if command else "", flags()[""])
    found = {flag for flag in re.findall(FLAG, span) if flag not in known}
    tree = parsed(re.sub(FILES, "", span) if "/" in span or re.fullmatch(FILES, span) else span)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found |= set(wrong_keywords(node, page))
        names = dotted(node)
        if len(names) > 1 and not re.fullmatch(FILES, ".".join(names)):
            try:
                resolve(names, page)
            except AttributeError:
                found.add(".".join(names))
    code = re.sub(rf"\"[^\"]*\"|'[^']*'|{FLAG}|{FILES}", "", span)
    return found | (set(re.findall(r"[A-Za-z_]\w{2,}", code)) - words() - KNOWN_ELSEWHERE)


def test_every_name_in_code_quotes_on_a_page_exists() -> None:
    every = spans()
    assert len(every) > 1500
    gone = {(page, span, name) for page, span in set(every) for name in dead(span, page)}
    assert not gone


@pytest.mark.parametrize(
    "span",
    [
        "result.no_such_part",
        "result.n_starts",  # of another record
        "result.certificate.epsilon",
        "torchgw.no_such_call(X)",
        "torchgw.plot.gw_align(X, Y)",
        "Certificate.value",
        "kernels.tuner",
        "GWOptions(no_such_option=1)",
        "GWOptions(n_starts=1)",
        "gw_align(X, Y, n_starts=5)",
        "result.unseen(new, epsilon=1)",
        "fit(X, y, n_starts=1)",
        "no_such_option=1",
        "align --no-such-flag",
        "torchgw info --epsilon 0",
        "torch.no_such_function",
        "NoSuchName",
    ],
)
def test_a_name_that_there_is_not_is_found(span: str) -> None:
    assert dead(span)


@pytest.mark.parametrize(
    "span",
    [
        "torchgw.gw_align(X, Y, epsilon=0).argmax()",
        "result.certificate.lower_bound",
        "GWOptions(coarse=torchgw.CoarseOptions(n_starts=1))",
        "SpaceOptions(k=)",
        "epsilon=0",
        "torchgw align a.npy b.npy --epsilon 0",
        "torch.compile",
    ],
)
def test_a_name_that_there_is_passes(span: str) -> None:
    assert not dead(span)
