"""Every public name is in the reference, and every parameter of what is public is described in its docstring."""

from __future__ import annotations

import copy
import inspect
import pickle
import pkgutil
import pydoc
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchgw
from torchgw.results.matches import OneToOne
from torchgw.results.out_of_sample import Unseen

API = Path(__file__).parent.parent / "docs" / "api"
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+|data):: (\S+)$", re.MULTILINE)
ENTRY = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) : \S")
MODULES = ("anndata", "datasets", "distributed", "metrics", "plot")
READ = (
    torchgw.GWResult,
    torchgw.GromovWasserstein,
    torchgw.PairwiseResult,
    torchgw.JointEmbedding,
    torchgw.EpsilonPath,
    Unseen,
)
RETURNED = {
    *("GWResult", "PairwiseResult", "EpsilonPath", "JointEmbedding", "Unseen", "OneToOne", "Certificate", "Basin"),
    *("Confidence", "Rung", "EpsilonStep", "IssuedWarning", "History", "Estimate", "Forecast", "PlanCurvature"),
    *("PlanMode", "GradientReport"),
}


def in_the_reference() -> set[str]:
    """Full names of what the pages show, and of the modules that they enter."""
    found = set()
    for page in API.glob("*.md"):
        module = "torchgw"
        for directive, name in DIRECTIVE.findall(page.read_text()):
            if directive == "currentmodule":
                module = name
                found.add(name)
            else:
                found.add(name if name.startswith("torchgw.") else f"{module}.{name}")
                found.add(found_module(name))
    return found


def found_module(name: str) -> str:
    """What a full name lies in."""
    return name.rpartition(".")[0]


def members(module: str) -> list[str]:
    """The public functions that a module defines or offers."""
    loaded = getattr(torchgw, module)
    named = getattr(loaded, "__all__", None)
    return named or [
        name
        for name, value in vars(loaded).items()
        if inspect.isfunction(value) and value.__module__ == loaded.__name__ and not name.startswith("_")
    ]


def described(text: str | None) -> set[str]:
    """Names with an entry under Parameters or Attributes, and names in code quotes within those sections."""
    found: set[str] = set()
    section, lines = "", inspect.cleandoc(text or "").split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line and below and set(below) == {"-"}:
            section = line
        if section in ("Parameters", "Attributes"):
            entry = ENTRY.match(line)
            if entry:
                found |= {name.strip().lstrip("*") for name in entry["names"].split(",")}
            found |= set(re.findall(r"``(\w+)``", line))
    return found


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def fields_of(value: object) -> tuple[Any, ...]:
    """The fields of a record."""
    return fields(value) if isinstance(value, type) and is_dataclass(value) else ()


def callables() -> dict[str, Callable[..., Any]]:
    """All that users call: functions, constructors, and methods of what is given back to them."""
    found: dict[str, Callable[..., Any]] = {}
    for name in torchgw.__all__:
        value = getattr(torchgw, name)
        if not callable(value) or (isinstance(value, type) and issubclass(value, Warning | Enum)):
            continue
        found[name] = value
    for module in MODULES:
        offered = {f"{module}.{name}": getattr(getattr(torchgw, module), name) for name in members(module)}
        found |= {name: value for name, value in offered.items() if not _is_error(value)}
    for owner in READ:
        for name, value in inspect.getmembers(owner):
            method = getattr(value, "__func__", value)
            ours = getattr(method, "__module__", None) or ""
            if inspect.isfunction(method) and ours.startswith("torchgw") and not name.startswith("_"):
                found[f"{owner.__name__}.{name}"] = method
    return found


@pytest.mark.parametrize("name", torchgw.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    pages = in_the_reference()
    if name == "__version__":
        assert "torchgw.__version__" in (API / "index.md").read_text()
    else:
        assert f"torchgw.{name}" in pages


@pytest.mark.parametrize("module", MODULES)
def test_every_function_of_a_public_module_is_in_the_reference(module: str) -> None:
    assert {f"torchgw.{module}.{name}" for name in members(module)} <= in_the_reference()


def test_the_reference_shows_nothing_that_is_not_there() -> None:
    for name in in_the_reference() - {""}:
        assert pkgutil.resolve_name(name) is not None


@pytest.mark.parametrize(("name", "value"), callables().items(), ids=callables().keys())
def test_every_parameter_is_described(name: str, value: Callable[..., Any]) -> None:
    text = value.__doc__
    assert text, f"{name} has no docstring"
    constructor = getattr(value, "__init__", None) if isinstance(value, type) else None
    known = described(text) | described(getattr(constructor, "__doc__", None))
    asked = {*inspect.signature(value).parameters, *(field.name for field in fields_of(value))} - {"self", "cls"}
    assert not asked - known


def test_records_that_functions_return_show_no_constructor() -> None:
    records = [*filter(is_dataclass, (getattr(torchgw, name) for name in torchgw.__all__)), OneToOne, Unseen]
    hidden = {kind.__name__ for kind in records if not inspect.signature(kind).parameters}
    assert hidden >= RETURNED
    shown = pydoc.plain(pydoc.render_doc(torchgw.GWResult))
    assert "coupling: 'Coupling'" not in shown
    assert not re.search(r"^ \|  (known|model|differentiated|of)( = |\()", shown, re.MULTILINE)


def test_a_record_without_a_constructor_is_still_made_copied_and_replaced() -> None:
    rung = torchgw.Rung(cells=(3, 4), residual=0.1, residual_error=0.0, n_iter=1, n_iter_sinkhorn=2, seconds=0.5)
    assert pickle.loads(pickle.dumps(rung)) == copy.copy(rung) == replace(replace(rung, n_iter=7), n_iter=1) == rung
    shift = np.zeros(2)
    basin = torchgw.Basin(energy=1.0, count=1, level="full", difference=0.0, matching=shift.astype(int), shift=shift)
    assert basin.origin == "unknown"  # a default that help does not show


def test_the_reader_of_docstrings_misses_what_is_not_described() -> None:
    text = """One line.

    Parameters
    ----------
    a, b : two numbers; ``c`` is their sum.

    Notes
    -----
    d : no parameter.
    """
    assert described(text) == {"a", "b", "c"}
