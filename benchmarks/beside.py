"""Figures that others publish, with ours at the same size beside them.

Theirs are theirs: `published.json` says whose they are, and they were not measured here. Ours are the stored results of
``python -m benchmarks scale`` and ``peers``.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import HERE, RESULTS

Row = dict[str, Any]


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
    """The environment of the large runs, and time and memory by size: the first row of each."""
    scale = json.loads((RESULTS / "scale.json").read_text())
    found: dict[tuple[int, int], str] = {}
    for entry in scale["details"]:
        detail = entry["detail"]
        if "n" in detail:
            text = f"{detail['seconds']:.1f} s, {detail['gib'] * 1.074:.1f} GB"
            found.setdefault((detail["n"], detail["k"]), text)
    path = RESULTS / "peers.json"
    for entry in json.loads(path.read_text())["rows"] if path.exists() else []:
        if entry["solver"] == "torchgw, from points" and entry["status"] == "ok":
            gigabytes = entry["peak_mib"] * 2**20 / 1e9
            found.setdefault((entry["N"], entry["K"]), f"{entry['seconds']:.1f} s, {gigabytes:.1f} GB")
    return scale["environment"], found
