"""Clouds of points, and what a plan says on them: lines between matches, values that it carries, how sure it is.

Graphs are clouds with edges, and meshes are surfaces. Clouds stay readable and small, whether they have a hundred
points or a hundred thousand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from mpl_toolkits.mplot3d import proj3d  # type: ignore[import-untyped]
from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection  # type: ignore[import-untyped]

from torchgw import validate
from torchgw.couplings.blocks import as_block_coupling
from torchgw.diagnostics.evidence import confidence_values
from torchgw.plot import canvas, colours
from torchgw.results.curvature import PlanMode, curvature
from torchgw.results.result import GWResult
from torchgw.runtime.surroundings import isolate
from torchgw.types import Array
from torchgw.views import layout, point_labels
from torchgw.views.layout import Layout
from torchgw.views.matches import matches_of
from torchgw.views.point_labels import Labels, Numbers

ONE, TWO = (4.6, 3.4), (7.0, 3.4)  # inches of a figure of one cloud, and of two
MOST = 20_000  # points that are drawn of a cloud, and edges of a graph
RASTER = 2_000  # points from which on they are one picture in a PDF
GAP = 0.25  # between two clouds, in units of their extent
LEAST_WIDTH = 0.7  # of a cloud, so that its caption fits
MARGIN = 0.05
ARROW = 0.15  # length of the longest
CAPTION = 0.08  # height of a line
NAME = 0.2  # width of the names at the right
WIDTH = 5.0  # inches of Axes, below which points are smaller
ELEVATION, AZIMUTH = 18, -78  # of the eye, in degrees
LIGHT = np.array([0.3, -0.8, 0.52])  # where it comes from
SHADE = 0.45  # brightness of faces along it
FILLED = 0.97  # of the place of solid Axes
END = 16.0  # area of a line's end, in square points
FAINT, STRONG = 0.15, 0.8  # opacity of lines
WIDE = 30.0  # ratio of counts from which on they are coloured in logarithms
KINDS = {
    "entropy": "effective number of matches, exp(entropy)",
    "margin": "margin, 1 - second largest / largest mass",
    "stability": "stability, 1 - distance to another basin's match",
}


@isolate
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
    X, Y : what to draw, by default what was aligned; needed for a result that was read from a file. Points (N, d),
        (K, e); graphs, SciPy sparse matrices or of networkx, which get edges and a layout; meshes, objects with
        ``vertices`` and ``faces``, which get surfaces; or pairs of points and edges (m, 2) or faces (t, 3).
    colors : (N,) numbers or labels on the source, by which points and lines are coloured; by default the position along
        the cloud's longest direction. Integers of at most 20 distinct values are labels. A target surface has the
        colours that the plan carries there.
    n_lines : how many lines at most, evenly chosen along ``colors``.
    basin : which of ``result.basins`` the lines are of; 0 is the plan itself, 1 the best of those passed over.
    ax : where to draw; by default a new figure. It needs three dimensions where either cloud has them.

    Returns
    -------
    The Axes. A line is the fainter, the smaller the share of its point's mass is that it stands for; points without
    mass have none. A target graph is laid out near the nodes that it is matched with. Names are written where a side
    has at most 40. At most 20000 points of a cloud are drawn, and the caption says so.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the result, and a plane ``ax`` for points with three coordinates.

    Notes
    -----
    O(n_lines K) time and memory in blocks beside the layout's.
    """
    result = canvas.check_result(result)
    n_lines = validate.integer("n_lines", n_lines, least=0)
    basin = validate.integer("basin", basin, least=0, most=max(len(result.basins) - 1, 0))
    n, k = result.shape
    values = None if colors is None else point_labels.read("colors", colors, n, "N")
    left, right, ax = _make_layouts(result, X, Y, ax)
    source, target = left.points, right.points
    along = Numbers(layout.principal(source, 1)[:, 0]) if values is None else values
    scale = colours.scale(along)
    rgba = scale.of(along)
    start, end, share = _lines(result, along, n_lines)
    if basin:
        end, share = validate.read("basin", result.basins[basin].matching)[start], np.ones(len(start))
    _draw(ax, left, rgba, layout.subset(n, MOST))
    pale = np.broadcast_to(to_rgba(colours.PALE), (k, 4))
    if _is_surface(right):
        pale = scale.of(point_labels.carry_values(as_block_coupling(result.coupling, "a plot"), along))
    _draw(ax, right, pale, np.setdiff1d(layout.subset(k, MOST), end))
    if len(start):
        _scatter(ax, target[end], rgba[start], END, zorder=3)
        tint = rgba[start].copy()
        tint[:, 3] = FAINT + (STRONG - FAINT) * np.sqrt(share / share.max())
        _draw_lines(ax, np.stack((source[start], target[end]), axis=1), tint)
    _finish(ax, (result.names_x, result.names_y), source=source, target=target)
    if values is not None:
        scale.explain(ax, missing=_any_missing(values))
    return ax


@isolate
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
    result = canvas.check_result(result)
    given = _read(values, result.shape[0])
    source, target, ax = _make_layouts(result, X, Y, ax)
    moved = point_labels.carry_values(as_block_coupling(result.coupling, "a plot"), given)
    scale = colours.scale(given)
    for space, found in ((source, given), (target, moved)):
        _draw(ax, space, scale.of(found), layout.subset(len(space.points), MOST))
    _finish(ax, (result.names_x, result.names_y), source=source.points, target=target.points)
    scale.explain(ax, missing=_any_missing(given))
    return ax


@isolate
def confidence(result: GWResult, X: Any = None, *, kind: str = "entropy", ax: Axes | None = None) -> Axes:
    """The source, coloured by how sure the plan is of each point.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned.
    X : what to draw of the source, as for `matching`.
    kind : "entropy", drawn as exp(entropy), the number of target points that a source point is effectively spread over;
        "margin" or "stability", from 0 to 1; see `Confidence`.
    ax : where to draw; by default a new figure. It needs three dimensions where the points have them.

    Returns
    -------
    The Axes. Points without mass are grey. At most 20000 points are drawn, and the caption says so.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the result, and stability without a search.

    Notes
    -----
    O(m K) time for the m points that are drawn, in blocks of rows, beside the layout's.
    """
    result = canvas.check_result(result)
    kind = validate.choice("kind", kind, tuple(KINDS))
    if kind == "stability" and not result.basins:
        raise ValueError(
            "kind must be 'entropy' or 'margin' for a result without a search, which knows no other basin to be stable "
            "against, got 'stability'; align without init"
        )
    found = layout.make_layout(result, 0, X)
    ax = canvas.axes(ax, ONE, found.points.shape[1] == 3)
    some = layout.subset(len(found.points), MOST)
    sure = confidence_values(result.confidence(some), kind)
    held = Numbers(np.exp(sure) if kind == "entropy" else sure)
    known = held.values[held.present]
    wide = kind == "entropy" and len(known) > 0 and bool(known.max() > WIDE * known.min())
    scale = colours.scale(held, log=wide, limits=None if kind == "entropy" else (0.0, 1.0))
    points = _normalise_size(found.points, 3 if canvas.is_solid(ax) else 2)
    rgba = np.zeros((len(points), 4))
    rgba[some] = scale.of(held)
    _draw(ax, replace(found, points=points), rgba, some)
    _finish(ax, (result.names_x,), source=points)
    scale.explain(ax, KINDS[kind])
    return ax


@isolate
def modes(
    result: GWResult, mode: int | PlanMode = 0, Y: Any = None, *, n_arrows: int = 40, ax: Axes | None = None
) -> Axes:
    """The target, with arrows along which the matches of source points move in a mode of the plan's curvature.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned, in this process and with an epsilon above zero.
    mode : one of ``torchgw.curvature(result).modes``, or its number: 0 is that of the smallest eigenvalue, along which
        the plan slides most easily.
    Y : what to draw of the target, as for `matching`.
    n_arrows : how many at most, evenly chosen of the source points.
    ax : where to draw; by default a new figure. It needs three dimensions where the points have them.

    Returns
    -------
    The Axes. An arrow begins where the plan sends its source point on average; the longest is a seventh of the cloud.
    Either direction stands for the same mode; the label has its eigenvalue. At most 20000 target points are drawn, and
    the caption says so.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the result, and results whose curvature is not known, see `torchgw.curvature`.

    Notes
    -----
    A pass over the plan, and of a number that of `torchgw.curvature`.
    """
    result = canvas.check_result(result)
    n_arrows = validate.integer("n_arrows", n_arrows, least=1)
    chosen = mode if isinstance(mode, PlanMode) else _mode(result, validate.integer("mode", mode, least=0))
    if chosen.hessian.respond.plan.shape != result.shape:
        raise ValueError(
            f"mode must be of this result, whose plan is {result.shape}, got one of {chosen.hessian.respond.plan.shape}"
        )
    target = layout.make_layout(result, 1, Y)
    ax = canvas.axes(ax, ONE, target.points.shape[1] == 3)
    points = _normalise_size(target.points, 3 if canvas.is_solid(ax) else 2)
    rows = result.coupling.marginal(1).double()
    sent = result.coupling.apply(torch.from_numpy(points).to(rows), 1).cpu().numpy()
    mass = rows.cpu().numpy()
    some = np.flatnonzero(mass > 0)
    some = some[np.unique(np.linspace(0, len(some) - 1, min(n_arrows, len(some))).round().astype(int))]
    start, way = sent[some] / mass[some, None], chosen.carried(points)[some]
    way = way * (ARROW / (float(np.linalg.norm(way, axis=1).max()) or 1.0))
    pale = np.broadcast_to(to_rgba(colours.PALE), (len(points), 4))
    _draw(ax, replace(target, points=points), pale, layout.subset(len(points), MOST))
    _draw_arrows(ax, start, way)
    _finish(ax, (result.names_y,), np.concatenate((start, start + way)), target=points)
    name = "a mode" if isinstance(mode, PlanMode) else f"mode {mode}"
    ax.set_title(f"{name}, curvature {chosen.eigenvalue:.2g}", fontsize=canvas.MEDIUM)
    return ax


def _mode(result: GWResult, number: int) -> PlanMode:
    found = curvature(result, number + 1, largest=0)
    if len(found.modes) <= number:
        has = f"{len(found.modes)} modes" if found.modes else "no mode: it is a matching whose entries leave no change"
        raise ValueError(f"mode must be one that the plan has, got {number}, and the plan has {has}")
    return found.modes[number]


def _draw_arrows(ax: Any, start: Array, way: Array) -> None:
    if canvas.is_solid(ax):
        ax.quiver(*start.T, *way.T, color=colours.SOURCE, linewidth=0.8, arrow_length_ratio=0.35)
        return
    ax.quiver(*start.T, *way.T, color=colours.SOURCE, angles="xy", scale_units="xy", scale=1, width=0.006, zorder=3)


def _read(given: Any, n: int) -> Numbers | Labels:
    held = point_labels.read("values", given, n, "N")
    if not held.present.any():
        raise ValueError(f"values must be known for at least one point, got {n} that are all missing")
    return held


def _make_layouts(result: GWResult, X: Any, Y: Any, ax: Any) -> tuple[Layout, Layout, Any]:
    """The two clouds as they are drawn, and the Axes."""
    x, y = layout.make_layouts(result, X, Y)
    solid = max(x.points.shape[1], y.points.shape[1]) == 3
    ax = canvas.axes(ax, TWO, solid)
    source, target = _side_by_side(x.points, y.points, canvas.is_solid(ax))
    return replace(x, points=source), replace(y, points=target), ax


def _any_missing(held: Numbers | Labels) -> bool:
    return isinstance(held, Labels) and not held.present.all()


def _lines(result: GWResult, along: Numbers | Labels, count: int) -> tuple[Array, Array, Array]:
    """Source and target indices of the lines, and the share of the source point's mass that each stands for."""
    order = np.argsort(along.values if isinstance(along, Numbers) else along.codes, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))]
    best = matches_of(as_block_coupling(result.coupling, "a plot"), torch.from_numpy(chosen), 1, 1)
    kept = best.index[:, 0] >= 0
    return chosen[kept], best.index[kept, 0], best.share[kept, 0]


def _is_surface(space: Layout) -> bool:
    return len(space.faces) > 0 and len(space.points) <= MOST


def _draw(ax: Any, space: Layout, rgba: Array, some: Array) -> None:
    """A cloud in colours (n, 4) of its points: a surface; or ``some`` of the points, and edges where all are drawn."""
    if _is_surface(space):
        many = len(space.points) > RASTER
        corners = space.points[space.faces]
        tint = rgba[space.faces[:, 0]]  # a mean of labels' colours would look like another label's
        tint[:, :3] *= _brightness(corners)[:, None]
        surface = Poly3DCollection(corners, facecolors=tint, linewidths=0, zorder=0.5)
        surface.set(rasterized=many, clip_on=False, antialiased=False)
        ax.add_collection3d(surface)
        return
    if len(space.edges) and len(space.points) <= MOST:
        drawn = space.edges[layout.subset(len(space.edges), MOST)]
        _draw_lines(ax, space.points[drawn], colours.GREY, len(drawn) > RASTER)
    _scatter(ax, space.points[some], rgba[some])


def _brightness(corners: Array) -> Array:
    """Of faces (t, 3, 3), whichever way round their corners are listed."""
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    length = np.linalg.norm(normal, axis=1)
    found: Array = SHADE + (1 - SHADE) * np.abs(normal @ LIGHT) / np.where(length > 0, length, 1.0)
    return found


def _draw_lines(ax: Any, segments: Array, rgba: Any, many: bool = False) -> None:
    kept = {"colors": rgba, "linewidths": 0.6, "rasterized": many}
    if canvas.is_solid(ax):
        ax.add_collection3d(Line3DCollection(segments, clip_on=False, zorder=2, **kept))
        return
    ax.add_collection(LineCollection(list(segments), zorder=0.5, **kept), autolim=False)


def _normalise_size(points: Array, width: int) -> Array:
    """Points (n, ``width``) of largest extent one, centred; a plane cloud among solid ones stands upright, face on."""
    low, high = points.min(0), points.max(0)
    unit: Array = (points - (low + high) / 2) / (float((high - low).max()) or 1.0)
    if unit.shape[1] == width:
        return unit
    return np.column_stack((unit[:, 0], np.zeros(len(unit)), unit[:, 1]))


def _side_by_side(source: Array, target: Array, solid: bool) -> tuple[Array, Array]:
    """The two clouds at one size, the source on the left."""
    left, right = (_normalise_size(points, 3 if solid else 2) for points in (source, target))
    step = sum(max(float(np.ptp(points[:, 0])), LEAST_WIDTH) / 2 for points in (left, right)) + GAP
    right[:, 0] += step
    return left, right


def _scatter(ax: Any, points: Array, colours: Any, area: float | None = None, zorder: float = 1.0) -> None:
    """Points (n, 2 or 3), in RGBA (n, 4) or one colour; ``area`` in square points, by default the less the more."""
    solid = {"depthshade": False} if canvas.is_solid(ax) else {}
    size = float(np.clip(250 / np.sqrt(max(len(points), 1)), 1.0, 16.0)) if area is None else area
    size *= min(1.0, float(_place(ax)[0]) / WIDTH)
    many = len(points) > RASTER
    ax.scatter(*points.T, c=colours, s=size, linewidths=0, rasterized=many, clip_on=False, zorder=zorder, **solid)


def _place(ax: Any) -> Array:
    """Width and height of the Axes in inches, before a layout moves it."""
    figure = ax.get_figure()  # a part of one has a box and a resolution, but no size
    found: Array = ax.get_position(original=True).size * figure.bbox.size / figure.dpi
    return found


def _finish(ax: Any, names: tuple[Any, ...], beside: Array | None = None, **clouds: Array) -> None:
    """Above each cloud its name and how many of its points are drawn, and beside each of few points its own; equal
    units, and neither ticks nor frame. What lies ``beside`` them, as tips of arrows, is in view, too."""
    every = np.concatenate([*clouds.values(), *(() if beside is None else (beside,))])
    low, high = every.min(0), every.max(0)
    top = high[-1] + CAPTION / 2
    for (side, points), own in zip(clouds.items(), map(canvas.few_names, names), strict=True):
        n = len(points)
        at = (points.min(0) + points.max(0)) / 2
        at[1:-1] = points[:, 1:-1].max(0, initial=-np.inf)  # seen from above, what is at the back is highest
        at[-1] = top
        text = f"{side}\n{n} points" if n <= MOST else f"{side}\n{MOST} of {n}\npoints drawn"
        ax.text(*at, text, ha="center", va="bottom", fontsize=canvas.MEDIUM)
        for place, name in zip(points, own, strict=False):
            ax.text(*place, f" {name}", va="bottom", fontsize=canvas.TINY, zorder=4)
    high[-1] += 2.5 * CAPTION
    high[0] += NAME if any(map(canvas.few_names, names)) else 0.0
    ax.set_axis_off()
    if canvas.is_solid(ax):
        _look_at(ax, low, high)
        return
    ax.set_aspect("equal")
    ax.set_xlim(low[0] - MARGIN, high[0] + MARGIN)
    ax.set_ylim(low[1] - MARGIN, high[1])


def _look_at(ax: Any, low: Array, high: Array) -> None:
    """A parallel view of the box between two corners, as large as the place of the Axes in its figure allows.

    Solid Axes are squares within their place; what is drawn may reach beyond the square, so a wide scene fills it.
    """
    thick = np.maximum(high - low, MARGIN)
    middle = (low + high) / 2
    for limit, centre, width in zip((ax.set_xlim, ax.set_ylim, ax.set_zlim), middle, thick, strict=True):
        limit(centre - width / 2, centre + width / 2)
    for artist in (*ax.collections, *ax.texts):
        artist.set_in_layout(False)  # else room would be made for what reaches beyond the square
    ax.computed_zorder = False  # lines and their ends lie on top
    ax.set_proj_type("ortho")
    ax.view_init(elev=ELEVATION, azim=AZIMUTH)
    ax.set_box_aspect(tuple(thick), zoom=1)
    corners = np.array(np.meshgrid(*zip(middle - thick / 2, middle + thick / 2, strict=True))).reshape(3, -1)
    x, y, _ = proj3d.proj_transform(*corners, ax.get_proj())
    square = FILLED * np.ptp(ax.transLimits.inverted().transform([(0, 0), (1, 1)]), axis=0)
    room = _place(ax)
    ax.set_box_aspect(tuple(thick), zoom=float((square * room / room.min() / (np.ptp(x), np.ptp(y))).min()))
