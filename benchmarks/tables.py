"""Tables of the documents, written from the stored results so that they cannot drift apart.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; NAME is a result file, NAME:summary its summary,
NAME:GROUP the rows of one group, "published" what others have published of theirs, with ours beside it, "headline" and
"large" the short ones of the README.
``<!-- table NAME | solver, N, seconds -->`` takes these columns alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import headline, published
from benchmarks.common import RESULTS

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "OPTIMIZATION_LOG.md", "docs/performance.md", "docs/pairwise.md", "docs/cluster.md")
MADE = {"published": published.rows, "headline": headline.beside_peers, "large": headline.large}
MARKED = re.compile(r"(<!-- table (\S+)(?: \| (.+?))? -->\n).*?(<!-- end -->)", re.DOTALL)


def table(name: str, chosen: str | None = None) -> str:
    """One result file as a Markdown table, of all columns or of those ``chosen``."""
    file, _, part = name.partition(":")
    rows: list[dict[str, Any]]
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
    """A document with its tables written anew."""
    return MARKED.sub(lambda found: f"{found[1]}{table(found[2], found[3])}{found[4]}", text)


def run() -> None:
    """Rewrite the tables of all documents."""
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(filled(path.read_text()))
        print(f"wrote the tables of {name}")
