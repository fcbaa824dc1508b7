"""What the documents say agrees with what was measured, and they speak of the project alone."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import figures, headline, tables

ROOT = Path(__file__).parent.parent


# Numbers that are no stored results of a suite: thresholds, limits and forecasts.
NOT_MEASURED = {
    "README.md": (),
    "docs/performance.md": (
        "one that passes 60 s, start and warm-up included, is stopped",
        "`make bench-quality` repeats it in half an hour",
        "It takes about 40 minutes on two cores",
        "where they are accurate to 3 %",
        "where these are off by more than 10 %",
        "lies with 95 % confidence",
        "the value is more than 0.5 % higher",
        "these are more than 2 % of the problems",
    ),
    "docs/from_pot.md": ("become 1.5 times the largest finite one",),
    "docs/large.md": (
        "with at most 1 % of entries",
        "4 GiB unless you say otherwise",
        "accurate (to 3 % up to 2500 points, to 10 % above)",
        "Where few factors carry the distances to 1 %",
        "where at most 1 % of the entries of each matrix are not zero",
    ),
    "docs/gpu.md": ("whose kernels take up to 20 s", "takes at most ten minutes", "4 GiB by default"),
    "docs/pairwise.md": ("which leaves 0.2 % on average",),
}
COUNT = r"(?:\d[\d.,]*(?:e-?\d+)?|two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|half an?)"
UNIT = r"(?:s|ms|seconds?|minutes?|hours?|x|times|%|[MG]i?B|per cent|per mille)"
MEASURED = re.compile(
    rf"(?<![\w.]){COUNT}(?:(?:,| to| and| or|-)\s?{COUNT})*\s?{UNIT}(?![\w/])(?! \d)"
    r"|\b(?:half|thirds?|quarters?|fifth|tenth)s? (?:of )?(?:its|the|our|their)(?: \w+'s)? time"
)


def prose(name: str) -> str:
    """A page without its code, and without the tables and figures that are taken from the results."""
    text = tables.FIGURE.sub("", tables.MARKED.sub("", (ROOT / name).read_text()))
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", tables.documents())
def test_tables_and_figures_equal_the_stored_results(name: str) -> None:
    text = (ROOT / name).read_text()
    assert tables.filled(text) == text, "run `python -m benchmarks tables`"


def test_a_figure_that_differs_is_written_anew_and_one_without_a_source_is_an_error() -> None:
    right = f"<!-- figure small:met -->{figures.figure('small:met')}<!-- end -->"
    assert tables.filled("Met: <!-- figure small:met -->7 of 7<!-- end --> of them.") == f"Met: {right} of them."
    assert figures.figure("small:met").endswith(" of 7")
    with pytest.raises(KeyError):
        tables.filled("Met: <!-- figure small:most -->7 of 7<!-- end -->")


@pytest.mark.parametrize("name", tables.documents())
def test_a_line_does_not_begin_with_a_figure(name: str) -> None:
    """Markdown would take such a line for HTML, and show its text as it stands."""
    assert not re.findall(r"^[\s>*-]*<!-- figure .*", (ROOT / name).read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("name", NOT_MEASURED)
def test_no_measured_number_stands_in_the_prose_by_hand(name: str) -> None:
    text = prose(name)
    assert len(text) > 1000
    for allowed in NOT_MEASURED[name]:
        assert allowed in text, f"{allowed!r} is not on the page any more: take it off the list"
        text = text.replace(allowed, "")
    assert not [found[0] for found in MEASURED.finditer(text)]


@pytest.mark.parametrize(
    "said",
    ["in 8.1 s", "12 % less", "3x faster", "1.3 GiB", "takes 1.4, 3 and 7 times as long", "ten seconds", "70 to 140 ms",
     "2-5 times", "half an hour", "a tenth of our time", "two thirds of its time", "a third of the library's time"],
)  # fmt: skip
def test_a_measured_number_is_recognised(said: str) -> None:
    assert MEASURED.search(said)


@pytest.mark.parametrize("name", [page for page in tables.documents() if page != "OPTIMIZATION_LOG.md"])
def test_a_page_says_where_each_of_its_tables_was_measured(name: str) -> None:
    text = (ROOT / name).read_text()
    suites = {tables.suite(found[2]) for found in tables.MARKED.finditer(text)} - {None}
    assert not [suite for suite in suites if f"<!-- figure {suite}:machine -->" not in text]


def test_the_log_lists_the_machines_of_all_tables() -> None:
    assert "<!-- table machines -->" in (ROOT / "OPTIMIZATION_LOG.md").read_text()
    assert len(tables.machines()) == len(list((ROOT / "benchmarks" / "results").glob("*.json")))


def test_no_stored_table_mixes_two_processors() -> None:
    mixed = set()
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        stored = json.loads(path.read_text())
        kept = stored.get("environment_of_kept_rows", stored["environment"])
        if any(kept[key] != stored["environment"][key] for key in ("cpu", "cores", "gpu")):
            mixed.add(path.stem)
    assert not mixed, "measure the whole suite in one run"


def test_every_suite_with_requirements_is_counted_on_the_page_and_those_that_miss_some_in_the_readme() -> None:
    counted = {row["suite"].strip("`"): row["met"] for row in tables.requirements()}
    page, readme = ((ROOT / name).read_text() for name in ("docs/performance.md", "README.md"))
    assert "<!-- table requirements -->" in page
    assert {"quality", "kinds", "scale", "small", "sizes", "models", "vertices"} <= set(counted)
    for name in ("quality", "kinds", "vertices", "small", "sizes", "models", "scale"):
        assert f"<!-- table {name} -->" in page
        assert f"<!-- figure {name}:met -->{counted[name]}<!-- end -->" in readme


def test_the_default_keeps_entropy_where_the_readme_says_so() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())["rows"]
    values = {(row["solver"], row["N"]): row["value"] for row in stored}
    over = {n: values[headline.FROM_POINTS, n] / values["torchgw epsilon=0", n] for n in (400, 1000, 2000, 4000)}
    assert over[400] == pytest.approx(1, abs=0.01)
    assert min(over[n] for n in (1000, 2000, 4000)) > 1.5


def test_the_short_tables_show_stored_numbers() -> None:
    peers = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())["rows"]
    shown = {row["solver"]: row for row in headline.beside_peers()}
    ours = next(row for row in peers if row["solver"] == headline.FROM_POINTS and row["N"] == 1000)
    assert float(shown["**torchgw**"]["1000 x 1200"].split()[0]) == pytest.approx(ours["seconds"], rel=0.05)
    assert float(shown["**torchgw**"]["rho"]) == pytest.approx(ours["rho"], abs=1e-4)
    stopped = {
        headline.SOLVERS[row["solver"]]
        for row in peers
        if row["N"] == 4000 and row["status"] == "time limit" and row["solver"] in headline.SOLVERS
    }
    assert stopped
    assert all(shown[name]["4000 x 5000"] == "over the limit" for name in stopped)
    assert [row["points"].partition(" x ")[0] for row in headline.large()] == ["20,000", "100,000", "1,000,000"]


def test_the_short_table_of_solvers_has_those_that_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())
    monkeypatch.setattr(headline, "RESULTS", tmp_path)
    shown = "**torchgw**, `epsilon=1e-3`"
    without = [row for row in stored["rows"] if row["solver"] != "torchgw epsilon=1e-3"]
    copies = [row | {"solver": "torchgw epsilon=1e-3"} for row in without if row["solver"] == "torchgw, from distances"]
    for rows, count in ((without, 0), (without + copies, 1)):
        (tmp_path / "peers.json").write_text(json.dumps(stored | {"rows": rows}))
        assert [line["solver"] for line in headline.beside_peers()].count(shown) == count


def test_links_between_the_documents_lead_somewhere() -> None:
    """What leads outside of them is not followed; the anchors within are judged where the pages are made."""
    found = 0
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("[!_]*.md"), *(ROOT / "docs" / "api").glob("*.md")):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            found += 1
            assert (path.parent / target).exists(), f"{path.name}: {target}"
    assert found > 50


def test_every_page_with_code_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*.py"))
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "```python" in path.read_text()]
    assert len(pages) > 15
    assert not [page.name for page in pages if f'"{page.name}"' not in tests and f'"{page.stem}"' not in tests]


def test_every_result_says_where_it_was_measured() -> None:
    files = list((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    for file in files:
        environment = json.loads(file.read_text())["environment"]
        assert {"cpu", "cores", "versions", "commit", "date"} <= set(environment), file
        assert len(environment["commit"]) == 40


def test_the_requirements_that_were_measured_are_met() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())["rows"]
    assert len(rows) == 26
    unmet = {row["case"]: row["measured"] for row in rows if not row["met"]}
    assert not unmet


def test_the_optimum_by_default_on_every_kind_of_space_is_as_required() -> None:
    """But for the time of one line: matrices of 5000 points of a cloud may take longer, at the right value."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "kinds.json").read_text())["rows"]
    assert len(rows) == 33
    unmet = {row["case"]: row["measured"] for row in rows if not row["met"]}
    assert set(unmet) <= {"distance matrices of clouds in R^3, 5000 x 5000, noise 1 %"}
    assert all(float(measured.partition("x")[0]) <= 1.01 for measured in unmet.values())
    page = (ROOT / "docs" / "performance.md").read_text()
    section = page.partition("## On every kind of space\n")[2].partition("\n## ")[0]
    assert any(found[2] == "kinds" for found in tables.MARKED.finditer(section))


def test_the_sizes_that_were_measured_are_met() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "scale.json").read_text())["rows"]
    assert len(rows) == 16
    unmet = {row["case"]: row["measured"] for row in rows if not row["met"]}
    assert not unmet


def test_the_models_that_were_measured_are_no_worse_than_their_peers() -> None:
    """On few points nowhere higher than POT; on more in nearly all, by little elsewhere, though mostly slower."""
    groups = json.loads((ROOT / "benchmarks" / "results" / "models.json").read_text())["groups"]
    assert {name: len(rows) for name, rows in groups.items()} == {"linear": 8, "sharp": 6, "larger": 12, "missing": 6}
    assert all(row["met"] for row in groups["linear"] + groups["sharp"])
    pairs = [pair for row in groups["larger"] for pair in row["detail"]["pairs"]]
    above = [pair["ours"] / pair["peer"] for pair in pairs if pair["ours"] > (1 + 1e-6) * pair["peer"]]
    assert len(pairs) == 36
    assert len(above) <= 2
    assert max(above, default=1.0) <= 1.02
    unmet = [row["case"] for row in groups["missing"] if not row["met"]]
    assert unmet == ["spiral without its middle 30 %, partial, 10 seeds"]  # lower plans tear at one of ten


def test_all_pairs_that_were_measured_are_faster_and_lower_than_a_loop() -> None:
    """But for two problems of twelve, on which the loop is quick: there they are more than three times as fast."""
    stored = json.loads((ROOT / "benchmarks" / "results" / "pairwise.json").read_text())
    rows, together = stored["rows"], stored["summary"][0]
    assert len(rows) == 12
    assert all(row["pairs"] == 45 and row["over POT's"] <= 1 for row in rows)
    assert sum(row["times faster"] < 5 for row in rows) == 2
    assert together["least"] > 3
    assert together["times faster"] > 5


def test_convincing_matchings_are_right_and_right_ones_are_mostly_convincing() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "verdict.json").read_text())
    assert len(stored["problems"]) == 800
    *kinds, total = stored["rows"]
    assert len(kinds) == 10
    assert total["wrong, called convincing"] <= 0.01 * total["wrong"]
    assert total["right, called convincing"] >= 0.8 * total["right"]


def test_no_file_names_a_path_of_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".json", ".yaml") and path.name != Path(__file__).name:
            text = path.read_text()
            assert "/work/" not in text, name
            assert "/root/" not in text, name


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("links", ROOT / "docs" / "links.py")
    assert spec is not None
    assert spec.loader is not None
    links = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(links)
    (tmp_path / "one.html").write_text(
        '<h1 id="top">1</h1><a href="two.html#here">a</a><a href="#top">b</a><a href="https://x.org/no.html">c</a>'
        '<img src="no.png"><a href="two.html#nowhere">d</a><a href="sub/">e</a><a href="three.html">f</a>'
    )
    (tmp_path / "two.html").write_text('<a name="here"></a><a href="one.html?x=1#top">back</a>')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text('<a href="../one.html">up</a>')
    assert links.broken(tmp_path) == ["one.html: no.png", "one.html: two.html#nowhere", "one.html: three.html"]
