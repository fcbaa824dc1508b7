"""Clouds of points that stay readable and small, whether they have a hundred points or a hundred thousand."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpl_toolkits.mplot3d import proj3d  # type: ignore[import-untyped]

from torchgw.plot.canvas import MEDIUM, is_solid
from torchgw.types import Array

MOST = 20_000  # points that are drawn of a cloud
RASTER = 2_000  # points from which on they are one picture in a PDF
GAP = 0.25  # between two clouds, in units of their extent
LEAST_WIDTH = 0.7  # of a cloud, so that its caption fits
MARGIN = 0.05
CAPTION = 0.08  # height of a line
WIDTH = 5.0  # inches of Axes, below which points are smaller
ELEVATION, AZIMUTH = 18, -78  # of the eye, in degrees
FILLED = 0.97  # of the place of solid Axes


def shown(n: int) -> Array:
    """Indices of the points that are drawn: all, or 20000 of them, the same at every call."""
    if n <= MOST:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:MOST])


def caption(side: str, n: int) -> str:
    """What a cloud is, and how many of its points are drawn."""
    return f"{side}\n{n} points" if n <= MOST else f"{side}\n{MOST} of {n}\npoints drawn"


def sized(points: Array, width: int) -> Array:
    """Points (n, ``width``) of largest extent one, centred; a plane cloud among solid ones stands upright, face on."""
    low, high = points.min(0), points.max(0)
    unit: Array = (points - (low + high) / 2) / (float((high - low).max()) or 1.0)
    if unit.shape[1] == width:
        return unit
    return np.column_stack((unit[:, 0], np.zeros(len(unit)), unit[:, 1]))


def side_by_side(source: Array, target: Array, solid: bool) -> tuple[Array, Array]:
    """The two clouds at one size, the source on the left."""
    left, right = (sized(points, 3 if solid else 2) for points in (source, target))
    step = sum(max(float(np.ptp(points[:, 0])), LEAST_WIDTH) / 2 for points in (left, right)) + GAP
    right[:, 0] += step
    return left, right


def scatter(ax: Any, points: Array, colours: Any, area: float | None = None, zorder: float = 1.0) -> None:
    """Points (n, 2 or 3), in RGBA (n, 4) or one colour; ``area`` in square points, by default the less the more."""
    solid = {"depthshade": False} if is_solid(ax) else {}
    size = float(np.clip(250 / np.sqrt(max(len(points), 1)), 1.0, 16.0)) if area is None else area
    size *= min(1.0, float(place(ax)[0]) / WIDTH)
    many = len(points) > RASTER
    ax.scatter(*points.T, c=colours, s=size, linewidths=0, rasterized=many, clip_on=False, zorder=zorder, **solid)


def place(ax: Any) -> Array:
    """Width and height of the Axes in inches, before a layout moves it."""
    figure = ax.get_figure()  # a part of one has a box and a resolution, but no size
    found: Array = ax.get_position(original=True).size * figure.bbox.size / figure.dpi
    return found


def finish(ax: Any, *captioned: tuple[Array, str]) -> None:
    """A caption above each cloud, equal units, and neither ticks nor frame."""
    every = np.concatenate([points for points, _ in captioned])
    low, high = every.min(0), every.max(0)
    top = high[-1] + CAPTION / 2
    for points, text in captioned:
        at = (points.min(0) + points.max(0)) / 2
        at[1:-1] = points[:, 1:-1].max(0, initial=-np.inf)  # seen from above, what is at the back is highest
        at[-1] = top
        ax.text(*at, text, ha="center", va="bottom", fontsize=MEDIUM)
    high[-1] += 2.5 * CAPTION
    ax.set_axis_off()
    if is_solid(ax):
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
    room = place(ax)
    ax.set_box_aspect(tuple(thick), zoom=float((square * room / room.min() / (np.ptp(x), np.ptp(y))).min()))
