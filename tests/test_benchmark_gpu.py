"""The GPU suite without a GPU: what it refuses, that a section cannot cost the others, and who may store."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import common, gpu, jobs, kernels
from benchmarks.common import RESULTS, rehearsal, write
from torchgw import gw_align
from torchgw.kernels import dispatch


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_what_waits() -> None:
    with pytest.raises(SystemExit, match="no GPU here"):
        gpu.run()


def written() -> dict[Path, bytes]:
    """What measurements write."""
    return {path: path.read_bytes() for path in (dispatch.MEASURED, *RESULTS.glob("*.json"))}


@pytest.mark.parametrize("name", ["ceilings", "graphs", "kernels", "prepared"])
def test_a_section_comes_to_its_end_on_a_simulated_gpu_and_stores_nothing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written()
    gpu.run([name], cpu_check=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.count("  ") == len(gpu.COLUMNS) - 1 for line in lines)
    assert written() == before


@pytest.mark.filterwarnings("ignore")  # of problems that are too small for their strategy
@pytest.mark.parametrize("name", ["jobs", "cold", "warm", "default", "million"])
def test_one_of_whole_solves_does_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes a tenth of the time of the simulation."""
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    for module in (gpu, jobs):
        monkeypatch.setattr(module, "gw_align", lambda *spaces, **given: gw_align(*spaces, **given | {"device": "cpu"}))
    section = gpu.GROUPS[name]
    with rehearsal():
        (row,) = section.measure(*section.toy)
    assert all(isinstance(row[column], str) for column in gpu.COLUMNS)
    json.dumps(row)


@pytest.mark.slow
def test_every_section_does_with_its_solves_there_too(capsys: pytest.CaptureFixture[str]) -> None:
    before = written()
    gpu.run(cpu_check=True)
    said = capsys.readouterr().out
    assert all(word in said for word in ("tests collected", "gw_align by default", "streaming"))
    assert written() == before


def test_what_fails_in_a_section_costs_neither_its_rows_nor_the_other_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
import os, subprocess, sys, time
name, path = sys.argv[-2:]
print("what it said")
open(path, "w").write('{"what": "%s", "size": "1", "figure": "2", "against": "-"}' % name)
if name == "crash":
    os.abort()
if name == "hang":
    subprocess.run([sys.executable, "-c", "import time; time.sleep(1); open('%s.late', 'w')" % path])
"""
    monkeypatch.setattr(gpu, "command", lambda name, rows: [sys.executable, "-c", code, name, str(rows)])
    sections = {
        name: gpu.Section(limit, gpu.graphs, (), ()) for name, limit in (("crash", 60), ("hang", 0.8), ("fine", 60))
    }
    monkeypatch.setattr(gpu, "GROUPS", sections)
    found = gpu.measured([*sections], tmp_path)
    assert [each["what"] for each in gpu.short(found["groups"])] == ["crash", "hang", "fine"]
    ended = [found["sections"][name].split(",")[0] for name in sections]
    assert ended == ["ended with status -6", "stopped after 1 s", "done"]
    assert "what it said" in capsys.readouterr().out
    assert json.loads((tmp_path / "gpu.json").read_text()) == found
    time.sleep(1)
    assert not [*tmp_path.glob("*.late")]  # what a section has begun ends with it


def test_no_section_begins_when_the_time_of_all_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TOTAL", gpu.LEAST / 2)
    monkeypatch.setattr(gpu, "limited", lambda *_: pytest.fail("it began"))
    assert gpu.measured(["jobs"], tmp_path)["sections"] == {"jobs": "no time was left"}
    assert sum(section.limit for section in gpu.GROUPS.values()) <= 560


def test_rows_of_a_section_are_kept_as_they_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def two() -> gpu.Rows:
        yield gpu.line("one", "1", "2", more=[3])
        raise RuntimeError("the second")

    monkeypatch.setitem(gpu.GROUPS, "jobs", gpu.Section(1, two, (), ()))
    with pytest.raises(RuntimeError, match="the second"):
        gpu.inside("jobs", tmp_path / "rows")
    row = {"what": "one", "size": "1", "figure": "2", "against": "-", "more": [3]}
    assert [json.loads(text) for text in (tmp_path / "rows").read_text().splitlines()] == [row]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[gw3] [ 12%] FAILED tests/test_a.py::test_x[1-a] \n", "tests/test_a.py::test_x[1-a]"),
        ("tests/test_a.py::test_x[1-a] FAILED    [ 12%]\n", "tests/test_a.py::test_x[1-a]"),
        ("ERROR tests/test_a.py - ImportError: no\n", "tests/test_a.py"),
        ("[gw3] [ 12%] PASSED tests/test_a.py::test_x \n", None),
    ],
)
def test_failures_are_told_by_name(text: str, name: str | None) -> None:
    found = gpu.FAILED.search(text)
    assert (found and (found[1] or found[2])) == name


HERE = {"cpu": "here", "cores": 2, "gpu": None, "commit": "abc", "uncommitted_changes": False}
CARD = {"cpu": "there", "cores": 16, "gpu": "a card", "commit": "unknown", "uncommitted_changes": None}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stores what a machine with a card has found in some sections, and gives what stands there then."""
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    for module in (common, gpu):
        monkeypatch.setattr(module, "environment", lambda: dict(HERE))
        monkeypatch.setattr(module, "require_green", lambda: None)
    monkeypatch.setattr(gpu, "fingerprint", lambda: "this code")

    def stored(*names: str, code: str = "this code", figure: str = "1", **other: Any) -> Any:
        groups = {name: [gpu.line(name, "1", figure)] for name in names}
        found = {"environment": CARD | other, "code": code, "sections": dict.fromkeys(names, "done"), "groups": groups}
        (tmp_path / "found").write_text(json.dumps(found))
        gpu.run(store=str(tmp_path / "found"))
        return json.loads((tmp_path / "gpu.json").read_text())

    return stored


def test_what_a_card_measured_is_stored_with_its_name_and_the_commit(store: Any) -> None:
    content = store(*gpu.GROUPS)
    assert content["environment"] == CARD | {"commit": "abc", "uncommitted_changes": False}
    assert [row["what"] for row in content["rows"]] == [*gpu.GROUPS]


def test_some_sections_keep_the_others_of_the_same_machine_alone(store: Any) -> None:
    store(*gpu.GROUPS)
    content = store("jobs", figure="2")
    assert {row["what"]: row["figure"] for row in content["rows"]} == dict.fromkeys(gpu.GROUPS, "1") | {"jobs": "2"}
    with pytest.raises(SystemExit, match=r"gpu = a card, and here it is another: run the whole"):
        store("jobs", gpu="another")


def test_what_ran_on_other_code_is_not_stored(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="was measured on other code"):
        store("jobs", code="other code")

    def refuse() -> None:
        raise SystemExit("not green")

    monkeypatch.setattr(gpu, "require_green", refuse)
    with pytest.raises(SystemExit, match="not green"):
        store("jobs")


def test_kernels_are_timed_in_every_way_that_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BACKENDS", ("eager", "triton"))  # compiling takes longer than all else
    device = torch.device("cpu")
    with rehearsal():
        rows = kernels.dense(device, torch.float64)
    assert [row["what"] for row in rows][2:] == ["iteration, log domain", "iteration, scaling"]
    assert all(row["eager"] > 0 < row["floor"] for row in rows)
    assert all(kernels.summary(row)["size"] == "40 x 50" for row in rows)


def test_what_is_copied_fits_no_cache_but_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, most in ((2**36, 2**31), (2**30, 2**28)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 2**37))
        assert kernels.copied_bytes(torch.device("cuda")) == most


def test_the_dispatchers_table_keeps_the_rows_of_other_devices() -> None:
    row = {"what": "iteration, log domain", "dtype": "float32", "family": "softmin_dense", "n": 4, "k": 5, "rank": 0}
    row |= dict.fromkeys(kernels.BACKENDS, 1.0)
    before = {"environments": {"cpu": 1}, "rows": [{"device": "cpu", "n": 1}, {"device": "cuda", "n": 2}]}
    after = kernels.renewed(before, "cuda", [row, row | {"dtype": "float64"}, row | {"what": "softmin, axis 1"}])
    assert [(each["device"], each["n"]) for each in after["rows"]] == [("cpu", 1), ("cuda", 4)]
    assert set(after["environments"]) == {"cpu", "cuda"}


def test_a_rehearsal_finds_what_could_not_be_stored() -> None:
    with rehearsal(), pytest.raises(TypeError, match="JSON"):
        write("gpu", [{"device": torch.device("cpu")}])
