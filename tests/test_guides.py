"""The Python blocks of the guides run, and what the guides say of them holds."""

from __future__ import annotations

import ast
import builtins
import re
import runpy
import shlex
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.problems import ROLL, SPIRAL
from tests.test_examples import BLOCK, DOCS, run_blocks
from torchgw import cli

FIGURES = sorted(path.stem for path in (DOCS / "figures").glob("*.py"))
READ = r"(?<![\w.])(?:-?\d+\.?\d*(?:e[+-]?\d+)?|True|False)(?![\w])"  # a number or a truth value of its own
LEADING = re.compile(rf"{READ}(?:,? {READ})*")
PRINTED: dict[str, dict[int, str]] = {}  # of pages that have run: what each line printed


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Blocks write files; pictures need no screen and are not kept."""
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    yield
    plt.close("all")


def run_page(page: str) -> dict[str, Any]:
    """What a page's blocks leave behind; what they print is kept in `PRINTED`, and shown."""
    said: defaultdict[int, str] = defaultdict(str)
    shown = builtins.print

    def kept(*words: Any, **how: Any) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_filename == str(DOCS / f"{page}.md"):
            said[caller.f_lineno] += " ".join(map(str, words)) + "\n"
        shown(*words, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "print", kept)
        left = run_blocks(DOCS / f"{page}.md")
    PRINTED[page] = said
    return left


def claims(page: str) -> list[tuple[range, str]]:
    """Lines of each ``print(...)`` of a page, and the numbers that the comment behind it begins with."""
    text = (DOCS / f"{page}.md").read_text()
    lines, found = text.splitlines(), []
    for block in BLOCK.finditer(text):
        above = text[: block.start(1)].count("\n")
        for node in ast.walk(ast.parse("\n" * above + block[1])):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                behind = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
                leading = LEADING.match(behind.removeprefix("  # "))
                if behind.startswith("  # ") and leading:
                    found.append((range(node.lineno, node.end_lineno + 1), leading[0]))
    return found


def agrees(written: str, printed: str) -> bool:
    """Within 15 %, or what rounding to the digits written explains; 0 may be 2e-3. Truth values are the same."""
    if {written, printed} & {"True", "False"}:
        return written == printed
    claimed, found = float(written), float(printed)
    mantissa, _, power = written.partition("e")
    unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    return abs(claimed - found) <= max(0.15 * abs(claimed), min(unit / 2, 2e-3))


def agreement(one: Any, other: Any) -> float:
    """Correlation of two variables that a matching carries onto each other."""
    return float(np.corrcoef(one, other)[0, 1])


def test_the_first_five_minutes_end_with_a_matching_and_its_files() -> None:
    left = run_page("start")
    assert left["result"].converged
    assert not left["result"].ambiguous
    assert agreement(left["angle_x"], left["angle_y"][left["match"]]) > 0.999
    assert left["labels_y"].shape == (250,)
    assert (left["again"].argmax() == left["match"]).all()
    assert (left["best"][:, 0] == left["match"]).all()
    assert (left["masses"] > 0).all()
    assert (left["masses"].sum(1) <= 1 / 200 + 1e-9).all()
    assert left["candidates"].shape == (200, 10)
    assert (left["candidates"][0] == [f"mot {i}" for i in range(200)]).all()
    assert all(Path(name).stat().st_size > 1000 for name in ("matching.png", "result.npz", "source.csv", "target.csv"))


def test_the_concepts_are_seen_in_numbers() -> None:
    left = run_page("concepts")
    best, reversal = left["result"].basins
    assert reversal.energy > 5 * best.energy
    assert left["sharp"].value < left["result"].value / 2 < left["result"].chance / 20
    assert 15 < left["spread"].mean() < 40
    fused = left["fused"]
    assert fused.value == pytest.approx(0.7 * fused.value_quad + 0.3 * fused.value_linear)
    assert left["taught"].violation < 1e-5


def test_distances_are_chosen_by_what_they_change() -> None:
    left = run_page("distances")
    assert left["straight"].value > 3 * left["along"].value
    assert left["same"].value == pytest.approx(0, abs=1e-12)
    assert left["report"].k == 8
    assert len(left["report"].short_cuts) > 0
    assert np.median(left["apart"]) < 0.05
    assert left["found"].scales[0] == left["found"].scales[1]
    assert abs(left["angle_x"][left["inner"]] - left["angle_y"][left["found"].argmax()]).max() < 0.5


@pytest.mark.slow
def test_the_path_of_epsilon_finds_the_transition_of_a_cloud() -> None:
    left = run_page("epsilon")
    assert (left["sharp"].plan > 1e-12).sum() <= 150 + 180 - 1
    assert left["sharp"].certificate.stationarity < 1e-9
    assert left["spread"] < 2  # of the last, at epsilon 0
    assert left["path"].perplexities == pytest.approx((30, 10), rel=0.02)


@pytest.mark.slow
def test_relaxed_marginals_leave_the_outliers_out() -> None:
    left = run_page("marginals")
    truth, Y = left["Y"][:80], left["Y"]
    off = {name: np.linalg.norm(Y[left[name].argmax()] - truth, axis=1).mean() for name in ("balanced", "shrunk")}
    for name in ("semi", "partial", "both"):
        assert np.linalg.norm(Y[left[name].argmax()] - truth, axis=1).mean() < min(off.values()) / 10
    assert left["left_out"][80:].mean() > 0.9
    assert not left["left_out"][:80].any()


def test_the_list_of_questions_is_passed_by_a_good_matching_alone() -> None:
    left = run_page("certificate")
    assert left["result"].value < 0.03 * left["result"].chance
    assert left["unrelated"].value > 0.3 * left["unrelated"].chance
    assert left["sharp"].certificate.gap < left["result"].certificate.gap / 2
    assert left["other"].value == pytest.approx(left["result"].value, rel=0.01)


def test_every_remedy_breaks_the_symmetry_of_the_bow() -> None:
    left = run_page("symmetries")
    s, t, told = left["s"], left["t"], left["told"]
    assert [warning.category.__name__ for warning in told] == ["AmbiguityWarning"]
    assert left["result"].ambiguous
    assert agreement(s, t[left["result"].argmax()]) < -0.99 < 0.99 < agreement(s, t[left["other"]])
    for name in ("taught", "picked", "labelled", "fused", "weighed"):
        fixed = left[name]
        assert not fixed.ambiguous, name
        assert agreement(s, t[fixed.argmax()]) > 0.99, name
        assert fixed.value_quad < 1.1 * left["result"].value, name
    assert left["sure"].stability[50] > 0.9 > 0.1 > left["sure"].stability[0]
    assert not left["sharp"].ambiguous
    assert agreement(s, t[left["sharp"].argmax()]) < -0.99


@pytest.mark.slow
def test_a_streaming_plan_offers_all_but_the_table() -> None:
    left = run_page("large")
    assert left["result"].strategy == "streaming"
    assert left["result"].evaluated < 0.5
    assert left["result"].marginal_error < 1e-6
    assert agreement(left["carried"], left["angle_y"]) > 0.999
    assert left["masses"].shape == (5200, 3)
    assert left["place"].shape == (100,)
    assert left["component"].max() < 8
    assert Path("large.npz").exists()


def test_the_page_about_gpus_runs_without_one() -> None:
    left = run_page("gpu")
    assert left["result"].shape == (120, 140)
    assert left["result"].argmax().device.type == left["device"]


def test_the_page_about_clusters_runs_without_one() -> None:
    left = run_page("cluster")
    assert left["result"].strategy == "dense"  # of one process
    assert (Path("kept-in-parts") / "index.json").exists()


def test_the_page_on_curvature_tells_circles_from_ellipses() -> None:
    left = run_page("curvature")
    assert left["found"].flat == ()
    assert left["found"].smallest[0] == pytest.approx(0.248, abs=0.01)
    assert left["mode"].carried(left["Y"]).shape == (80, 2)


@pytest.mark.slow
def test_every_plot_of_the_page_is_drawn() -> None:
    left = run_page("plots")
    assert left["result"].converged
    assert all(Path(name).stat().st_size > 5000 for name in ("matching.pdf", "both.pdf", "report.html"))


@pytest.mark.parametrize("page", ["start", "command", "plots", "gpu", "symmetries"])
def test_the_commands_of_the_guides_run(page: str) -> None:
    for name, points in (("source", SPIRAL), ("target", ROLL)):
        np.save(f"{name}.npy", points)
        np.savetxt(f"{name}.csv", points, delimiter=",")
    np.save("more.npy", SPIRAL[::2])
    Path("pairs.csv").write_text("5,6\n")
    for name in ("mouse", "human"):
        Path(f"{name}.csv").write_text("".join(f"gene {i},{x},{y}\n" for i, (x, y) in enumerate(SPIRAL)))
        Path(f"{name}_edges.csv").write_text("source,target\na,b\nb,c\nc,d\nc,e\ne,f\nf,g\n")
    np.savetxt("feature_x.csv", SPIRAL[:, 0])
    np.savetxt("feature_y.csv", ROLL[:, 0])
    true = np.c_[np.arange(len(SPIRAL)), np.arange(len(SPIRAL))]
    np.savetxt("truth.csv", true, fmt="%d", delimiter=",", header="source,target", comments="")
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line]
    assert lines
    for line in lines:
        assert line.startswith("torchgw "), line
        assert cli.main(shlex.split(line, comments=True)[1:]) == 0, line


def test_the_files_of_the_command_page_are_made() -> None:
    run_page("command")
    assert np.load("source.npy").shape == (100, 2)
    assert np.load("target.npy").shape == (120, 3)


def test_symptoms_come_from_the_causes_that_the_page_names() -> None:
    left = run_page("troubleshooting")
    assert "k = 30 joins parts" in str(left["told"][0].message)
    assert left["own"].value == pytest.approx(left["by_hand"], rel=1e-9)
    assert left["same"].value == left["result"].value


def test_a_remedy_is_named_for_every_warning() -> None:
    import torchgw

    page = (DOCS / "troubleshooting.md").read_text()
    kinds = {name: getattr(torchgw, name) for name in torchgw.__all__ if name.endswith("Warning")}
    classes = [name for name, kind in kinds.items() if issubclass(kind, Warning) and name != "TorchGWWarning"]
    assert classes
    assert [name for name in classes if f"\n| `{name}` |" not in page] == []
    named = {status.name.lower() for status in torchgw.Status if not status.converged}
    assert {name for name in named if f"\n| `{name}` |" not in page} == set()


CLAIMING = [
    page
    for page in (
        "start",
        "concepts",
        "distances",
        "epsilon",
        "marginals",
        "certificate",
        "metrics",
        "symmetries",
        "large",
    )
    if claims(page)
]


LONGEST = ("marginals", "epsilon", "large")  # as long as all others; the build of the pages runs them too
PAGES = [pytest.param(page, marks=pytest.mark.slow if page in LONGEST else ()) for page in CLAIMING]


@pytest.mark.parametrize("page", PAGES)
def test_numbers_in_comments_are_those_that_are_printed(page: str) -> None:
    if page not in PRINTED:
        run_page(page)
    for lines, written in claims(page):
        printed = re.findall(READ, "".join(PRINTED[page].get(line, "") for line in lines))
        numbers = re.findall(READ, written)
        assert len(printed) >= len(numbers), (page, lines[0], written, printed)
        pairs = list(zip(numbers, printed, strict=False))
        assert all(agrees(*pair) for pair in pairs), f"{page}.md:{lines[0]}: written, printed: {pairs}"


def test_a_number_that_is_not_printed_is_noticed() -> None:
    assert agrees("0.015", "0.01495")
    assert agrees("1e-3", "0.00124")
    assert agrees("0", "1e-16")
    assert not agrees("0.016", "0.0131")
    assert not agrees("0.5", "0.419")
    assert not agrees("0", "0.01")
    assert not agrees("True", "False")


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.syspath_prepend(str(DOCS))
    runpy.run_path(str(DOCS / "figures" / f"{name}.py"))
    shared = name in ("bows", "outliers", "spiral")
    assert bool(plt.get_fignums()) != shared
    for module in [module for module in sys.modules if module.startswith("figures")]:
        del sys.modules[module]
