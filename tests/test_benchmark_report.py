"""The page of all results, and the comparison of two result files."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import compare, report, tables
from benchmarks.__main__ import SUITES
from benchmarks.report import page, peers
from benchmarks.report.cells import cell
from benchmarks.report.fits import frontier, power_law, titled
from benchmarks.report.results import load
from benchmarks.report.sections import SECTIONS

Content = dict[str, Any]
ENVIRONMENT = {
    "cpu": "some processor",
    "cores": 2,
    "threads": 1,
    "versions": {"torch": "2.9", "numpy": "2.4"},
    "commit": "a" * 40,
    "uncommitted_changes": False,
    "date": "2026-01-02",
}
REASON = "longer than 600 s"
# exponent of time, value and marginal error
SOLVERS = {
    "torchgw": (1.0, 0.0020, 1e-9),
    "torchgw 0.4.2": (2.0, 0.0030, 1e-1),
    "POT conditional gradient": (2.5, 0.0019, 1e-15),
}


def solved(solver: str, n: int) -> Content:
    exponent, value, error = SOLVERS[solver]
    numbers = {"seconds": 0.001 * n**exponent, "runs": 3, "warm_up_seconds": 0.1, "peak_mib": 0.1 * n}
    quality = {"value": value, "marginal_error": error, "rho": 0.999, "ratio": 2.0}
    return {"solver": solver, "package": "1", "from": "points", "N": n, "K": n + 100, "status": "ok", "reason": "-"} | (
        numbers | quality | {"settings": {"epsilon": 0.005}}
    )


def unsolved(row: Content, status: str = "time limit", reason: str = REASON) -> Content:
    missing = ("seconds", "runs", "warm_up_seconds", "peak_mib", "value", "marginal_error", "rho", "ratio")
    return row | dict.fromkeys(missing, "-") | {"status": status, "reason": reason}


def results() -> dict[str, Content]:
    """One file of each kind that has pictures, and of one that has none."""
    rows = [solved(name, n) for n in (100, 1000, 10000) for name in SOLVERS]
    rows[-1] = unsolved(rows[-1])
    names = ("1a draws", "2 cache", "10 exact")
    phases = [
        {"phase": name, "problem": "spiral", "before_s": 3.0, "after_s": 1.0, "ratio": 3.0 / i, "verdict": "pays"}
        | {"before_rho": 0.99, "after_rho": 0.99, "before_value": 0.002, "after_value": "-"}
        for i, name in enumerate(names, 1)
    ]
    steps = [
        {"problem": "spiral", "step": name, "seconds": 9.0 / i, "ratio_to_last": 1.5, "ratio_to_first": float(i)}
        | {"rho": 0.99, "value": 0.002}
        for i, name in enumerate(("0 plain", *names), 1)
    ]
    overhead = [
        {"N": n, "dtype": dtype, "library_ms": 1.1 * n, "flat_ms": 1.0 * n, "overhead_percent": 1000 / n}
        | {"interval": "1 to 2", "difference_ms": 0.1 * n, "required": "< 5 %"}
        | {"met": "-" if n < 500 else dtype == "float32" or "not known"}
        for n in (100, 1000)
        for dtype in ("float32", "float64")
    ]
    sizes = [
        {"n": n, "k": n, "tol": 0.05, "seconds": 1e-4 * n, "gib": 1e-3 * n**0.5, "value": 0.002}
        for n in (20_000, 100_000, 1_000_000)
    ]
    judged = [{"case": f"{size['n']} points", "required": "-", "measured": "fast", "met": True} for size in sizes]
    kernel = {
        "what": "softmin",
        "n": 400,
        "k": 500,
        "rank": 0,
        "floor": 1.0,
        "torch": 9.0,
        "eager": 2.0,
        "triton": None,
    }
    gradient = {"problem": "gw", "dtype": "float64", "implicit s": 1.0, "implicit MiB": 3.0}
    steady = {"adjoint seconds": 1.0, "adjoint MiB": 10.0, "stacked seconds": 2.0, "stacked MiB": 90.0}
    contents: dict[str, Content] = {
        "peers": {"rows": rows, "preparation": [{"N": 100, "seconds": 1.0}], "summary": [{"size": "100 x 200"}]},
        "phases": {"rows": phases, "cumulative": steps},
        "overhead": {"rows": overhead, "explained": [{"what": "validation", "ms": 0.1}]},
        "scale": {"rows": judged, "details": [r | {"detail": s} for r, s in zip(judged, sizes, strict=True)]},
        "quality": {"rows": [{"case": "a <b> & c", "required": ">= 1", "measured": "2", "met": False}]},
        "kernels": {"rows": [{"what": "softmin", "eager ms": "2.0", "torch / best": 4.5}], "milliseconds": [kernel]},
        "gradients": {"rows": [gradient | {"N": n} for n in (50, 100)], "factored": [{"N": 250, "direct": 0.1}]},
        "lanczos": {"rows": [steady | {"steps": n} for n in (10, 20)]},
    }
    return {name: {"environment": ENVIRONMENT} | content for name, content in contents.items()}


def stored(folder: Path, contents: dict[str, Content]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the results above."""
    folder = tmp_path_factory.mktemp("benchmarks")
    contents = results()
    contents["overhead"]["environment"] = ENVIRONMENT | {"commit": "b" * 40, "date": "2026-01-01", "threads": 2}
    return page.build(stored(folder / "results", contents), folder / "report")


@pytest.fixture(scope="module")
def text(written: Path) -> str:
    return written.read_text()


# -- the page


def test_the_page_has_every_section(text: str) -> None:
    for name in ("summary", "environment", *SECTIONS):
        assert f'<section id="{name}">' in text
        assert f'href="#{name}"' in text


def test_every_suite_has_a_section() -> None:
    assert set(SUITES) == set(SECTIONS)


def test_every_picture_exists_and_nothing_else_is_referenced(written: Path, text: str) -> None:
    pictures = re.findall(r'src="([^"]+)"', text)
    there = {path.name for path in written.parent.glob("*.png")}
    assert set(pictures) == there
    kinds = ("time", "memory", "value", "marginals", "pareto")
    others = ("phases", "phases_cumulative", "overhead", "scale", "kernels", "gradients", "lanczos")
    assert there == {f"peers_{kind}.png" for kind in kinds} | {f"{name}.png" for name in others}
    linked = {link for link in re.findall(r'href="([^"]+)"', text) if link[0] != "#"}
    assert {Path(link).name for link in linked - set(pictures)} == {"GPU_PENDING.md"}
    assert not re.search(r"https?:|<script|@import|url\(", text)


def test_pictures_are_small_files(written: Path) -> None:
    assert all(path.stat().st_size < 100_000 for path in written.parent.glob("*.png"))


def test_a_size_that_was_not_solved_appears_with_its_reason(text: str) -> None:
    row = next(line for line in text.splitlines() if REASON in line)
    assert 'class="unsolved"' in row
    assert "POT conditional gradient" in row


def test_missing_results_say_which_command_makes_them(text: str) -> None:
    for name in ("models", "relaxation", "sampling", "gpu"):
        assert f"<code>python -m benchmarks {name}</code>" in text
    assert "<code>python -m benchmarks peers</code>" not in text
    assert "What waits for a GPU" in text


def test_the_summary_names_the_fastest(text: str) -> None:
    summary = text[text.index('id="summary"') : text.index('id="environment"')]
    assert "POT conditional gradient" in summary  # at 100 points it is slower, at equal quality
    assert "overhead 1 of 2, quality 0 of 1, scale 3 of 3" in summary
    assert "<b>Met: no</b>: quality, a &lt;b&gt; &amp; c: 2, required &gt;= 1." in summary
    assert "<b>Met: not known</b>: overhead, N = 1000, float64: 1 % (1 to 2), required &lt; 5 %." in summary
    assert "power 1.00" in summary


def test_a_file_of_another_commit_and_machine_says_so(text: str) -> None:
    row = next(line for line in text.splitlines() if "overhead.json" in line)
    assert "another commit, other threads" in row
    assert "as the newest" in next(line for line in text.splitlines() if "peers.json" in line)


def test_text_of_results_is_escaped(text: str) -> None:
    assert "a &lt;b&gt; &amp; c" in text


def test_a_page_without_results_names_all_commands(tmp_path: Path) -> None:
    text = page.build(stored(tmp_path / "results", {}), tmp_path / "report").read_text()
    assert "Nothing has been measured yet." in text
    assert all(f"python -m benchmarks {name}</code>" in text for name in SECTIONS)


def test_a_quick_page_lies_with_the_quick_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "QUICK", stored(tmp_path / "quick", {"overhead": results()["overhead"]}))
    report.run(quick=True)
    text = (tmp_path / "quick" / "report" / "index.html").read_text()
    assert "python -m benchmarks peers --quick" in text
    assert 'id="scale"' not in text
    assert (tmp_path / "quick" / "report" / "overhead.png").exists()


def test_rows_of_another_shape_make_a_page_all_the_same(tmp_path: Path) -> None:
    contents = {name: results()[name] for name in ("peers", "phases", "overhead")}
    for content in contents.values():
        content["rows"] = [dict.fromkeys(row, "-") | {"more": [1, 2]} for row in content["rows"]]
    contents["phases"]["cumulative"] = []
    contents["peers"]["rows"] = [unsolved(solved("torchgw", 100), "not installed")]
    text = page.build(stored(tmp_path / "results", contents), tmp_path / "report").read_text()
    assert "not installed" in text
    assert not list((tmp_path / "report").glob("*.png"))


# -- what the page computes


def test_fits_recover_a_power_law() -> None:
    n = [400.0, 1000.0, 2000.0, 4000.0]
    fit = power_law(n, [3e-5 * x**1.7 for x in n])
    assert fit is not None
    assert np.allclose(fit, (1.7, 3e-5))
    assert titled("ours", n, [x**2 for x in n]) == "ours  $N^{2.00}$"


def test_fits_need_three_sizes_and_positive_values() -> None:
    assert power_law([1.0, 2.0, 2.0], [1.0, 2.0, 3.0]) is None
    assert power_law([1.0, 2.0, 3.0], [1.0, 0.0, 3.0]) is None
    assert titled("ours", [1.0, 2.0], [1.0, 2.0]) == "ours"


def test_only_solved_sizes_are_fitted() -> None:
    rows = peers.labelled([solved("POT conditional gradient", n) for n in (100, 1000, 10000)])
    line = peers.lines([*rows[:2], unsolved(rows[2])], "seconds")[0]
    assert line.x == [100.0, 1000.0]
    fit = power_law(*peers.lines(rows, "seconds")[0][1:])
    assert fit is not None
    assert np.isclose(fit.exponent, 2.5)


def test_the_frontier_is_what_nothing_beats() -> None:
    assert frontier([(2.0, 2.0), (1.0, 3.0), (3.0, 2.5), (4.0, 1.0), (1.0, 4.0)]) == [1, 0, 3]
    assert frontier([]) == []


def test_the_published_solver_of_our_name_is_not_ours() -> None:
    assert peers.is_ours("torchgw, epsilon 0")
    assert not peers.is_ours("torchgw 0.4.2")
    assert not peers.is_ours("POT entropic")


def test_the_lowest_value_needs_marginals() -> None:
    rows = [solved(name, 100) for name in SOLVERS]
    rows[1] |= {"value": 0.0001}  # marginals off by a tenth
    excess = [row["excess"] for row in peers.with_excess(peers.labelled(rows))]
    assert np.allclose(excess, [0.0020 / 0.0019 - 1, 0.0001 / 0.0019 - 1, 0])


def test_solvers_that_begin_from_several_things_are_told_apart() -> None:
    rows = [solved("torchgw", 100), solved("torchgw", 100) | {"from": "distances"}, solved("torchgw 0.4.2", 100)]
    assert [row["label"] for row in peers.labelled(rows)] == [
        "torchgw, from points",
        "torchgw, from distances",
        "torchgw 0.4.2",
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "\u2013"),
        ("-", "\u2013"),
        (True, "yes"),
        (0.00012345, "1.23e-04"),
        (0.0, "0"),
        (3.14159, "3.142"),
        (12630.0, "12630"),
        (1_000_000, "1\u202f000\u202f000"),
        ({"epsilon": 0.005, "log": False}, "epsilon 0.005, log no"),
    ],
)
def test_cells_are_readable(value: Any, said: str) -> None:
    assert cell(value) == said


# -- tables of documents


def test_a_table_may_choose_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", stored(tmp_path, {"overhead": results()["overhead"]}))
    text = "a\n<!-- table overhead | N, overhead_percent -->\nold\n<!-- end -->\nb\n"
    written = tables.filled(text)
    assert written.startswith(
        "a\n<!-- table overhead | N, overhead_percent -->\n| N | overhead_percent |\n| --- | --- |\n"
    )
    assert "| 100 | 10 |\n" in written
    assert written.endswith("<!-- end -->\nb\n")
    assert tables.filled(written) == written
    with pytest.raises(ValueError, match="no column M"):
        tables.table("overhead", "N, M")


def test_a_table_has_the_columns_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"N": 1, "text": "a | b"}, {"N": 2, "more": None}, {"N": 3, "more": 0.12345}]
    monkeypatch.setattr(tables, "RESULTS", stored(tmp_path, {"some": {"rows": rows}}))
    lines = tables.table("some").splitlines()
    assert lines[0] == "| N | text | more |"
    assert lines[2:] == [r"| 1 | a \| b | - |", "| 2 | - | - |", "| 3 | - | 0.123 |"]


# -- the comparison


def compared(folder: Path, name: str, change: Callable[[Content], object] = lambda content: None) -> int:
    """The exit code of comparing one file with its changed copy."""
    before = results()[name]
    after = copy.deepcopy(before)
    change(after)
    old, new = stored(folder / "before", {name: before}), stored(folder / "after", {name: after})
    try:
        compare.run(str(old / f"{name}.json"), str(new / f"{name}.json"))
    except SystemExit as left:
        return int(str(left.code))
    return 0


def first(**columns: Any) -> Callable[[Content], object]:
    """Sets columns of the first row."""
    return lambda content: content["rows"][0].update(columns)


def scaled(factor: float, *columns: str) -> Callable[[Content], object]:
    """Multiplies columns of all rows."""

    def change(content: Content) -> None:
        for row in content["rows"]:
            row.update({column: row[column] * factor for column in columns if isinstance(row[column], float)})

    return change


@pytest.mark.parametrize("name", list(results()))
def test_equal_files_have_no_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert compared(tmp_path, name) == 0
    assert "0 changes beyond the thresholds" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(tables.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_stored_results_compare_with_themselves(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare.run(str(path), str(path))
    assert re.match(r"[1-9]\d* rows compared, 0 changes", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("peers", ("seconds", "peak_mib")), ("phases", ("after_s", "ratio")), ("overhead", ("library_ms",))],
)
def test_mere_noise_is_no_change(tmp_path: Path, name: str, columns: tuple[str, ...]) -> None:
    assert compared(tmp_path, name, scaled(1.1, *columns)) == 0
    assert compared(tmp_path, name, scaled(0.9, *columns)) == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("peers", first(seconds=0.13)),
        ("peers", first(peak_mib=15.0)),
        ("peers", first(value=0.00205)),
        ("peers", first(rho=0.99)),
        ("peers", first(marginal_error=1e-5)),
        ("peers", first(status="failed")),
        ("peers", lambda content: content["rows"].pop(2)),
        ("phases", first(after_s=1.3)),
        ("phases", first(ratio=2.0)),
        ("phases", first(after_rho=0.98)),
        ("phases", lambda content: content["cumulative"][1].update(seconds=7.0)),
        ("phases", lambda content: content.pop("cumulative")),
        ("overhead", first(library_ms=200.0)),
        ("overhead", first(overhead_percent=25.0)),
        ("overhead", lambda content: content["rows"][2].update(met=False)),
        ("scale", lambda content: content["details"][0].update(met=False)),
        ("scale", lambda content: content["details"][0]["detail"].update(gib=1.0)),
        ("kernels", lambda content: content["rows"][0].update({"eager ms": "2.6"})),
        ("kernels", lambda content: content["rows"][0].update({"torch / best": 3.0})),
    ],
)
def test_each_kind_of_regression_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Callable[[Content], object]
) -> None:
    assert compared(tmp_path, name, change) == 1
    assert re.search(r"[1-9]\d* for the worse", capsys.readouterr().out)


def test_seconds_are_a_time_of_whatever_they_are() -> None:
    for column in ("seconds", "runs seconds", "default seconds", "epsilon 0 seconds", "shared seconds"):
        assert next(kind.name for kind in compare.KINDS if kind.pattern.search(column)) == "time"


def test_the_table_names_row_column_and_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, "peers", first(seconds=0.2)) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.endswith("worse") and "seconds" in line)
    assert re.search(r"torchgw, N 100, K 200\s+seconds\s+0.1\s+0.2\s+2x\s+worse", line)


def test_what_got_better_is_listed_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, "peers", first(seconds=0.05)) == 0
    assert "0.5x  better" in capsys.readouterr().out


def test_other_solvers_are_not_judged_but_for_their_status(tmp_path: Path) -> None:
    assert compared(tmp_path, "peers", lambda content: content["rows"][2].update(seconds=1e4, value=1.0)) == 0
    assert compared(tmp_path, "peers", lambda content: content["rows"][2].update(status="failed")) == 1
    assert compared(tmp_path, "phases", first(before_s=9.0, before_rho=0.1)) == 0


def test_remarks_do_not_name_a_row(tmp_path: Path) -> None:
    assert compared(tmp_path, "overhead", first(interval="3 to 4", difference_ms=99.0)) == 0
    assert compared(tmp_path, "phases", first(verdict="level here")) == 0
    assert compared(tmp_path, "peers", first(settings={"epsilon": 0.1}, package="2")) == 0


def test_new_rows_are_listed_and_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(tmp_path, "peers", lambda content: content["rows"].append(solved("torchgw", 5))) == 0
    assert re.search(r"torchgw, N 5, K 105\s+row\s+-\s+new", capsys.readouterr().out)


@pytest.mark.parametrize("other", [{"cpu": "faster"}, {"cores": 64}, {"threads": 8}, {"versions": {"torch": "3.0"}}])
def test_different_machines_compare_ratios_and_quality_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Content
) -> None:
    def moved(content: Content) -> None:
        content["environment"] = ENVIRONMENT | other
        scaled(3.0, "after_s")(content)

    assert compared(tmp_path, "phases", moved) == 0
    assert f"the machines differ: {next(iter(other)).replace('versions', 'torch')} " in capsys.readouterr().out
    assert compared(tmp_path, "phases", lambda content: (moved(content), first(ratio=1.0)(content))) == 1
    assert compared(tmp_path, "phases", lambda content: (moved(content), first(after_rho=0.5)(content))) == 1


def test_ratios_to_other_solvers_stand_in_for_times_elsewhere(tmp_path: Path) -> None:
    def moved(content: Content) -> None:
        content["environment"] = ENVIRONMENT | {"cpu": "slower"}
        scaled(3.0, "seconds", "warm_up_seconds")(content)

    assert compared(tmp_path, "peers", moved) == 0
    assert compared(tmp_path, "peers", lambda content: (moved(content), content["rows"][2].update(ratio=1.0))) == 1
    assert compared(tmp_path, "peers", lambda content: content["rows"][2].update(ratio=1.0)) == 0


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path / "files", results())
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[1]")
    (folder / "empty.json").write_text('{"environment": {}, "rows": []}')
    cases = {
        ("peers", "nowhere"): "cannot be read",
        ("peers", "broken"): "is not JSON",
        ("list", "peers"): "is not a result file",
        ("peers", "empty"): "is not a result file",
        ("peers", "overhead"): "of different suites",
        ("scale", "quality"): "no row in common",
    }
    for names, said in cases.items():
        with pytest.raises(SystemExit) as left:
            compare.run(*(str(folder / f"{name}.json") for name in names))
        assert left.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert said in printed.err
        assert printed.err.count("\n") == 1


def test_a_result_keeps_its_other_tables(tmp_path: Path) -> None:
    result = load(stored(tmp_path, results()) / "peers.json")
    assert result.name == "peers"
    assert result.part("summary") == [{"size": "100 x 200"}]
    assert result.part("nothing") == []
