"""``torchgw estimate``: what an alignment would take, from two numbers or two files."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchgw.cli.align import memory_of
from torchgw.cli.output import finite
from torchgw.cli.tables import read_space
from torchgw.options import GWOptions, LowRankOptions
from torchgw.planner import estimate

BESIDES = "these are times of solves; a command takes some seconds besides, to load torch"


def run_estimate(arguments: argparse.Namespace) -> dict[str, Any] | str:
    """The forecasts as a table, or as JSON."""
    options = GWOptions(max_memory=memory_of(arguments), low_rank=LowRankOptions(rank=arguments.rank))
    sizes = [_size(name, getattr(arguments, name), options.max_memory) for name in ("source", "target")]
    found = estimate(*sizes, epsilon=arguments.epsilon, options=options, device=arguments.device)
    if not arguments.json:
        return f"{sizes[0]} x {sizes[1]} {found}\n{BESIDES}"
    forecasts = [{name: finite(value) for name, value in asdict(forecast).items()} for forecast in found.forecasts]
    return {"shape": sizes, "device": found.device, "chosen": found.chosen, "forecasts": forecasts}


def _size(name: str, given: str, limit: int) -> int:
    """A number of points, or that of a file."""
    if given.isdecimal():
        return int(given)
    return int(read_space(name, Path(given), limit).shape[0])
