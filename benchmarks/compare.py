"""``python -m benchmarks compare BEFORE AFTER``: what became slower, larger or worse between two files of one suite.

Rows are matched by what names them: text and sizes. Times, memory and quality are compared where the machine and the
versions are the same; otherwise only ratios and quality. Figures of what a suite measures against (other libraries,
the code before a change, floors) are not judged, because nothing here can make them worse. The net solves each problem
once, so only its values, shares right and gradient evaluations are judged, by thresholds of their own. The exit code is
1 when something got worse by more than the thresholds below, 2 when the files cannot be compared, else 0.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import show
from benchmarks.report.cells import columns
from benchmarks.report.peers import is_ours
from benchmarks.report.results import Result, Row, is_table, load, number

TIME, SECONDS = 1.25, 1e-5  # times as long, and by more than these seconds
MEMORY, MIB = 1.25, 1.0  # times as much, and by more than these MiB
RATIO = 1.25  # times less of a gain
PERCENT = 10.0  # percentage points more of an overhead
VALUE, VALUE_FLOOR = 0.02, 1e-9  # share above the value before, but for rounding
RHO = 0.005  # less of a correlation, or of a share of points
ITERATIONS = 1.25  # times as many
ERROR, ERROR_FLOOR = 2.0, 1e-6  # times the error before, but for what is exact anyway
NET_VALUE, NET_RIGHT, NET_GRADIENTS = 0.005, 0.02, 1.25  # share of the value, points of a share, times as many

MACHINE = ("cpu", "cores", "threads", "gpu", "python", "versions")
SIZES = {"n", "k", "m", "nodes", "columns", "steps", "points", "relaxation", "epsilon", "alpha", "seed", "tol"}
OUTCOMES = {"measured", "required", "reason", "verdict", "status", "settings", "package", "detail", "group"}
REFERENCE = re.compile(
    r"^(before|flat|difference|floor|torch|stacked|one by one|others|two reads|plan|basis|warm|POT)(?=[ _]|$)"
    r"|published|POT|SCOT|0\.4\.2"
)
# Nothing of ours, two ways of ours, what the rows say already, or small differences of times.
UNJUDGED = {"summary", "preparation", "factored", "milliseconds", "explained"}
LESS_IS_BETTER = re.compile(r"exponent|/ floor")


class Kind(NamedTuple):
    """A kind of column: its name's pattern, when it got worse, and whether other machines have other figures."""

    name: str
    pattern: re.Pattern[str]
    is_worse: Callable[[float, float], bool]
    of_machine: bool


def kind(name: str, words: str, is_worse: Callable[[float, float], bool], of_machine: bool = False) -> Kind:
    """A kind whose columns have one of these words in their name."""
    return Kind(name, re.compile(rf"(^|[ _])({words})([ _]|$)", re.IGNORECASE), is_worse, of_machine)


KINDS = (
    kind("percent", "percent", lambda before, after: after > before + PERCENT),
    kind("ratio", "ratio|exponent|/", lambda before, after: after * RATIO < before),
    kind("error", "errors?|residual|marginals|off by|differ by", lambda a, b: b > ERROR * a + ERROR_FLOOR),
    kind("error", "foscttm", lambda before, after: after > ERROR * before),
    kind("time", "seconds|s|times?", lambda before, after: after > TIME * before + SECONDS, of_machine=True),
    kind("rho", r"share|same|default|epsilon 0|\d{4,}", lambda before, after: after < before - RHO),
    kind("iterations", "iterations?|n_iter", lambda before, after: after > ITERATIONS * before + 1),
    kind("rho", "rho", lambda before, after: after < before - RHO),
    kind("value", "value", lambda before, after: after > before + VALUE * abs(before) + VALUE_FLOOR),
    kind("time", "milliseconds|ms", lambda a, b: b > TIME * a + 1e3 * SECONDS, of_machine=True),
    kind("memory", "mib|mb", lambda before, after: after > MEMORY * before + MIB, of_machine=True),
    kind("memory", "gib|gb", lambda before, after: after > MEMORY * before + MIB / 1024, of_machine=True),
)
OF_SUITE: dict[frozenset[str], tuple[Kind, ...]] = {
    frozenset(("problem", "value", "right", "gradients")): (
        kind("value", "value", lambda a, b: b + VALUE_FLOOR > (1 + NET_VALUE) * (a + VALUE_FLOOR)),
        kind("rho", "right", lambda before, after: after < before - NET_RIGHT),
        kind("gradients", "gradients", lambda before, after: after > NET_GRADIENTS * before),
    )
}
"""The kinds of a suite that has its own thresholds, by columns that it alone has; others are not judged there."""


def run(before: str, after: str) -> None:
    """Print what changed; leave with 1 when something got worse."""
    try:
        old, new = load(Path(before)), load(Path(after))
        strangers = differences(old.environment, new.environment)
        changes, matched = compared(old, new, absolute=not strangers)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from error
    if strangers:
        print(f"only ratios and quality compare, the machines differ: {', '.join(strangers)}")
    if changes:
        show(changes)
    worse = sum(change["change"] == "worse" for change in changes)
    print(f"{matched} rows compared, {len(changes)} changes beyond the thresholds, {worse} for the worse")
    if worse:
        raise SystemExit(1)


def differences(before: Row, after: Row) -> list[str]:
    """In what two environments differ, of what both of them tell."""
    found = []
    for key in MACHINE:
        one, other = before.get(key), after.get(key)
        if key == "versions" and isinstance(one, Mapping) and isinstance(other, Mapping):
            shared = [name for name in one if name in other and one[name] != other[name]]
            found += [f"{name} {one[name]} against {other[name]}" for name in shared]
        elif key in before and key in after and one != other:
            found.append(f"{key} {one} against {other}")
    return found


def compared(before: Result, after: Result, absolute: bool = True) -> tuple[list[Row], int]:
    """All changes beyond the thresholds, and how many rows were matched; a `ValueError` where there are none."""
    old, new = parts(before), parts(after)
    changes: list[Row] = []
    matched = 0
    if not alike(old["rows"], new["rows"]):
        raise ValueError(f"{before.name} and {after.name} are of different suites: their columns differ")
    for name in old:
        found, count = _part(name, old[name], new.get(name, []), absolute)
        changes += found
        matched += count
        if name == "rows" and not count:
            raise ValueError(f"{before.name} and {after.name} have no row in common: different suites, or sizes")
    return changes, matched


def alike(before: Sequence[Row], after: Sequence[Row]) -> bool:
    """Whether two tables share more than half of the columns of the one with fewer."""
    old, new = set(columns(before)), set(columns(after))
    return 2 * len(old & new) > min(len(old), len(new))


def parts(result: Result) -> dict[str, list[Row]]:
    """The tables of a file, with the details of rows that have some."""
    groups = result.more.get("groups")
    listed = [row for rows in groups.values() for row in rows] if isinstance(groups, dict) else []
    fuller = [rows for rows in (result.part("details"), listed) if rows and "detail" in rows[0]]
    found = {"rows": [flat(row) for row in (fuller[0] if fuller else result.rows)]}
    others = {name: rows for name, rows in result.more.items() if name != "details" and name not in UNJUDGED}
    if isinstance(groups, dict) and not fuller:
        others |= groups  # of a file whose rows are lines of text
    return found | {name: rows for name, rows in others.items() if is_table(rows)}


def flat(row: Row) -> Row:
    """A row with the numbers of its detail as columns; of a list of runs, the median time and the worst of the rest."""
    detail = row.get("detail")
    return (dict(_numbers("", detail)) if isinstance(detail, dict) else {}) | row


def _numbers(name: str, found: Any) -> Iterator[tuple[str, float]]:
    """All numbers of a nested detail, by the path to them."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _numbers(f"{name} {key}".strip(), value)
    elif isinstance(found, list) and found and all(isinstance(entry, dict) for entry in found):
        for key in found[0]:
            yield from _numbers(f"{name} {key}".strip(), [entry.get(key) for entry in found])
    elif isinstance(found, list):
        values = [value for value in map(number, found) if value is not None]
        kind = kind_of(name)
        if kind is not None and values:
            worst = min if kind.name == "rho" else statistics.median if kind.name == "time" else max
            yield name, worst(values)
    elif (value := number(found)) is not None:
        yield name, value


def _part(name: str, before: Sequence[Row], after: Sequence[Row], absolute: bool) -> tuple[list[Row], int]:
    names = naming(before, after)
    old, new = keyed(before, names), keyed(after, names)
    prefix = "" if name == "rows" else f"{name}: "
    changes = []
    for key, row in old.items():
        if key not in new:
            changes.append(change(f"{prefix}{key}", "row", "there", "gone", worse=True))
        else:
            changes += differing(f"{prefix}{key}", row, new[key], absolute)
    changes += [change(f"{prefix}{key}", "row", "-", "new") for key in new if key not in old]
    return changes, len(old.keys() & new.keys())


def naming(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """The columns that tell which row it is: all sizes, and text, from the left, until no two rows are alike."""
    rows = [*before, *after]
    shared = [column for column in columns(before) if column in columns(after)]
    names = [column for column in shared if column.lower() in SIZES]
    for column in (column for column in shared if is_text(column, rows)):
        if names and all(_distinct(table, names) == len(table) for table in (before, after)):
            break
        if not names or any(_distinct(t, [*names, column]) > _distinct(t, names) for t in (before, after)):
            names.append(column)
    return [column for column in shared if column in names]


def _distinct(rows: Sequence[Row], names: Sequence[str]) -> int:
    return len({tuple(str(row.get(name)) for name in names) for row in rows})


def is_text(column: str, rows: Sequence[Row]) -> bool:
    """Whether a column has text that may name a row: neither an outcome nor a measured number."""
    if column in OUTCOMES or kind_of(column) is not None or REFERENCE.search(column):
        return False
    return all(isinstance(row[column], str) and number(row[column]) is None for row in rows if column in row)


def keyed(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Row]:
    """The rows by their names; those of equal names by their order as well."""
    seen: Counter[str] = Counter()
    found = {}
    for row in rows:
        key = ", ".join(_said(column, row[column]) for column in names if column in row)
        seen[key] += 1
        found[key if seen[key] == 1 else f"{key} ({seen[key]})"] = row
    return found


def _said(column: str, value: Any) -> str:
    return f"{column} {value}" if number(value) is not None else str(value)


def kind_of(column: str, kinds: Sequence[Kind] = KINDS) -> Kind | None:
    """Which kind of figure a column has, from its name; None where it is not judged."""
    return next((kind for kind in kinds if kind.pattern.search(column)), None)


def kinds_of(row: Row) -> Sequence[Kind]:
    """The kinds of figures in a row's suite."""
    return next((kinds for own, kinds in OF_SUITE.items() if own <= row.keys()), KINDS)


def differing(title: str, before: Row, after: Row, absolute: bool) -> list[Row]:
    """What changed in one row."""
    found, kinds = [], kinds_of(before)
    for column, good in (("status", "ok"), ("met", True)):
        one, other = before.get(column), after.get(column)
        if (one == good) != (other == good):
            found.append(change(title, column, one, other, worse=one == good))
    for column in before:
        kind, one, other = kind_of(column, kinds), number(before[column]), number(after.get(column))
        if kind is None or one is None is other or not is_judged(column, kind, before.get("solver"), absolute):
            continue
        if one is None or other is None:
            found.append(change(title, column, before[column], after.get(column, "-"), worse=other is None))
            continue
        first, second = (other, one) if LESS_IS_BETTER.search(column) else (one, other)
        if kind.is_worse(first, second) or kind.is_worse(second, first):
            found.append(change(title, column, one, other, kind.is_worse(first, second)))
    return found


def is_judged(column: str, kind: Kind, solver: Any, absolute: bool) -> bool:
    """Whether a figure of ours is judged: not where it is of another machine, or of what a suite measures against.

    Rows of other solvers have only their ratio, how many times as long as ours they take; it stands in for times.
    """
    if solver is not None and kind.name == "ratio":
        return not absolute and not is_ours(str(solver))
    if solver is not None and not is_ours(str(solver)):
        return False
    return (absolute or not kind.of_machine) and (kind.name == "ratio" or not REFERENCE.search(column))


def change(title: str, column: str, before: Any, after: Any, worse: bool = False) -> Row:
    """One line of the printed table."""
    one, other = number(before), number(after)
    ratio = f"{other / one:.3g}x" if one and other is not None else "-"
    what = "new" if after == "new" else "worse" if worse else "better"
    return {"row": title, "column": column, "before": before, "after": after, "ratio": ratio, "change": what}
