"""Runs the groups of phases, keeps the stored rows of the others, and stores the results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from benchmarks.common import RESULTS, kept, show, write
from benchmarks.phases.bench import Bench
from benchmarks.phases.comparison import Row
from benchmarks.phases.cumulative import cumulative
from benchmarks.phases.groups import all_but_it, alone, cache, gradient, preparation, starts, streaming, tiles

GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    "alone": alone,
    "all_but_it": all_but_it,
    "cache": cache,
    "preparation": preparation,
    "starts": starts,
    "gradient": gradient,
    "streaming": streaming,
    "tiles": tiles,
    "cumulative": cumulative,
}


def line(entry: Row) -> dict[str, str]:
    """A row as documents show it."""

    def side(name: str) -> str:
        value, memory = entry[f"{name}_value"], entry[f"{name}_mib"]
        judged = f"{entry[f'{name}_s']:.3g} s, rho {entry[f'{name}_rho']:.4f}"
        judged += "" if value == "-" else f", value {value:.5f}"
        judged += f", {entry[f'{name}_iterations']} iterations"
        return judged + ("" if memory == "-" else f", {memory:.0f} MiB")

    return {
        "phase": entry["phase"],
        "how": entry["how"],
        "problem": entry["problem"],
        "before": side("before"),
        "after": side("after"),
        "ratio": f"{entry['ratio']:.2f}x",
        "verdict": entry["verdict"],
    }


def run(groups: list[str] | None = None, quick: bool = False) -> list[Row]:
    """The rows of the groups, and the stored ones of the others; stored."""
    unknown = set(groups or ()) - set(GROUPS)
    if unknown:
        raise SystemExit(f"groups must be among {', '.join(GROUPS)}, got {', '.join(sorted(unknown))}")
    bench = Bench(quick=quick)
    if quick:
        bench = replace(bench, max_iter=40, budget=0.5)
    path = RESULTS / "phases.json"
    before = {} if quick else kept(path, groups)
    held: dict[str, list[Row]] = before.get("groups", {})
    warnings.simplefilter("ignore")
    left, rows = set(GROUPS), []
    for group in groups or GROUPS:
        left.discard(group)
        held[group] = GROUPS[group](bench)
        print(f"\n# {group}", flush=True)
        show(held[group])
        rows = [entry for key in GROUPS if key != "cumulative" for entry in held.get(key, [])]
        short = [line(entry) for entry in rows]
        more = {"summary": short, "cumulative": held.get("cumulative", []), "groups": held}
        write("phases", rows, quick=quick, partial=bool(before) and bool(left), **more)
    return rows
