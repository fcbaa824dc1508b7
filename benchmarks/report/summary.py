"""What the results say in short: a table of the fastest, and sentences computed from the rows that are there."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.report import peers
from benchmarks.report.fits import power_law
from benchmarks.report.results import Result, Row, grouped, natural, number, size

Sentence = tuple[str, str]  # what it is about, and what it says


def duels(result: Result | None) -> list[Row]:
    """At each size our fastest solver and the fastest peer, among those whose value is close to the lowest."""
    rows = peers.with_excess(peers.labelled(result.rows)) if result else []
    good = [row for row in rows if _is_good(row)]
    found = []
    for wanted in peers.sizes(good):
        there = peers.of_size(good, wanted)
        ours = _fastest([row for row in there if peers.is_ours(row["label"])])
        theirs = _fastest([row for row in there if not peers.is_ours(row["label"])])
        ratio = theirs["seconds"] / ours["seconds"] if ours and theirs else None
        found.append(
            {
                "points": size(there[0]),
                "fastest of ours": ours.get("label"),
                "seconds": ours.get("seconds"),
                "fastest peer": theirs.get("label", "none that was started"),
                "its seconds": theirs.get("seconds"),
                "times as fast": ratio and f"{ratio:.3g}",
                "lowest value": min(there, key=lambda row: row["excess"])["label"],
            }
        )
    return found


def _is_good(row: Row) -> bool:
    near = row["excess"] is not None and row["excess"] <= peers.GOOD
    return peers.holds(row) and near and number(row.get("seconds")) is not None


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: float(row["seconds"]), default={})


def sentences(results: Mapping[str, Result]) -> list[Sentence]:
    """What else is worth knowing first."""
    found: list[Sentence] = []
    for name, (about, say) in SAYINGS.items():
        if name in results:
            found += [(about, text) for text in say(results[name])]
    return found + of_requirements(results)


def spent(seconds: float) -> str:
    """Seconds to three figures, minutes where they are many."""
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.3g} min"


def of_phases(result: Result) -> list[str]:
    """What all phases buy together on each problem."""
    steps, gains = result.part("cumulative"), []
    for problem in dict.fromkeys(row["problem"] for row in steps):
        mine = sorted((row for row in steps if row["problem"] == problem), key=lambda row: natural(str(row["step"])))
        times = [seconds for row in mine if (seconds := number(row.get("seconds")))]
        if len(times) > 1:
            gain = float(mine[-1]["ratio_to_first"])
            gains.append(f"{gain:.3g} ({problem}, {spent(times[0])} to {spent(times[-1])})")
    return [f"the last step is faster than the first by a factor of {'; '.join(gains)}."] if gains else []


def of_overhead(result: Result) -> list[str]:
    """The largest overhead of those sizes that are judged, and of the smaller ones."""
    known = [(percent, row) for row in result.rows if (percent := number(row.get("overhead_percent"))) is not None]
    groups = {True: "where a limit is set", False: "below"}
    said = []
    for judged, where in groups.items():
        mine = [entry for entry in known if (entry[1].get("required", "-") != "-") == judged]
        if mine:
            percent, row = max(mine, key=lambda entry: entry[0])
            said.append(f"at most {percent:.3g} % {where} (N = {row.get('N')}, {row.get('dtype')})")
    return [f"over flat tensor code {', '.join(said)}."] if said else []


def of_scale(result: Result) -> list[str]:
    """How time grows, and what the largest size takes."""
    times, memory = peers.scale_line(result, "seconds"), peers.scale_line(result, "gib")
    if not times or not memory:
        return []
    fit, line = power_law(times[0].x, times[0].y), times[0]
    grows = "" if fit is None else f"; time grows with the power {fit.exponent:.2f} of the number of points"
    return [f"{grouped(line.x[-1])} points take {spent(line.y[-1])} and {memory[0].y[-1]:.2g} GiB{grows}."]


def of_requirements(results: Mapping[str, Result]) -> list[Sentence]:
    """How many requirements of each suite are met, and which are not, or not known to be."""
    counts, others = [], []
    for result in results.values():
        judged = [row for row in result.rows if row.get("met", "-") != "-"]
        others += [(f"Met: {_word(row['met'])}", _unmet(result.name, row)) for row in judged if row["met"] is not True]
        if judged:
            counts.append(f"{result.name} {sum(row['met'] is True for row in judged)} of {len(judged)}")
    return [("Requirements met", f"{', '.join(counts)}."), *others] if counts else []


def _unmet(suite: str, row: Row) -> str:
    name = row.get("case") or f"N = {row.get('N')}, {row.get('dtype')}"
    measured = row.get("measured") or f"{row.get('overhead_percent', 0):.2g} % ({row.get('interval')})"
    return f"{suite}, {name}: {measured}, required {row.get('required')}."


def _word(met: bool | str) -> str:
    return "no" if met is False else str(met)


def of_kernels(result: Result) -> list[str]:
    """The median gain over plain torch."""
    gains = [gain for row in result.rows if (gain := number(row.get("torch / best")))]
    if not gains:
        return []
    return [f"{statistics.median(gains):.3g} times as fast as plain torch in the median of {len(gains)} cases."]


SAYINGS = {
    "phases": ("Phases", of_phases),
    "overhead": ("Overhead", of_overhead),
    "scale": ("Scale", of_scale),
    "kernels": ("Kernels", of_kernels),
}
