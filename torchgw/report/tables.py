"""The tables of a report, as rows of text: matchings found, resolutions, options, and where the result comes from."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any

import numpy as np
import torch

from torchgw._version import __version__
from torchgw.diagnostics.evidence import energy_ratio, is_near_tie
from torchgw.options import GWOptions
from torchgw.report.result_protocol import ReportInput


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Attributes
    ----------
    head : of the columns.
    rows : of cells.
    marked : indices of rows that stand out.
    """

    head: list[str]
    rows: list[list[str]]
    marked: list[int]


def matchings(result: ReportInput) -> Table:
    """The local optima that the search found."""
    head = ["", "energy", "best is lower by", "starts", "from", "compared on", "difference", ""]
    rows, marked = [], []
    for at, basin in enumerate(result.basins):
        best = result.basins[0]
        lower = 1 - energy_ratio(best, basin, result.unit)
        tied = at > 0 and is_near_tie(best, basin, result.unit)
        marked += [at] if tied else []
        rows.append(
            [
                str(at + 1),
                f"{basin.energy:.5g}",
                "" if at == 0 else f"{lower:.1%}" if basin.level == best.level else "not comparable",
                str(basin.count),
                basin.origin,
                {"full": "all points"}.get(basin.level, basin.level),
                "" if at == 0 else f"{basin.difference:.0%}",
                "returned" if at == 0 else "as good" if tied else "",
            ]
        )
    return Table(head, rows, marked)


def resolutions(result: ReportInput) -> Table:
    """The ladder that a streaming solve climbed."""
    head = ["source cells", "target cells", "marginal residual", "iterations", "Sinkhorn iterations", "seconds"]
    rows = [
        [
            *(f"{cells:,}" for cells in rung.cells),
            f"{rung.residual:.2e}" + (f" ± {rung.residual_error:.0e}" if rung.residual_error else ""),
            str(rung.n_iter),
            str(rung.n_iter_sinkhorn),
            f"{rung.seconds:.2f}",
        ]
        for rung in result.ladder
    ]
    return Table(head, rows, [])


def options(result: ReportInput) -> Table:
    """All options, those that differ from their defaults marked."""
    defaults = dict(_flat(GWOptions()))
    rows = [[name, value, defaults.get(name, "")] for name, value in _flat(result.options)]
    marked = [at for at, (_, value, default) in enumerate(rows) if value != default]
    return Table(["option", "value", "default"], rows, marked)


def _flat(group: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for entry in fields(group):
        value = getattr(group, entry.name)
        if is_dataclass(value) and entry.name != "loss":
            yield from _flat(value, f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", str(getattr(value, "name", value))


def problem(result: ReportInput) -> Table:
    """What was asked, and how it ended."""
    rows = [
        ["points", f"{result.shape[0]:,} x {result.shape[1]:,}"],
        ["epsilon", f"{result.epsilon:g}"],
        ["alpha (weight of the distances)", f"{result.alpha:g}"],
        ["marginals", repr(result.marginals)],
        ["supervision", "yes" if result.supervised else "no"],
        ["distances", " and ".join(result.providers)],
        ["distances divided by", " and ".join(f"{scale:.6g}" for scale in result.scales)],
        ["value", f"{result.value:.8g}"],
        ["ended", str(result.status)],
        ["iterations", f"{result.n_iter}, with {result.n_iter_sinkhorn} of Sinkhorn"],
        ["marginal error", f"{result.marginal_error:.2e}"],
        ["marginal residual before rounding", f"{result.marginal_residual:.2e}"],
        ["strategy", result.strategy],
        ["gradient", _with_reason(result.gradient, result.gradient_passed_over)],
    ]
    if result.strategy == "streaming":
        rows.append(["pairs of points evaluated", f"{result.evaluated:.2%}"])
    return Table(["", ""], rows, [])


def origin(result: ReportInput, device: torch.device) -> Table:
    """Where the result was made, how long it took, and when this page was written."""
    passed = "; ".join(f"{name}: {why}" for name, why in result.backends_passed_over.items())
    rows = [
        ["kernels", _with_reason(result.backend, passed)],
        ["plan held on", str(device)],
        *([f"seconds: {phase}", f"{seconds:.3f}"] for phase, seconds in result.timings.items()),
        ["page written", datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")],
        ["torchgw", __version__],
        ["torch", torch.__version__],
        ["numpy", np.__version__],
        ["python", platform.python_version()],
        ["system", platform.platform()],
    ]
    return Table(["", ""], rows, [])


def _with_reason(name: str, passed_over: str) -> str:
    return f"{name} ({passed_over})" if passed_over else name
