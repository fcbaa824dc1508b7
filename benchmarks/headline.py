"""The two short tables of the README, from the stored results of ``peers`` and ``scale``."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import RESULTS

Row = dict[str, Any]
SOLVERS = {  # as they are stored, and as they are shown
    "torchgw, from points": "**torchgw**",
    "torchgw epsilon=0, from points": "**torchgw**, `epsilon=0`, from points",
    "torchgw epsilon=1e-3": "**torchgw**, `epsilon=1e-3`",
    "torchgw epsilon=0": "**torchgw**, `epsilon=0`",
    "POT conditional gradient": "POT, conditional gradient",
    "POT entropic": "POT, entropic",
    "ott-jax entropic": "ott-jax, entropic",
    "fugw": "fugw",
    "torchgw 0.4.2, from points": "torchgw 0.4.2 (unrelated), from points",
}
FROM_POINTS = "torchgw, from points"
JUDGED = (1000, 1200)  # the size whose values and marginals are shown: all solvers end there
LARGE = ("20000 x 25000, residual 0.05", "100000 x 120000, residual 0.05", "1000000 x 1000000, residual 0.05")


def beside_peers() -> list[Row]:
    """Seconds of each stored solver by size; value, marginal error and rank correlation where all ended."""
    stored = json.loads((RESULTS / "peers.json").read_text())
    sizes = [(row["N"], row["K"]) for row in stored["preparation"]]
    made = {f"{n} x {k}": _seconds(row["seconds"]) for (n, k), row in zip(sizes, stored["preparation"], strict=True)}
    preparation = {"solver": "*all pairs of distances, which the solvers below begin from*"} | made
    found: list[Row] = []
    for solver, shown in SOLVERS.items():
        runs = {(row["N"], row["K"]): row for row in stored["rows"] if row["solver"] == solver}
        if not runs:
            continue
        judged = runs[JUDGED]
        if judged["from"] == "distances" and preparation not in found:
            found.append(preparation)
        cells = {f"{n} x {k}": _seconds(runs[n, k]["seconds"]) for n, k in sizes}
        quality = {
            "value": _shown(judged["value"], ".5f"),
            "marginal error": _shown(judged["marginal_error"], ".1e"),
            "rho": _shown(judged["rho"], ".4f"),
        }
        found.append({"solver": shown} | cells | quality)
    return found


def large() -> list[Row]:
    """Seconds, memory and rank correlation of the large runs."""
    stored = json.loads((RESULTS / "scale.json").read_text())
    details = {entry["case"]: entry["detail"] for entry in stored["details"]}
    return [
        {
            "points": f"{entry['n']:,} x {entry['k']:,}",
            "time": _seconds(entry["seconds"]),
            "memory": f"{entry['gib']:.1f} GiB",
            "rho": f"{entry['rho']:.4f}",
            "marginal error": f"{entry['marginals']:.0e}",
        }
        for entry in (details[case] for case in LARGE)
    ]


def _seconds(seconds: float | str) -> str:
    """To two digits, or to whole seconds; a text stands for a run that was not made."""
    if isinstance(seconds, str):
        return "over the limit"
    digits = ".2g" if seconds < 1 else ".1f" if seconds < 10 else ".0f"
    return f"{seconds:{digits}} s"


def _shown(value: float | str, form: str) -> str:
    """A number, or the text that stands for one that is not known."""
    return value if isinstance(value, str) else f"{value:{form}}"
