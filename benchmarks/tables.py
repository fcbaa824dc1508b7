"""Tables and figures of the documents, written from the stored results so that they cannot drift apart.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; NAME is a result file, NAME:summary its summary,
NAME:GROUP the rows of one group, "published" what others have published of theirs, with ours beside it, "headline" and
"large" the short ones of the README, "machines" where each suite was measured, "requirements" how many of its
requirements each meets, "small:beside_POT" the ratios of the suite of small problems. The table of a suite without
results says so.
``<!-- table NAME | solver, N, seconds -->`` takes these columns alone. Figures of the prose: `benchmarks.figures`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import figures, headline, published
from benchmarks.__main__ import SUITES
from benchmarks.common import RESULTS

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- table (\S+)(?: \| (.+?))? -->\n).*?(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- figure ([^\n]+?) -->)[^\n]*?(<!-- end -->)")


def documents() -> list[str]:
    """The pages that have tables or figures."""
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))
    return sorted(
        str(page.relative_to(ROOT)) for page in pages if MARKED.search(text := page.read_text()) or FIGURE.search(text)
    )


def machines() -> list[dict[str, Any]]:
    """A line for each stored suite: where and when it was measured."""
    return [
        {"suite": f"`{path.stem}`", "measured on": figures.figure(f"{path.stem}:machine")}
        for path in sorted(RESULTS.glob("*.json"))
    ]


def requirements() -> list[dict[str, Any]]:
    """How many requirements each suite that has some meets."""
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        if any(row.get("met", "-") != "-" for row in json.loads(path.read_text())["rows"]):
            met = figures.figure(f"{path.stem}:met")
            found.append({"suite": f"`{path.stem}`", "asks for": SUITES.get(path.stem, ""), "met": met})
    return found


def small_beside_pot() -> list[dict[str, Any]]:
    """By size: how many times as fast POT's conditional gradient is, and on how many kinds our value is lower."""
    found = []
    for n, (line,) in json.loads((RESULTS / "small.json").read_text())["groups"].items():
        ratios = [run["ratio"] for run in line["detail"]["runs"]]
        times = f"{figures.figure(f'small:slower:{n}')} times as fast"
        spread = f"{figures.ratio(min(ratios))} to {figures.ratio(max(ratios))}"
        lower = figures.figure(f"small:lower:{n}")
        found.append(
            {"points": n, "POT's conditional gradient": f"{times} ({spread})", "torchgw's value is lower in": lower}
        )
    return found


MADE = {
    "published": published.rows,
    "headline": headline.beside_peers,
    "large": headline.large,
    "machines": machines,
    "requirements": requirements,
    "small:beside_POT": small_beside_pot,
}
SUITE = {"published": "scale", "headline": "peers", "large": "scale", "machines": None, "requirements": None}


def suite(name: str) -> str | None:
    """The suite whose results a table shows; None for tables of all suites."""
    file = name.partition(":")[0]
    return SUITE.get(file, file)


def table(name: str, chosen: str | None = None) -> str:
    """One result file as a Markdown table, of all columns or of those ``chosen``."""
    file, _, part = name.partition(":")
    rows: list[dict[str, Any]]
    if figures.is_pending(file):
        return f"| {figures.UNKNOWN} |\n| --- |\n"
    if name in MADE:
        rows = MADE[name]()
    else:
        content = json.loads((RESULTS / f"{file}.json").read_text())
        rows = content.get("groups", {}).get(part) or content[part or "rows"]
    if not rows:
        raise ValueError(f"{name} has no rows")
    columns = chosen.split(", ") if chosen else list(dict.fromkeys(column for row in rows for column in row))
    unknown = [column for column in columns if all(column not in row for row in rows)]
    if unknown:
        raise ValueError(f"{name} has no column {', '.join(unknown)}")
    lines = [columns, ["---"] * len(columns), *([_text(row.get(column)) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 0.99 else _plain(value)


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def filled(text: str) -> str:
    """A document with its tables and figures written anew."""
    text = MARKED.sub(lambda found: f"{found[1]}{table(found[2], found[3])}{found[4]}", text)
    return FIGURE.sub(lambda found: f"{found[1]}{figures.figure(found[2])}{found[3]}", text)


def run() -> None:
    """Rewrite the tables and figures of all documents."""
    for name in documents():
        path = ROOT / name
        path.write_text(filled(path.read_text()))
        print(f"wrote the tables and figures of {name}")
