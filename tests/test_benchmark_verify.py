"""No result is stored on code whose tests have not passed."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import common, verify

GREEN = (sys.executable, "-c", "print('== 3 passed in 0.1s ==')")
RED = (sys.executable, "-c", "print('== 1 failed in 0.1s =='); raise SystemExit(1)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small project: one file of the package, one of the tests, one of the benchmarks."""
    for folder in ("torchgw", "tests", "benchmarks"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text("x = 1\n")
    return tmp_path


def verified(root: Path, command: tuple[str, ...] = GREEN) -> Path:
    stamp = root / "stamp"
    verify.run(root, stamp, command)
    return stamp


def test_green_tests_give_the_right_to_write(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not verify.is_green(root, root / "stamp")
    stamp = verified(root)
    assert verify.is_green(root, stamp)
    assert json.loads(stamp.read_text())["said"] == "3 passed in 0.1s"
    assert "3 passed" in capsys.readouterr().out
    verify.require_green(root, stamp)


def test_red_tests_refuse_and_withdraw_the_stamp(root: Path) -> None:
    stamp = verified(root)
    (root / "torchgw" / "code.py").write_text("x = 2\n")
    with pytest.raises(SystemExit, match="red"):
        verify.run(root, stamp, RED)
    assert not stamp.exists()
    with pytest.raises(SystemExit, match="python -m benchmarks verify"):
        verify.require_green(root, stamp)


def test_code_that_changes_while_the_tests_run_is_not_verified(root: Path) -> None:
    meddle = (sys.executable, "-c", "open('torchgw/code.py', 'a').write('y = 2')")
    with pytest.raises(SystemExit, match="changed while they ran"):
        verify.run(root, root / "stamp", meddle)
    assert not (root / "stamp").exists()


def test_what_has_passed_does_not_run_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stamp = verified(root)
    verify.run(root, stamp, RED)
    assert "have passed on this code: 3 passed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["torchgw/code.py", "tests/code.py", "benchmarks/code.py", "torchgw/deep/new.py"])
def test_changing_a_file_withdraws_the_right_to_write(root: Path, name: str) -> None:
    stamp = verified(root)
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("x = 3\n")
    assert not verify.is_green(root, stamp)


def test_moving_and_removing_files_does_so_too(root: Path) -> None:
    stamp = verified(root)
    (root / "torchgw" / "code.py").rename(root / "torchgw" / "other.py")
    assert not verify.is_green(root, stamp)
    (root / "torchgw" / "other.py").unlink()
    assert not verify.is_green(root, stamp)


def test_changing_something_else_does_not(root: Path) -> None:
    stamp = verified(root)
    (root / "README.md").write_text("words")
    (root / "benchmarks" / "report").mkdir()
    (root / "benchmarks" / "report" / "page.py").write_text("x = 1")
    assert verify.is_green(root, stamp)


def test_results_are_written_with_the_stamp_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "RESULTS", root / "results")
    monkeypatch.setattr(common, "QUICK", root / "quick")
    monkeypatch.setattr(common, "require_green", partial(verify.require_green, root, root / "stamp"))
    with pytest.raises(SystemExit, match="no results are stored"):
        common.write("suite", [{"N": 1}])
    assert not (root / "results").exists()
    quick = common.write("suite", [{"N": 1}], quick=True)
    assert quick == root / "quick" / "suite.json"
    verified(root)
    stored = common.write("suite", [{"N": 1}], summary=[{"best": 2}])
    assert stored == root / "results" / "suite.json"
    assert json.loads(stored.read_text())["rows"] == [{"N": 1}]
    assert json.loads(stored.read_text())["summary"] == [{"best": 2}]
    assert len(json.loads(stored.read_text())["environment"]["commit"]) in (0, 40)
