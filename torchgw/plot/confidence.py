"""How sure the plan is of each source point, as colours on the cloud."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from torchgw import validate
from torchgw.plot import canvas, cloud, colours
from torchgw.results.result import GWResult
from torchgw.types import Array
from torchgw.views import layout
from torchgw.views import point_labels as values

SIZE = (4.6, 3.4)
WIDE = 30.0  # ratio of counts from which on they are coloured in logarithms
KINDS = {
    "entropy": "effective number of matches, exp(entropy)",
    "margin": "margin, 1 - second largest / largest mass",
    "stability": "stability, 1 - distance to another basin's match",
}


def confidence(result: GWResult, X: Any = None, *, kind: str = "entropy", ax: Axes | None = None) -> Axes:
    """The source, coloured by how sure the plan is of each point.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned.
    X : points (N, d) to draw, by default those aligned, see `torchgw.views.layout`.
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
    result = canvas.checked(result)
    kind = validate.choice("kind", kind, tuple(KINDS))
    if kind == "stability" and not result.basins:
        raise ValueError(
            "kind must be 'entropy' or 'margin' for a result without a search, which knows no other basin to be stable "
            "against, got 'stability'; align without init"
        )
    found = layout.side(result, 0, X)
    ax = canvas.axes(ax, SIZE, found.shape[1] == 3)
    some = cloud.shown(len(found))
    held = values.Numbers(_measure(result, kind, some))
    known = held.values[np.isfinite(held.values)]
    wide = kind == "entropy" and len(known) > 0 and bool(known.max() > WIDE * known.min())
    scale = colours.scale(held, log=wide, limits=None if kind == "entropy" else (0.0, 1.0))
    points = cloud.sized(found, 3 if canvas.is_solid(ax) else 2)
    cloud.scatter(ax, points[some], scale.of(held))
    cloud.finish(ax, (points, cloud.caption("source", len(points))))
    scale.explain(ax, KINDS[kind])
    return ax


def _measure(result: GWResult, kind: str, points: Array) -> Array:
    side = getattr(result.confidence(points), kind)
    found = np.asarray(side.detach().cpu() if hasattr(side, "detach") else side, dtype=np.float64)
    return np.exp(found) if kind == "entropy" else found
