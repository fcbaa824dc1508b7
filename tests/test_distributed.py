"""One solve by several processes: the single process's result, whatever the model; faults, checkpoints, parts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.rank_cases import DAILY, HOME, alone, problems, run_ranks
from torchgw import GWResult, align, curvature, distributed, gw_align, resume

torch_distributed = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not torch_distributed.is_available(), reason="torch was built without it")


def agree(
    found: dict[str, Any], known: GWResult, value: float = 1e-6, matched: float = 1.0, stationarity: float = 1e-4
) -> None:
    """The ranks' result is the single process's, up to these relative differences."""
    assert found["value"] == pytest.approx(known.value, rel=value)
    assert np.mean(np.asarray(found["matching"]) == np.asarray(known.argmax())) >= matched
    assert found["marginal_error"] <= 1e-6
    assert found["basins"] == len(known.basins)
    assert found["stationarity"] == pytest.approx(known.certificate.stationarity, rel=stationarity, nan_ok=True)


@cache
def by_one(name: str, n: int = 300, k: int = 350) -> GWResult:
    """The single process's result."""
    return alone(problems(n, k)[name])


@pytest.mark.parametrize("case", ["models", pytest.param("more models", marks=pytest.mark.slow)])
def test_ranks_solve_every_model_as_one_process_does(case: str, tmp_path: Path) -> None:
    every = run_ranks(case, 2, tmp_path)
    assert every[0] == every[1]  # bit by bit
    known = problems(300, 350)
    assert every[0].keys() == {name for name in known if (name in DAILY) == (case == "models")}
    for name, found in every[0].items():
        agree(found, by_one(name))


def test_each_rank_solves_on_a_device_of_its_own(tmp_path: Path) -> None:
    one, other = run_ranks("device", 2, tmp_path)
    assert one == other
    # Other kernels round otherwise, and end an iteration earlier or later: within the tolerance of the solve.
    agree(one, by_one("balanced", 120, 140), value=1e-3, matched=0.99, stationarity=0.25)


def test_a_rank_that_dies_ends_the_others_and_any_number_goes_on(tmp_path: Path) -> None:
    every = run_ranks("killed", 3, tmp_path)
    assert every.pop(2) is None
    for found in every:
        assert "lost the others" in found["error"]
        assert "resume" in found["error"]
        assert found["after"] < 30
    known = by_one("cells of cells", 600, 700)
    kept = tmp_path / "kept"
    assert list(kept.glob("streaming.climb.*-of-3.share"))
    with pytest.raises(ValueError, match=r"begun by ranks; go on with torchgw\.distributed\.resume"):
        resume(kept)
    shutil.copytree(kept, tmp_path / "again")
    for found in run_ranks("resumed", 2, tmp_path):
        agree(found, known)
    last = distributed.resume(tmp_path / "again")  # by one
    assert last.value == pytest.approx(known.value, rel=1e-6)
    damaged = next(kept.glob("streaming.climb.*.share"))
    damaged.write_bytes(damaged.read_bytes()[:-100] + bytes(100))
    with pytest.raises(ValueError, match="share cannot be read"):
        distributed.resume(kept)


def test_what_ranks_cannot_do_they_refuse_before_any_work(tmp_path: Path) -> None:
    one, other, last = run_ranks("refused", 3, tmp_path)
    assert one == other == last
    assert "rank 1 has another X" in one["another"]
    assert "rank 1 has another options" in one["options"]
    assert "must be 'auto' or 'streaming'" in one["dense"]
    assert "epsilon must be above 0 or 'auto' where processes share a solve, got 0" in one["without entropy"]
    assert "take 'landmark' distances" in one["straight"]
    assert "Y must have a point for each rank, got 2 for 3" in one["few"]
    assert "Y in a file must not be square, got shape (20, 20)" in one["square"]
    assert "a point for each rank, and two at least, got 2 for 3" in one["few in a file"]
    assert "init=result.argmax()" in one["result"]
    assert "rank 1 has another epsilon" in one["other"]
    assert "rank 1 has another random_state" in one["seed"]
    assert "device must be that of the group, 'cpu', got 'cuda'" in one["device"]
    assert "callback must be callable" in one["callback"]
    assert "got a plan (N, K)" in one["start"]
    assert "epsilon must" in one["wrong"]
    assert "is not there" in one["checkpoint"]


def test_a_checkpoint_of_ranks_without_entropy_is_refused(tmp_path: Path) -> None:
    kept = {"is_solved_by_ranks": True, "read_continuation": ({"epsilon": 0.0}, None)}
    patches = {name: mock.Mock(return_value=value) for name, value in kept.items()}
    with (
        mock.patch.multiple(align, **patches),
        pytest.raises(ValueError, match="epsilon must be above 0 or 'auto' where processes share a solve, got 0"),
    ):
        distributed.resume(tmp_path)


def test_parts_of_a_result_are_one_result(tmp_path: Path) -> None:
    run_ranks("parts", 2, tmp_path)
    found, whole = GWResult.load(tmp_path / "result"), GWResult.load(tmp_path / "whole-1.npz")
    assert len(list((tmp_path / "result").glob("part-*-of-2.npz"))) == 2
    assert found.value == whole.value
    np.testing.assert_array_equal(found.argmax(), whole.argmax())
    np.testing.assert_array_equal(found.pull(np.arange(350.0)), whole.pull(np.arange(350.0)))
    assert repr(found) == repr(whole)
    with pytest.raises(ValueError, match="files and ranks do not keep distances"):
        curvature(found)
    with pytest.raises(ValueError, match="load the folder"):
        GWResult.load(tmp_path / "result" / "part-0-of-2.npz")
    (tmp_path / "result" / "part-1-of-2.npz").unlink()
    with pytest.raises(ValueError, match=r"lacks part-1-of-2\.npz"):
        GWResult.load(tmp_path / "result")
    (tmp_path / "result" / "index.json").write_text('{"format": 1, "parts": 10000000000, "divided": []}')
    with pytest.raises(ValueError, match="not one that this version reads"):
        GWResult.load(tmp_path / "result")


def test_points_that_stay_in_files_are_read_by_one_rank(tmp_path: Path) -> None:
    one, other = run_ranks("files", 2, tmp_path)
    assert one == other
    known = problems(300, 350)
    agree(one["found"], by_one("balanced"))
    agree(one["many"], alone(known["balanced"] | {"Y": known["many dimensions"]["Y"]}))
    assert "row 100" in one["said"][0]
    assert "row 300" in one["said"][1]


def test_the_first_ranks_callback_ends_all(tmp_path: Path) -> None:
    one, other = run_ranks("stopped", 2, tmp_path)
    assert one == {"status": "CANCELLED", "error": "OwnError"}
    assert other == {"status": "CANCELLED", "error": "RankError"}  # which cannot make the other's


def test_one_process_is_as_without() -> None:
    given = problems(300, 350)["balanced"]
    known, found = gw_align(**given), distributed.gw_align(**given)
    assert found.value == known.value
    torch.testing.assert_close(found.coupling.to_dense(), known.coupling.to_dense(), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("case", "n", "k"), [("large", 5000, 6000), ("larger", 45000, 45000)])
def test_many_points_are_matched_as_by_one_process(case: str, n: int, k: int, count: int, tmp_path: Path) -> None:
    known = alone(problems(n, k)["balanced"])
    for found in run_ranks(case, count, tmp_path):
        agree(found["balanced"], known, matched=0.9999)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_models_of_thousands_of_points_are_those_of_one_process(count: int, tmp_path: Path) -> None:
    found = run_ranks("models at 3000", count, tmp_path)[0]
    assert len(found) == 5
    for name, each in found.items():
        agree(each, alone(problems(3000, 3500)[name]), matched=0.9999)


@pytest.mark.gpu
def test_ranks_on_gpus_end_as_one_process_does(tmp_path: Path) -> None:
    """Ranks build graphs on the CPU, and with them the CPU's landmarks; distances with factors are one GPU's.

    A descent in float32 ends by roundings at another distance from a stationary point, 11 % on an H200.
    """
    count = torch.cuda.device_count()
    found = run_ranks("gpus", count, tmp_path, seconds=400.0)[0]
    assert found.pop("moved") == [10.0, 0.0, 6.0, 2.0, 8.0, 4.0]
    assert found.pop("sum") == count
    assert found.keys() == {"balanced", "factors"}
    for name, each in found.items():
        device = "cpu" if name == "balanced" else "cuda"
        known = alone(problems(5000, 6000)[name] | {"device": device})
        agree(each, known, value=1e-3, matched=0.99, stationarity=0.5)


@pytest.mark.slow
def test_the_command_starts_processes_and_goes_on_with_any_number(tmp_path: Path) -> None:
    given = problems(600, 700)["balanced"]
    for name in "XY":
        np.save(tmp_path / f"{name}.npy", given[name])

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        run = [sys.executable, "-m", "torchgw", *words]
        environment = os.environ | {"PYTHONPATH": str(HOME)}
        return subprocess.run(
            run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    first = command(
        *("align", "X.npy", "Y.npy", "-o", "a.npz", "--epsilon", "2e-3", "--nproc", "2", "--checkpoint", "kept"),
        *("--report", "page.html"),
    )
    assert (first.returncode, first.stderr) == (0, "")
    for number, words in enumerate((["--nproc", "2"], ["--nproc=1"], [])):
        again = command("resume", "kept", "-o", f"{number}.npz", *words)
        assert (again.returncode, again.stderr) == (0, "")
        found, known = (GWResult.load(tmp_path / name) for name in (f"{number}.npz", "a.npz"))
        assert found.value == pytest.approx(known.value, rel=1e-6)
    assert (
        "must be a number of processes >= 1, got 0" in command("resume", "kept", "-o", "b.npz", "--nproc", "0").stderr
    )
    assert (tmp_path / "page.html").stat().st_size > 10_000
    assert "needs the points" in command("resume", "kept", "-o", "b.npz", "--report", "b.html", "--nproc", "2").stderr
    words = "--distances", "euclidean", "--nproc", "2"
    refused = command("align", "X.npy", "Y.npy", "-o", "a.npz", *words)
    assert refused.returncode == 2
    assert refused.stderr.startswith("torchgw: error: X must have distances with factors where ranks share")
    assert len(refused.stderr.splitlines()) == 1
