"""Figures of the prose: what each says of a result file, and of one that has no number to show."""

from __future__ import annotations

import pytest

from benchmarks import figures, tables


def machine(**more):
    return {"cpu": "first", "cores": 2, "gpu": None, "date": "2026-01-02"} | more


def peers(**seconds):
    """Rows of two solvers, by name and size."""
    return {
        "rows": [
            {"solver": name, "N": n, "seconds": s, "ratio": s if s == "-" else s / 2}
            for name, taken in seconds.items()
            for n, s in zip((400, 1000, 2000), taken, strict=True)
        ]
    }


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({}, "first, 2 CPU cores, 2026-01-02"),
        ({"date": "2026-01-01"}, "first, 2 CPU cores, 2026-01-01 to 2026-01-02"),
        ({"cpu": "second"}, "second and first, 2 CPU cores, 2026-01-02; its rows are of two processors"),
    ],
)
def test_the_machine_is_said_with_that_of_older_rows(kept, said):
    content = {"environment": machine()} | ({"environment_of_kept_rows": machine(**kept)} if kept else {})
    assert figures.machine(content).startswith(said)
    assert ("do not compare" in figures.machine(content)) == ("cpu" in kept)
    assert figures.machine({"environment": machine(gpu="H100", cores=16)}) == "H100, 16 CPU cores, 2026-01-02"


def test_requirements_that_are_not_known_to_be_met_are_counted_apart():
    rows = [{"met": met} for met in (True, False, True, "-")] + [{}]
    assert figures.met({"rows": rows}) == "2 of 3"
    assert figures.met({"rows": [*rows, {"met": "not known"}]}) == "2 of 4, 1 not known"


def test_quotients_leave_out_runs_that_were_stopped():
    content = peers(slow=(3.0, 50.0, "-"), quick=(2.0, 4.0, 8.0))
    assert figures.over(content, "seconds", "slow", "quick") == "1.5 to 12"
    assert figures.over(content, "seconds", "slow", "quick", "1000") == "12"
    assert [figures.times(content, "slow", n) for n in ("400", "1000", "2000")] == ["1.5", "25", "-"]


def test_small_problems_are_said_by_the_median_over_kinds():
    runs = [{"ratio": ratio, "value": value} for ratio, value in ((0.5, 0.9), (104.7, 1.0), (2.94, 1.1))]
    content = {"groups": {"30": [{"detail": {"runs": runs}}]}}
    assert (figures.slower(content, "30"), figures.lower(content, "30")) == ("2.9", "1 of 3")


def test_long_times_are_said_in_minutes():
    rows = [{"case": "long", "measured": "rho 0.9, 2.74e+03 s, then 4 s"}, {"case": "short", "measured": "10.7 s"}]
    assert [figures.taken({"rows": rows}, case) for case in ("long", "short")] == ["46 minutes", "11 s"]


def test_what_no_gpu_has_measured_is_said_to_be_so():
    groups = {"jobs": [{"size": "4 x 5", "s": 0.36, "GPU GiB": 1.73}], "cold": [{"size": "4 x 5", "s": 12.3}]}
    content = {"groups": groups}
    assert [figures.solve(content, size, "time") for size in ("4 x 5", "9 x 9")] == ["0.36 s", figures.UNKNOWN]
    assert [figures.call(content, "4 x 5", kernels) for kernels in ("cold", "warm")] == ["12 s", figures.UNKNOWN]


def test_what_a_suite_without_results_would_show_is_not_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert figures.figure("ablation:machine") == "not measured"
    assert tables.table("ablation:core", "core, why") == "| not measured |\n| --- |\n"
    with pytest.raises(FileNotFoundError):
        figures.figure("nosuch:machine")
