"""How the documentation is built: `make docs`."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import torchgw

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "torchgw"
author = "The torchgw developers"
project_copyright = "the torchgw developers, BSD-3-Clause"
version = release = torchgw.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "matplotlib.sphinxext.plot_directive",
]
exclude_patterns = ["_build", "figures", "examples", "gallery/*.ipynb", "gallery/*.py"]
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_title = f"torchgw {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["torchgw.css"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings give shapes, which say more
default_role = "autolink"  # a link where the name is known, emphasis where not
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False  # as for parameters

plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = [("png", 130)]
plot_rcparams = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
plot_apply_rcparams = True

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "/plot_",
    "ignore_pattern": r"(gradient_flow|two_modalities)\.py$",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "min_reported_time": 1,
    "download_all_examples": False,
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
    "show_signature": False,
}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

# Files at the top of the repository that are pages here.
PAGES = {
    "../OPTIMIZATION_LOG.md": "optimization_log.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../README.md": "index.md",
    "../benchmarks/GPU_PENDING.md": "gpu_pending.md",
}
REPORT = HERE.parent / "benchmarks" / "report"  # a page of its own, copied as it is
TO_REPORT = re.compile(r"\[([^]]+)\]\(\.\./(benchmarks/report/index\.html)\)")
SECTIONS = ("Parameters", "Attributes", "Raises", "Returns", "Notes", "Other Parameters", "Yields", "Examples")
ENTRY = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) : (?P<text>.+)$")


def with_pages(_app: Any, _name: str, content: list[str]) -> None:
    """Links to files at the top lead to their pages."""
    for path, page in PAGES.items():
        content[0] = content[0].replace(f"]({path}", f"]({page}")
    content[0] = TO_REPORT.sub(r'<a href="\2">\1</a>', content[0])


def with_report(app: Any, failure: Exception | None) -> None:
    """The page of the benchmarks, and what it links to, lie in the site as they do in the repository."""
    if failure is None:
        shutil.copytree(REPORT, app.outdir / "benchmarks" / "report", dirs_exist_ok=True, ignore=only_page)
        shutil.copy(REPORT.parent / "GPU_PENDING.md", app.outdir / "benchmarks")


def only_page(_folder: str, names: list[str]) -> list[str]:
    """What is not the page or one of its pictures."""
    return [name for name in names if Path(name).suffix not in (".html", ".png") or name == "template.html"]


def described(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """``name : text`` is a name and its description here, not a name and its type."""
    found, section = [], ""
    for i, line in enumerate(lines):
        if i + 1 < len(lines) and line and set(lines[i + 1]) == {"-"} and line in SECTIONS:
            section = line
        entry = ENTRY.match(line) if section in ("Parameters", "Attributes") else None
        found += [entry["names"], f"    {entry['text']}"] if entry else [line]
    lines[:] = found


def setup(app: Any) -> None:
    logging.getLogger("torchgw").setLevel(logging.WARNING)  # Sphinx shows what is logged
    warnings.filterwarnings("error", category=DeprecationWarning, module="torchgw")
    app.connect("source-read", with_pages)
    app.connect("include-read", lambda app, _path, name, content: with_pages(app, name, content))
    app.connect("build-finished", with_report)
    app.connect("autodoc-process-docstring", described, priority=400)  # before napoleon
