"""What a result says under any `SpaceOptions.scale`: only its numbers change, by the scale."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.problems import quietly
from torchgw import CoarseOptions, GWOptions, GWResult, LowRankOptions, SpaceOptions, Verdict, gw_align
from torchgw.report import sentences

SCALES = (1.0, 1e3, 1e6, 1e-4)
FEW = CoarseOptions(n_starts=6, n_landmarks=16, n_basins=2)
CLOUDS = tuple(np.split(np.random.default_rng(0).normal(size=(26, 3)), [12]))
LINE = np.cumsum([0.0, 2.0, 3.0, 4.0, 4.0, 3.0, 2.0])[:, None]


def solved(X: np.ndarray, Y: np.ndarray, scale: str | float, **options: Any) -> GWResult:
    spaces, distances = SpaceOptions(scale=scale), options.pop("distances", "euclidean")
    chosen = GWOptions(spaces=spaces, coarse=FEW, **options)
    return quietly(gw_align, X, Y, epsilon=0, distances=distances, options=chosen, random_state=0)


@cache
def common() -> GWResult:
    return solved(*CLOUDS, "common")


@pytest.mark.parametrize("scale", SCALES)
def test_unrelated_clouds_have_the_same_optimum_basins_and_verdict(scale: float) -> None:
    one, other = common(), solved(*CLOUDS, scale)
    factor = (scale / one.scales[0]) ** 2
    assert other.value * factor == pytest.approx(one.value, rel=1e-9)
    assert other.certificate.lower_bound * factor == pytest.approx(one.certificate.lower_bound, rel=1e-6) != 0
    assert len(other.basins) == len(one.basins) > 2
    assert other.ambiguous == one.ambiguous
    np.testing.assert_allclose(other.confidence().stability, one.confidence().stability, atol=1e-5)
    assert 0.1 < one.confidence().stability.mean() < 0.9
    assert (other.verdict, other.reasons) == (one.verdict, one.reasons)
    assert other.chance * factor == pytest.approx(one.chance, rel=1e-6)
    assert sentences.ambiguity(other) == sentences.ambiguity(one)
    assert one.verdict is not Verdict.CONVINCING


@pytest.mark.parametrize("scale", SCALES)
def test_both_directions_of_a_symmetric_line_are_known_to_be_best(scale: float) -> None:
    result = solved(LINE, LINE, scale)
    assert result.ambiguous
    assert result.rival.difference > 0.3
    assert sentences.certainties(result)[0][0].endswith(", which this one has.")


@pytest.mark.parametrize("scale", [1e3, 1e-4])
def test_couplings_of_low_rank_have_the_same_value(scale: float) -> None:
    given = {"distances": "landmark", "strategy": "low-rank", "low_rank": LowRankOptions(rank=3)}
    one, other = (solved(*CLOUDS, each, **given) for each in ("common", scale))
    assert other.value * (scale / one.scales[0]) ** 2 == pytest.approx(one.value, rel=1e-6)
    assert len(other.basins) == len(one.basins)
