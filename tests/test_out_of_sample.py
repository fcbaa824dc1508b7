"""Points that a solve has not seen, on either side, for every kind of space and strategy."""

from __future__ import annotations

import csv
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from torchgw import (
    EuclideanDistances,
    GWOptions,
    GWResult,
    LadderOptions,
    LowRankOptions,
    SamplingOptions,
    SemiRelaxed,
    cli,
    gw_align,
)
from torchgw.cli import apply
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.persist.files import open_for_writing
from torchgw.solvers.soft_plan import BYTES
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.shortest_paths import shortest_paths
from torchgw.views import layout

X, ANGLE_X = make_spiral(400)
Y, ANGLE_Y = make_swiss_roll(450, random_state=1)
NEW_X, NEW_Y = np.arange(3, 400, 5), np.arange(2, 450, 5)
OLD_X, OLD_Y = np.setdiff1d(np.arange(400), NEW_X), np.setdiff1d(np.arange(450), NEW_Y)
STREAMING = GWOptions(
    strategy="streaming", sampling=SamplingOptions(n_anchors=200), ladder=LadderOptions(n_cells=64, marginal_tol=5e-2)
)


def solved(distances: str, options: GWOptions) -> GWResult:
    return gw_align(X[OLD_X], Y[OLD_Y], distances=distances, epsilon=2e-3, options=options, random_state=0)


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("options", [GWOptions(), STREAMING], ids=["dense", "streaming"])
@pytest.mark.parametrize("distances", ["landmark", "dijkstra", "precomputed"])
def test_held_out_points_go_where_they_belong(distances: str, options: GWOptions) -> None:
    result = solved(distances, options)
    unseen = result.transform(X[NEW_X])
    assert unseen.shape == (len(NEW_X), len(OLD_Y))
    assert spearmanr(ANGLE_X[NEW_X], ANGLE_Y[OLD_Y][unseen.argmax()])[0] > 0.995
    assert spearmanr(ANGLE_X[NEW_X], unseen.pull(ANGLE_Y[OLD_Y]))[0] > 0.998
    np.testing.assert_allclose(unseen.marginal(1), 1 / len(NEW_X), rtol=1e-6)
    back = result.transform(Y[NEW_Y], side="target")
    assert back.shape == (len(OLD_X), len(NEW_Y))
    np.testing.assert_array_equal(back.argmax(), back.argmax(axis=0))
    np.testing.assert_array_equal(result.transform(X[NEW_X[:1]]).argmax(), unseen.argmax()[:1])
    assert spearmanr(ANGLE_Y[NEW_Y], ANGLE_X[OLD_X][back.argmax(axis=0)])[0] > 0.995
    assert spearmanr(ANGLE_Y[NEW_Y], back.push(ANGLE_X[OLD_X]))[0] > 0.998


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("options", [GWOptions(), STREAMING], ids=["dense", "streaming"])
@pytest.mark.parametrize("distances", ["landmark", "precomputed"])
def test_a_point_that_was_seen_gets_its_own_row(distances: str, options: GWOptions) -> None:
    result = solved(distances, options)
    plan = result.plan
    again = result.transform(X[OLD_X[:40]]).plan
    apart = np.abs(again / again.sum(1, keepdims=True) - plan[:40] / plan[:40].sum(1, keepdims=True)).sum(1)
    assert np.median(apart) < 0.1


@pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning")
def test_new_points_go_the_same_way_whatever_the_masses_sum_to() -> None:
    few, mass = (X[:40:2], Y[:450:15]), (np.full(20, 0.05), np.full(30, 1 / 30))
    one, three = (
        gw_align(*few, p=m * mass[0], q=m * mass[1], distances="euclidean", epsilon=1e-2, random_state=0)
        for m in (1, 3)
    )
    for side, points in (("source", X[1:40:2]), ("target", Y[1:450:15])):
        found, expected = (result.transform(points, side=side).plan for result in (three, one))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("squared", [False, True])
def test_euclidean_points_are_placed_by_their_coordinates(squared: bool) -> None:
    rng = np.random.default_rng(0)
    cloud = rng.gamma(1.5, size=(300, 3)) * [1, 2, 4]
    turned = cloud @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
    if squared:
        D = EuclideanDistances(cloud, squared=True), EuclideanDistances(turned, squared=True)
        result = gw_align(*(space.rows(torch.arange(300)) for space in D), epsilon=1e-4, random_state=0)
        new = ((cloud[:5, None] - cloud[None]) ** 2).sum(2) / D[0].scale
    else:
        result = gw_align(cloud, turned, distances="euclidean", epsilon=1e-4, random_state=0)
        new = cloud[:5]
    np.testing.assert_array_equal(np.asarray(result.transform(new).argmax()), np.asarray(result.argmax())[:5])


def test_spaces_that_were_matrices_take_rows_of_distances() -> None:
    D = shortest_paths([(neighbour_graph(X), np.arange(400))])[0]
    result = gw_align(D[np.ix_(OLD_X, OLD_X)], Y, epsilon=2e-3, random_state=0)
    match = result.transform(D[np.ix_(NEW_X, OLD_X)]).argmax()
    assert spearmanr(ANGLE_X[NEW_X], ANGLE_Y[match])[0] > 0.995
    with pytest.raises(ValueError, match="rows of distances to all 320 points"):
        result.transform(X[NEW_X])


def test_what_cannot_be_mapped_is_refused() -> None:
    result = solved("landmark", GWOptions())
    with pytest.raises(ValueError, match="must have 2 coordinates"):
        result.transform(Y[:3])
    with pytest.raises(ValueError, match="side must be"):
        result.transform(X[:3], side="both")
    ranked = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4))
    narrow = gw_align(X[:60], Y[:70], distances="landmark", epsilon=0, options=ranked, random_state=0)
    with pytest.raises(ValueError, match="LowRankCoupling has none"):
        narrow.transform(X[:3])


@pytest.mark.parametrize("distances", ["precomputed", "landmark", "euclidean"])
def test_a_plan_without_entropy_maps_new_points_where_it_would_have_sent_them(distances: str) -> None:
    result = gw_align(X[OLD_X], Y[OLD_Y], distances=distances, epsilon=0, random_state=0)
    assert result.potentials is None
    again = result.transform(X[OLD_X]).argmax()
    assert spearmanr(ANGLE_Y[OLD_Y][again], ANGLE_Y[OLD_Y][result.argmax()])[0] > 0.999
    found = ANGLE_Y[OLD_Y][result.transform(X[NEW_X]).argmax()]
    back = ANGLE_X[OLD_X][result.transform(Y[NEW_Y], side="target").argmax()]
    for angles, matched in ((ANGLE_X[NEW_X], found), (ANGLE_Y[NEW_Y], back)):
        assert spearmanr(angles, matched)[0] > 0.99


@pytest.mark.parametrize(
    ("distances", "options"),
    [
        ("euclidean", GWOptions()),
        ("precomputed", GWOptions()),
        ("landmark", GWOptions(strategy="dense")),
        ("landmark", STREAMING),
        ("landmark", replace(STREAMING, max_memory=60 * 70 * BYTES - 1)),
    ],
    ids=["euclidean", "paths", "landmark", "streaming", "factors"],
)
@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
def test_known_points_of_sharp_results_get_their_rows_of_the_soft_plan(distances: str, options: GWOptions) -> None:
    sharp = gw_align(X[:60], Y[:70], distances=distances, epsilon=0, options=options, random_state=0)
    soft = sharp.soft()
    assert sharp.epsilon == 0
    for axis, side, points in ((1, "source", X[:60]), (0, "target", Y[:70])):
        expected = soft.plan / soft.plan.sum(axis, keepdims=True)
        for result in (sharp, soft):
            found = result.transform(points, side).plan
            apart = np.abs(found / found.sum(axis, keepdims=True) - expected).sum(axis)
            assert np.median(apart) < (0.05 if distances == "landmark" else 1e-6)


def test_soft_plans_that_are_stored_are_saved_without_points(tmp_path: Path) -> None:
    soft = gw_align(X[:30], Y[:40], distances="euclidean", epsilon=0, random_state=0).soft()
    soft.save(tmp_path / "soft.npz")
    with pytest.raises(ValueError, match="save the sharp result with points=True"):
        soft.save(tmp_path / "soft.npz", points=True)


def test_tensors_come_back_as_tensors() -> None:
    result = gw_align(torch.from_numpy(X[OLD_X]), torch.from_numpy(Y[OLD_Y]), distances="landmark", random_state=0)
    found = result.transform(torch.from_numpy(X[NEW_X])).argmax()
    assert isinstance(found, torch.Tensor)


def test_new_points_are_not_joined_across_short_cuts_that_the_graph_left_out() -> None:
    (X, _), (Y, _) = make_spiral(96), make_swiss_roll(140, random_state=1)
    result = gw_align(X, Y, epsilon=1e-3, random_state=0)
    placed, again = result.pull(Y), result.transform(X + 1e-13).pull(Y)
    assert float(np.linalg.norm(again - placed, axis=1).max()) < 1e-2 * float(np.std(Y))


@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (4, 1)])
def test_a_single_point_takes_new_ones_and_is_kept_and_shown(sizes: tuple[int, int], tmp_path: Path) -> None:
    x, y = (np.random.default_rng(n).normal(size=(n, 5)) for n in sizes)
    result = gw_align(x, y, random_state=0)
    result.save(tmp_path / "one.npz", points=True)
    for found in (result, GWResult.load(tmp_path / "one.npz")):
        for side, points, many in (("source", x, sizes[1]), ("target", y, sizes[0])):
            plan = np.asarray(found.transform(points, side).plan)
            assert plan.shape == ((len(points), many) if side == "source" else (many, len(points)))
            assert np.isfinite(plan).all()
        found.report(tmp_path / "one.html")


def test_the_former_name_warns_and_finds_the_same() -> None:
    result = gw_align(X[:30], Y[:40], random_state=0)
    with pytest.warns(DeprecationWarning, match="unseen is now GWResult.transform"):
        former = result.unseen(Y[40:45], "target")
    torch.testing.assert_close(former.plan, result.transform(Y[40:45], "target").plan, rtol=0, atol=0)


EMPTY = np.arange(70) % 7 > 0  # points without mass, the first one among them
D_X = shortest_paths([(neighbour_graph(X[:70]), np.arange(70))])[0]
STREAMED = GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=16))
SAVED: dict[str, dict[str, Any]] = {
    "dense": {},
    "landmark": {"distances": "landmark"},
    "straight": {"distances": "euclidean"},
    "sharp": {"epsilon": 0},
    "sharp and straight": {"epsilon": 0, "distances": "euclidean"},
    "sharp, streamed": {"epsilon": 0, "distances": "landmark", "options": STREAMED},
    "sharp, relaxed": {"epsilon": 0, "distances": "euclidean", "marginals": SemiRelaxed()},
    "streaming": {"options": STREAMED, "distances": "landmark"},
    "streaming between all paths": {"options": STREAMED, "distances": "precomputed"},
    "matrix": {"X": D_X, "distances": ("precomputed", "dijkstra")},
    "provider": {"X": EuclideanDistances(X[:70]), "distances": ("auto", "landmark")},
    "empty": {"p": EMPTY / EMPTY.sum()},
    "empty, landmark": {"p": EMPTY / EMPTY.sum(), "distances": "landmark", "options": STREAMED},
    "empty, straight": {"p": EMPTY / EMPTY.sum(), "distances": "euclidean"},
}


@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
@pytest.mark.parametrize("name", SAVED)
def test_a_loaded_result_maps_new_points_as_before(name: str, tmp_path: Path) -> None:
    keywords = dict(SAVED[name])
    source = keywords.pop("X", X[:70])
    result = gw_align(source, Y[:80], random_state=0, **{"epsilon": 5e-3, **keywords})
    new = {"source": D_X[:5] + 0.01 if "X" in SAVED[name] else X[70:75], "target": Y[80:85]}
    result.save(tmp_path / "with.npz", points=True)
    loaded = GWResult.load(tmp_path / "with.npz")
    for side, points in new.items():
        found, expected = (each.transform(points, side).plan for each in (loaded, result))
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)
    loaded.save(tmp_path / "again.npz", points=True)
    torch.testing.assert_close(GWResult.load(tmp_path / "again.npz").transform(points, side).plan, found)
    result.save(tmp_path / "without.npz")
    with pytest.raises(ValueError, match=r"written by save\(path, points=True\)"):
        GWResult.load(tmp_path / "without.npz").transform(points, side)


@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
def test_results_that_map_nothing_are_not_saved_with_points(tmp_path: Path) -> None:
    A = (D_X < 0.1).astype(float)
    cases = (
        gw_align(A, A, distances="adjacency", random_state=0),
        gw_align(X[:30], Y[:30], cost=np.ones((30, 30)), alpha=0.5, random_state=0),
    )
    for result, text in zip(cases, ("does not say what is near", "mapped by distances alone"), strict=True):
        with pytest.raises(ValueError, match=text):
            result.save(tmp_path / "out.npz", points=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
def test_a_loaded_result_is_drawn_by_its_points_or_asks_for_them(tmp_path: Path) -> None:
    graphs = [neighbour_graph(points) for points in (X[:300], Y[:310])]
    for spaces, drawn in (((X[:70], Y[:80]), True), (graphs, False)):
        result = gw_align(*spaces, distances="landmark", epsilon=5e-3, options=STREAMED, random_state=0)
        result.save(tmp_path / "r.npz", points=True)
        loaded = GWResult.load(tmp_path / "r.npz")
        if drawn:
            np.testing.assert_array_equal(layout.make_layout(loaded, 0).points, X[:70])
            continue
        with pytest.raises(ValueError, match=r"keeps distances from 100 of 300 points.*pass points \(X=, Y=\)"):
            layout.make_layout(loaded, 0)


DAMAGES: dict[str, tuple[str, Any]] = {
    "short points": ("known_y_points", lambda points: points[:-1]),
    "a point that is none": ("known_y_points", lambda points: points * np.nan),
    "text for points": ("known_y_points", lambda points: points.astype(str)),
    "rows of others": ("known_x_rows", lambda rows: rows[:, :-1]),
    "too few rows": ("known_x_rows", lambda rows: rows[:-1]),
    "rows of whole numbers": ("known_x_rows", lambda rows: rows.astype(np.int64)),
    "a place beyond": ("known_x_index", lambda index: index + 60),
    "places that fall": ("known_x_index", lambda index: index[::-1]),
    "places of 32 bits": ("known_x_index", lambda index: index.astype(np.int32)),
    "no scale": ("known_x_scale", lambda _: np.array(0.0)),
    "many scales": ("known_x_scale", lambda scale: np.full(3, scale)),
    "no neighbours": ("known_x_k", lambda _: np.array(0)),
    "all neighbours": ("known_x_k", lambda _: np.array(2**40)),
    "a landmark beyond": ("known_y_anchors", lambda anchors: anchors + 2**40),
    "too many landmarks": ("known_y_anchors", lambda anchors: np.repeat(anchors, 2)),
    "a missing array": ("known_x_rows", lambda _: None),
    "an unknown array": ("known_x_others", lambda _: np.zeros(3)),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of a dense result with points, and of a streamed one."""
    path, found = tmp_path_factory.mktemp("kept") / "r.npz", {}
    for name, more in (("x", {"p": EMPTY / EMPTY.sum()}), ("y", {"options": STREAMED, "distances": "landmark"})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gw_align(X[:70], Y[:80], epsilon=5e-3, random_state=0, **more).save(path, points=True)
        with np.load(path) as file:
            found[name] = dict(file)
    return found


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_whose_points_do_not_fit_is_refused(
    name: str, tmp_path: Path, kept: dict[str, dict[str, np.ndarray]]
) -> None:
    member, change = DAMAGES[name]
    arrays, path = dict(kept[member[6]]), tmp_path / "r.npz"
    changed = change(arrays.pop(member, None))
    for content in (kept[member[6]], arrays if changed is None else arrays | {member: changed}):
        with open_for_writing(path) as file:
            np.savez(file, **content)
        if content is kept[member[6]]:
            GWResult.load(path)
    with pytest.raises(ValueError, match=rf"is not one \(it.* array '?{member}|is not one \(its {member[:8]}"):
        GWResult.load(path)


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_command_matches_new_points_as_the_result_does(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, points in (("x", X[:70]), ("y", Y[:80]), ("source", X[70:87]), ("target", Y[80:97])):
        np.save(f"{name}.npy", points)
    assert cli.main(["align", "x.npy", "y.npy", "-o", "map.npz", "--epsilon", "0.005", "--points"]) == 0
    monkeypatch.setattr(apply, "ELEMENTS", 5 * 80)  # a few points at a time
    assert cli.main(["apply", "map.npz", f"{side}.npy", "-o", "out.csv", "--side", side, "--json"]) == 0
    assert '"points": 17' in capsys.readouterr().out
    header, *rows = csv.reader(Path("out.csv").read_text().splitlines())
    assert header == [side, "target" if side == "source" else "source", "share"]
    found = GWResult.load("map.npz").transform(np.load(f"{side}.npy"), side)
    plan = found.plan if side == "source" else found.plan.T
    assert [int(row[0]) for row in rows] == list(range(17))
    np.testing.assert_array_equal([int(row[1]) for row in rows], found.argmax())
    np.testing.assert_allclose([float(row[2]) for row in rows], plan.max(1) / plan.sum(1), rtol=1e-5)


def test_the_command_says_why_a_file_maps_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, points in (("x", X[:30]), ("y", Y[:30])):
        np.save(tmp_path / f"{name}.npy", points)
    x, y, out, table = (str(tmp_path / name) for name in ("x.npy", "y.npy", "map.npz", "out.csv"))
    refused = {
        ("align", x, y, "-o", table, "--points"): "--points needs an .npz output of one process",
        ("apply", x, y, "-o", table): "path must name a file written by GWResult.save",
        ("apply", x, y, "-o", out): "output must be a .csv file",
    }
    for arguments, text in refused.items():
        assert cli.main(list(arguments)) == 2
        assert text in capsys.readouterr().err
    features = ["--features", x, x, "--alpha", "0.5"]
    assert cli.main(["align", x, y, "-o", out, "--points", *features]) == 0
    assert "map.npz has no points, so `torchgw apply` cannot read it" in capsys.readouterr().err
    assert cli.main(["apply", out, x, "-o", table]) == 2
    assert "mapped by distances alone" in capsys.readouterr().err
    assert not Path(table).exists()


@pytest.mark.filterwarnings("ignore::torchgw.TorchGWWarning")
def test_a_file_does_not_take_more_memory_than_a_result_may(tmp_path: Path) -> None:
    D, E = (torch.cdist(torch.as_tensor(side), torch.as_tensor(side)).numpy() for side in (X[:70], Y[:80]))
    result = gw_align(D, E, epsilon=5e-3, random_state=0)
    narrow = replace(result, options=GWOptions(max_memory=8 * 80 * 80 - 1))
    with pytest.raises(MemoryError, match="distances of the file would take"):
        narrow.save(tmp_path / "r.npz", points=True)
    assert not (tmp_path / "r.npz").exists()
    replace(result, options=GWOptions(max_memory=8 * 80 * 80)).save(tmp_path / "r.npz", points=True)
