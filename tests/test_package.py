"""What `pip install .` installs, and that it runs where nothing else of the repository is."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import torchgw

ROOT = Path(__file__).parent.parent
TO_FIND_TORCH = 240.0  # seconds, in which it is unpacked too


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
    assert {Path(name).suffix for name in files} == {".py", ".pyi", ".typed", ".md", ".json", ".html", ".css", ".js"}
    assert f"Version: {torchgw.__version__}\n" in told
    assert "License-Expression: BSD-3-Clause\n" in told
    assert "Classifier: Programming Language :: Python :: 3.10\n" in told


def test_type_checkers_see_what_is_imported_late() -> None:
    seen: dict[str, list[str]] = {}
    for node in ast.parse((ROOT / "torchgw" / "__init__.pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            assert all(name.asname == name.name for name in node.names)  # else they would not hand it on
            seen.setdefault(node.module or "", []).extend(name.name for name in node.names)
    assert seen.pop("torchgw._version") == ["__version__"]
    assert seen.pop("torchgw") == list(torchgw.MODULES)
    assert {home: sorted(names) for home, names in seen.items()} == {
        home: sorted(names) for home, names in torchgw.HOMES.items()
    }
    for home, names in torchgw.HOMES.items():
        assert all(getattr(torchgw, name) is getattr(sys.modules[home], name) for name in names)


@pytest.mark.parametrize(("earlier", "now"), torchgw.RENAMED.items())
def test_an_earlier_name_warns_and_means_the_same(earlier: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"torchgw.{earlier} is called torchgw.{now}"):
        assert getattr(torchgw, earlier) is getattr(torchgw, now)
    assert earlier not in dir(torchgw)


@pytest.mark.parametrize(("name", "instead"), torchgw.REMOVED.items())
def test_a_removed_name_is_refused_with_what_to_use_instead(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"torchgw.{name} was removed: {instead}"):
        getattr(torchgw, name)
    assert name not in dir(torchgw)


@pytest.mark.parametrize("asked", ["", "--help", "--version", "nonsense"])
def test_nothing_heavy_is_imported_before_it_is_needed(asked: str) -> None:
    call = f"cli.main([{asked!r}])" if asked else "dir(torchgw), torchgw.__version__, hasattr(torchgw, 'nonsense')"
    code = f"""
import sys, torchgw
from torchgw import cli
try:
    {call}
except SystemExit:
    pass
print(sorted({{"torch", "numpy", "scipy", "sklearn", "triton", "joblib"}} & set(sys.modules)))"""
    assert run([sys.executable, "-c", code], ROOT).splitlines()[-1] == "[]"


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


IMPORTED = {
    "scikit-learn": {"sklearn"},
    "anndata": {"anndata", "h5py", "pandas"},  # which it brings along
    "matplotlib": {"matplotlib", "mpl_toolkits"},
}


def modules(requirements: list[str]) -> set[str]:
    """What requirements of pyproject.toml are imported as."""
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in requirements]
    return set().union(*(IMPORTED.get(name, {name}) for name in names))


def imports(path: Path) -> set[str]:
    """Packages that a file imports, but for those of annotations alone."""
    found: set[str] = set()
    left: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
        left.extend(ast.iter_child_nodes(node))
    return found - set(sys.stdlib_module_names)


def test_what_is_imported_is_what_is_required() -> None:
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required, extras = modules(told["dependencies"]), told["optional-dependencies"]
    used = ("plot", "anndata", "progress", "completion", "report")
    offered = modules([each for name in used for each in extras[name]])
    found = set().union(*map(imports, (ROOT / "torchgw").rglob("*.py"))) - {"torchgw"}
    assert found - offered == required
    assert offered - required <= found


@pytest.mark.slow
def test_it_installs_and_runs_in_an_empty_environment(source: Path, tmp_path: Path) -> None:
    python = str(tmp_path / "fresh" / "bin" / "python")
    run([sys.executable, "-m", "venv", str(tmp_path / "fresh")], tmp_path)
    version = torch.__version__.partition("+")[0]
    try:  # the one that is here, before the package asks for any
        asked = [python, "-m", "pip", "install", "-q", "--retries", "0", f"torch=={version}"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=TO_FIND_TORCH)
    except subprocess.TimeoutExpired:
        pytest.skip("torch was not installed in time")
    if done.returncode != 0:
        pytest.skip(f"pip does not find torch {version}")
    run([python, "-m", "pip", "install", "-q", "."], source)
    code = (
        "import torchgw; X, _ = torchgw.datasets.make_spiral(60);"
        "found = torchgw.gw_align(X, X + 1, random_state=0); found.save('found.npz');"
        "print(torchgw.__file__, torchgw.GWResult.load('found.npz').shape, torchgw.gw_pairwise([X, X]).square().shape)"
    )
    told = run([python, "-W", "ignore", "-c", code], tmp_path)
    assert told.startswith(str(tmp_path / "fresh"))
    assert told.endswith("(60, 60) (2, 2)\n")
    assert run([python, "-m", "pip", "check"], tmp_path) == "No broken requirements found.\n"


def test_only_what_is_public_is_listed() -> None:
    assert dir(torchgw) == sorted(torchgw.__all__)
    assert {"anndata", "gw_align", "gw_pairwise", "plot"} <= set(dir(torchgw))
    assert dir(torchgw.datasets) == ["make_spiral", "make_swiss_roll"]
    assert dir(torchgw.anndata) == ["align", "joint", "read", "write"]
    assert dir(torchgw.plot) == sorted(torchgw.plot.__all__)


def test_nobody_is_told_to_install_the_package_by_its_name_which_another_one_owns() -> None:
    texts = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.py"), *ROOT.glob("torchgw/**/*.py")]
    wrong = [path.name for path in texts if re.search(r"pip install[^\n]*[ '\"]torchgw\b", path.read_text("utf-8"))]
    assert not wrong
