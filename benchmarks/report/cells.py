"""Cells of the page's tables: how values read, how they are aligned, and which rows stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report.peers import is_ours
from benchmarks.report.results import Row, grouped, number

WIDE = 34  # characters from which a cell's text may wrap
UNITS = {"mib": "MiB", "gib": "GiB", "percent": "%"}


def columns(rows: Sequence[Row]) -> list[str]:
    """All columns of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(column for row in rows for column in row))


def heading(column: str) -> str:
    """A column's name as a reader writes it."""
    return " ".join(UNITS.get(word, word) for word in column.replace("_", " ").split(" "))


def cell(value: Any) -> str:
    """A value as text: four figures, thousands apart, no long fractions."""
    if value is None or value == "-":
        return "\u2013"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell, value))
    if isinstance(value, int):
        return grouped(value)
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 1000:
        return grouped(value)
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"


def numbers(rows: Sequence[Row]) -> set[str]:
    """The columns at least half of whose values are numbers."""
    found = set()
    for column in columns(rows):
        there = [row[column] for row in rows if row.get(column) not in (None, "-")]
        if 2 * sum(number(value) is not None for value in there) >= len(there):
            found.add(column)
    return found


def kind(value: Any) -> str:
    """The class of a cell: what is met or not stands out, long text wraps."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "wide" if len(cell(value)) > WIDE else ""


def mark(row: Row) -> str:
    """The class of a row: ours, or not solved."""
    if row.get("status", "ok") != "ok":
        return "unsolved"
    return "ours" if is_ours(str(row.get("solver", ""))) else ""
