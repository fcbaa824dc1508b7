"""Tables of the README and the optimisation log, written from the stored results so that they cannot drift apart.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; NAME is a result file, NAME:summary its summary.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "OPTIMIZATION_LOG.md")
MARKED = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(name: str) -> str:
    """One result file as a Markdown table."""
    file, _, part = name.partition(":")
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{file}.json").read_text())[part or "rows"]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and abs(value) < 0.99 else _plain(value)


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def filled(text: str) -> str:
    """A document with its tables written anew."""
    return MARKED.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", text)


def run() -> None:
    """Rewrite the tables of all documents."""
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(filled(path.read_text()))
        print(f"wrote the tables of {name}")
