"""``torchgw demo``: align a noisy spiral with a Swiss roll, with every graph provider, and draw what came out."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torchgw import datasets
from torchgw.align import gw_align
from torchgw.cli.output import check_output, write_whole
from torchgw.diagnostics.status import Status
from torchgw.progress import bar_on_terminal
from torchgw.report.contents import none_if_nonfinite
from torchgw.results.result import GWResult
from torchgw.types import Array

RUNS = ((400, 500, "precomputed"), (400, 500, "dijkstra"), (400, 500, "landmark"), (4000, 5000, "landmark"))
HEADER = (
    *("size", "provider", "preparing s", "solving s", "signed Spearman", "GW value", "marginal error", "iterations"),
    *("status", "backend"),
)


@dataclass(frozen=True)
class Run:
    """One alignment of the demo.

    Attributes
    ----------
    source_angle, target_angle : (N,), (K,) radians, the true position along either curve.
    provider : of distances.
    result : of `gw_align`.
    spearman : signed rank correlation of the angles of source points and of their matches.
    """

    source_angle: Array
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


def run_alignment(n: int, k: int, provider: str, device: str | None) -> Run:
    """Align n spiral points with k points of the roll under a progress bar; Ctrl-C ends the demo."""
    from scipy.stats import spearmanr

    source, source_angle = datasets.make_spiral(n)
    target, target_angle = datasets.make_swiss_roll(k, random_state=1)
    with bar_on_terminal(f"{n} x {k} {provider}") as bar:
        result = gw_align(source, target, distances=provider, device=device, random_state=0, callback=bar)
    if result.status is Status.CANCELLED:
        raise KeyboardInterrupt
    rho = float(spearmanr(source_angle, target_angle[result.argmax()])[0])
    return Run(source_angle, target_angle, provider, result, rho)


def format_table(runs: list[Run]) -> str:
    """All runs as aligned text."""
    rows = [HEADER, *(run.cells for run in runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def draw_picture(run: Run) -> Any:
    """A figure: the angles on the spiral and what the plan carries of them to the roll, the plan ordered by angle, and
    how sure it is of each point."""
    plot = import_module("torchgw.plot")  # which says what to install where matplotlib is not
    from matplotlib.figure import Figure

    figure, (n, k) = Figure(figsize=(10, 8), dpi=140, layout="constrained"), run.result.shape
    grid = figure.add_gridspec(2, 2)
    plot.transfer(run.result, run.source_angle, ax=figure.add_subplot(grid[0, :], projection="3d"))
    plot.plan(run.result, run.source_angle, run.target_angle, ax=figure.add_subplot(grid[1, 0]))
    plot.confidence(run.result, ax=figure.add_subplot(grid[1, 1]))
    figure.suptitle(
        f"Spiral ({n} points, 2-D) matched with Swiss roll ({k} points, 3-D): "
        f"signed Spearman {run.spearman:+.4f}, GW {run.result.value:.4f}"
    )
    return figure


def run_demo(arguments: argparse.Namespace) -> dict[str, Any] | str:
    """Solve, print the table, draw the picture of the largest run."""
    check_output(arguments.output, ".png")
    runs = [run_alignment(*case, arguments.device) for case in RUNS]
    if not arguments.json:
        print(format_table(runs), flush=True)
    figure = draw_picture(max(runs, key=lambda run: run.result.shape[0]))
    write_whole(figure.savefig, arguments.output)
    if not arguments.json:
        return f"wrote {arguments.output}"
    rows = [
        {
            "shape": list(run.result.shape),
            "distances": run.provider,
            "signed_rho": run.spearman,
            "value": none_if_nonfinite(run.result.value),
            "marginal_error": run.result.marginal_error,
            "status": run.result.status.name.lower(),
            "seconds": run.result.timings,
        }
        for run in runs
    ]
    return {"output": str(arguments.output), "runs": rows}
