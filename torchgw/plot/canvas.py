"""The Axes that is drawn into: the one given, or that of a new figure."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from torchgw import validate
from torchgw.results.result import GWResult

MEDIUM, SMALL, TINY = 9, 8, 6  # points
FRAMES = ("rectilinear", "3d")
LONGEST = 24  # characters of a label
FEW = 40  # points up to which names are written


def check_result(result: object) -> GWResult:
    """A result of `torchgw.gw_align`."""
    validate.instance("result", result, GWResult, ", as gw_align returns it")
    assert isinstance(result, GWResult)
    return result


def axes(ax: Any, size: tuple[float, float], solid: bool = False) -> Any:
    """``ax`` itself, or the Axes of a new figure of ``size`` inches; ``solid`` asks for three dimensions.

    Raises
    ------
    TypeError, ValueError
        For what is no Axes or has no Cartesian coordinates, and for a plane one where points have three.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        kind = {"projection": "3d"} if solid else {}
        return plt.subplots(figsize=size, layout="constrained", subplot_kw=kind)[1]
    _check(ax)
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
    _check(ax)
    if is_solid(ax):
        raise ValueError("ax must be a plane Axes for this diagram, got one of three dimensions; use plt.subplots()")


def _check(ax: Any) -> None:
    validate.instance("ax", ax, Axes, " of matplotlib")
    if ax.name not in FRAMES:
        raise ValueError(f"ax must have Cartesian coordinates, got the projection {ax.name!r}; use plt.subplots()")


def is_solid(ax: Any) -> bool:
    return bool(ax.name == "3d")


def short(name: str) -> str:
    """A name as it is written beside a diagram: one line of at most 24 characters, the middle left out of longer ones,
    whose ends tell them apart; dollar signs are themselves, not formulas."""
    line = " ".join(name.split())
    half = (LONGEST - 1) // 2
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - 1 - half]}\u2026{line[-half:]}"
    return line.replace("$", r"\$")


def few_names(names: Any) -> list[str]:
    """Names (n,) of points as they are written beside them; nothing where there are none, or too many."""
    return [] if names is None or len(names) > FEW else [short(str(name)) for name in names]


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
