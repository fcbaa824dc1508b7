"""What the documents say agrees with what was measured, and they speak of the project alone."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import headline, tables

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", tables.DOCUMENTS)
def test_tables_equal_the_stored_results(name: str) -> None:
    text = (ROOT / name).read_text()
    assert tables.MARKED.search(text)
    assert tables.filled(text) == text, "run `python -m benchmarks tables`"


def test_the_readme_states_no_measured_number_outside_its_tables() -> None:
    measured = re.compile(r"\b\d[\d.,e-]*\s?(?:s|ms|%|x|times|GiB|GB)(?![\w]| \d)")
    assert measured.search("a third of 8.1 s, 12 % less, 3x faster")
    prose = re.sub(r"```.*?```", "", tables.MARKED.sub("", (ROOT / "README.md").read_text()), flags=re.DOTALL)
    assert len(prose) > 1000
    assert not measured.findall(prose)


def test_the_short_tables_show_stored_numbers() -> None:
    peers = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())["rows"]
    shown = {row["solver"]: row for row in headline.beside_peers()}
    ours = next(row for row in peers if row["solver"] == headline.FROM_POINTS and row["N"] == 1000)
    assert float(shown["**torchgw**"]["1000 x 1200"].split()[0]) == pytest.approx(ours["seconds"], rel=0.05)
    assert float(shown["**torchgw**"]["rho"]) == pytest.approx(ours["rho"], abs=1e-4)
    assert shown["POT, conditional gradient"]["4000 x 5000"] == "over the limit"
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
