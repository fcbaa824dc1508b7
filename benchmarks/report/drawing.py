"""How the report draws: colours, panels, axes with plain numbers, and PNG files of few colours.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; markers and dashes say the same
again. Figures are made without pyplot, so nothing is registered, shown or left open, and matplotlib is imported when
the first one is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.report.results import Row, grouped, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#333333", "#8a8a8a"
ORANGE, SKY, GREEN, BLUE, RED, PINK = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
SERIES = (BLUE, RED, GREEN, ORANGE, PINK, SKY, "#000000")
MARKERS = "os^DvphXP*"
WIDTH, DPI, COLOURS = 8.6, 160, 96
STYLE = {
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.markersize": 5.5,
}
Look = dict[str, Any]


def save(draw: Callable[[], Figure | None], path: Path) -> bool:
    """Draw in the style of the report and write a PNG of few colours; whether there was anything to draw."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    with rc_context(STYLE):
        figure = draw()
        if figure is None:
            return False
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3]).quantize(COLOURS).save(path, optimize=True)
    return True


def blank(height: float, rows: int = 1, columns: int = 1, **how: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with a grid of panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def above(figure: Figure, axes: Axes, columns: int) -> None:
    """The legend of the axes above all panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=columns, columnspacing=1.6)


def plain(axis: Any, text: Callable[[float], str] | None = None) -> None:
    """Label a logarithmic axis with plain numbers, 1, 2 and 5 of each decade where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high / low < 60 else (1.0, 3.0) if high / low < 1000 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: (text or spelled)(value)))
    axis.set_minor_locator(NullLocator())


def spelled(value: float) -> str:
    """A number without an exponent, millions by name."""
    if value >= 1e6:
        return f"{value / 1e6:g} million"
    return grouped(value) if value >= 1e4 else f"{value:g}"


def curve(axes: Axes, rows: Sequence[Row], x: str, y: str, **look: Any) -> None:
    """One column against another, of the rows that have both."""
    points = sorted(
        (number(row.get(x)), number(row.get(y))) for row in rows if None not in map(number, (row.get(x), row.get(y)))
    )
    if points:
        axes.plot(*zip(*points, strict=True), **{"linewidth": 2, **look})


def listed(axes: Axes, names: Sequence[str], **how: Any) -> None:
    """Names down the left side, the first on top."""
    axes.set_yticks(range(len(names)), names, **how)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def different(rows: Sequence[Row], column: str, default: str = "") -> dict[str, list[Row]]:
    """The rows by what a column says, in the order of the rows."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row.get(column, default)), []).append(row)
    return found
