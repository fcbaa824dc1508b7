"""Measured figures of the prose, taken from the stored results so that no page states one by hand.

A figure stands between ``<!-- figure NAME -->`` and ``<!-- end -->``, within a line and not first in it. NAME is
SUITE:WHAT, then a ":" before each word that says which of several is meant: ``peers:times:POT entropy_term:1000``.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.__main__ import SUITES
from benchmarks.common import RESULTS

Row = dict[str, Any]
UNKNOWN = "not measured"
LOOSE = 5e-2  # the marginal tolerance of the large runs that are shown


def figure(name: str) -> str:
    """One figure as text."""
    suite, what, *which = name.split(":")
    if is_pending(suite):
        return UNKNOWN
    content = json.loads((RESULTS / f"{suite}.json").read_text())
    return FIGURES[what](content, *which)


def is_pending(suite: str) -> bool:
    """Whether a suite has not stored results yet."""
    return suite in SUITES and not (RESULTS / f"{suite}.json").exists()


def machine(content: Row) -> str:
    """Processor, cores and day; both of each where rows of an earlier run stand among the others."""
    made = content["environment"]
    kept = content.get("environment_of_kept_rows", made)
    days = " to ".join(dict.fromkeys((kept["date"], made["date"])))
    device = made["gpu"] or " and ".join(dict.fromkeys((kept["cpu"], made["cpu"])))
    mixed = "" if kept["cpu"] == made["cpu"] else "; its rows are of two processors and do not compare"
    return f"{device}, {made['cores']} CPU cores, {days}{mixed}"


def met(content: Row) -> str:
    """How many of a suite's requirements are met, and how many are not known to be."""
    judged = [row["met"] for row in content["rows"] if row.get("met", "-") != "-"]
    unknown = sum(not isinstance(word, bool) for word in judged)
    return f"{sum(word is True for word in judged)} of {len(judged)}" + (f", {unknown} not known" if unknown else "")


def times(content: Row, solver: str, n: str) -> str:
    """How many times as long a solver takes as the row of ours that it stands against."""
    found = _sizes(content, solver)[int(n)]["ratio"]
    return found if isinstance(found, str) else ratio(found)


def over(content: Row, column: str, solver: str, other: str, n: str | None = None) -> str:
    """A column of one solver divided by that of another: at one size, or the least and the largest quotient."""
    upper, lower = _sizes(content, solver), _sizes(content, other)
    pairs = {size: (upper[size][column], lower[size][column]) for size in upper if size in lower}
    known = {size: a / b for size, (a, b) in pairs.items() if "-" not in (a, b)}
    if n is not None:
        return ratio(known[int(n)])
    return f"{ratio(min(known.values()))} to {ratio(max(known.values()))}"


def _sizes(content: Row, solver: str) -> dict[int, Row]:
    """The rows of a solver by size."""
    return {row["N"]: row for row in content["rows"] if row["solver"] == solver}


def slower(content: Row, n: str) -> str:
    """How many times as long ours takes as POT's conditional gradient: the median over kinds of problems."""
    return ratio(statistics.median(run["ratio"] for run in _kinds(content, n)))


def lower(content: Row, n: str) -> str:
    """On how many kinds of problems our value is the lower one."""
    values = [run["value"] for run in _kinds(content, n)]
    return f"{sum(value < 1 - 1e-6 for value in values)} of {len(values)}"


def _kinds(content: Row, n: str) -> list[Row]:
    """The runs of the suite of small problems at one size."""
    runs: list[Row] = content["groups"][n][0]["detail"]["runs"]
    return runs


def large(content: Row, n: str, what: str) -> str:
    """Time or memory of a large run."""
    details = [entry["detail"] for entry in content["details"]]
    found = next(entry for entry in details if entry.get("n") == int(n) and entry.get("tol") == LOOSE)
    return _spent(found["seconds"]) if what == "time" else f"{found['gib']:.1f} GiB"


def taken(content: Row, case: str) -> str:
    """The first time in a line of a suite."""
    said = next(row["measured"] for row in content["rows"] if row["case"] == case)
    return _spent(float(re.findall(r"([\d.e+]+) s\b", said)[0]))


def solve(content: Row, size: str, what: str) -> str:
    """Time or memory of a solve on a GPU."""
    rows = (row for name in ("jobs", "million") for row in content["groups"].get(name, []))
    found = next((row for row in rows if row["size"] == size), None)
    if found is None:
        return UNKNOWN
    return _spent(found["s"]) if what == "time" else f"{found['GPU GiB']:.1f} GiB"


def call(content: Row, size: str, kernels: str) -> str:
    """Time of the first solve of a process on a GPU, of this size, with kernels "cold", to compile, or "warm", on
    disk."""
    rows = content["groups"].get(kernels, [])
    return next((_spent(row["s"]) for row in rows if row["size"] == size), UNKNOWN)


def faster(content: Row) -> str:
    """How many times as fast ours is, over all problems of the suite."""
    return ratio(content["summary"][0]["times faster"])


def beside(content: Row, programs: str, threads: str) -> str:
    """How many times as long a solve takes beside so many busy programs: the least and the most over the problems."""
    asked = int(programs), threads
    found = [row["times_alone"] for row in content["rows"] if (row["beside"], row["threads"]) == asked]
    return f"{ratio(min(found))} to {ratio(max(found))}"


def added(content: Row, most: str) -> str:
    """The milliseconds that a call adds, up to so many points."""
    found = [row["difference_ms"] for row in content["rows"] if row["N"] <= int(most)]
    return f"{min(found):.0f} to {max(found):.0f} ms"


def percent(content: Row, n: str, dtype: str) -> str:
    """By how much a call takes longer, with the interval that holds the median."""
    found = next(row for row in content["rows"] if (row["N"], row["dtype"]) == (int(n), dtype))
    return f"{found['overhead_percent']:.2g} % ({found['interval']})"


def ratio(times: float) -> str:
    """A quotient to two digits, or to whole ones."""
    return f"{times:.2g}" if times < 10 else f"{times:.0f}"


def _spent(seconds: float) -> str:
    """Seconds to two digits; minutes where they are many."""
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds / 60:.2g} minutes"


FIGURES: dict[str, Callable[..., str]] = {
    found.__name__: found
    for found in (machine, met, times, over, slower, lower, large, taken, solve, call, faster, beside, added, percent)
}
