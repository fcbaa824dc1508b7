"""Pictures of the other suites: each function takes rows and gives a figure, or None where nothing can be drawn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import exp, log
from typing import TYPE_CHECKING

from benchmarks.report.drawing import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MARKERS,
    ORANGE,
    RED,
    SERIES,
    above,
    blank,
    curve,
    different,
    listed,
    plain,
    spelled,
)
from benchmarks.report.fits import titled
from benchmarks.report.peers import STREAMED
from benchmarks.report.results import Row, natural, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all problems"


def ratios(rows: Sequence[Row]) -> Figure | None:
    """One bar for each phase: the median ratio over its problems, with each of them as a point."""
    rows = [row for row in rows if (number(row.get("ratio")) or 0) > 0]
    phases = sorted({str(row["phase"]) for row in rows}, key=natural)
    if not phases:
        return None
    figure, (axes,) = blank(1.2 + 0.36 * len(phases))
    for place, phase in enumerate(phases):
        middle = exp(statistics.median(log(float(row["ratio"])) for row in rows if str(row["phase"]) == phase))
        axes.barh(place, middle - 1, left=1, height=0.7, color=BLUE if middle >= 1 else ORANGE, alpha=0.3, linewidth=0)
        where = {"xycoords": axes.get_yaxis_transform(), "annotation_clip": False, "va": "center", "ha": "right"}
        axes.annotate(f"{middle:.3g}x", (1.08, place), **where)
    ways = different(rows, "how", ALL)
    for i, (way, mine) in enumerate(ways.items()):
        mark = {"color": SERIES[i % len(SERIES)], "marker": MARKERS[i % len(MARKERS)], "linestyle": "", "markersize": 5}
        shift = 0.2 * (i - (len(ways) - 1) / 2)
        for worse, look in ((False, {"label": way}), (True, {"markerfacecolor": "white"})):
            points = [row for row in mine if is_worse(row) == worse]
            heights = [phases.index(str(row["phase"])) + shift for row in points]
            axes.plot([float(row["ratio"]) for row in points], heights, zorder=3, **mark, **look)
    if any(map(is_worse, rows)):
        axes.plot([], [], "o", color=INK, markerfacecolor="white", markersize=5, label="worse quality")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set(xscale="log", xlabel="times as fast with the phase as without; bars and figures: median")
    axes.grid(visible=False, axis="y")
    listed(axes, phases)
    plain(axes.xaxis, times)
    above(figure, axes, len(ways) + 1)
    return figure


def is_worse(row: Row) -> bool:
    """Whether a phase paid with quality."""
    return str(row.get("verdict", "")).startswith("worse")


def times(value: float) -> str:
    """A ratio."""
    return f"{spelled(value)}x"


def cumulative(rows: Sequence[Row]) -> Figure | None:
    """Speed over that of the first step, as the phases are switched on one after the other."""
    rows = [row for row in rows if (number(row.get("ratio_to_first")) or 0) > 0]
    steps = sorted({str(row["step"]) for row in rows}, key=natural)
    if len(steps) < 2:
        return None
    figure, (axes,) = blank(1.2 + 0.36 * len(steps))
    problems = different(rows, "problem")
    for (problem, mine), colour, marker in zip(problems.items(), SERIES, MARKERS, strict=False):
        speed = [float(row["ratio_to_first"]) for row in mine]
        places = [steps.index(str(row["step"])) for row in mine]
        axes.plot(speed, places, color=colour, marker=marker, linewidth=2, label=problem)
        end = (speed[-1], places[-1])
        axes.annotate(f"{speed[-1]:.3g}x", end, (0, 7), textcoords="offset points", va="bottom", ha="center")
    axes.set(xscale="log", xlabel="times as fast as the first step")
    axes.margins(x=0.1)
    listed(axes, steps)
    plain(axes.xaxis, times)
    above(figure, axes, 3)
    return figure


def overhead(rows: Sequence[Row]) -> Figure | None:
    """What the library's call costs beyond the flat code, in percent against N."""
    rows = [row for row in rows if number(row.get("overhead_percent")) is not None and number(row.get("N"))]
    if not rows:
        return None
    figure, (axes,) = blank(3.6)
    for (kind, mine), colour, marker in zip(different(rows, "dtype").items(), SERIES, MARKERS, strict=False):
        curve(axes, mine, "N", "overhead_percent", color=colour, marker=marker, label=kind)
    axes.axhline(0, color=INK, linewidth=1)
    axes.set(xscale="log", xlabel="points N", ylabel="time beyond the flat code (%)")
    plain(axes.xaxis)
    axes.legend()
    return figure


def growth(details: Sequence[Row]) -> Figure | None:
    """Time and memory up to a million points, for each tolerance of the marginals."""
    found = [row["detail"] for row in details if {"n", "tol", "seconds", "gib"} <= row.get("detail", {}).keys()]
    found = [detail for detail in found if detail["n"] >= STREAMED]
    if not found:
        return None
    figure, panels = blank(3.8, columns=2)
    for axes, column, label in zip(panels, ("seconds", "gib"), ("seconds", "GiB, main process"), strict=True):
        for (tol, mine), colour, marker in zip(different(found, "tol").items(), SERIES, MARKERS, strict=False):
            name = titled(f"residual {tol}", [row["n"] for row in mine], [row[column] for row in mine])
            curve(axes, mine, "n", column, color=colour, marker=marker, label=name)
        axes.set(xscale="log", yscale="log", xlabel="points N", ylabel=label)
        plain(axes.xaxis)
        plain(axes.yaxis)
        axes.legend()
    return figure


def sizes(runs: Sequence[Row]) -> Figure | None:
    """Seconds of the default call over the points of the first space."""
    if not runs:
        return None
    figure, (axes,) = blank(3.8)
    name = titled("default call, points", [run["N"] for run in runs], [run["seconds"] for run in runs])
    curve(axes, runs, "N", "seconds", color=SERIES[0], marker=MARKERS[0], label=name)
    axes.set(xscale="log", yscale="log", xlabel="points N", ylabel="seconds")
    plain(axes.xaxis)
    plain(axes.yaxis)
    axes.legend()
    return figure


WAYS = {
    "floor": {"color": INK, "marker": "|", "markersize": 13, "markeredgewidth": 2, "label": "floor"},
    "eager": {"color": BLUE, "marker": "o", "label": "eager"},
    "compile": {"color": GREEN, "marker": "^", "label": "compile"},
    "triton": {"color": RED, "marker": "s", "label": "triton"},
    "two reads": {"color": ORANGE, "marker": "D", "label": "two reads"},
    "torch": {"color": FAINT, "marker": "v", "label": "plain torch"},
}


def kernels(rows: Sequence[Row]) -> Figure | None:
    """Time of every implementation over the floor of its kernel."""
    rows = [row for row in rows if number(row.get("floor"))]
    if not rows:
        return None
    figure, (axes,) = blank(1.2 + 0.27 * len(rows))
    for way, look in WAYS.items():
        there = [(row[way] / row["floor"], place) for place, row in enumerate(rows) if number(row.get(way))]
        if there:
            axes.plot(*zip(*there, strict=True), linestyle="", **look)
    axes.set(xscale="log", xlabel="time over the floor")
    listed(axes, [_case(row) for row in rows], fontsize=9)
    plain(axes.xaxis, times)
    above(figure, axes, len(WAYS))
    return figure


def _case(row: Row) -> str:
    rank = f", r = {row['rank']}" if row.get("rank") else ""
    return f"{row['what']}, {row['n']} x {row['k']}{rank}"


def gradients(rows: Sequence[Row]) -> Figure | None:
    """Time and memory of implicit gradients, in the widest dtype."""
    kinds = different(rows, "dtype")
    figure, panels = blank(3.9, columns=2)
    for axes, unit, label in zip(panels, ("s", "MiB"), ("seconds", "MiB"), strict=True):
        for way, colour in (("implicit", BLUE), ("plan", FAINT)):
            problems = different(kinds[max(kinds)], "problem").items()
            for (problem, mine), dashes, marker in zip(problems, ("-", "--", ":"), MARKERS, strict=False):
                look = {"color": colour, "linestyle": dashes, "marker": marker, "label": f"{way}, {problem}"}
                curve(axes, mine, "N", f"{way} {unit}", **look)
        axes.set(xscale="log", yscale="log", xlabel="points N", ylabel=label)
        plain(axes.xaxis)
        plain(axes.yaxis)
    above(figure, panels[1], 3)
    return figure


def lanczos(rows: Sequence[Row]) -> Figure | None:
    """Time and memory of the Lanczos adjoint and of back-propagation through the iteration, against its steps."""
    figure, panels = blank(3.7, columns=2)
    for axes, unit in zip(panels, ("seconds", "MiB"), strict=True):
        looks = zip((ORANGE, RED, BLUE, FAINT), MARKERS, strict=False)
        for way, (colour, marker) in zip(("stacked", "one by one", "adjoint", "basis"), looks, strict=False):
            curve(axes, rows, "steps", f"{way} {unit}", color=colour, marker=marker, label=way)
        axes.set(xscale="log", yscale="log", xlabel="steps", ylabel=unit)
        plain(axes.xaxis)
        plain(axes.yaxis)
    above(figure, panels[1], 4)
    return figure
