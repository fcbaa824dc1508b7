"""The spectrum of a plan's curvature: how many independent changes are softer than what."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from torchgw.plot import canvas
from torchgw.plot.colours import GREY, SOURCE
from torchgw.results.curvature import curvature
from torchgw.results.result import GWResult
from torchgw.runtime.surroundings import isolate
from torchgw.types import RandomState

SIZE = (4.6, 3.0)
POINTS = 400  # of the curve
LEAST = 0.5  # of a change, below which none is drawn
ROOM = 0.03  # of the range, beyond its ends


@isolate
def spectrum(
    result: GWResult, *, n_probes: int = 8, n_steps: int = 40, random_state: RandomState = None, ax: Axes | None = None
) -> Axes:
    """How many independent changes of the plan have a curvature below each value.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned, in this process and with an epsilon above zero.
    n_probes, n_steps, random_state : of the quadrature, see `torchgw.PlanCurvature.density`.
    ax : where to draw; by default a new figure.

    Returns
    -------
    The Axes. In logarithms, with one standard error to either side; zero and one are marked, where a plan slides and
    where distances say nothing.

    Raises
    ------
    ValueError, TypeError
        For results whose curvature is not known, see `torchgw.curvature`.

    Notes
    -----
    ``n_probes n_steps`` products with the Hessian, and memory of two numbers for each pair and step.
    """
    result = canvas.check_result(result)
    canvas.check_plane(ax)
    found = curvature(result, 1, whole=True).density(n_probes, n_steps, random_state)
    ends = float(found.nodes.min()), float(found.nodes.max())
    room = ROOM * max(ends[1] - ends[0], 1e-3)
    values = np.linspace(ends[0] - room, ends[1] + room, POINTS)
    share, error = (np.asarray(side) * found.dimension for side in found.shares_below(values))
    error = np.nan_to_num(error)
    ax = canvas.axes(ax, SIZE)
    ax.fill_between(values, np.maximum(share - error, LEAST), np.maximum(share + error, LEAST), color=SOURCE, alpha=0.2)
    ax.plot(values, np.maximum(share, LEAST), color=SOURCE, linewidth=1.4)
    for mark in (0.0, 1.0):
        if values[0] <= mark <= values[-1]:
            ax.axvline(mark, color=GREY, linestyle=(0, (4, 3)), linewidth=1)
    ax.set_yscale("log")
    ax.set_xlim(values[0], values[-1])
    canvas.open_frame(ax)
    canvas.label(ax, "curvature, in units of what entropy alone gives", "independent changes below it")
    return ax
