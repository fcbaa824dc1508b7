"""Rows of the peers suite: whose solver it is, how far its value lies above the lowest, and lines over sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.report.results import Result, Row, number

MARGINALS = 1e-2  # a plan whose marginals are further off answers another problem: its value does not count as lowest
GOOD = 0.05  # values at most this far above the lowest count as equally good
SCALE = "torchgw to a million points"
STREAMED = 20_000  # points from which sizes are fitted: all of them take the same road
TOLERANCE = 0.05  # of the rows of the scale suite that form one line


class Line(NamedTuple):
    """One solver over sizes."""

    name: str
    x: list[float]
    y: list[float]


def is_ours(solver: str) -> bool:
    """Whether a solver is of this library; version 0.4.2 is the unrelated package of the same name."""
    return solver.startswith("torchgw") and "0.4.2" not in solver


def labelled(rows: Sequence[Row]) -> list[Row]:
    """The rows with a ``label``: the solver, with what it begins from where it begins from several things."""
    origins: dict[str, set[str]] = {}
    for row in rows:
        origins.setdefault(row["solver"], set()).add(str(row.get("from", "")))
    return [
        row | {"label": f"{row['solver']}, from {row['from']}" if len(origins[row["solver"]]) > 1 else row["solver"]}
        for row in rows
    ]


def holds(row: Row) -> bool:
    """Whether a row was solved and its plan has the marginals asked for, as far as is known."""
    error = number(row.get("marginal_error"))
    return row.get("status") == "ok" and (error is None or error <= MARGINALS)


def with_excess(rows: Sequence[Row]) -> list[Row]:
    """The rows with ``excess``: value over the lowest at that size, minus 1; None where there is no value."""
    found = []
    for row in rows:
        alike = [other for other in rows if (other["N"], other.get("K")) == (row["N"], row.get("K"))]
        values = [value for other in alike if holds(other) and (value := number(other.get("value"))) is not None]
        value = number(row.get("value"))
        known = row.get("status") == "ok" and value is not None and values and min(values) > 0
        found.append(row | {"excess": value / min(values) - 1 if known else None})
    return found


def lines(rows: Sequence[Row], column: str) -> list[Line]:
    """One line for each label over N, of the rows that were solved and have this number."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        y = number(row.get(column))
        if row.get("status") == "ok" and y is not None:
            found.setdefault(row["label"], []).append((float(row["N"]), y))
    return [Line(name, *map(list, zip(*sorted(points), strict=True))) for name, points in found.items()]


def scale_line(scale: Result | None, column: str, factor: float = 1.0) -> list[Line]:
    """Our own line of the scale suite, to a million points, from where it streams; nothing where there is none."""
    details = [row.get("detail", {}) for row in scale.part("details")] if scale else []
    points = sorted(
        (float(detail["n"]), detail[column] * factor)
        for detail in details
        if detail.get("tol") == TOLERANCE and number(detail.get(column)) is not None and detail["n"] >= STREAMED
    )
    return [Line(SCALE, *map(list, zip(*points, strict=True)))] if points else []


def sizes(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """The sizes of the rows, ascending."""
    return sorted({(row["N"], row.get("K", row["N"])) for row in rows})


def of_size(rows: Sequence[Row], wanted: tuple[int, int]) -> list[Row]:
    """The rows of one size."""
    return [row for row in rows if (row["N"], row.get("K", row["N"])) == wanted]
