"""Pictures of the peers suite: time, memory and errors over sizes, and time against value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.report import peers
from benchmarks.report.drawing import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MARKERS,
    ORANGE,
    PINK,
    RED,
    SKY,
    Look,
    blank,
    plain,
    spelled,
)
from benchmarks.report.fits import frontier, titled
from benchmarks.report.results import Row, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS = (RED, BLUE, "#000000", PINK, "#882255", "#999933")  # the last two of Paul Tol, who tests his as well
THEIRS = (SKY, GREEN, ORANGE, "#7f7f7f")
DASHES = ("--", ":", "-.")
ENTRY = 0.27  # inches of a line of the legend
FLOOR = 0.01  # percent; what is closer to the lowest value is drawn here


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Colour, marker and line of each solver: ours solid and heavy, others dashed."""
    ours = [name for name in names if peers.is_ours(name)]
    theirs = [name for name in names if not peers.is_ours(name)]
    found: dict[str, Look] = {}
    for i, name in enumerate(ours):
        look = {"color": OURS[i % len(OURS)], "marker": MARKERS[i % len(MARKERS)], "zorder": 4}
        found[name] = look | {"linestyle": "-", "linewidth": 2.2, "markersize": 6.5}
    for i, name in enumerate(theirs):
        dashes = DASHES[i // len(THEIRS) % len(DASHES)]
        look = {"color": THEIRS[i % len(THEIRS)], "marker": MARKERS[(i + 1) % len(MARKERS)], "zorder": 3}
        found[name] = look | {"linestyle": dashes, "linewidth": 1.4, "alpha": 0.95}
    return found


def beside(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend to the right of all panels."""
    figure.legend(handles=handles, loc="outside right center", handlelength=3.2, labelspacing=0.75)


def over_sizes(
    lines: Sequence[peers.Line],
    names: Sequence[str],
    label: str,
    unsolved: Sequence[Row] = (),
    text: Callable[[float], str] | None = spelled,
    floor: float = 0.0,
) -> Figure | None:
    """One quantity against N, both logarithmic; a cross at the top is the first size that a solver did not finish."""
    lines = [line for line in map(_positive, lines) if line.x]
    if not lines:
        return None
    look, (figure, (axes,)) = looks(names), blank(max(4.7, 0.8 + ENTRY * len(lines)))
    for line in sorted(lines, key=lambda line: names.index(line.name)):
        axes.plot(line.x, line.y, label=titled(*line, floor), **look[line.name])
    axes.set(xscale="log", yscale="log", xlabel="points N", ylabel=label)
    _crosses(axes, unsolved, look)
    plain(axes.xaxis)
    if text is not None:
        plain(axes.yaxis, text)
    beside(figure, axes.get_legend_handles_labels()[0])
    return figure


def _positive(line: peers.Line) -> peers.Line:
    kept = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y > 0]
    return peers.Line(line.name, [x for x, _ in kept], [y for _, y in kept])


def _crosses(axes: Axes, unsolved: Sequence[Row], look: dict[str, Look]) -> None:
    first: dict[str, float] = {}
    for row in unsolved:
        first[row["label"]] = min(row["N"], first.get(row["label"], row["N"]))
    if not first:
        return
    places = list(first.values())
    stack = max(places.count(place) for place in places)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (0.045 * stack))
    mark = {"marker": "x", "markersize": 6, "markeredgewidth": 1.7, "linestyle": ""}
    for i, (name, place) in enumerate(first.items()):
        height = 0.975 - 0.034 * places[:i].count(place)
        axes.plot([place], [height], transform=axes.get_xaxis_transform(), color=look[name]["color"], **mark)
    axes.plot([], [], color=INK, label="not finished, or not started", **mark)


def excess(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
    """How far the value lies above the lowest at its size, against N."""
    lines = [line._replace(y=[max(100 * y, FLOOR) for y in line.y]) for line in peers.lines(rows, "excess")]
    return over_sizes(lines, names, "value above the lowest", text=_percent, floor=FLOOR)


def _percent(value: float) -> str:
    return "lowest" if value <= FLOOR else f"{spelled(value)} %"


def pareto(rows: Sequence[Row], names: Sequence[str]) -> Figure | None:
    """Time against value, one panel for each size; the frontier is what no other solver beats in both."""
    rows = [row for row in rows if row["excess"] is not None and (number(row.get("seconds")) or 0) > 0]
    sizes = peers.sizes(rows)
    if not sizes:
        return None
    columns = min(2, len(sizes))
    deep = -(-len(sizes) // columns)
    look, (figure, panels) = (
        looks(names),
        blank(max(0.9 + 2.5 * deep, 1.0 + ENTRY * len({row["label"] for row in rows})), deep, columns, sharey=True),
    )
    for axes, wanted in zip(panels, sizes, strict=False):
        _panel(axes, peers.of_size(rows, wanted), look)
        axes.set(xscale="log", yscale="log", title=" x ".join(map(spelled, wanted)))
        axes.margins(0.12)
        plain(axes.xaxis)
    for axes in panels[len(sizes) :]:
        axes.set_visible(False)
    plain(panels[0].yaxis, _percent)
    figure.supxlabel("seconds", fontsize=10.5)
    figure.supylabel("value above the lowest", fontsize=10.5)
    beside(figure, _meaning(rows, look))
    return figure


def _panel(axes: Axes, rows: Sequence[Row], look: dict[str, Look]) -> None:
    points = [(float(row["seconds"]), max(100 * row["excess"], FLOOR)) for row in rows]
    sound = [point for point, row in zip(points, rows, strict=True) if peers.holds(row)]
    edge = np.array([sound[i] for i in frontier(sound)]).reshape(-1, 2)
    axes.plot(*edge.T, drawstyle="steps-post", color=FAINT, linewidth=1.2, zorder=1)
    for point, row in zip(points, rows, strict=True):
        axes.plot(*point, **_mark(row["label"], look, peers.holds(row)))


def _mark(name: str, look: dict[str, Look], full: bool = True) -> Look:
    mark = {key: look[name][key] for key in ("marker", "color", "zorder")} | {"linestyle": "", "markersize": 6.5}
    if peers.is_ours(name):
        mark |= {"markersize": 9.5, "markeredgecolor": "black"}
    return mark if full else mark | {"markerfacecolor": "white", "markeredgecolor": mark["color"]}


def _meaning(rows: Sequence[Row], look: dict[str, Look]) -> list[Any]:
    from matplotlib.lines import Line2D

    there = {row["label"] for row in rows}
    found = [Line2D([], [], label=name, **_mark(name, look)) for name in look if name in there]
    found.append(Line2D([], [], color=FAINT, linewidth=1.2, label="frontier"))
    if not all(map(peers.holds, rows)):
        hollow = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": INK, "linestyle": ""}
        found.append(Line2D([], [], label="marginals do not hold", **hollow))
    return found
