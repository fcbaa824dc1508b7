"""The interactive page: what it holds, what it refuses."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from tests.problems import ROLL, SPIRAL, SPIRAL_ANGLE, files_of_at_most, generator, quietly
from torchgw import ConvergenceWarning, GWOptions, GWResult, IssuedWarning, LowRankOptions, Partial, cli, gw_align, plot
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.report import contents, sentences
from torchgw.report.colourings import colour_by_labels
from torchgw.report.tables import options as options_table
from torchgw.results.warnings import WARNINGS
from torchgw.views.matches import matches_of

HEX = re.compile(r"'sha256-([^']+)'")


@pytest.fixture(scope="module")
def page(result: GWResult, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "out.html"
    result.report(path)
    return path.read_text("utf-8")


def data(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.split('type="application/json">', 1)[1].split("</script>", 1)[0])
    return found


def array(text: str, kind: str = "<f4") -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def test_the_page_holds_coordinates_matches_and_shares_of_the_plan(page: str, result: GWResult) -> None:
    plan = result.plan
    for at, (side, points, rows) in enumerate(zip(data(page)["sides"], (SPIRAL, ROLL), (plan, plan.T), strict=True)):
        assert side["size"] == side["drawn"] == len(points)
        np.testing.assert_array_equal(array(side["index"], "<i4"), np.arange(len(points)))
        np.testing.assert_array_equal(array(side["coordinates"]).reshape(points.shape), points.astype("f4"))
        share = rows / rows.sum(1, keepdims=True)
        np.testing.assert_allclose(array(side["mass"]), rows.sum(1), rtol=1e-6)
        best = array(side["matches"], "<i4").reshape(len(points), 5)
        np.testing.assert_allclose(array(side["shares"]).reshape(best.shape), -np.sort(-share)[:, :5], rtol=1e-5)
        np.testing.assert_array_equal(best[:, 0], result.argmax(1 - at))


def test_the_page_says_what_the_result_says(page: str, result: GWResult) -> None:
    shown = data(page)
    assert shown["title"] == "90 source points matched with 110 target points"
    assert f"value of {result.value:.4g}." in shown["summary"][0]
    assert shown["history"]["cost"] == result.history.cost
    assert [row[1] for row in shown["matchings"]["rows"]] == [f"{basin.energy:.5g}" for basin in result.basins]
    assert f"below {result.certificate.lower_bound:.4g}" in shown["certain"][0]
    assert ["epsilon", "0.001"] in shown["problem"]["rows"]
    assert ["torch", torch.__version__] in shown["origin"]["rows"]
    assert shown["warnings"] == []


def test_the_page_opens_with_the_verdict_of_the_result_and_shows_its_warnings(result: GWResult) -> None:
    shown = contents.contents(result)
    assert shown["verdict"]["level"] == result.verdict.name.lower() == "doubtful"
    assert shown["verdict"]["text"] == " ".join((str(result.verdict), *result.reasons))
    trusted = replace(result, value=result.value / 10, distance_correlation=1.0)
    assert contents.contents(trusted)["verdict"]["level"] == "convincing"
    assert contents.contents(trusted)["verdict"]["text"].startswith("This matching can be trusted as far as the dist")
    assert f"has {result.chance:.4g}." in shown["summary"][1]
    warned = IssuedWarning("GraphWarning", "X was stitched")
    shown = contents.contents(replace(trusted, warnings=(warned,)))
    assert shown["verdict"]["level"] == "doubtful"
    assert shown["warnings"] == ["GraphWarning: X was stitched"]
    assert "is not known" in sentences.chance(replace(result, chance=math.nan))


def test_points_are_coloured_by_two_coordinates_so_that_each_turn_shows(result: GWResult) -> None:
    for points in (SPIRAL, np.column_stack((0.01 * SPIRAL[:, 0], SPIRAL[:, ::-1]))):
        side = contents.contents(result, X=points)["colourings"][0]
        source, target = (array(part, "<f8").reshape(-1, 2) for part in side["sides"])
        plane = source - source.mean(0)
        assert side["plane"]
        assert source.min() == 0
        assert source.max() == 1
        fitted = np.linalg.lstsq(SPIRAL - SPIRAL.mean(0), plane, rcond=None)[0]  # a linear picture of the spiral
        np.testing.assert_allclose((SPIRAL - SPIRAL.mean(0)) @ fitted, plane, atol=0.02)
        assert np.linalg.svd(plane, compute_uv=False)[1] > 1  # of which nothing is lost
        np.testing.assert_allclose(target, result.push(source), rtol=1e-9)


def test_options_that_were_changed_are_marked(result: GWResult) -> None:
    found = options_table(result)
    changed = {found.rows[at][0]: tuple(found.rows[at][1:]) for at in found.marked}
    assert changed == {"spaces.k": ("5", "None"), "spaces.n_landmarks": ("30", "100")}


def test_nothing_is_fetched_and_only_the_two_scripts_may_run(page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert HEX.findall(policy[1]) == hashes
    assert len(hashes) == 2
    assert policy[1].startswith("default-src 'none'; ")
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?!data:)", page)
    assert len(page.encode()) < 8e6


def test_labels_of_any_text_stay_text(result: GWResult, tmp_path: Path) -> None:
    names = np.array(["</script><script>alert(1)</script>", "ünï & <b>", "\u2028"])
    labels = names[np.arange(90) % 3]
    result.report(tmp_path / "out.html", labels=labels)
    page = (tmp_path / "out.html").read_text("utf-8")
    assert page.count("<script") == 3
    (shown, *_) = data(page)["colourings"]
    assert shown["names"] == sorted(names)
    source, target = (array(side, "<i4") for side in shown["sides"])
    np.testing.assert_array_equal(np.array(shown["names"])[source], labels)
    sent = np.stack([result.plan[labels == name].sum(0) for name in shown["names"]])
    np.testing.assert_array_equal(target, sent.argmax(0))


def test_values_are_carried_as_push_does(result: GWResult) -> None:
    for labels in (SPIRAL_ANGLE, torch.from_numpy(SPIRAL_ANGLE), np.arange(90)):
        found = colour_by_labels(labels, result.coupling)  # type: ignore[arg-type]
        assert found.names is None
        np.testing.assert_allclose(found.sides[1], result.push(np.asarray(labels, dtype=float)))


def test_few_integers_are_labels_and_of_many_labels_the_most_frequent_have_colours(result: GWResult) -> None:
    assert colour_by_labels(np.arange(90) % 4, result.coupling).names == ["0", "1", "2", "3"]  # type: ignore[arg-type]
    every = np.array([f"{min(i, 60):03}" for i in range(90)])  # the last is the most frequent
    found = colour_by_labels(every, result.coupling)  # type: ignore[arg-type]
    assert found.names == [f"{i:03}" for i in (*range(39), 60)]
    assert "40 most frequent of 61" in found.explanation
    group = np.where(np.arange(90) < 39, np.arange(90), np.where(np.arange(90) < 60, 40, 39))
    mass = np.stack([result.plan[group == i].sum(0) for i in range(41)])
    expected = np.where(mass.argmax(0) == 40, -1, mass.argmax(0))
    assert (expected == -1).any()
    np.testing.assert_array_equal(found.sides[1], expected)
    np.testing.assert_array_equal(found.sides[0], np.where(group == 40, -1, group))


@pytest.mark.parametrize("labels", [np.zeros(91), np.zeros((90, 2))])
def test_labels_that_do_not_fit_are_refused(labels: np.ndarray, result: GWResult, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="labels must"):
        result.report(tmp_path / "out.html", labels=labels)
    assert not list(tmp_path.iterdir())


def couplings() -> list[BlockCoupling]:
    draw = generator()
    plan = torch.rand(23, 31, generator=draw, dtype=torch.float64)
    A, B = (torch.rand(n, 3, generator=draw, dtype=torch.float64) for n in (23, 31))
    f, g, x, y = (torch.rand(n, generator=draw, dtype=torch.float64) for n in (23, 31, 23, 31))
    return [
        DenseCoupling(plan),
        PotentialCoupling(A, B, f, g),
        PotentialCoupling(A, B, f, g, x, y),
        LowRankCoupling(A, B, torch.rand(3, generator=draw, dtype=torch.float64)),
    ]


@pytest.mark.parametrize("coupling", couplings(), ids=lambda coupling: type(coupling).__name__)
@pytest.mark.parametrize("axis", [0, 1])
def test_best_matches_of_rows_and_columns_are_those_of_the_dense_plan(
    coupling: BlockCoupling, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchgw.couplings.blocks.BLOCK_ELEMENTS", {"cpu": 70})
    plan = coupling.to_dense() if axis == 1 else coupling.to_dense().T
    chosen = torch.tensor([4, 0, 22, 7, 9])
    found = matches_of(coupling, chosen, axis, 4)
    value, index = plan[chosen].topk(4, dim=1)
    np.testing.assert_array_equal(found.index, index)
    np.testing.assert_allclose(found.share, value / plan[chosen].sum(1, keepdim=True), rtol=1e-12)
    np.testing.assert_allclose(found.mass, plan[chosen].sum(1), rtol=1e-12)


def test_points_without_mass_have_no_match() -> None:
    plan = torch.eye(4, dtype=torch.float64)
    plan[1, 1] = 0
    found = matches_of(DenseCoupling(plan), torch.arange(4), 1, 2)
    np.testing.assert_array_equal(found.index, [[0, -1], [-1, -1], [2, -1], [3, -1]])


@pytest.fixture(scope="module")
def streamed() -> GWResult:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(260, 3))
    options = GWOptions(strategy="streaming", coarse=None)
    return gw_align(X, X[:240] + 0.01, distances="landmark", epsilon=5e-3, options=options, random_state=0)


@pytest.mark.parametrize("whole_rows", [0, 2**28], ids=["tiles", "rows"])
def test_of_many_points_a_subset_is_drawn_and_its_matches_are_kept(
    streamed: GWResult, whole_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "N_DRAWN", 50)
    monkeypatch.setattr("torchgw.views.matches.WHOLE_ROWS", whole_rows)
    shown = contents.contents(streamed)
    assert contents.contents(streamed)["sides"] == shown["sides"]
    plan = streamed.plan
    index = [array(side["index"], "<i4") for side in shown["sides"]]
    for at, rows in enumerate((plan, plan.T)):
        side = shown["sides"][at]
        assert side["drawn"] == 50 < side["size"]
        assert len(np.unique(index[at])) == len(index[at])
        matches = index[1 - at][array(side["matches"], "<i4")].reshape(50, 5)
        share = array(side["shares"]).reshape(50, 5)
        np.testing.assert_allclose(
            share, -np.sort(-(rows / rows.sum(1, keepdims=True))[index[at][:50]])[:, :5], rtol=1e-4
        )
        np.testing.assert_array_equal(matches[:, 0], rows.argmax(1)[index[at][:50]])
    assert len(shown["resolutions"]["rows"]) == len(streamed.ladder)
    assert shown["matchings"]["rows"] == []
    assert "No search" in shown["summary"][2]


def test_a_partial_plan_and_one_of_low_rank_and_a_sharp_one_have_pages(tmp_path: Path) -> None:
    D, E = cdist(SPIRAL[:30], SPIRAL[:30]), cdist(ROLL[:25], ROLL[:25])
    low = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4, max_iter=30))
    cases: dict[str, dict[str, Any]] = {
        "partial": {"marginals": Partial(0.5), "options": GWOptions(coarse=None)},
        "low-rank": {"distances": "landmark", "options": low, "epsilon": 0.0},
        "sharp": {"epsilon": 0.0, "options": GWOptions(coarse=None)},
    }
    for name, more in cases.items():
        points = "distances" in more
        spaces = (torch.from_numpy(SPIRAL[:30]), torch.from_numpy(ROLL[:25])) if points else (D, E)
        with pytest.MonkeyPatch.context() as quiet:
            quiet.setitem(WARNINGS, ConvergenceWarning, lambda *_: "")
            solved = gw_align(*spaces, **{"epsilon": 1e-3, "random_state": 0} | more)
        solved.report(tmp_path / f"{name}.html")
        shown = data((tmp_path / f"{name}.html").read_text("utf-8"))
        assert [side["size"] for side in shown["sides"]] == [30, 25]
        assert bool(shown["warnings"]) != solved.converged
        assert ("resemble" in shown["sides"][0]["caption"]) != points


def test_a_result_from_a_file_is_drawn_at_points_that_are_given(result: GWResult, tmp_path: Path) -> None:
    result.save(tmp_path / "kept.npz")
    kept = GWResult.load(tmp_path / "kept.npz")
    with pytest.raises(ValueError, match="pass X="):
        kept.report(tmp_path / "out.html")
    wide = np.random.default_rng(0).normal(size=(110, 6))
    kept.report(tmp_path / "out.html", SPIRAL, wide)
    assert data((tmp_path / "out.html").read_text("utf-8"))["sides"][1]["caption"].startswith(
        "two principal components"
    )


def test_an_ambiguous_result_says_so(tmp_path: Path) -> None:
    turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    ring = np.column_stack((np.cos(turn), np.sin(turn)))
    with pytest.warns(UserWarning, match="ambiguous"):
        solved = gw_align(ring, ring, distances="euclidean", random_state=0)
    shown = contents.contents(solved)
    assert shown["warnings"][-1].startswith("AmbiguityWarning: the matching is ambiguous")
    assert shown["verdict"]["level"] == "doubtful"
    assert "ambiguous" in shown["summary"][2]
    assert shown["matchings"]["marked"][0] == 1


def test_places_that_cannot_be_written_are_refused(result: GWResult, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder"):
        result.report(tmp_path)
    with pytest.raises(ValueError, match="folder that is not there"):
        result.report(tmp_path / "none" / "out.html")


def test_a_page_is_written_whole_or_not_at_all(
    result: GWResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.html").write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="full"):
            result.report(tmp_path / "out.html")
    assert (tmp_path / "out.html").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def full(*_: object) -> None:
    raise OSError("the disk is full")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    np.save(tmp_path / "x.npy", SPIRAL[::3])
    np.save(tmp_path / "y.npy", ROLL[::3])
    return ["align", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "-o", str(tmp_path / "out.npz")]


def test_the_command_writes_a_page_and_so_does_its_resumption(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, out = str(tmp_path / "kept"), tmp_path / "out.html"
    assert cli.main([*command, "--checkpoint", kept, "--report", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(out)
    first = data(out.read_text("utf-8"))
    assert [side["size"] for side in first["sides"]] == [30, 37]
    out.unlink()
    assert cli.main(["resume", kept, "-o", str(tmp_path / "more.npz"), "--report", str(out)]) == 0
    assert data(out.read_text("utf-8"))["sides"] == first["sides"]


def test_cells_have_a_page_too(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    for name, points in (("x", SPIRAL[::3]), ("y", ROLL[::3])):
        anndata.AnnData(points.astype("f4")).write_h5ad(tmp_path / f"{name}.h5ad")
    files = [str(tmp_path / f"{name}.h5ad") for name in ("x", "y")]
    out = tmp_path / "out.html"
    assert cli.main(["align", *files, "-o", str(tmp_path / "out.h5ad"), "--use-rep", "X", "--report", str(out)]) == 0
    assert data(out.read_text("utf-8"))["sides"][1]["size"] == 37


@pytest.mark.parametrize("report", ["out.txt", "none/out.html"])
def test_the_command_refuses_a_page_it_could_not_write_before_it_solves(
    report: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--report", str(tmp_path / report)]) == 2
    assert report in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_without_plotly_the_refusal_says_what_to_install(
    command: list[str],
    result: GWResult,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match="pip install plotly"):
        result.report(tmp_path / "out.html")
    assert cli.main([*command, "--report", str(tmp_path / "out.html")]) == 2
    assert "pip install plotly" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.gpu
def test_a_result_on_a_gpu_is_drawn_and_reported(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    pytest.importorskip("plotly")
    points = [torch.from_numpy(side).cuda() for side in (SPIRAL, ROLL)]
    found = gw_align(*points, random_state=0)
    assert found.coupling.rows(torch.tensor([0])).is_cuda
    for draw in (plot.matching, plot.plan, plot.confidence, plot.residuals, plot.convergence, plot.basins):
        assert draw(found).get_figure() is not None
    plot.transfer(found, SPIRAL[:, 0])
    plt.close("all")
    found.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1_000_000


def test_labels_that_are_missing_are_grey(result: GWResult) -> None:
    numbers = SPIRAL_ANGLE.copy()
    numbers[:40] = np.nan
    found = colour_by_labels(numbers, result.coupling)
    assert np.isnan(found.sides[0]).sum() == 40
    known = np.isfinite(numbers)
    plan = result.plan[known]
    np.testing.assert_allclose(found.sides[1], numbers[known] @ plan / plan.sum(0), rtol=1e-9)
    nothing = contents.contents(result, labels=np.full(len(SPIRAL), np.nan))["colourings"][0]
    assert nothing["range"] == [0.0, 1.0]
    named = colour_by_labels(np.where(known, "outer", None), result.coupling)
    assert named.names == ["outer"]
    assert (np.asarray(named.sides[0])[:40] == -1).all()


def test_coordinates_far_from_zero_stay_apart(result: GWResult) -> None:
    for scale, offset, said in ((1e-3, 1.7e9, "centre"), (1e39, 0.0, "extent"), (1e-20, 0.0, "extent")):
        side = contents.contents(result, X=SPIRAL * scale + offset)["sides"][0]
        found = np.frombuffer(base64.b64decode(side["coordinates"]), "<f4").reshape(-1, 2)
        assert said in side["caption"]
        assert np.isfinite(found).all()
        assert len(np.unique(found, axis=0)) > 80


def test_identical_clouds_are_known_to_be_matched_best() -> None:
    grid = np.random.default_rng(3).normal(size=(12, 2))
    solved = gw_align(grid, grid, distances="euclidean", epsilon=0, random_state=0)
    assert solved.certificate.gap < 1e-12
    shown = contents.contents(solved)
    assert any("which this one has" in text for text in shown["certain"])
    assert not any("far from this one" in text for text in shown["uncertain"])


def test_a_linear_problem_and_one_without_a_search_say_so(result: GWResult) -> None:
    linear = gw_align(None, None, cost=np.random.default_rng(0).random((90, 110)), alpha=0, random_state=0)
    shown = contents.contents(linear, SPIRAL, ROLL)
    assert "linear" in shown["summary"][2]
    assert not any("far from this one" in text for text in shown["uncertain"])
    begun = gw_align(SPIRAL, ROLL, init=result, random_state=0)
    assert "there was no search." in contents.contents(begun)["uncertain"][-1]


@pytest.mark.parametrize(("write", "name"), [(GWResult.save, "out.npz"), (GWResult.report, "out.html")])
def test_a_full_disk_is_said_of_the_file_that_was_asked_for(
    write: Any, name: str, result: GWResult, tmp_path: Path
) -> None:
    out = tmp_path / name
    out.write_text("before")
    with files_of_at_most(20), pytest.raises(OSError, match="File too large") as caught:
        write(result, out)
    assert caught.value.filename == str(out)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.fixture(scope="module")
def rings() -> GWResult:
    """Two graphs with named nodes."""
    graph = nx.relabel_nodes(nx.lollipop_graph(5, 4), {i: f"node {i}" for i in range(9)})
    other = nx.Graph([(f"to <{u}>", f"to <{v}>") for u, v in list(graph.edges())[::-1]])
    return quietly(gw_align, graph, other, distances="adjacency", random_state=0)


@pytest.mark.parametrize("drawn", [5, 5000])
def test_the_page_of_graphs_holds_names_and_edges_of_the_points_that_are_drawn(
    drawn: int, rings: GWResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "N_DRAWN", drawn)
    shown = contents.contents(rings)
    graph = nx.lollipop_graph(5, 4)
    for side, names in zip(shown["sides"], (rings.names_x, rings.names_y), strict=True):
        assert names is not None
        index = array(side["index"], "<i4")
        assert side["names"] == [str(names[i]) for i in index]
        found = {tuple(sorted(pair)) for pair in index[array(side["edges"], "<i4").reshape(-1, 2)].tolist()}
        numbers = [int(re.sub(r"\D", "", str(name))) for name in names]
        every = {tuple(sorted(map(numbers.index, pair))) for pair in graph.edges()}
        assert found == {pair for pair in every if set(pair) <= set(index[: side["drawn"]].tolist())}
        assert len(found) > 0


def test_the_page_holds_where_other_basins_send_the_points_that_are_drawn(
    result: GWResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = generator()
    turned = tuple(
        replace(result.basins[0], matching=torch.randperm(110, generator=draw)[:90], shift=torch.rand(90))
        for _ in range(7)
    )
    monkeypatch.setattr(contents, "N_DRAWN", 40)
    shown = contents.contents(replace(result, basins=(result.basins[0], *turned)))
    source, target = (array(side["index"], "<i4") for side in shown["sides"])
    assert [other["number"] for other in shown["others"]] == [2, 3, 4, 5, 6]
    for other, basin in zip(shown["others"], turned, strict=False):
        np.testing.assert_array_equal(target[array(other["matches"], "<i4")], np.asarray(basin.matching)[source[:40]])
        np.testing.assert_array_equal(array(other["shifts"]), np.asarray(basin.shift)[source[:40]])
    assert contents.contents(replace(result, basins=()))["others"] == []


def test_a_mesh_has_the_edges_of_its_faces(result: GWResult) -> None:
    faces = np.array([[0, 1, 2], [2, 1, 3]])
    solid = np.column_stack((SPIRAL, np.zeros(90)))
    side = contents.contents(result, (solid, faces))["sides"][0]
    pairs = array(side["edges"], "<i4").reshape(-1, 2).tolist()
    assert sorted(map(tuple, pairs)) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    assert side["names"] is None
    assert side["caption"] == "its own coordinates"


def test_graphs_and_their_layouts_are_told(rings: GWResult) -> None:
    sides = contents.contents(rings, Y=nx.cycle_graph(9))["sides"]
    assert [side["caption"] for side in sides] == ["a layout of its graph"] * 2
    assert len(array(sides[1]["edges"], "<i4")) == 18
