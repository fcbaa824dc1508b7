"""What commands write: files that are whole or not there, and what a result says of itself as JSON."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torchgw.persist.files import atomic_path
from torchgw.report.contents import none_if_nonfinite
from torchgw.results.result import GWResult

SAID = (
    *("value", "value_quad", "value_linear", "value_error", "chance", "distance_correlation"),
    *("marginal_error", "marginal_residual"),
    *("converged", "ambiguous", "n_iter", "n_iter_sinkhorn", "strategy", "gradient", "backend", "epsilon"),
)


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def check_output(path: Path, *suffixes: str, name: str = "output") -> None:
    """Refuse, before the solve, a place that the result could not be written to."""
    if path.suffix not in suffixes:
        raise ValueError(f"{name} must be a {' or '.join(suffixes)} file, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"{name} {path} lies in a folder that is not there; make {path.parent} first")
    if path.is_dir():
        raise ValueError(f"{name} {path} is a folder; name a file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"{name} {path} cannot be written: no file can be made in {path.parent}")


def write_whole(write: Callable[[Path], object], path: Path) -> None:
    """Write aside, then rename, so that a reader never sees half a file.

    Raises
    ------
    OSError
        Naming the file, when the disk is full or fails. What was there before is untouched.
    """
    try:
        with atomic_path(path) as aside:
            write(aside)
    except OSError as error:
        room = "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise OSError(f"output {path} was not written: {error.strerror}; {room}name a file elsewhere") from error


def write_matching(result: GWResult, path: Path) -> None:
    """A table of the source's points, the best target of each, and the share of its mass that goes there; both empty
    where a point has none to match. Points have their names, or else their numbers."""
    (mass, best), given = result.top_k(1), result.marginal(1)
    sources, targets = map(format_names, result.shape, (result.names_x, result.names_y))
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("source", "target", "share"))
        for i, (part, target, total) in enumerate(zip(mass[:, 0], best[:, 0], given, strict=True)):
            share = f"{float(part) / float(total):.6g}" if total > 0 else ""
            table.writerow((sources[i], targets[int(target)] if total > 0 else "", share))


def format_names(size: int, names: Iterable[object] | None) -> Sequence[int | str]:
    """What a table calls points: by their names, or else by their numbers."""
    return range(size) if names is None else [as_cell(str(name)) for name in names]


def as_cell(name: str) -> str:
    """A name as a cell that spreadsheets show: one that begins like a formula gets an apostrophe in front."""
    return f"'{name}" if name.startswith(FORMULA) else name


def describe_result(result: GWResult, path: Path) -> dict[str, Any]:
    """What the result says of itself, in types of JSON."""
    certificate = result.certificate
    found = {"output": str(path), "shape": list(result.shape)} | {name: getattr(result, name) for name in SAID}
    found |= {
        "verdict": result.verdict.name.lower(),
        "reasons": list(result.reasons),
        "warnings": [str(warning) for warning in result.warnings],
        "lower_bound": certificate.lower_bound,
        "gap_global": certificate.gap_global,
        "stationarity": certificate.stationarity,
        "status": result.status.name.lower(),
        "basins": [basin.energy for basin in result.basins],
        "scales": list(result.scales),
        "seconds": result.timings,
    }
    return {name: none_if_nonfinite(value) for name, value in found.items()}
