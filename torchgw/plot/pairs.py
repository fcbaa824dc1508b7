"""Two clouds side by side: lines between what is matched, and values that the plan carries across."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from torchgw import validate
from torchgw.couplings import group_mass as grouped
from torchgw.plot import canvas, cloud, colours
from torchgw.results.result import GWResult
from torchgw.types import Array
from torchgw.views import layout
from torchgw.views import point_labels as values

SIZE = (7.0, 3.4)
ROW_ELEMENTS = 2**22
END = 16.0  # area of a line's end, in square points
FAINT, STRONG = 0.15, 0.8  # opacity of lines


def matching(
    result: GWResult,
    X: Any = None,
    Y: Any = None,
    *,
    colors: Any = None,
    n_lines: int = 100,
    basin: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Both clouds side by side, with lines from source points to the target points that get most of their mass.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned.
    X, Y : points (N, d), (K, e) to draw, by default those aligned, see `torchgw.views.layout`; needed for a result that
    was
        read from a file.
    colors : (N,) numbers or labels on the source, by which points and lines are coloured; by default the position along
        the cloud's longest direction. Integers of at most 20 distinct values are labels.
    n_lines : how many lines at most, evenly chosen along ``colors``.
    basin : which of ``result.basins`` the lines are of; 0 is the plan itself, 1 the best of those passed over.
    ax : where to draw; by default a new figure. It needs three dimensions where either cloud has them.

    Returns
    -------
    The Axes. A line is the fainter, the smaller the share of its point's mass is that it stands for; points without
    mass have none. At most 20000 points of a cloud are drawn, and the caption says so.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the result, and a plane ``ax`` for points with three coordinates.

    Notes
    -----
    O(n_lines K) time and memory in blocks beside the layout's.
    """
    result = canvas.checked(result)
    n_lines = validate.integer("n_lines", n_lines, least=0)
    basin = validate.integer("basin", basin, least=0, most=max(len(result.basins) - 1, 0))
    n, k = result.shape
    held = None if colors is None else values.read("colors", colors, n, "N")
    source, target, ax = _placed(result, X, Y, ax)
    along = values.Numbers(leading(source)) if held is None else held
    scale = colours.scale(along)
    rgba = scale.of(along)
    start, end, share = _lines(result, along, n_lines)
    if basin:
        end, share = result.basins[basin].matching.cpu().numpy()[start], np.ones(len(start))
    some = cloud.shown(n)
    cloud.scatter(ax, source[some], rgba[some])
    cloud.scatter(ax, target[np.setdiff1d(cloud.shown(k), end)], colours.PALE)
    if len(start):
        cloud.scatter(ax, target[end], rgba[start], END, zorder=3)
        tint = rgba[start].copy()
        tint[:, 3] = FAINT + (STRONG - FAINT) * np.sqrt(share / share.max())
        _draw_lines(ax, np.stack((source[start], target[end]), axis=1), tint)
    _finish(ax, source, target)
    if held is not None:
        scale.explain(ax, missing=_any_missing(held))
    return ax


def transfer(result: GWResult, values: Any, X: Any = None, Y: Any = None, *, ax: Axes | None = None) -> Axes:
    """The source coloured by ``values``, and the target by what the plan carries there.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned.
    values : (N,) numbers, of which each target point gets the mean weighted by the plan over those that are known, or
        labels, of which it gets the one with most mass. Integers of at most 20 distinct values are labels; NaN and
        infinite numbers are missing.
    X, Y, ax : as for `matching`.

    Returns
    -------
    The Axes. Grey are source points whose value is missing, and target points that get no mass from others. At most
    20000 points of a cloud are drawn, and the caption says so.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the result, and values that are all missing.

    Notes
    -----
    O(N K) time for numbers, for labels times their number; never N x K memory.
    """
    result = canvas.checked(result)
    given = _read(values, result.shape[0])
    source, target, ax = _placed(result, X, Y, ax)
    moved = _moved(result, given)
    scale = colours.scale(given)
    for points, found in ((source, given), (target, moved)):
        some = cloud.shown(len(points))
        cloud.scatter(ax, points[some], scale.of(found)[some])
    _finish(ax, source, target)
    scale.explain(ax, missing=_any_missing(given))
    return ax


def leading(points: Array) -> Array:
    """Position (n,) along the direction in which the points spread most; its sign makes the largest weight positive."""
    centred = points - points.mean(0)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    found: Array = centred @ (axis * np.sign(axis[np.abs(axis).argmax()]))
    return found


def _read(given: Any, n: int) -> values.Numbers | values.Labels:
    held = values.read("values", given, n, "N")
    known = held.codes >= 0 if isinstance(held, values.Labels) else np.isfinite(held.values)
    if not known.any():
        raise ValueError(f"values must be known for at least one point, got {n} that are all missing")
    return held


def _placed(result: GWResult, X: Any, Y: Any, ax: Any) -> tuple[Array, Array, Any]:
    """The two clouds as they are drawn, and the Axes."""
    x, y = layout.both(result, X, Y)
    solid = max(x.shape[1], y.shape[1]) == 3
    ax = canvas.axes(ax, SIZE, solid)
    source, target = cloud.side_by_side(x, y, canvas.is_solid(ax))
    return source, target, ax


def _finish(ax: Any, source: Array, target: Array) -> None:
    captions = cloud.caption("source", len(source)), cloud.caption("target", len(target))
    cloud.finish(ax, (source, captions[0]), (target, captions[1]))


def _any_missing(held: values.Numbers | values.Labels) -> bool:
    return isinstance(held, values.Labels) and bool((held.codes < 0).any())


def _lines(result: GWResult, along: values.Numbers | values.Labels, count: int) -> tuple[Array, Array, Array]:
    """Source and target indices of the lines, and the share of the source point's mass that each stands for."""
    order = np.argsort(along.values if isinstance(along, values.Numbers) else along.codes, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))]
    index = torch.from_numpy(chosen)
    ends, shares = [index.new_zeros(0)], [torch.zeros(0)]
    for part in torch.split(index, max(1, ROW_ELEMENTS // result.shape[1])):
        rows = result.coupling.rows(part).detach()
        largest = rows.max(1)
        ends.append(largest.indices.cpu())
        shares.append((largest.values / rows.sum(1)).cpu())  # no mass, NaN
    share = torch.cat([side.double() for side in shares]).numpy()
    kept = np.isfinite(share)
    return chosen[kept], torch.cat(ends).numpy()[kept], share[kept]


def _draw_lines(ax: Any, segments: Array, rgba: Array) -> None:
    if canvas.is_solid(ax):
        from mpl_toolkits.mplot3d.art3d import Line3DCollection  # type: ignore[import-untyped]

        ax.add_collection3d(Line3DCollection(segments, colors=rgba, linewidths=0.6, clip_on=False, zorder=2))
        return
    ax.add_collection(LineCollection(list(segments), colors=rgba, linewidths=0.6, zorder=0.5), autolim=False)


def _moved(result: GWResult, given: values.Numbers | values.Labels) -> values.Numbers | values.Labels:
    """What the target gets of values on the source."""
    if isinstance(given, values.Numbers):
        known = np.isfinite(given.values)
        moved = np.asarray(result.push(np.column_stack((known, np.where(known, given.values, 0.0)))))
        total = np.where(moved[:, 0] > 0, moved[:, 0], np.nan)
        return values.Numbers(moved[:, 1] / total)
    return values.Labels(grouped.most(result.coupling, given.codes, len(given.names)), given.names)
