"""The showcase: align a noisy spiral with a Swiss roll, with every graph provider, and draw what came out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchgw import datasets
from torchgw.align import gw_align
from torchgw.couplings.group_mass import between
from torchgw.results.result import GWResult
from torchgw.types import Array, Callback

RUNS = ((400, 500, "precomputed"), (400, 500, "dijkstra"), (400, 500, "landmark"), (4000, 5000, "landmark"))
HEADER = (
    "size",
    "provider",
    "preparing s",
    "solving s",
    "signed Spearman",
    "GW value",
    "marginal error",
    "iterations",
    "status",
    "backend",
)
SEED = 0
N_POINTS = 5  # whose matches are drawn


@dataclass(frozen=True)
class Run:
    """One alignment of the demo with its data and its score."""

    source: Array
    source_angle: Array
    target: Array
    target_angle: Array
    provider: str
    result: GWResult
    spearman: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        r = self.result
        return (
            f"{r.shape[0]} x {r.shape[1]}",
            self.provider,
            f"{r.timings['prepare']:.2f}",
            f"{sum(r.timings[phase] for phase in ('search', 'solve', 'finish')):.2f}",
            f"{self.spearman:+.4f}",
            f"{r.value:.5f}",
            f"{r.marginal_error:.1e}",
            f"{r.n_iter}",
            r.status.name.lower(),
            r.backend,
        )


def align_once(n: int, k: int, provider: str, device: str | None, callback: Callback | None) -> Run:
    """Align n spiral points with k points of the roll."""
    from scipy.stats import spearmanr

    source, source_angle = datasets.make_spiral(n)
    target, target_angle = datasets.make_swiss_roll(k, random_state=1)
    result = gw_align(source, target, distances=provider, device=device, random_state=SEED, callback=callback)
    rho = float(spearmanr(source_angle, target_angle[result.argmax()])[0])
    return Run(source, source_angle, target, target_angle, provider, result, rho)


def table(runs: list[Run]) -> str:
    """All runs as aligned text."""
    rows = [HEADER, *(run.cells for run in runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def draw(runs: list[Run], path: Path) -> None:
    """Both clouds coloured by matched angle, the plan ordered by angle, and the matches of some points, as one PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = max(runs, key=lambda run: run.result.shape[0])
    with mpl.rc_context(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
        }
    ):
        figure = Figure(figsize=(11, 8.6), dpi=140, layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=(1.05, 1))
        _draw_source(figure.add_subplot(grid[0, 0]), shown)
        _draw_target(figure, figure.add_subplot(grid[0, 1], projection="3d"), shown)
        _draw_plan(figure, figure.add_subplot(grid[1, 0]), shown)
        _draw_matches(figure.add_subplot(grid[1, 1]), shown)
        n, k = shown.result.shape
        figure.suptitle(
            f"Spiral ({n} points, 2-D) matched with Swiss roll ({k} points, 3-D): "
            f"signed Spearman {shown.spearman:+.4f}, GW {shown.result.value:.4f}",
            x=0.01,
            ha="left",
            fontsize=12,
        )
        figure.savefig(path)


def _draw_source(axes: Any, run: Run) -> None:
    colour = run.result.pull(run.target_angle)
    axes.scatter(*run.source.T, c=colour, cmap="viridis", vmin=0, vmax=9, s=5, linewidths=0)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title("source, coloured by the angle of its match on the roll")


def _draw_target(figure: Any, axes: Any, run: Run) -> None:
    colour = run.result.push(run.source_angle)
    x, height, z = run.target.T
    points = axes.scatter(
        x, height, z, c=colour, cmap="viridis", vmin=0, vmax=9, s=5, linewidths=0, alpha=1, depthshade=False
    )
    axes.view_init(elev=18, azim=-72)
    axes.set_box_aspect((1, 0.75, 1), zoom=1.3)
    axes.set_axis_off()
    axes.set_title("target, coloured by the angle of its match on the spiral")
    figure.colorbar(points, ax=axes, shrink=0.6, label="matched angle (radians)")


def binned_plan(run: Run, bins: int = 250) -> Array:
    """Mass of the plan in a grid of ``bins`` x ``bins`` cells along the two angles, never forming the plan."""
    rows, columns = (np.arange(size) * bins // size for size in run.result.shape)
    return between(run.result.coupling, rows, bins, columns, bins)


def _draw_plan(figure: Any, axes: Any, run: Run) -> None:
    from matplotlib.colors import PowerNorm

    mass = binned_plan(run)
    image = axes.imshow(
        mass / mass.max(), origin="lower", extent=(0, 9, 0, 9), cmap="magma", norm=PowerNorm(0.5), aspect="equal"
    )
    axes.set_xlabel("angle on the roll (radians)")
    axes.set_ylabel("angle on the spiral (radians)")
    axes.set_title("the plan, ordered by angle")
    figure.colorbar(image, ax=axes, shrink=0.9, label="mass, relative to the densest cell")


def _draw_matches(axes: Any, run: Run) -> None:
    """The roll from its side; target points are as large as their share of the mass of a few source points."""
    from matplotlib import colormaps

    x, _, z = run.target.T
    chosen = np.argsort(run.source_angle)[np.linspace(0, len(run.source) - 1, N_POINTS).round().astype(int)]
    rows = run.result.coupling.rows(torch.from_numpy(chosen)).cpu().numpy()
    spread = np.exp(run.result.confidence(chosen).entropy)
    axes.scatter(x, z, color="#D4D4D4", s=5, linewidths=0)
    for angle, mass, effective in zip(run.source_angle[chosen], rows, spread, strict=True):
        found = np.flatnonzero(mass > 0.01 * mass.max())
        label = f"{angle:.1f}: spread over {effective:.0f} points"
        colour = [colormaps["viridis"](angle / 9)]
        axes.scatter(x[found], z[found], color=colour, s=15 * mass[found] / mass.max(), linewidths=0, label=label)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title("where source points go, and how sure that is")
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 2, "frameon": False}
    axes.legend(title="angle of the source point on the spiral", **where)
