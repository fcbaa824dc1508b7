"""What `pip install .` installs, and that it runs where nothing else of the repository is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torchgw

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is packaged, copied, because builds leave folders behind."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "torchgw", folder / "torchgw", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def run(command: list[str], where: Path, path: Path | None = None) -> str:
    """What a command prints in a folder, with nothing but ``path`` to import from beside the environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run(command, cwd=where, env=environment | found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(source: Path, tmp_path: Path) -> None:
    files = {str(path.relative_to(source)) for path in (source / "torchgw").rglob("*") if path.is_file()}
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    run([sys.executable, "-c", build], source)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (told,) = (opened.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name for name in names if ".dist-info/" not in name} == files
    assert {Path(name).suffix for name in files} == {".py", ".typed", ".md", ".json", ".html", ".css", ".js"}
    assert f"Version: {torchgw.__version__}\n" in told
    assert "License-Expression: BSD-3-Clause\n" in told
    assert "Classifier: Programming Language :: Python :: 3.10\n" in told


@pytest.mark.slow
def test_an_installed_package_runs_far_from_its_source(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    run([sys.executable, *install, "."], source)
    assert (target / "bin" / "torchgw").is_file()
    told = run([sys.executable, "-m", "torchgw", "info"], tmp_path, target)
    assert told.startswith(f"torchgw {torchgw.__version__}")
    code = (
        "import sys, torchgw; print(torchgw.__file__); X, _ = torchgw.datasets.make_spiral(60); "
        "torchgw.gw_align(X, X + 1, random_state=0).report('page.html')"
    )
    assert run([sys.executable, "-c", code], tmp_path, target).startswith(str(target))
    assert "</html>" in (tmp_path / "page.html").read_text()


def test_only_what_is_public_is_listed() -> None:
    assert dir(torchgw) == sorted(torchgw.__all__)
    assert {"anndata", "gw_align", "gw_pairwise", "plot"} <= set(dir(torchgw))


def test_nobody_is_told_to_install_the_package_by_its_name_which_another_one_owns() -> None:
    texts = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.py"), *ROOT.glob("torchgw/**/*.py")]
    wrong = [path.name for path in texts if re.search(r"pip install[^\n]*[ '\"]torchgw\b", path.read_text("utf-8"))]
    assert not wrong
