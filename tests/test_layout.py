"""Where points are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from tests.problems import ROLL, SPIRAL
from torchgw import GWResult, PrecomputedDistances, gw_align
from torchgw.views import layout


def test_points_of_two_and_three_coordinates_stay_where_they_are(result: GWResult) -> None:
    x, y = layout.both(result)
    np.testing.assert_array_equal(x, SPIRAL)
    np.testing.assert_array_equal(y, ROLL)


def test_a_line_gets_a_second_coordinate() -> None:
    found = layout.of_points(np.arange(5.0)[:, None])
    np.testing.assert_array_equal(found, np.column_stack((np.arange(5.0), np.zeros(5))))


def test_many_coordinates_become_two_that_keep_the_plane_they_lie_in() -> None:
    rng = np.random.default_rng()
    flat = rng.normal(size=(60, 2))
    basis = np.linalg.qr(rng.normal(size=(7, 2)))[0]
    found = layout.of_points(flat @ basis.T + 5)
    assert found.shape == (60, 2)
    np.testing.assert_allclose(cdist(found, found), cdist(flat, flat), atol=1e-10)


@pytest.mark.parametrize("n", [2, 7, 350])
def test_distances_are_laid_out_as_the_plane_that_they_come_from(n: int) -> None:
    flat = np.random.default_rng().normal(size=(n, 2))
    D = cdist(flat, flat)
    found = layout.of_distances(PrecomputedDistances(D))
    np.testing.assert_allclose(cdist(found, found), D / D.max(), atol=1e-6)


def test_a_matrix_of_distances_that_was_aligned_has_a_layout() -> None:
    D = cdist(SPIRAL[::8], SPIRAL[::8])
    aligned = gw_align(D, torch.from_numpy(D), random_state=0)
    x, y = layout.both(aligned)
    np.testing.assert_allclose(cdist(x, x), D / D.max(), atol=1e-6)
    np.testing.assert_allclose(x, y, atol=1e-12)


def test_points_that_are_given_count(result: GWResult) -> None:
    x, y = layout.both(result, X=SPIRAL[::-1], Y=ROLL[:, :2])
    np.testing.assert_array_equal(x, SPIRAL[::-1])
    np.testing.assert_array_equal(y, ROLL[:, :2])


def test_another_number_of_points_is_refused(result: GWResult) -> None:
    with pytest.raises(
        ValueError, match=rf"Y must have {len(ROLL)} rows, as the result has, got shape \(9, {ROLL.shape[1]}\)"
    ):
        layout.side(result, 1, ROLL[:9])


def test_a_result_from_a_file_asks_for_points(result: GWResult, tmp_path) -> None:  # type: ignore[no-untyped-def]
    result.save(tmp_path / "kept.npz")
    kept = GWResult.load(tmp_path / "kept.npz")
    with pytest.raises(ValueError, match="pass X="):
        layout.both(kept)
    assert layout.both(kept, SPIRAL, ROLL)[1].shape == ROLL.shape


@pytest.mark.parametrize("n", [3, 60, 400])
def test_distances_on_a_line_are_laid_out_on_a_line(n: int) -> None:
    along = np.random.default_rng().normal(size=(n, 1))
    found = layout.of_distances(PrecomputedDistances(np.abs(along - along.T)))
    span = np.ptp(along)
    np.testing.assert_allclose(found[:, 1], 0, atol=1e-4)
    np.testing.assert_allclose(cdist(found[:, :1], found[:, :1]), np.abs(along - along.T) / span, atol=1e-6)


def test_a_linear_problem_asks_for_points() -> None:
    aligned = gw_align(None, None, cost=np.random.default_rng().random((20, 30)), alpha=0, random_state=0)
    with pytest.raises(ValueError, match="pass X="):
        layout.both(aligned)
    assert layout.side(aligned, 0, np.zeros((20, 2))).shape == (20, 2)
