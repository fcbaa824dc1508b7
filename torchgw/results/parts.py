"""A result in a folder of parts, each written by one of the ranks that have it, and one result again.

    index.json            how many parts there are, and which arrays are divided among them
    part-2-of-4.npz       rows of these, a run for each part, sealed; the first part has all other arrays

Source of what the arrays are: `torchgw.results.storage`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from torchgw.couplings.blocks import BlockCoupling
from torchgw.persist import guards
from torchgw.persist.files import atomic_path, open_for_writing, read_seal
from torchgw.results.storage import pack, unpack
from torchgw.runtime.ranks import Ranks, cut_of
from torchgw.types import Array

INDEX, FORMAT = "index.json", 1
MOST_PARTS = 100_000
PART = re.compile(r"part-\d+-of-\d+\.npz")


def write_part(folder: Path, members: dict[str, Any], coupling: BlockCoupling, ranks: Ranks) -> None:
    """This rank's part; the first rank writes the index too."""
    arrays = pack(members, coupling)
    divided = sorted(name for name, array in arrays.items() if array.ndim and len(array) >= ranks.count)
    own = {name: arrays[name][cut_of(len(arrays[name]), ranks.rank, ranks.count)] for name in divided}
    if ranks.rank == 0:
        own |= {name: array for name, array in arrays.items() if name not in divided}
        with atomic_path(folder / INDEX) as aside:
            aside.write_text(json.dumps({"format": FORMAT, "parts": ranks.count, "divided": divided}))
    with open_for_writing(folder / _name(ranks.rank, ranks.count)) as file:
        np.savez_compressed(file, **own)  # type: ignore[arg-type]


def read_parts(folder: Path, limit: int) -> dict[str, Any]:
    """The members of a result from such a folder.

    Raises
    ------
    ValueError
        For an index that is none, parts that are missing or damaged, or arrays beyond the limit of bytes.
    """
    index = folder / INDEX
    if index.stat().st_size > guards.HARMLESS:
        raise ValueError(f"its {INDEX} is too large for one")
    told = json.loads(index.read_text())
    count, divided = told["parts"], told["divided"]
    if told["format"] != FORMAT or not isinstance(count, int) or not 1 <= count <= MOST_PARTS:
        raise ValueError(f"its {INDEX} is not one that this version reads")
    files = [folder / _name(part, count) for part in range(count)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing[:3])}")
    guards.refuse_oversized("it", sum(file.stat().st_size for file in files) // 8, 2 * limit + guards.HARMLESS)
    found: list[dict[str, Array]] = []
    for file in files:
        if read_seal(file) is None:
            raise ValueError(f"its {file.name} has no checksum")
        found.append(guards.read_arrays(file, limit))
    arrays = {name: np.concatenate([part[name] for part in found]) for name in divided}
    return unpack({name: array for name, array in found[0].items() if name not in divided} | arrays)


def is_folder_of_parts(folder: Path) -> bool:
    """Whether this is a folder of parts."""
    return (folder / INDEX).is_file()


def is_part(file: Path) -> bool:
    """Whether a file is called as a part is, and lies beside an index."""
    return PART.fullmatch(file.name) is not None and is_folder_of_parts(file.parent)


def _name(part: int, count: int) -> str:
    return f"part-{part}-of-{count}.npz"
