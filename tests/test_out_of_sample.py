"""Points that a solve has not seen, on either side, for every kind of space and strategy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from torchgw import EuclideanDistances, GWOptions, GWResult, LadderOptions, LowRankOptions, SamplingOptions, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.spaces.graph import neighbour_graph
from torchgw.spaces.shortest_paths import shortest_paths

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
    unseen = result.unseen(X[NEW_X])
    assert unseen.shape == (len(NEW_X), len(OLD_Y))
    assert spearmanr(ANGLE_X[NEW_X], ANGLE_Y[OLD_Y][unseen.argmax()])[0] > 0.995
    assert spearmanr(ANGLE_X[NEW_X], unseen.pull(ANGLE_Y[OLD_Y]))[0] > 0.998
    np.testing.assert_allclose(unseen.marginal(1), 1 / len(NEW_X), rtol=1e-6)
    back = result.unseen(Y[NEW_Y], side="target")
    assert back.shape == (len(OLD_X), len(NEW_Y))
    np.testing.assert_array_equal(back.argmax(), back.argmax(axis=0))
    np.testing.assert_array_equal(result.unseen(X[NEW_X[:1]]).argmax(), unseen.argmax()[:1])
    assert spearmanr(ANGLE_Y[NEW_Y], ANGLE_X[OLD_X][back.argmax(axis=0)])[0] > 0.995
    assert spearmanr(ANGLE_Y[NEW_Y], back.push(ANGLE_X[OLD_X]))[0] > 0.998


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize("options", [GWOptions(), STREAMING], ids=["dense", "streaming"])
@pytest.mark.parametrize("distances", ["landmark", "precomputed"])
def test_a_point_that_was_seen_gets_its_own_row(distances: str, options: GWOptions) -> None:
    result = solved(distances, options)
    plan = result.plan.numpy()
    again = result.unseen(X[OLD_X[:40]]).plan.numpy()
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
        found, expected = (result.unseen(points, side=side).plan for result in (three, one))
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
    np.testing.assert_array_equal(np.asarray(result.unseen(new).argmax()), np.asarray(result.argmax())[:5])


def test_spaces_that_were_matrices_take_rows_of_distances() -> None:
    D = shortest_paths([(neighbour_graph(X), np.arange(400))])[0]
    result = gw_align(D[np.ix_(OLD_X, OLD_X)], Y, epsilon=2e-3, random_state=0)
    match = result.unseen(D[np.ix_(NEW_X, OLD_X)]).argmax()
    assert spearmanr(ANGLE_X[NEW_X], ANGLE_Y[match])[0] > 0.995
    with pytest.raises(ValueError, match="rows of distances to all 320 points"):
        result.unseen(X[NEW_X])


def test_what_cannot_be_mapped_is_refused() -> None:
    result = solved("landmark", GWOptions())
    with pytest.raises(ValueError, match="must have 2 coordinates"):
        result.unseen(Y[:3])
    with pytest.raises(ValueError, match="side must be"):
        result.unseen(X[:3], side="both")
    ranked = GWOptions(strategy="low-rank", low_rank=LowRankOptions(rank=4))
    narrow = gw_align(X[:60], Y[:70], distances="landmark", epsilon=0, options=ranked, random_state=0)
    with pytest.raises(ValueError, match="LowRankCoupling has none"):
        narrow.unseen(X[:3])
    streamed = gw_align(
        X[:60], Y[:70], distances="landmark", epsilon=0, options=GWOptions(strategy="streaming"), random_state=0
    )
    with pytest.raises(ValueError, match=r"SparseCoupling has none: .*'dense'.*, or with an epsilon > 0"):
        streamed.unseen(X[:3])


@pytest.mark.parametrize("distances", ["precomputed", "landmark", "euclidean"])
def test_a_plan_without_entropy_maps_new_points_where_it_would_have_sent_them(distances: str) -> None:
    result = gw_align(X[OLD_X], Y[OLD_Y], distances=distances, epsilon=0, random_state=0)
    assert result.potentials is None
    again = result.unseen(X[OLD_X]).argmax()
    assert spearmanr(ANGLE_Y[OLD_Y][again], ANGLE_Y[OLD_Y][result.argmax()])[0] > 0.999
    found = ANGLE_Y[OLD_Y][result.unseen(X[NEW_X]).argmax()]
    back = ANGLE_X[OLD_X][result.unseen(Y[NEW_Y], side="target").argmax()]
    for angles, matched in ((ANGLE_X[NEW_X], found), (ANGLE_Y[NEW_Y], back)):
        assert spearmanr(angles, matched)[0] > 0.99


def test_tensors_come_back_as_tensors() -> None:
    result = gw_align(torch.from_numpy(X[OLD_X]), torch.from_numpy(Y[OLD_Y]), distances="landmark", random_state=0)
    found = result.unseen(torch.from_numpy(X[NEW_X])).argmax()
    assert isinstance(found, torch.Tensor)


def test_new_points_are_not_joined_across_short_cuts_that_the_graph_left_out() -> None:
    (X, _), (Y, _) = make_spiral(96), make_swiss_roll(140, random_state=1)
    result = gw_align(X, Y, epsilon=1e-3, random_state=0)
    placed, again = result.pull(Y), result.unseen(X + 1e-13).pull(Y)
    assert float(np.linalg.norm(again - placed, axis=1).max()) < 1e-2 * float(np.std(Y))
