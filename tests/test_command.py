"""What the command finds, in the forms that it offers."""

from __future__ import annotations

import csv
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.problems import ROLL, SPIRAL
from torchgw import (
    GWResult,
    Partial,
    Progress,
    SemiRelaxed,
    TorchGWWarning,
    Unbalanced,
    __version__,
    cli,
    estimate,
    gw_align,
)
from torchgw.cli import align as command
from torchgw.cli import demo
from torchgw.cli.arguments import SHELLS
from torchgw.cli.output import check_output, write_matching, write_whole
from torchgw.cli.parser import build_parser


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
    found = printed(["align", *files, "-o", str(out), "--json", "--max-iter", "1"], capsys)
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
    share = result.plan.max(1) * 90
    np.testing.assert_allclose([float(row["share"]) for row in rows], share, rtol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.npz", "source.npy", "target.npy"]


def test_a_point_without_mass_has_neither_target_nor_share(tmp_path: Path) -> None:
    result = gw_align(SPIRAL[:4], ROLL[:5], p=np.array([0.5, 0.0, 0.25, 0.25]), distances="euclidean", random_state=0)
    write_matching(result, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = [(row["target"], row["share"]) for row in csv.DictReader(file)]
    assert [row == ("", "") for row in rows] == [False, True, False, False]
    assert all(target and share for target, share in rows[:1] + rows[2:])


def test_points_that_a_partial_plan_leaves_out_have_no_target(tmp_path: Path) -> None:
    result = gw_align(SPIRAL[:20], ROLL[:24], marginals=Partial(0.5), epsilon=0, distances="euclidean", random_state=0)
    write_matching(result, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        left_out = [row["target"] == "" for row in csv.DictReader(file)]
    np.testing.assert_array_equal(left_out, result.marginal(1) == 0)
    assert any(left_out)


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        (["--semi-relaxed", "0.01"], SemiRelaxed(0.01, "y")),
        (["--unbalanced", "0.05"], Unbalanced(0.05, 0.05)),
        pytest.param(["--partial", "0.7"], Partial(0.7), marks=pytest.mark.slow),
        (["--semi-relaxed", "0", "--epsilon", "0"], SemiRelaxed(0.0, "y")),
    ],
)
def test_marginal_models_reach_the_solve(
    flags: list[str], model: object, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npz"
    found = printed(["align", *files, "-o", str(out), "--json", "--max-iter", "2", *flags], capsys)
    result = GWResult.load(out)
    assert result.marginals == model
    stationarity = result.certificate.stationarity
    assert found["stationarity"] == (None if np.isnan(stationarity) else stationarity)
    assert found["gap_global"] == result.certificate.gap_global


def test_an_interrupted_command_writes_its_best_and_resumes(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, kept = tmp_path / "out.npz", str(tmp_path / "kept")
    assert cli.main(["align", *files, "-o", str(tmp_path / "whole.npz")]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(command, "bar_on_terminal", lambda _: nullcontext(Interrupting()))
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


def test_known_pairs_decide_between_symmetric_matchings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    along = np.linspace(0, 1, 60)
    bow = np.c_[along, 1.5 * along * (1 - along)]
    names = [str(tmp_path / name) for name in ("source.csv", "target.csv", "pairs.csv", "matching.csv")]
    for name, points in zip(names, (bow, bow[::-1]), strict=False):
        np.savetxt(name, points, delimiter=",")
    options = ["-o", names[3], "--distances", "euclidean", "--json"]
    found = printed(["align", *names[:2], *options], capsys)
    assert found["ambiguous"]
    for known, first in (("0,59", 59), ("0,0", 0)):
        Path(names[2]).write_text(f"source,target,share\n{known},1\n")
        found = printed(["align", *names[:2], *options, "--pairs", names[2]], capsys)
        assert not found["ambiguous"]
        target = np.loadtxt(names[3], delimiter=",", skiprows=1)[:, 1]
        assert abs(target[0] - first) < 5
        assert abs(target[-1] - (59 - first)) < 5


def test_features_decide_between_symmetric_matchings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    along = np.linspace(0, 1, 60)
    bow = np.c_[along, 1.5 * along * (1 - along)]
    names = [str(tmp_path / name) for name in ("source.csv", "target.csv", "fx.csv", "fy.csv", "matching.csv")]
    for name, table in zip(names, (bow, bow, along, along[::-1].copy()), strict=False):
        np.savetxt(name, table, delimiter=",")
    options = ["-o", names[4], "--distances", "euclidean", "--json", "--features", *names[2:4], "--alpha", "0.99"]
    assert not printed(["align", *names[:2], *options], capsys)["ambiguous"]
    target = np.loadtxt(names[4], delimiter=",", skiprows=1)[:, 1]
    assert np.corrcoef(target, along)[0, 1] < -0.99
    assert cli.main(["align", *names[:2], "-o", names[4], "--features", names[0], names[2]]) == 2
    assert "same number of columns" in capsys.readouterr().err
    assert cli.main(["align", *names[:2], "-o", names[4], "--alpha", "0.5"]) == 2
    assert "--alpha 0.5 does not go with distances alone" in capsys.readouterr().err


def test_an_ambiguous_matching_leads_to_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    along = np.linspace(0, 1, 60)
    np.savetxt(tmp_path / "bow.csv", np.c_[along, 1.5 * along * (1 - along)], delimiter=",")
    bow = str(tmp_path / "bow.csv")
    assert cli.main(["align", bow, bow, "-o", str(tmp_path / "m.csv"), "--distances", "euclidean"]) == 0
    said = capsys.readouterr().err
    assert "ambiguous" in said
    assert "--pairs and --features" in said


def test_a_column_that_counts_the_rows_is_warned_of(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for first, warned in ((0, True), (1, True), (5, False)):
        table = np.column_stack((np.arange(first, first + len(SPIRAL)), SPIRAL))
        np.savetxt(tmp_path / "index.csv", table, delimiter=",", header="t,x,y", comments="")
        out = str(tmp_path / "out.npz")
        assert cli.main(["align", str(tmp_path / "index.csv"), files[1], "-o", out, "--max-iter", "1"]) == 0
        assert ("counts its rows" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("0\n1\n", "two columns"),
        ("0.5,1\n", "row numbers"),
        ("inf,1\n", "row numbers"),
        ("0,400\n", "error: --pairs must hold pairs of indices below (90, 110), got (0, 400)"),
    ],
)
def test_pairs_that_are_none_are_refused(
    table: str, reason: str, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pairs.csv").write_text(table)
    out = str(tmp_path / "out.npz")
    assert cli.main(["align", *files, "-o", out, "--pairs", str(tmp_path / "pairs.csv")]) == 2
    said = capsys.readouterr().err
    assert "pairs" in said
    assert reason in said


def test_a_checkpoint_that_is_none_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resume", str(tmp_path), "-o", str(tmp_path / "out.npz")]) == 2
    assert capsys.readouterr().err.startswith("torchgw: error: path must name the folder of a checkpoint")


def test_estimates_are_those_of_the_library(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(["estimate", "100000", "120000", "--device", "cpu", "--json"], capsys)
    expected = estimate(100_000, 120_000, device="cpu")
    assert found["chosen"] == expected.chosen == "streaming"
    assert [forecast["memory"] for forecast in found["forecasts"]] == [one.memory for one in expected.forecasts]
    assert cli.main(["estimate", *files, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"90 x 110 {estimate(90, 110, device='cpu')}\n")
    assert "a command takes some seconds besides" in said
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


@pytest.mark.parametrize("module", ["torchgw", "torchgw.cli"])
def test_the_command_runs_as_a_module(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["-m", "--version"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(module, run_name="__main__")
    assert not stopped.value.code
    assert capsys.readouterr().out == f"torchgw {__version__}\n"


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "torchgw", "info"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (cli.UNREAD, "")


def test_a_reader_that_leaves_amid_a_long_output_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert cli.main(["completion", "bash"]) == cli.UNREAD


@pytest.mark.parametrize("name", ["estimate", "demo"])
def test_options_that_nobody_reads_are_not_offered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ["5", "5"] if name == "estimate" else []
    with pytest.raises(SystemExit):
        build_parser().parse_args([name, *numbers, "--backend", "eager"])
    assert "unrecognized arguments: --backend" in capsys.readouterr().err


def test_an_interrupted_run_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "RUNS", ((60, 70, "precomputed"), (60, 70, "dijkstra")))
    labels: list[str] = []
    monkeypatch.setattr(demo, "bar_on_terminal", lambda label: labels.append(label) or nullcontext(Interrupting()))
    assert cli.main(["demo", "-o", str(tmp_path / "demo.png")]) == 130
    assert labels == ["60 x 70 precomputed"]
    assert not list(tmp_path.iterdir())


def test_cells_are_not_kept_in_a_checkpoint_that_would_lose_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(tmp_path / f"{name}.h5ad") for name in ("a", "b", "out")]
    kept = str(tmp_path / "kept")
    assert cli.main(["align", *names[:2], "-o", names[2], "--checkpoint", kept]) == 2
    error = capsys.readouterr().err
    assert error.startswith("torchgw: error: --checkpoint needs an .npz or .csv output")
    assert error.count("\n") == 1
    with pytest.raises(SystemExit):
        build_parser().parse_args(["resume", "--help"])
    assert "h5ad" not in capsys.readouterr().out


def test_the_folder_of_the_output_must_be_writable_and_not_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npz"
    out.touch()
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda place, _: Path(place) != out)
        check_output(out, ".npz")
        patched.setattr(os, "access", lambda place, _: Path(place) != tmp_path)
        with pytest.raises(ValueError, match=r"out.npz cannot be written: no file can be made in"):
            check_output(out, ".npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ValueError, match=r"folder.npz is a folder"):
        check_output(tmp_path / "folder.npz", ".npz")


def test_what_is_no_regular_file_is_said_without_asking_for_room(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.csv")
    with pytest.raises(OSError, match=r"out.csv was not written: is no regular file; name a file elsewhere$"):
        write_whole(lambda aside: aside.write_text("whole"), tmp_path / "out.csv")


def test_what_is_written_aside_touches_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "out.part.csv").write_text("mine")
    seen: list[Path] = []

    def fail(aside: Path) -> None:
        seen.append(aside)
        aside.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(fail, tmp_path / "out.csv")
    assert seen[0].suffix == ".csv"
    assert [path.name for path in tmp_path.iterdir()] == ["out.part.csv"]
    write_whole(lambda aside: aside.write_text("whole"), tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.part.csv"]
    assert (tmp_path / "out.part.csv").read_text() == "mine"
    assert (tmp_path / "out.csv").stat().st_mode == (tmp_path / "out.part.csv").stat().st_mode


def test_warnings_before_an_error_are_given_first(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        warnings.warn("look here", TorchGWWarning, stacklevel=1)
        raise ValueError("no")

    monkeypatch.setattr(command, "gw_align", fail)
    assert cli.main(["align", *files, "-o", str(tmp_path / "out.npz")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "torchgw: warning: look here"
    assert lines[1].startswith("torchgw: error: no (X is")
