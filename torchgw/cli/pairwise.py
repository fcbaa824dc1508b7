"""``torchgw pairwise``: distances between all pairs of files."""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchgw.cli.align import Interrupted, memory_limit
from torchgw.cli.input import read_space
from torchgw.cli.output import as_cell, check_output, write_whole
from torchgw.options import GWOptions
from torchgw.progress import bar_on_terminal
from torchgw.report.contents import finite

if TYPE_CHECKING:
    from torchgw.pairwise import PairwiseResult


def run_pairwise(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read, compare, write."""
    from torchgw.pairwise import PairStatus, gw_pairwise

    check_output(arguments.output, ".npz", ".csv")
    if len(arguments.spaces) < 2:
        raise ValueError(f"pairwise needs two files or more, got {arguments.spaces[0]} alone")
    limit = memory_limit(arguments)
    names = [str(file) for file in arguments.spaces]
    spaces = [read_space(f"space {i}", file, limit) for i, file in enumerate(arguments.spaces)]
    try:
        with bar_on_terminal("pairs") as bar:
            found = gw_pairwise(
                spaces,
                distances=arguments.distances,
                scale=arguments.scale,
                tol=arguments.tol,
                options=GWOptions(max_memory=limit),
                n_jobs=arguments.jobs,
                device=arguments.device,
                store=arguments.store,
                callback=bar,
                random_state=arguments.seed,
            )
    except (ValueError, TypeError) as error:
        raise ValueError(re.sub(r"spaces\[(\d+)\]", lambda found: names[int(found[1])], str(error))) from error
    save = save_arrays if arguments.output.suffix == ".npz" else save_table
    write_whole(lambda aside: save(aside, names, found), arguments.output)
    described = {
        "output": str(arguments.output),
        "spaces": names,
        "distances": [finite(value) for value in found.condensed.tolist()],
        "status": [PairStatus(int(code)).name.lower() for code in found.status],
        "solved": found.n_solved,
        "stored": found.n_stored,
        "seconds": found.seconds,
    }
    if not found.complete:
        more = f"; the same command goes on from {arguments.store}" if arguments.store else ""
        raise Interrupted(f"the pairs done so far are in {arguments.output}, the others are nan{more}", described)
    return described


def save_arrays(path: Path, names: list[str], found: PairwiseResult) -> None:
    """``distances`` (n (n - 1) / 2,) in SciPy's order of pairs, ``square`` (n, n), ``names`` (n,)."""
    with path.open("wb") as file:
        np.savez_compressed(file, distances=found.condensed, square=found.square(), names=np.array(names))


def save_table(path: Path, names: list[str], found: PairwiseResult) -> None:
    """The square matrix under a header of names, none of which a spreadsheet would run as a formula."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(map(as_cell, names))
        table.writerows(found.square().tolist())
