"""The pages for those who come from another package: their own code runs here, and beside that package its numbers.

A block that begins with an import of the other package is left out where that is not asked for. With it, a page runs in
a process of its own, so that no import of this one is changed; it finds the package in this environment, or in that of
the benchmarks (`make bench-env`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PEERS = {"from_pot.md": ("ot", "pot"), "from_ott.md": ("ott", "ott"), "from_scot.md": ("ot", "pot")}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_A_PEER = ("import ot\n", "import jax\n", "import ott\n")


def blocks(page: str) -> list[str]:
    """The Python blocks of a page, in order."""
    found = BLOCK.findall((DOCS / page).read_text())
    assert found, page
    return found


def own(page: str) -> list[str]:
    """Those that need no other package."""
    return [block for block in blocks(page) if not block.startswith(OF_A_PEER)]


def where(module: str, short: str) -> str | None:
    """The folder to append to the path for ``module``: "" where it is installed, None where it is nowhere."""
    if importlib.util.find_spec(module) is not None:
        return ""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = ROOT / f".venv-{short}" / "lib" / version / "site-packages"
    return str(folder) if (folder / module).is_dir() else None


@pytest.mark.parametrize("page", PEERS)
def test_what_needs_no_other_package_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, block in enumerate(own(page)):
        exec(compile(block, f"{page}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", PEERS)
def test_numbers_are_compared_with_the_other_package(page: str) -> None:
    compared = [block for block in blocks(page) if block.startswith(OF_A_PEER)]
    assert compared
    assert all("assert " in block for block in compared), "a block beside another package that compares nothing"


@pytest.mark.peer
@pytest.mark.parametrize("page", PEERS)
def test_numbers_agree_with_the_other_package(page: str, tmp_path: Path) -> None:
    module, short = PEERS[page]
    folder = where(module, short)
    if folder is None:
        pytest.skip(f"{module} is neither here nor in .venv-{short}; `make bench-env` makes that")
    script = tmp_path / "page.py"
    appended = [f"import sys; sys.path.append({folder!r})"] if folder else []
    script.write_text("\n".join([*appended, *blocks(page)]))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
