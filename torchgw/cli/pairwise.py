"""``torchgw pairwise``: distances between all pairs of files, or between some and others."""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchgw.cli.align import InterruptedSolve, check_tables, memory_limit
from torchgw.cli.input import read_with_names
from torchgw.cli.output import as_cell, check_output, write_whole
from torchgw.options import GWOptions
from torchgw.progress import bar_on_terminal
from torchgw.report.contents import none_if_nonfinite

if TYPE_CHECKING:
    from torchgw.pairwise import PairwiseResult


def run_pairwise(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read, compare, write."""
    from torchgw.pairwise import PairStatus, gw_pairwise

    check_output(arguments.output, ".npz", ".csv")
    lists = {"spaces": arguments.spaces, "against": arguments.against or []}
    if len(arguments.spaces) < 2 and not arguments.against:
        raise ValueError(f"pairwise needs two files or more, got {arguments.spaces[0]} alone")
    limit = memory_limit(arguments)
    names, against = map(short_names, lists.values())
    check_tables([*arguments.spaces, *lists["against"]], arguments.index_col, arguments.edges)
    spaces, others = (
        [
            read_with_names(f"{kind} {i}", file, limit, index=arguments.index_col, edges=arguments.edges)[0]
            for i, file in enumerate(lists[name])
        ]
        for name, kind in (("spaces", "space"), ("against", "against"))
    )
    try:
        with bar_on_terminal("pairs") as bar:
            found = gw_pairwise(
                spaces,
                against=others or None,
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
        said = re.sub(r"(spaces|against)\[(\d+)\]", lambda at: str(lists[at[1]][int(at[2])]), str(error))
        raise ValueError(said) from error
    save = save_arrays if arguments.output.suffix == ".npz" else save_table
    write_whole(lambda aside: save(aside, names, found, against), arguments.output)
    described = {
        "output": str(arguments.output),
        "spaces": names,
        **({"against": against} if against else {}),
        "distances": [none_if_nonfinite(value) for value in found.condensed.tolist()],
        "status": [PairStatus(int(code)).name.lower() for code in found.status],
        "solved": found.n_solved,
        "stored": found.n_stored,
        "seconds": found.seconds,
    }
    if not found.complete:
        more = f"; the same command goes on from {arguments.store}" if arguments.store else ""
        raise InterruptedSolve(f"the pairs done so far are in {arguments.output}, the others are nan{more}", described)
    return described


def short_names(files: Sequence[Path]) -> list[str]:
    """The names of files without folder and suffix; whole paths where these do not tell the files apart."""
    stems = [file.stem for file in files]
    return stems if len({*stems}) == len(stems) else [str(file) for file in files]


def save_arrays(path: Path, names: list[str], found: PairwiseResult, against: Sequence[str] = ()) -> None:
    """``distances`` (m,) in SciPy's order of pairs, ``square`` (n, n) and ``names`` (n,); between some and others
    ``square`` (n, k), and ``against`` (k,) with the names of these."""
    arrays: dict[str, Any] = {"distances": found.condensed, "square": found.square(), "names": np.array(names)}
    if against:
        arrays["against"] = np.array(against)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def save_table(path: Path, names: list[str], found: PairwiseResult, against: Sequence[str] = ()) -> None:
    """A matrix with names of rows and columns, none of which a spreadsheet would run as a formula."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("space", *map(as_cell, against or names)))
        table.writerows((as_cell(name), *row) for name, row in zip(names, found.square().tolist(), strict=True))
