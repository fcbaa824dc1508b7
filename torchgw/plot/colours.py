"""Colours of values that the colour-blind can tell apart: viridis for numbers, Okabe and Ito's eight for labels.

Okabe, Ito, "Color universal design", 2008. More than eight labels are spread over viridis in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_rgba_array
from matplotlib.lines import Line2D

from torchgw.plot.canvas import SMALL, is_solid, short
from torchgw.types import Array
from torchgw.views.point_labels import MISSING, Labels, Numbers

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
SOURCE, TARGET = OKABE_ITO[0], OKABE_ITO[1]
GREY, PALE = "#B0B0B0", "#D4D4D4"
NUMBERS = "viridis"
LEGEND = 12  # entries at most


@dataclass(frozen=True)
class Scale:
    """A map from values to colours.

    Attributes
    ----------
    colours : RGBA (n, 4) of n labels, None for numbers.
    names : of the labels, None for numbers.
    mappable : norm and colour map of numbers, None for labels.
    """

    colours: Array | None
    names: tuple[str, ...] | None
    mappable: ScalarMappable | None

    def of(self, values: Numbers | Labels) -> Array:
        """RGBA (n, 4); grey where there is no value."""
        grey = to_rgba_array(GREY)[0]
        if isinstance(values, Labels):
            assert self.colours is not None
            return np.where(values.present[:, None], self.colours[values.codes], grey)
        assert self.mappable is not None
        return np.where(values.present[:, None], self.mappable.to_rgba(np.ma.masked_invalid(values.values)), grey)

    def explain(self, ax: Any, label: str = "", missing: bool = False) -> None:
        """A colour bar or a legend of at most 12 entries beside the axes."""
        if self.mappable is not None:
            bar(ax, self.mappable, label)
            return
        assert self.colours is not None
        assert self.names is not None
        _legend(ax, self.names, self.colours, missing)


def scale(values: Numbers | Labels, log: bool = False, limits: tuple[float, float] | None = None) -> Scale:
    """The scale on which these values are all told apart."""
    if isinstance(values, Labels):
        return Scale(palette(len(values.names)), values.names, None)
    known = values.values[values.present]
    low, high = limits or ((float(known.min()), float(known.max())) if len(known) else (0.0, 1.0))
    norm: Any = LogNorm(low, high) if log else Normalize(low, high)
    return Scale(None, None, ScalarMappable(norm, NUMBERS))


def palette(n: int) -> Array:
    """RGBA (n, 4) of n labels; one grey without any."""
    if n == 0:
        return to_rgba_array(GREY)
    if n <= len(OKABE_ITO):
        return to_rgba_array(OKABE_ITO[:n])
    return np.asarray(mpl.colormaps[NUMBERS](np.linspace(0, 1, n)))


def bar(ax: Any, mappable: Any, label: str) -> Any:
    """A colour bar at the right of the axes; below solid ones, which reach to the sides."""
    where = "bottom" if is_solid(ax) else "right"
    found = ax.get_figure().colorbar(mappable, ax=ax, location=where, shrink=0.7, aspect=25, pad=0.02)
    found.set_label(label, fontsize=SMALL)
    found.ax.tick_params(labelsize=SMALL)
    found.outline.set_visible(False)
    return found


def _legend(ax: Any, names: tuple[str, ...], colours: Array, missing: bool) -> None:
    most = LEGEND - missing
    shown = np.arange(len(names))
    if len(names) > most:
        shown = np.unique(np.linspace(0, len(names) - 1, most).round().astype(int))
    entries = [(names[i], colours[i]) for i in shown] + ([(MISSING, to_rgba_array(GREY)[0])] if missing else [])
    handles = [Line2D([], [], marker="o", linestyle="", markersize=5, color=c) for _, c in entries]
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 4}
    where = below if is_solid(ax) else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    title = f"{len(shown)} of {len(names)} labels" if len(shown) < len(names) else None
    found = ax.legend(
        handles,
        [" "] * len(handles),  # here, names that begin with an underscore would be left out
        **where,
        frameon=False,
        fontsize=SMALL,
        title=title,
        title_fontsize=SMALL,
        handletextpad=0.3,
    )
    for text, (name, _) in zip(found.get_texts(), entries, strict=True):
        text.set_text(short(name))
