"""Figures that others publish, with ours at the same size beside them.

Theirs are theirs: `published.json` says whose they are, and they were not measured here; their memory is that of a GPU.
Ours are the stored results of ``python -m benchmarks scale``; their memory is that of the main process.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import HERE, RESULTS

Row = dict[str, Any]
LOOSE = 5e-2


def rows() -> list[Row]:
    """The published rows, each with what was measured here at its size."""
    theirs = json.loads((HERE / "published.json").read_text())["rows"]
    environment, ours = measured()
    here = f"here, {environment['cores']} CPU cores"
    found = []
    for row in theirs:
        size = row["N"], row["K"]
        shown = {f"theirs, {name}": row[name] for name in row if name not in ("N", "K")}
        found.append({"size": f"{size[0]} x {size[1]}"} | shown | {here: ours.get(size, "-")})
    return found


def measured() -> tuple[dict[str, Any], dict[tuple[int, int], str]]:
    """The environment of the large runs, and time and memory by size, at the looser marginal tolerance."""
    scale = json.loads((RESULTS / "scale.json").read_text())
    found = {}
    for detail in (entry["detail"] for entry in scale["details"]):
        if detail.get("tol") == LOOSE:
            gigabytes = detail["gib"] * 2**30 / 1e9
            found[detail["n"], detail["k"]] = f"{detail['seconds']:.1f} s, {gigabytes:.1f} GB"
    return scale["environment"], found
