"""The page itself: what was measured where, the summary, and the sections, in one file without scripts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.common import HERE, QUICK, RESULTS
from benchmarks.report.cells import cell, columns, heading, kind, mark, numbers
from benchmarks.report.drawing import save
from benchmarks.report.peers import GOOD, MARGINALS
from benchmarks.report.results import Result, Row, read
from benchmarks.report.sections import sections
from benchmarks.report.summary import duels, sentences

REPORT = Path(__file__).parent
PENDING = HERE / "GPU_PENDING.md"
MACHINE = ("cpu", "cores", "threads", "memory_gib", "system", "gpu", "python")
SAME_MACHINE = ("cpu", "cores", "threads", "gpu")


def run(quick: bool = False) -> None:
    """Write the page and its pictures from the stored results, or from those of a quick run."""
    path = build(QUICK, QUICK / "report", quick=True) if quick else build(RESULTS, REPORT)
    print(f"wrote {path}")


def build(source: Path, target: Path, quick: bool = False) -> Path:
    """Read all results of a folder; write index.html and its pictures into another, in place of what is there."""
    results = read(source)
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("*.png"):
        old.unlink()
    shown = sections(results, quick)
    drawn = {plot.name for part in shown for plot in part.plots if save(plot.draw, target / f"{plot.name}.png")}
    environment = Environment(
        loader=FileSystemLoader(REPORT),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "cell": cell,
        "heading": heading,
        "columns": columns,
        "numbers": numbers,
        "kind": kind,
        "mark": mark,
    }
    text = environment.get_template("template.html").render(
        quick=quick,
        measured=measured(results),
        machine=machine(results.values()),
        duels=duels(results.get("peers")),
        good=f"{100 * GOOD:g} %",
        marginals=MARGINALS,
        sentences=sentences(results),
        sections=shown,
        drawn=drawn,
        pending=Path(os.path.relpath(PENDING, target)).as_posix(),
    )
    path = target / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def machine(results: Iterable[Result]) -> list[tuple[str, str]]:
    """What the files say of the machine and the versions, every value that occurs."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        facts = {key: result.environment.get(key) for key in MACHINE} | dict(result.environment.get("versions") or {})
        for key, value in facts.items():
            if value is not None:
                found.setdefault(key, {})[str(value)] = None
    return [(heading(key), ", ".join(values)) for key, values in found.items()]


def measured(results: Mapping[str, Result]) -> list[Row]:
    """Date and commit of each file, and in what it differs from the newest."""
    newest = reference([result.environment for result in results.values()])
    return [
        {
            "file": f"{name}.json",
            "date": result.environment.get("date", "-"),
            "commit": str(result.environment.get("commit", "-"))[:10],
            "threads": result.environment.get("threads", "-"),
            "remarks": ", ".join(remarks(result.environment, newest)) or "as the newest",
        }
        for name, result in results.items()
    ]


def reference(environments: Sequence[Row]) -> Row:
    """The environment that others are compared with: of the newest date, on the commit that most files share."""
    if not environments:
        return {}
    last = max(str(environment.get("date", "")) for environment in environments)
    recent = [environment for environment in environments if str(environment.get("date", "")) == last]
    commit = Counter(environment.get("commit") for environment in recent).most_common(1)[0][0]
    return next(environment for environment in recent if environment.get("commit") == commit)


def remarks(environment: Row, newest: Row) -> list[str]:
    """What a reader must know before comparing a file with the newest."""
    found = []
    if environment.get("commit") != newest.get("commit"):
        found.append("another commit")
    if environment.get("uncommitted_changes"):
        found.append("with uncommitted changes")
    differ = [key for key in SAME_MACHINE if environment.get(key) != newest.get(key)]
    if differ:
        found.append(f"other {', '.join(differ)}")
    if environment.get("versions") != newest.get("versions"):
        found.append("other versions")
    return found
