"""A result as one interactive HTML page: both clouds, linked; what the search found; what is certain. The file needs
nothing else: no network, no folder beside it.

The scripts are named by their hashes in a content security policy, so nothing that came with the data can run, and
nothing can be fetched. The drawing library compiles its shaders' bindings as it runs, for which it needs unsafe-eval.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from torchgw.persist.files import atomic_path
from torchgw.report import contents
from torchgw.report.result_protocol import ReportInput


def write(result: ReportInput, path: Path, X: Any = None, Y: Any = None, labels: Any = None) -> None:
    """Write the page of a result, whole or not at all; errors are those of `GWResult.report`."""
    drawing = plotly_script()
    text = page(contents.contents(result, X, Y, labels), drawing)
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def plotly_script() -> str:
    """The drawing library as one script."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError("a report is drawn with plotly, which is not installed: pip install plotly") from None
    script: str = get_plotlyjs()
    return script


def page(shown: dict[str, Any], drawing: str) -> str:
    """The HTML of the page with everything inside."""
    folder = files("torchgw.report")
    template, style, script = (
        (folder / name).read_text("utf-8") for name in ("report.html", "report.css", "report.js")
    )
    return Template(template).substitute(
        title=html.escape(shown["title"]),
        hashes=" ".join(hash_script(text) for text in (drawing, script)),
        style=style,
        data=embed_json(shown),
        plotly=drawing,
        script=script,
    )


def embed_json(shown: dict[str, Any]) -> str:
    """JSON in which no text can end the element that holds it."""
    return json.dumps(shown, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def hash_script(script: str) -> str:
    """A script's source for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
