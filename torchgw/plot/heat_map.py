"""The plan as a heat map of the mass between groups of source and of target points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from torchgw import validate
from torchgw.couplings.reader import group_mass
from torchgw.plot import canvas, colours
from torchgw.results.result import GWResult
from torchgw.runtime.surroundings import isolate
from torchgw.types import Array
from torchgw.views import layout, point_labels
from torchgw.views.point_labels import Labels, Numbers

BINS = 100
MOST = 2000  # cells along a side
DENSITY, SHARES = "magma", "Blues"
SIZE = (4.4, 3.7)
TICKS = 5
PLAIN = [1, 2, 5, 10]  # steps between ticks, in some power of ten
NAMED = 20  # label names along an axis
WRITTEN = 12  # labels of a side up to which shares are written into the cells


@dataclass(frozen=True)
class Groups:
    """One side of the heat map.

    Attributes
    ----------
    codes : (N,) the group of each point, in [0, count), -1 for none.
    count : of groups.
    axis : what its label says.
    names : of groups of labels, else None.
    numbers : (count + 1,) values at the edges of groups of sorted points, None where the axis has no ticks.
    points : names of the points in the order of the axis, where each has a line of cells and they are few.
    """

    codes: Array
    count: int
    axis: str
    names: tuple[str, ...] | None
    numbers: Array | None
    points: tuple[str, ...] = ()


@isolate
def plan(
    result: GWResult, rows: Any = None, columns: Any = None, *, bins: int | None = None, ax: Axes | None = None
) -> Axes:
    """Heat map of the mass that goes from groups of source points to groups of target points.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned.
    rows, columns : on the source points (N,), on the target points (K,): labels make one row or column of cells each,
        numbers sort the points into cells of equally many. Integers of at most 20 distinct values are labels. Without
        either, source points are sorted along the direction in which they spread most, and a side that is not given is
        sorted by the mean position of the points that it is matched with, so that a good matching is a diagonal.
    bins : cells along a side that is sorted, by default 100, at most one for each point, and 2000.
    ax : where to draw; by default a new figure.

    Returns
    -------
    The Axes. Where rows are labels, a cell is the share of its row's mass, else that of all mass.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the result, for more than 2000 cells along a side, labels that are all missing,
        and without ``rows`` and ``columns`` for a result that was read from a
        file, which knows no points to sort.

    Notes
    -----
    O(N K bins) time and O((N + K) bins) memory, in pieces of up to 128 MiB; the plan is never stored.
    """
    result = canvas.check_result(result)
    n, k = result.shape
    bins = BINS if bins is None else validate.integer("bins", bins, least=1, most=MOST)
    given = None if rows is None else _read("rows", rows, n, "N")
    other = None if columns is None else _read("columns", columns, k, "K")
    canvas.check_plane(ax)
    down, across = map(_with_names, _sides(result, given, other, bins), (result.names_x, result.names_y))
    mass = group_mass(result.coupling, down.codes, down.count, across.codes, across.count)
    total = mass.sum(1, keepdims=True) if down.names else mass.sum()
    share = np.divide(mass, total, out=np.full_like(mass, np.nan), where=total > 0)
    ax = canvas.axes(ax, SIZE)
    _draw(ax, share, down, across)
    return ax


def _read(name: str, given: Any, n: int, letter: str) -> Numbers | Labels:
    held = point_labels.read(name, given, n, letter, finite=True)
    count = len(held.names) if isinstance(held, Labels) else 1
    if count == 0:
        raise ValueError(f"{name} must have a label for at least one point, got {n} that are all missing")
    if count > MOST:
        raise ValueError(
            f"{name} must have at most {MOST} distinct labels, a line of cells each, got {count}; group them, or pass "
            "numbers, which are put into bins= cells"
        )
    return held


def _sides(result: GWResult, rows: Any, columns: Any, bins: int) -> tuple[Groups, Groups]:
    """Groups of the rows and of the columns."""
    if rows is None and columns is None:
        if result.known is None:
            raise ValueError(
                "a result that was read from a file keeps no points to sort, so pass rows= or columns=, labels or "
                f"numbers to sort by; rows=np.arange({result.shape[0]}.0) is the order of the points"
            )
        sorted_rows = _sort_into_cells(
            layout.principal(layout.make_layout(result, 0).points, 1)[:, 0], bins, "along its longest direction", False
        )
        return sorted_rows, _following(result, sorted_rows, bins, 0)
    if rows is None:
        across = _groups(columns, bins)
        return _following(result, across, bins, 1), across
    down = _groups(rows, bins)
    return down, _following(result, down, bins, 0) if columns is None else _groups(columns, bins)


def _with_names(groups: Groups, names: Any) -> Groups:
    """The groups with the names of their points, where each is one point and they are few."""
    few = canvas.few_names(names)
    if not few or groups.count < len(few) or groups.names is not None or groups.numbers is not None:
        return groups
    return replace(groups, points=tuple(few[i] for i in np.argsort(groups.codes)))


def _groups(held: Numbers | Labels, bins: int) -> Groups:
    if isinstance(held, Labels):
        return Groups(held.codes, len(held.names), "", held.names, None)
    return _sort_into_cells(held.values, bins, "by the values given", True)


def _sort_into_cells(numbers: Array, bins: int, how: str, ticks: bool) -> Groups:
    """Points sorted into cells of equally many, up to one."""
    n = len(numbers)
    count = min(bins, n)
    order = np.argsort(numbers, kind="stable")
    codes = np.empty(n, dtype=np.int64)
    codes[order] = np.arange(n) * count // n
    edges = numbers[order[np.minimum(np.arange(count + 1) * n // count, n - 1)]]
    return Groups(codes, count, f"sorted {how}", None, edges if ticks else None)


def _following(result: GWResult, groups: Groups, bins: int, axis: int) -> Groups:
    """The other side, sorted by the mean group that it is matched with."""
    position = groups.codes.astype(np.float64)
    mean = np.asarray(result.push(position) if axis == 0 else result.pull(position))
    return _sort_into_cells(np.where(np.isnan(mean), np.inf, mean), bins, "by mean match", False)


def _draw(ax: Any, share: Array, down: Groups, across: Groups) -> None:
    confusion = bool(down.names and across.names)
    norm = Normalize(0, 1) if confusion else PowerNorm(0.5, 0, float(np.nanmax(share, initial=1e-300)))
    image = ax.imshow(
        share,
        origin="upper" if down.names else "lower",
        cmap=SHARES if confusion else DENSITY,
        norm=norm,
        aspect="equal" if confusion else "auto",
        interpolation="nearest",
    )
    canvas.label(ax, ", ".join(filter(None, ("target", across.axis))), ", ".join(filter(None, ("source", down.axis))))
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    _ticks(ax.xaxis, across, turned if max(map(len, across.names or across.points), default=0) > 3 else {})
    _ticks(ax.yaxis, down, {})
    if confusion and max(share.shape) <= WRITTEN:
        _write(ax, share)
    bar = colours.bar(ax, image, "share of the source label's mass" if down.names else "share of all mass")
    bar.locator, bar.formatter = MaxNLocator(TICKS, steps=PLAIN), StrMethodFormatter("{x:g}")
    bar.update_ticks()


def _ticks(axis: Any, groups: Groups, how: dict[str, Any]) -> None:
    if groups.names:
        step = -(-len(groups.names) // NAMED)
        axis.set_ticks(
            range(0, groups.count, step), list(map(canvas.short, groups.names[::step])), fontsize=canvas.SMALL, **how
        )
        return
    if groups.numbers is None:
        axis.set_ticks(range(len(groups.points)), groups.points, fontsize=canvas.TINY, **how)
        return
    at, numbers = _marks(groups.numbers)
    axis.set_ticks(at - 0.5, [f"{number:.3g}" for number in numbers], fontsize=canvas.SMALL)


def _marks(edges: Array) -> tuple[Array, Array]:
    """Places on an axis of cells with these edges (n + 1,), and the numbers there: round ones, unless these crowd."""
    count = len(edges) - 1
    even = MaxNLocator(TICKS, steps=PLAIN).tick_values(edges[0], edges[-1])
    even = even[(even >= edges[0]) & (even <= edges[-1])]
    at = np.interp(even, edges, np.arange(count + 1))
    gaps = np.diff((0, *at, count))
    if len(at) > 2 and gaps[1:-1].min() > count / (3 * TICKS) and gaps.max() < count / 2:
        return at, even
    at = np.unique(np.linspace(0, count, TICKS).round().astype(int))
    return at, edges[at]


def _write(ax: Any, share: Array) -> None:
    for (i, j), part in np.ndenumerate(share):
        if np.isfinite(part):
            ink = "white" if part > 0.5 else "black"
            ax.text(j, i, f"{part:.2f}", ha="center", va="center", fontsize=7, color=ink)
