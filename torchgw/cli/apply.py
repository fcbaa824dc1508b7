"""``torchgw apply RESULT NEW -o OUT``: new points matched by a saved result."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchgw import validate
from torchgw.cli.align import check_tables, load_space, memory_limit
from torchgw.cli.output import check_output, format_names, write_whole
from torchgw.results.result import GWResult

ELEMENTS = 2**24  # of a plan between new and known points that is held at once


def run_apply(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read, match, write."""
    check_output(arguments.output, ".csv")
    limit = memory_limit(arguments)
    check_tables([arguments.points], arguments.index_col, edges=False)
    result = GWResult.load(arguments.result, limit)
    points, names = load_space("points", arguments.points, limit, arguments.index_col)
    write_whole(lambda aside: write_matches(aside, result, points, arguments.side, names), arguments.output)
    return {
        "output": str(arguments.output),
        "result": str(arguments.result),
        "side": arguments.side,
        "points": int(points.shape[0]),
    }


def write_matches(path: Path, result: GWResult, points: Any, side: str, names: list[str] | None) -> None:
    """A table of the new points, the best known point of the other side, and the share of the mass that goes there.
    Points have their names, or else their numbers."""
    other = "target" if side == "source" else "source"
    size, known = (result.shape[1], result.names_y) if side == "source" else (result.shape[0], result.names_x)
    new, old = format_names(points.shape[0], names), format_names(size, known)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow((side, other, "share"))
        for i, j, share in _matches(result, points, side):
            table.writerow((new[i], old[j], share))


def _matches(result: GWResult, points: Any, side: str) -> Iterator[tuple[int, int, str]]:
    step = max(1, ELEMENTS // max(result.shape))
    for start in range(0, points.shape[0], step):
        plan = validate.read("plan", result.transform(points[start : start + step], side).plan)
        rows = plan if side == "source" else plan.T
        for i, (part, j) in enumerate(zip((rows.max(1) / rows.sum(1)).tolist(), rows.argmax(1).tolist(), strict=True)):
            yield start + i, j, f"{part:.6g}"
