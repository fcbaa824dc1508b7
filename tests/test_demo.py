"""The demo, and every block of the README."""

from __future__ import annotations

import builtins
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from torchgw import cli
from torchgw.cli import demo

ROOT = Path(__file__).parent.parent


def test_the_demo_prints_its_table_and_draws_its_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RUNS", ((400, 500, "precomputed"), (400, 500, "dijkstra"), (400, 500, "landmark")))
    picture = tmp_path / "demo.png"
    assert cli.main(["demo", "-o", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["size", "provider", "preparing"]
    rows = [line for line in lines if line.strip().startswith("400 x 500")]
    assert [row.split()[3] for row in rows] == ["precomputed", "dijkstra", "landmark"]
    assert all(float(row.split()[6]) > 0.998 for row in rows)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.stat().st_size > 50_000


def test_the_picture_shows_what_is_carried_the_plan_and_how_sure_it_is() -> None:
    run = demo.run_alignment(60, 70, "precomputed", None)
    both, plan, sure = demo.draw_picture(run).axes[::2]  # each with a colour bar
    angles = np.asarray(run.result.push(run.source_angle))
    expected = colormaps["viridis"](angles / 9)
    apart = cdist(np.asarray(both.collections[1].get_facecolor()), expected)
    assert len(apart) > 65  # what lies outside the first view has no colour yet
    assert apart.min(1).max() < 1e-6
    mass = np.asarray(plan.images[0].get_array())
    np.testing.assert_allclose(mass, run.result.plan, atol=1e-12)
    assert len(sure.collections[0].get_offsets()) == 60


def test_the_demo_without_matplotlib_prints_the_table_and_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RUNS", ((60, 70, "precomputed"),))
    real_import = builtins.__import__

    def no_matplotlib(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'")
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    monkeypatch.delitem(sys.modules, "torchgw.plot", raising=False)
    assert cli.main(["demo", "-o", str(tmp_path / "demo.png")]) == 2
    captured = capsys.readouterr()
    assert "60 x 70" in captured.out
    assert "pip install matplotlib" in captured.err


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    (code,) = readme_blocks("python")
    scope: dict[str, Any] = {}
    exec(code, scope)
    plt.close("all")
    assert abs(spearmanr(scope["angle_x"], scope["angle_y"][scope["match"]])[0]) > 0.998
    assert (tmp_path / "matching.png").read_bytes()[:4] == b"\x89PNG"
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.partition("#")[0] for block in readme_blocks("bash") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith(".venv/bin/")]
    assert [Path(command[0]).name for command in commands] == ["python", "python", "torchgw"]
    monkeypatch.chdir(tmp_path)
    for program, *arguments in commands:
        if program.endswith("python"):
            exec(arguments[1], {})
        else:
            assert cli.main(arguments) == 0, arguments
    assert len((tmp_path / "matching.csv").read_text().splitlines()) == 400 + 1
    targets = [line.split()[1] for line in lines if line.startswith("make ")]
    assert targets
    for target in targets:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
