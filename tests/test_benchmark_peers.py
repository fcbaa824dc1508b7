"""The peers suite: what it says about plans with known answers, and about runs that end badly. No peers are needed."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import suite
from benchmarks.peers.evaluate import evaluate
from benchmarks.peers.launch import Run, environment, launch
from benchmarks.peers.solvers import BASES, ENTROPIC, HERE, SOLVERS, Solver
from benchmarks.report.peers import is_ours

FROM_POINTS = BASES["points"]
IDENTITY = """
import sys, numpy as np
sys.path.insert(0, {here!r})
from runner import main
def identity(A, B): return np.eye(len(A)) / len(A)
def factored(A, B): return np.eye(len(A)) / len(A), np.eye(len(A)) / len(A), np.full(len(A), 1 / len(A))
def big(A, B):
    held = np.ones(8 * 2**20)
    return np.eye(len(A)) / len(A) * held[0]
main(identity, factored, big)
"""


@pytest.fixture
def problem(tmp_path):
    """Ten points on a line and their mirror image, whose matching is the identity."""
    folder = tmp_path / "problem"
    folder.mkdir()
    x = np.linspace(0, 1, 10)
    for name, points in (("X", x), ("Y", 1 - x)):
        np.save(folder / f"{name}.npy", points[:, None])
        np.save(folder / f"D{name}.npy", np.abs(points[:, None] - points))
    return suite.Problem(folder, x, x)


def fake(tmp_path, code, name="fake", method="identity"):
    """A solver whose runner is ``code``, started by this Python."""
    script = tmp_path / f"{name}.py"
    script.write_text(code)
    return Solver(name=name, package="numpy", python=Path(sys.executable), script=script, method=method)


def one(solver, problem, limit=60.0):
    """Its row after one round."""
    return suite.measure([solver], problem, 1, limit)[0]


def gone(pid):
    """Whether a process has ended, within two seconds; one that its parent has not yet asked about counts."""
    for _ in range(200):
        status = Path(f"/proc/{pid}/status")
        try:
            if "State:\tZ" in status.read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_a_matching_of_isometric_spaces_has_value_zero_and_its_reverse_is_as_good_but_for_the_sign(problem):
    DX, DY = (np.load(file) for file in problem.inputs("distances"))
    plan = np.eye(10) / 10
    good, mirrored = (evaluate(T, DX, DY, problem.x, problem.y) for T in (plan, plan[::-1]))
    assert good.value == pytest.approx(0, abs=1e-14)
    assert mirrored.value == pytest.approx(0, abs=1e-14)
    assert (good.rho, mirrored.rho) == pytest.approx((1, -1))
    assert good.marginal_error == pytest.approx(0, abs=1e-14)


def test_two_points_against_one_cost_half_the_squared_distance():
    found = evaluate(np.full((2, 1), 0.5), np.array([[0, 3.0], [3, 0]]), np.zeros((1, 1)), np.arange(2.0), np.zeros(1))
    assert found.value == pytest.approx(4.5)
    assert found.rho is None
    assert "one partner" in found.reason


def test_the_marginal_error_counts_rows_and_columns():
    plan = np.array([[0.5, 0.0], [0.3, 0.0]])
    found = evaluate(plan, np.zeros((2, 2)), np.zeros((2, 2)), np.arange(2.0), np.arange(2.0))
    assert found.marginal_error == pytest.approx(0.2 + 0.3 + 0.5)


@pytest.mark.parametrize(("plan", "reason"), [(np.zeros((2, 2)), "zero"), (np.full((2, 2), np.nan), "not finite")])
def test_a_plan_without_a_value_says_why(plan, reason):
    found = evaluate(plan, np.zeros((2, 2)), np.zeros((2, 2)), np.arange(2.0), np.arange(2.0))
    assert found.value is None
    assert reason in found.reason


@pytest.mark.parametrize("method", ["identity", "factored"])
def test_a_run_is_a_row_with_all_its_figures(tmp_path, problem, method):
    found = one(fake(tmp_path, IDENTITY.format(here=str(HERE)), BASES["distances"], method), problem)
    assert (found["status"], found["reason"], found["runs"]) == ("ok", "-", 1)
    assert found["value"] == pytest.approx(0, abs=1e-14)
    assert found["rho"] == pytest.approx(1)
    assert found["package"] == f"numpy {np.__version__}"
    assert 0 <= found["seconds"] < 1
    json.dumps(found)


def test_memory_is_what_the_solve_held_and_has_given_back(tmp_path, problem):
    found = one(fake(tmp_path, IDENTITY.format(here=str(HERE)), method="big"), problem)
    assert 60 <= found["peak_mib"] <= 80


def test_a_run_that_passes_its_limit_is_a_row_and_its_processes_are_gone(tmp_path, problem):
    pids = tmp_path / "pids"
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(60)
"""
    began = time.perf_counter()
    found = one(fake(tmp_path, code), problem, limit=2.0)
    assert time.perf_counter() - began < 20
    assert (found["status"], found["reason"]) == ("time limit", "not done after 2 s")
    assert found["seconds"] == found["value"] == found["ratio"] == "-"
    assert all(gone(pid) for pid in pids.read_text().split())


def test_a_run_that_raises_is_a_row_with_the_reason(tmp_path, problem):
    found = one(fake(tmp_path, "raise ValueError('epsilon must be positive')"), problem)
    assert (found["status"], found["reason"]) == ("failed", "ValueError: epsilon must be positive")


def test_a_run_that_is_killed_is_a_row_with_the_signal(tmp_path, problem):
    found = one(fake(tmp_path, "import os; os.kill(os.getpid(), 9)"), problem)
    assert found["status"] == "failed"
    assert "SIGKILL" in found["reason"]


def test_a_missing_environment_is_a_row_that_says_what_to_do_or_what_pip_said(tmp_path, problem):
    home = tmp_path / ".venv-lost"
    missing = replace(fake(tmp_path, "", "lost"), python=home / "bin" / "python", package="POT")
    found = one(missing, problem)
    assert (found["status"], found["package"]) == ("not installed", "POT")
    assert found["reason"] == "POT is not in .venv-lost: run `make bench-env`"
    home.mkdir()
    (home / "install.log").write_text("2026-01-01 ERROR: No matching distribution found for POT\n")
    assert one(missing, problem)["reason"].endswith("No matching distribution found for POT")


def test_threads_are_pinned_in_the_child(tmp_path, problem):
    code = """
import json, os, sys
open(sys.argv[3] + "/report.json", "w").write("{}")
open(sys.argv[0] + ".env", "w").write(json.dumps(dict(os.environ)))
"""
    solver = fake(tmp_path, code)
    assert launch(solver, problem.inputs("points"), tmp_path, 60).ok
    seen = json.loads(Path(f"{solver.script}.env").read_text())
    cores = str(len(os.sched_getaffinity(0)))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NPROC"):
        assert seen[name] == cores
    assert environment(1)["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    assert environment(1)["OMP_NUM_THREADS"] == "1"


def test_the_path_of_this_process_does_not_reach_other_environments(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/anywhere")
    assert "PYTHONPATH" not in environment()


def timeline(monkeypatch, seconds):
    """Runs that take the given seconds, of each solver in turn; the names in the order in which they ran."""
    order, left = [], {name: iter(values) for name, values in seconds.items()}

    def told(solver, inputs, out, limit):
        order.append(solver.name)
        np.save(out / "plan.npy", np.eye(10) / 10)
        return next(left[solver.name])

    monkeypatch.setattr(suite, "launch", told)
    return order


def took(seconds):
    return Run("ok", "-", seconds, 0.1, 1.0)


def test_ratios_are_taken_within_rounds_and_slow_runs_count_once(tmp_path, problem, monkeypatch):
    ours, peer, slow = (replace(fake(tmp_path, "", name), source="points") for name in (FROM_POINTS, "peer", "slow"))
    times = {FROM_POINTS: map(took, (1.0, 10.0, 2.0)), "peer": map(took, (3.0, 20.0, 4.0)), "slow": map(took, (50.0,))}
    monkeypatch.setattr(suite, "BRIEF", 20.0)
    # The round in which all takes ten times longer does not matter to ratios; 20 s is no longer brief.
    order = timeline(monkeypatch, times)
    rows = {found["solver"]: found for found in suite.measure([ours, peer, slow], problem, 3, 100.0)}
    assert order == [FROM_POINTS, "peer", "slow", FROM_POINTS, "peer", FROM_POINTS]
    assert [rows[name]["runs"] for name in rows] == [3, 2, 1]
    assert rows["peer"]["ratio"] == pytest.approx((3 + 2) / 2)
    assert rows["slow"]["ratio"] == pytest.approx(50)
    assert rows[FROM_POINTS]["ratio"] == 1
    assert rows[FROM_POINTS]["seconds"] == 2


def test_a_later_run_that_fails_keeps_the_figures_and_says_so(tmp_path, problem, monkeypatch):
    timeline(monkeypatch, {"peer": iter([took(1.0), Run("time limit", "not done after 9 s")])})
    found = suite.measure([fake(tmp_path, "", "peer")], problem, 3, 9.0)[0]
    assert (found["status"], found["runs"], found["seconds"], found["ratio"]) == ("ok", 1, 1.0, "-")
    assert found["reason"] == "not done after 9 s; no ratio: no run of torchgw, from distances"


def test_the_summary_has_a_line_for_each_solver_and_a_column_for_each_size(problem, tmp_path):
    good = suite.row(fake(tmp_path, "", "a"), problem, [took(1.5)], suite.Quality(0.00177, 0.0, 0.9996), [1.5])
    late = suite.row(fake(tmp_path, "", "b"), problem, [Run("time limit", "not done after 9 s")], None, [])
    found = suite.summarise([good, late, good | {"N": 20, "K": 20}])
    assert found[0]["10 x 10"] == found[0]["20 x 20"] == "1.5 s, 0.00177, rho 1.000"
    assert (found[1]["10 x 10"], found[1]["20 x 20"]) == ("time limit: not done after 9 s", "not measured")
    assert "" not in [value for line in (good, late) for value in line.values()]


def test_sizes_are_named_like_400x500():
    assert suite.chosen(["400x500"], quick=False) == [(400, 500)]
    assert suite.chosen(None, quick=True) == list(suite.QUICK_SIZES)
    with pytest.raises(SystemExit, match="400x500"):
        suite.chosen(["large"], quick=False)


def follow(monkeypatch, measure, stored):
    """Let a run of the suite measure by this function, and put what it would write into a list."""
    monkeypatch.setattr(suite, "show", lambda rows: None)
    monkeypatch.setattr(suite, "write", lambda name, rows, **more: stored.append({"rows": rows, **more}))
    monkeypatch.setattr(
        suite.Problem, "make", lambda folder, n, k: (suite.Problem(folder, np.zeros(n), np.zeros(k)), 1.0)
    )
    monkeypatch.setattr(suite, "measure", measure)


def test_rows_are_stored_where_all_sizes_and_all_solvers_ran_in_one_run(monkeypatch):
    stored, given = [], []

    def measure(solvers, p, rounds, limit, smaller):
        given.append(({solver.name for solver in solvers}, len(smaller), limit))
        return [suite.row(SOLVERS[0], p, [took(p.x.size)], None, [1.0])]

    follow(monkeypatch, measure, stored)
    suite.run(["10x20", "30x40"])
    assert stored == []
    suite.run()
    everybody = {solver.name for solver in SOLVERS}
    assert given[2:] == [(everybody, i, suite.LIMIT) for i in range(len(suite.SIZES))]
    (whole,) = stored
    assert [(found["N"], found["K"]) for found in whole["rows"]] == list(suite.SIZES)
    assert [found["N"] for found in whole["preparation"]] == [n for n, _ in suite.SIZES]
    assert "partial" not in whole
    suite.run(quick=True)
    assert stored[-1]["quick"]
    assert given[-1] == (everybody, 0, suite.QUICK_LIMIT)


def test_peers_stand_beside_the_row_of_their_entropy():
    ours = {solver.name: solver for solver in SOLVERS if is_ours(solver.name)}
    assert all(not ours[name].settings for name in BASES.values())
    assert [ours[name].settings for name in ENTROPIC.values()] == [{"epsilon": 1e-3}] * 2
    for solver in SOLVERS:
        if not is_ours(solver.name) and "entropic" in solver.name:
            assert solver.base == ENTROPIC[solver.source]


def test_solvers_have_names_of_their_own_and_runners_that_are_there():
    assert len({solver.name for solver in SOLVERS}) == len(SOLVERS) >= 12
    assert all(solver.script.exists() and solver.source in suite.FILES for solver in SOLVERS)
    assert set(BASES.values()) <= {solver.name for solver in SOLVERS}


@pytest.mark.parametrize(
    ("status", "seconds", "why"),
    [
        ("ok", 2.0, ""),
        ("ok", 30.0, "not started: 30 s at 5 x 5, and N K is 4.0 times that"),
        ("time limit", "-", "not started: it passed the limit at 5 x 5"),
        ("failed", "-", ""),
    ],
)
def test_what_a_smaller_size_shows_to_be_hopeless_is_not_started(tmp_path, status, seconds, why):
    solver = fake(tmp_path, "", "peer")
    large = suite.Problem(tmp_path, np.zeros(10), np.zeros(10))
    sizes = (4, "ok", 99.0), (5, status, seconds), (20, "time limit", "-")
    smaller = [{"solver": "peer", "N": n, "K": n, "status": s, "seconds": t} for n, s, t in sizes]
    assert suite.hopeless(solver, smaller, large, 100.0) == why
    assert suite.hopeless(solver, smaller, suite.Problem(tmp_path, np.zeros(4), np.zeros(4)), 1.0) == ""
    if why:
        (row,) = suite.measure([solver], large, 3, 100.0, smaller)
        assert (row["status"], row["reason"], row["runs"]) == ("time limit", why, 0)
