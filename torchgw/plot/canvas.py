"""The Axes that is drawn into: the one given, or that of a new figure."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from torchgw import validate
from torchgw.result import GWResult

MEDIUM, SMALL = 9, 8  # points


def checked(result: object) -> GWResult:
    """A result of `torchgw.gw_align`."""
    validate.instance("result", result, GWResult, ", as gw_align returns it")
    assert isinstance(result, GWResult)
    return result


def axes(ax: Any, size: tuple[float, float], solid: bool = False) -> Any:
    """``ax`` itself, or the Axes of a new figure of ``size`` inches; ``solid`` asks for three dimensions.

    Raises
    ------
    TypeError, ValueError
        For what is no Axes, and for a plane one where points have three coordinates.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        kind = {"projection": "3d"} if solid else {}
        return plt.subplots(figsize=size, layout="constrained", subplot_kw=kind)[1]
    validate.instance("ax", ax, Axes, " of matplotlib")
    if solid and not is_solid(ax):
        raise ValueError(
            "ax must have three dimensions to draw points with three coordinates, got a plane Axes; make it with "
            'plt.subplots(subplot_kw={"projection": "3d"}), or pass points with two coordinates as X= and Y='
        )
    return ax


def check_plane(ax: Any) -> None:
    """Refuse what a diagram cannot be drawn into, before anything long starts."""
    if ax is None:
        return
    validate.instance("ax", ax, Axes, " of matplotlib")
    if is_solid(ax):
        raise ValueError("ax must be a plane Axes for this diagram, got one of three dimensions; use plt.subplots()")


def is_solid(ax: Any) -> bool:
    return bool(ax.name == "3d")


def label(ax: Any, x: str, y: str, title: str = "") -> None:
    """Axis labels, title and ticks in the sizes of a page."""
    ax.set_xlabel(x, fontsize=MEDIUM)
    ax.set_ylabel(y, fontsize=MEDIUM)
    if title:
        ax.set_title(title, fontsize=MEDIUM, loc="left")
    ax.tick_params(labelsize=SMALL)


def open_frame(ax: Any) -> None:
    """Only the left and the lower line of the frame."""
    ax.spines[["top", "right"]].set_visible(False)
