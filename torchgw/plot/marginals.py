"""Marginal residuals of a plan, point by point: |m_i - p_i| / p_i of the source, |m_j - q_j| / q_j of the target."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from torchgw import validate
from torchgw.couplings.blocks import BlockCoupling
from torchgw.plot import canvas
from torchgw.plot.colours import GREY, SOURCE, TARGET
from torchgw.results.result import GWResult
from torchgw.runtime.surroundings import isolate
from torchgw.types import Array

SIZE = (4.6, 3.0)
CURVE = 1001  # points of a curve at most
SMALLEST = 1e-17  # residual that is drawn where there is none
EXACT, COARSE = 1e-10, 2e-6  # difference of two reads of a marginal, relative to the mass: in float64, in float32


@isolate
def residuals(result: GWResult, *, p: Any = None, q: Any = None, ax: Axes | None = None) -> Axes:
    """Marginal residuals, sorted over the points of either side.

    Of balanced plans the relative residual ``|m_i - p_i| / p_i``, in logarithms, with the mean before rounding as a
    dashed line. Of others the transported share ``m_i / p_i`` of each point's mass: how many points were left out, and
    by how much.

    Parameters
    ----------
    result : what `torchgw.gw_align` returned.
    p, q : masses (N,), (K,) that it was called with; uniform by default, as there. A result does not keep them.
    ax : where to draw; by default a new figure.

    Returns
    -------
    The Axes. Points of zero mass are left out. Where masses are taken to be uniform and no marginal can tell, the
    label says so.

    Raises
    ------
    ValueError, TypeError
        For masses that are not those of the result, as far as its marginals tell.

    Notes
    -----
    O(N K) time, in blocks.
    """
    result = canvas.check_result(result)
    canvas.check_plane(ax)
    n, k = result.shape
    wanted = validate.masses("p", p, n, "N"), validate.masses("q", q, k, "K")
    found = tuple(result.coupling.marginal(axis).detach().double().cpu().numpy() for axis in (1, 0))
    hard = [weight == math.inf and result.marginals.total is None for weight in result.marginals.weights]
    wanted = _reference_masses(result, wanted, found, hard)
    assumed = [name for name, given, exact in zip("pq", (p, q), hard, strict=True) if given is None and not exact]
    ax = canvas.axes(ax, SIZE)
    balanced = result.marginals.balanced
    for side, mass, own, colour in zip(("source", "target"), found, wanted, (SOURCE, TARGET), strict=True):
        ratio = mass[own > 0] / own[own > 0]
        curve = _curve(np.maximum(np.abs(ratio - 1), SMALLEST) if balanced else ratio)
        style = "-" if side == "source" else "--"
        ax.plot(np.linspace(0, 1, len(curve)), curve, style, color=colour, linewidth=1.4, label=side)
    if balanced:
        ax.set_yscale("log")
        if result.marginal_residual > 0:
            mean = f"mean before rounding, {result.marginal_residual:.1e}"
            ax.axhline(result.marginal_residual, color=GREY, linestyle=(0, (4, 3)), linewidth=1, label=mean)
    canvas.open_frame(ax)
    canvas.label(
        ax,
        "share of the points, sorted",
        "relative residual of a marginal"
        if balanced
        else f"mass of a point, relative to that given{_assumption(assumed)}",
    )
    ax.set_xlim(0, 1)
    ax.legend(framealpha=0.8, edgecolor="none", fontsize=canvas.SMALL)
    return ax


def _curve(values: Array) -> Array:
    """The sorted values, or their quantiles where there are many."""
    found: Array = np.sort(values) if len(values) <= CURVE else np.quantile(values, np.linspace(0, 1, CURVE))
    return found


def _assumption(assumed: list[str]) -> str:
    return f"\n(uniform {' and '.join(assumed)} assumed)" if assumed else ""


def _read_error(result: GWResult) -> float:
    """Difference, relative to the mass, of a marginal that is read now from that of the result's marginal error."""
    if not isinstance(result.coupling, BlockCoupling):
        return COARSE
    held = [tensor.dtype for tensor in result.coupling.tensors().values() if tensor.is_floating_point()]
    return EXACT if all(dtype == torch.float64 for dtype in held) else COARSE


def _reference_masses(
    result: GWResult, wanted: tuple[Array, Array], found: tuple[Array, ...], hard: list[bool]
) -> tuple[Array, Array]:
    """The masses p and q to compare with; a relaxed one scaled to the plan's mass where the other marginal is hard.

    Raises
    ------
    ValueError
        For masses other than a hard marginal, to within the marginal error.
    """
    if sum(hard) == 1:
        i = hard.index(False)
        relaxed = wanted[i] * (found[i].sum() / wanted[i].sum())
        wanted = (relaxed, wanted[1]) if i == 0 else (wanted[0], relaxed)
    for name, own, mass, exact in zip("pq", wanted, found, hard, strict=True):
        off = float(np.abs(own - mass).sum())
        if exact and off > result.marginal_error + _read_error(result) * mass.sum():
            raise ValueError(
                f"{name} must be the masses that were aligned, which the plan holds up to {result.marginal_error:.1e}, "
                f"got masses that are off by {off:.1e}; pass {name}= as it was given to gw_align"
            )
    return wanted
