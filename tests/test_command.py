"""What the command finds, in the forms that it offers."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.problems import ROLL, SPIRAL
from torchgw import GWResult, Partial, Progress, SemiRelaxed, Unbalanced, __version__, cli, estimate
from torchgw.cli import align as command
from torchgw.cli.parser import SHELLS, build_parser


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    np.save(tmp_path / "source.npy", SPIRAL)
    np.save(tmp_path / "target.npy", ROLL)
    return str(tmp_path / "source.npy"), str(tmp_path / "target.npy")


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> Any:
    assert cli.main(arguments) == code
    return json.loads(capsys.readouterr().out)


def test_json_describes_the_result_that_was_written(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npz"
    found = printed(["align", *files, "-o", str(out), "--json", "--max-iter", "2"], capsys)
    result = GWResult.load(out)
    assert found["value"] == result.value
    assert found["shape"] == [90, 110]
    assert found["output"] == str(out)
    assert found["status"] == "max_iter"
    assert not found["converged"]
    assert found["basins"] == [basin.energy for basin in result.basins]
    assert len(found["warnings"]) == 1
    assert "iteration limit" in found["warnings"][0]


def test_a_table_holds_the_matching(files: tuple[str, str], tmp_path: Path) -> None:
    assert cli.main(["align", *files, "-o", str(tmp_path / "out.npz")]) == 0
    assert cli.main(["align", *files, "-o", str(tmp_path / "out.csv")]) == 0
    result = GWResult.load(tmp_path / "out.npz")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["source"]) for row in rows] == list(range(90))
    np.testing.assert_array_equal([int(row["target"]) for row in rows], result.argmax())
    share = result.plan.numpy().max(1) * 90
    np.testing.assert_allclose([float(row["share"]) for row in rows], share, rtol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.npz", "source.npy", "target.npy"]


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        (["--semi-relaxed", "0.01"], SemiRelaxed(0.01, "y")),
        (["--unbalanced", "0.05"], Unbalanced(0.05, 0.05)),
        (["--partial", "0.7"], Partial(0.7)),
    ],
)
def test_marginal_models_reach_the_solve(
    flags: list[str], model: object, files: tuple[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out.npz"
    assert cli.main(["align", *files, "-o", str(out), "--max-iter", "2", *flags]) == 0
    assert GWResult.load(out).marginals == model


def test_an_interrupted_command_writes_its_best_and_resumes(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, kept = tmp_path / "out.npz", str(tmp_path / "kept")
    assert cli.main(["align", *files, "-o", str(tmp_path / "whole.npz")]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(command, "bar_on_terminal", lambda _: Interrupting())
        assert cli.main(["align", *files, "-o", str(out), "--checkpoint", kept]) == 130
    assert f"interrupted: the best so far is in {out}" in capsys.readouterr().err
    assert not GWResult.load(out).converged
    found = printed(["resume", kept, "-o", str(out), "--json"], capsys)
    whole, resumed = GWResult.load(tmp_path / "whole.npz"), GWResult.load(out)
    assert found["converged"]
    assert resumed.value == whole.value
    np.testing.assert_array_equal(resumed.argmax(), whole.argmax())


class Interrupting:
    """Presses Ctrl-C at the second check."""

    calls = 0

    def __call__(self, _: Progress) -> None:
        self.calls += 1
        if self.calls == 2:
            os.kill(os.getpid(), signal.SIGINT)

    def close(self) -> None: ...


def test_a_checkpoint_that_is_none_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resume", str(tmp_path), "-o", str(tmp_path / "out.npz")]) == 2
    assert capsys.readouterr().err.startswith("torchgw: error: path must name the folder of a checkpoint")


def test_estimates_are_those_of_the_library(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(["estimate", "100000", "120000", "--device", "cpu", "--json"], capsys)
    expected = estimate(100_000, 120_000, device="cpu")
    assert found["chosen"] == expected.chosen == "streaming"
    assert [forecast["memory"] for forecast in found["forecasts"]] == [one.memory for one in expected.forecasts]
    assert cli.main(["estimate", *files, "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"90 x 110 {estimate(90, 110, device='cpu')}\n"
    found = printed(["estimate", "5000", "4000", "--max-memory", "0.1", "--device", "cpu", "--json"], capsys)
    assert found["chosen"] == "streaming"


def test_the_command_says_what_is_there_and_why_the_rest_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = printed(["info", "--json"], capsys)
    assert found["torchgw"] == __version__
    assert found["packages"]["torch"] == __import__("torch").__version__
    families = found["backends"]["cpu"]
    assert set(families) == {"dense", "streaming", "tiles"}
    assert {names["eager"] for names in families.values()} == {"taken"}
    assert "triton" in families["dense"]
    assert families["dense"]["triton"] not in ("taken", "available")
    from torchgw.cli import info

    monkeypatch.setitem(info.OPTIONAL, "no-such-package", "nothing")
    assert cli.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["no-such-package", "not", "installed", "(nothing)"] for line in lines)
    assert any(line.split()[:2] == ["dense", "eager"] for line in lines)


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_know_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in cli.COMMANDS)
    if shell == "bash" and shutil.which("bash"):
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_completion_without_its_package_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == "torchgw: error: shell completion needs shtab; pip install shtab\n"


def test_every_command_has_help_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            build_parser().parse_args([name, "--help"])
        assert stopped.value.code == 0
        assert "exit codes: 0 done, 2 refused" in " ".join(capsys.readouterr().out.split())


def test_verbose_says_what_happens(files: tuple[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchgw", "align", *files, "-o", str(tmp_path / "o.npz"), "-v", "--max-iter", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "torchgw: backend eager" in done.stderr
    assert "torchgw: coarse stage" in done.stderr
    assert done.stdout == ""
