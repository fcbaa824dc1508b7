"""Cost and marginal error over the outer iterations, and the energies of the basins that the search found."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from torchgw.diagnostics.evidence import NEAR_TIE, Basin
from torchgw.plot import canvas
from torchgw.plot.colours import GREY, PALE, SOURCE, TARGET
from torchgw.results.result import GWResult
from torchgw.runtime.surroundings import isolate

SIZE = (4.6, 3.0)
WIDE = 30.0  # ratio of costs from which on they are drawn in logarithms
MOST_BASINS = 15
FEW = 25  # iterations up to which each is marked


@isolate
def convergence(result: GWResult, *, ax: Axes | None = None) -> Axes:
    """Cost of the plan over the outer iterations, with the marginal error of the inner solves on a second scale.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned.
    ax : where to draw; by default a new figure. The marginal error is drawn into a twin of it.

    Returns
    -------
    The Axes of the cost. The title says how the solve ended; dotted lines are where a streaming solve went to
    its next rung.

    Notes
    -----
    O(n_iter). What was recorded is `History`: the cost is logarithmic where it falls by more than a factor of 30.
    """
    result = canvas.check_result(result)
    canvas.check_plane(ax)
    ax = canvas.axes(ax, SIZE)
    history = result.history
    ended = result.status.name.lower().replace("_", " ")
    canvas.open_frame(ax)
    canvas.label(ax, "outer iteration", "cost of the plan", f"{ended} after {result.n_iter} iterations")
    if not history.iteration:
        ax.text(0.5, 0.5, "no outer iteration was recorded", ha="center", transform=ax.transAxes, fontsize=canvas.SMALL)
        ax.set(xticks=[], yticks=[])
        return ax
    cost = np.array(history.cost)
    _line(ax, history.iteration, cost, SOURCE, "-", 1.4)
    known = cost[np.isfinite(cost)]
    if len(known) and known.min() > 0 and known.max() > WIDE * known.min():
        ax.set_yscale("log")
    elif len(known):
        middle, least = (known.max() + known.min()) / 2, 0.005 * abs(known).max()
        half = max((known.max() - known.min()) / 1.8, least)  # a change of less than a percent is not blown up
        ax.set_ylim(middle - half, middle + half)
    ax.yaxis.label.set_color(SOURCE)
    _marginal_error(ax, history.iteration, np.array(history.marginal_error))
    for end in np.cumsum([rung.n_iter for rung in result.ladder])[:-1]:
        if end < history.iteration[-1]:
            ax.axvline(end + 0.5, color=GREY, linestyle=":", linewidth=0.9)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _line(ax: Any, x: Any, y: Any, colour: str, style: Any, width: float) -> None:
    """A line with a mark at each point where they are few."""
    ax.plot(x, y, color=colour, linestyle=style, linewidth=width, marker="o", markersize=3 if len(x) <= FEW else 0)


def _marginal_error(ax: Any, iteration: Any, error: Any) -> None:
    """The marginal error in logarithms on the right, over two decades or more; gaps where it is not known, or zero."""
    known = error[np.isfinite(error) & (error > 0)]
    if len(known) == 0:
        return
    twin = ax.twinx()
    twin.set_yscale("log")
    _line(twin, iteration, np.where(np.isin(error, known), error, np.nan), TARGET, (0, (3, 2)), 0.8)
    low, high = np.floor(np.log10(known.min())), np.ceil(np.log10(known.max()))
    twin.set_ylim(10 ** min(low, high - 2), 10 ** (high + 0.05))
    twin.set_ylabel("marginal error", fontsize=canvas.MEDIUM, color=TARGET)
    twin.tick_params(labelsize=canvas.SMALL)
    twin.spines[["top", "left"]].set_visible(False)


@isolate
def basins(result: GWResult, *, ax: Axes | None = None) -> Axes:
    """Energies of the local optima that the search found, the best one first.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned, with a search.
    ax : where to draw; by default a new figure.

    Returns
    -------
    The Axes. The shaded band reaches 5 % above the best energy: another basin within it makes the result ambiguous.
    Beside each basin: how many starts ended in it, and how far its matches are from the best one's, relative to the
    largest distance. Hollow marks are energies on another level, which are not to be compared. At most 15 are drawn.

    Raises
    ------
    ValueError
        For a result without a search.
    """
    result = canvas.check_result(result)
    if not result.basins:
        raise ValueError(
            "result must come from a search to have basins, got none: the solve began at init=, or its strategy does "
            "not search; align without init"
        )
    canvas.check_plane(ax)
    ax = canvas.axes(ax, SIZE)
    shown = result.basins[:MOST_BASINS]
    best, energy = shown[0].energy, np.array([basin.energy for basin in shown])
    ax.axvspan(best, NEAR_TIE * best, color=PALE, alpha=0.6, linewidth=0)
    for i, basin in enumerate(shown):
        _draw_basin(ax, i, basin, shown[0])
    canvas.open_frame(ax)
    low, high = min(energy.min(), best), max(energy.max(), NEAR_TIE * best)
    span = float(high - low) or 1.0
    ax.set(xlim=(low - 0.05 * span, high + 0.8 * span), ylim=(len(shown) - 0.5, -0.5), yticks=range(len(shown)))
    ax.set_yticklabels([str(i + 1) for i in range(len(shown))])
    ax.xaxis.set_major_locator(MaxNLocator(5))
    total = len(result.basins)
    some = f"{len(shown)} of {total} basins" if len(shown) < total else f"{total} basin{'s' if total > 1 else ''}"
    apart = " or ".join(dict.fromkeys(basin.level for basin in shown if basin.level != shown[0].level))
    canvas.label(ax, "energy", "basin", f"{some}; hollow: on {apart}, not comparable" if apart else some)
    return ax


def _draw_basin(ax: Any, i: int, basin: Basin, best: Basin) -> None:
    """One line: a mark at its energy, and from the best one's where they were compared on the same level."""
    starts = f"{basin.count} start{'s' if basin.count != 1 else ''}"
    text = f"best, {starts}" if i == 0 else f"{starts}, {basin.difference:.2g} away"
    text += "" if basin.origin == "unknown" else f", {basin.origin}"
    if basin.level == best.level:
        ax.hlines(i, best.energy, basin.energy, color=GREY, linewidth=1.2)
        ax.scatter(basin.energy, i, color=SOURCE if i else TARGET, marker="o" if i else "D", s=24, zorder=3)
    else:
        ax.scatter(basin.energy, i, facecolor="white", edgecolor=GREY, s=24, zorder=3)
    ax.annotate(text, (basin.energy, i), (6, 0), textcoords="offset points", va="center", fontsize=canvas.SMALL - 1)
