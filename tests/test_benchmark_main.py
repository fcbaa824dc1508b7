"""The command line of the benchmarks: what runs, in which order, and what is refused."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import common, published

ROOT = Path(__file__).parent.parent


@pytest.fixture
def called(monkeypatch):
    """What would run, in order; the suite "peers" breaks off."""
    found: list[tuple[str, dict[str, object]]] = []

    def run(name, **given):
        found.append((name, given))
        if name == "peers":
            raise RuntimeError("no such package")

    monkeypatch.setattr(command, "_run", run)
    return found


def say(monkeypatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
    command.main()


def test_all_runs_the_tests_first_and_goes_on_after_a_suite_that_breaks_off(monkeypatch, called, capsys):
    with pytest.raises(SystemExit, match="these suites broke off: peers"):
        say(monkeypatch, "all", "--report")
    names = [name for name, _ in called]
    assert names == ["verify", *command.ALL, "report"]  # the documents keep the tables of the last whole run
    assert "gpu" not in names
    assert "no such package" in capsys.readouterr().err


def test_a_quick_run_needs_no_tests_and_writes_no_tables(monkeypatch, called):
    with pytest.raises(SystemExit, match="peers"):
        say(monkeypatch, "all", "--quick", "--report")
    assert called == [*((name, {"quick": True}) for name in command.QUICK), ("report", {"quick": True})]


@pytest.mark.parametrize("words", [["scale"], ["phases", "alone"], ["overhead"]])
def test_a_suite_that_stores_is_refused_where_the_tests_have_not_passed(monkeypatch, called, words):
    def refuse():
        raise SystemExit("not green")

    monkeypatch.setattr(command, "require_green", refuse)
    with pytest.raises(SystemExit, match="not green"):
        say(monkeypatch, *words)
    assert called == []


@pytest.mark.parametrize("suite", ["quality", "kinds", "small", "net", "sizes", "scale", "phases", "gpu"])
def test_unknown_groups_are_refused_at_once_with_the_known_ones(monkeypatch, called, suite):
    module = "benchmarks.phases.suite" if suite == "phases" else f"benchmarks.{suite}"
    known = list(importlib.import_module(module).GROUPS)
    assert command.GROUPS[suite].split() == known
    with pytest.raises(SystemExit, match=rf"groups must be among {command.GROUPS[suite]}, got nosuch"):
        say(monkeypatch, suite, known[0], "nosuch")
    assert called == []


def test_groups_and_quick_reach_the_suite(monkeypatch, called):
    monkeypatch.setattr(command, "require_green", lambda: None)
    say(monkeypatch, "phases", "alone", "tiles", "--quick")
    say(monkeypatch, "scale")
    assert called == [("phases", {"groups": ["alone", "tiles"], "quick": True}), ("scale", {"groups": None})]


def test_rows_that_are_kept_keep_their_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "require_green", lambda: None)
    for turn, partial in enumerate((False, True, True)):
        monkeypatch.setattr(common, "environment", lambda turn=turn: {"commit": turn})
        stored = json.loads(common.write("x", [], partial=partial).read_text())
    assert stored["environment"] == {"commit": 2}
    assert stored["environment_of_kept_rows"] == {"commit": 0}


def test_rows_of_two_machines_never_make_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "require_green", lambda: None)
    here = {"cpu": "first", "cores": 2, "gpu": None}
    monkeypatch.setattr(common, "environment", lambda: dict(here))
    made, path = {name: lambda: [{"case": 1}] for name in ("one", "two")}, tmp_path / "x.json"
    assert common.kept(path, ["one"]) == {}
    common.run_groups("x", made)
    common.run_groups("x", made, ["one"])
    for name, other in {"cpu": "second", "cores": 4, "gpu": "H100"}.items():
        before, kept = path.read_text(), here[name]
        here[name] = other
        never = {"one": lambda: pytest.fail("it has measured before it refused")}
        with pytest.raises(SystemExit, match=rf"x.json has rows .* {name} = {kept}, and here it is {other}: run the"):
            common.run_groups("x", never, ["one"])
        with pytest.raises(SystemExit, match="run the whole suite"):
            common.write("x", [{"case": 1}], partial=True)
        assert path.read_text() == before
        here[name] = kept
    here["cpu"] = "second"
    assert common.kept(path, None) == {}
    common.run_groups("x", made)
    assert json.loads(path.read_text())["environment"]["cpu"] == "second"


def test_published_figures_stand_beside_those_of_the_same_size_and_tolerance(tmp_path, monkeypatch):
    def detail(n, tol, seconds):
        return {"detail": {"n": n, "k": n, "tol": tol, "seconds": seconds, "gib": 1.0}}

    details = [detail(10, 5e-3, 9.0), detail(10, 5e-2, 1.5), {"detail": {"seconds": [1, 2]}}]
    (tmp_path / "scale.json").write_text(json.dumps({"environment": {"cores": 2}, "details": details}))
    rows = [{"N": 10, "K": 10, "GPU": "18 s, 65 GB"}, {"N": 20, "K": 20, "GPU": "-"}]
    (tmp_path / "published.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(published, "RESULTS", tmp_path)
    monkeypatch.setattr(published, "HERE", tmp_path)
    assert published.rows() == [
        {"size": "10 x 10", "theirs, GPU": "18 s, 65 GB", "here, 2 CPU cores": "1.5 s, 1.1 GB"},
        {"size": "20 x 20", "theirs, GPU": "-", "here, 2 CPU cores": "-"},
    ]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (" M torchgw/results/result.py", True),
        ("?? benchmarks/new/", True),
        (" M torchgw/kernels/measured.json", True),
        (" M benchmarks/results/peers.json", False),
        ("?? benchmarks/report/peers_time.png", False),
        (" M README.md", False),
    ],
)
def test_only_changes_of_code_count_as_uncommitted(line, code):
    assert common.is_code(line) is code


def test_a_machine_without_git_has_an_environment(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(common.subprocess, "run", absent)
    found = common.environment()
    assert found["commit"] == "unknown"
    assert found["uncommitted_changes"] is None


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("jobs", "--cpu-check"), {"groups": ["jobs"], "cpu_check": True, "store": None}),
        (("--store", "x/gpu.json"), {"groups": None, "cpu_check": False, "store": "x/gpu.json"}),
        ((), {"groups": None, "cpu_check": False, "store": None}),
    ],
)
def test_the_gpu_suite_measures_where_the_tests_have_not_run(monkeypatch, called, words, given):
    monkeypatch.setattr(command, "require_green", lambda: pytest.fail("what it found is asked for that"))
    say(monkeypatch, "gpu", *words)
    assert called == [("gpu", given)]


FOREIGN = ROOT / "benchmarks" / "peers" / "run_published.py"  # has a package of the same name


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "tests/triton"])
def test_every_name_of_the_package_that_is_imported_is_there(folder):
    """Also where the import waits for a GPU, or for a suite that takes hours."""
    found = 0
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or path == FOREIGN:
                continue
            module = node.module or ""
            if module.split(".")[0] not in ("torchgw", "benchmarks", "tests"):
                continue
            found += 1
            held = None if module.endswith(("triton", "triton_kernels")) else importlib.import_module(module)
            for name in (alias.name for alias in node.names):
                there = held is None or hasattr(held, name) or importlib.util.find_spec(f"{module}.{name}") is not None
                assert there, f"{path}:{node.lineno}: {module} has no {name}"
            assert importlib.util.find_spec(module) is not None
    assert found
