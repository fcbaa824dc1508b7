"""Marginal models and costs against POT, and a space of which a part is missing; `benchmarks.models` does all of it."""

from __future__ import annotations

import pytest

from benchmarks import models

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]  # ties and other packages' own warnings


@pytest.fixture(autouse=True)
def _peer() -> None:
    pytest.importorskip("ot")


@pytest.mark.parametrize("epsilon", [5e-2, 5e-3])
@pytest.mark.parametrize("rho", [0.01, 0.1, 1.0, None])
def test_linear_plans_equal_pots(rho: float | None, epsilon: float) -> None:
    for seed in range(3):
        assert models.linear_error(seed, epsilon, rho) <= 1e-6


@pytest.mark.parametrize("name", list(models.ASKED))
def test_plans_without_entropy_are_no_higher_than_pots(name: str) -> None:
    for seed in (0, 1, 2, 15):
        pair = models.pair(name, seed)
        assert pair.converged
        assert pair.ours <= models.SAME * pair.peer, pair


def test_what_is_left_of_a_spiral_keeps_its_place_unless_all_mass_must_move() -> None:
    part = "middle 30 %"
    torn, *kept = (models.match(model, part, seed=0) for model in ("balanced", "partial", "unbalanced"))
    assert torn.rho < 0.99
    for match in kept:
        assert match.rho >= 0.99
        assert match.error <= 0.25
