"""The flat code that the library's overhead is measured against does the same work and finds the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.baselines import flat
from benchmarks.overhead import case, check_same, explained, interval, judged, row, timed, where

SHAPES = ((37, 45), (120, 90))


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
def test_the_flat_code_gives_the_same_plan_value_certificate_and_iterations(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    same = check_same(case(*shape, dtype))
    assert same.n_iter > 20
    assert same.n_iter_sinkhorn > 100


@pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning")
def test_so_it_does_where_limits_end_the_iterations(dtype: torch.dtype) -> None:
    assert check_same(replace(case(37, 45, dtype), max_iter=4, most_inner=7, most_last=9)).n_iter == 4


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    small = case(37, 45, torch.float64)
    monkeypatch.setattr(flat, "LN2", flat.LN2 * (1 + 1e-6))
    with pytest.raises(AssertionError, match="differs by"):
        check_same(small)


def test_a_row_judges_sizes_from_500_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.overhead.LEAST", 2)
    small = case(37, 45, torch.float32)
    found = row(small, 0.0, once=2e-3)
    assert (found["required"], found["met"], found["rounds"]) == ("-", "-", 2)
    assert found["iterations"] == small.library().n_iter
    monkeypatch.setattr("benchmarks.overhead.FROM", 30)
    for library, met in ([1.01, 1.04], True), ([1.06, 1.07], False), ([1.01, 1.07], "not known"):
        monkeypatch.setattr("benchmarks.overhead.timed", lambda *_, ours=library: {"library": ours, "flat": [1.0, 1.0]})
        found = row(small, 0.0, once=2e-3)
        assert (found["required"], found["met"]) == ("< 5 %", met)


def test_what_noise_hides_is_neither_met_nor_failed() -> None:
    assert judged(-1.0, 4.9) is True
    assert judged(5.1, 9.0) is False
    assert judged(2.5, 11.0) == "not known"
    assert judged(-20.0, 40.0) == "not known"


def test_the_interval_holds_the_median_of_as_many_samples_as_it_says() -> None:
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(2000, 31, generator=generator, dtype=torch.float64)
    ends = [interval(sample.tolist()) for sample in samples]
    assert 0.95 < sum(low <= 0 <= high for low, high in ends) / len(ends) < 0.99


def test_rounds_go_on_until_the_median_is_known_or_the_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    def ratio_of(noise: float) -> None:
        seconds = iter(range(10**6))

        def turn(calls: dict[str, object], **_: object) -> dict[str, list[float]]:
            off = noise if next(seconds) % 2 else -noise
            return {name: [1.02 + off if name == "library" else 1.0] for name in calls}

        monkeypatch.setattr("benchmarks.overhead.interleaved", turn)

    small = case(37, 45, torch.float32)
    ratio_of(0.001)
    assert len(timed(small, 1e3)["flat"]) == 5
    ratio_of(0.5)
    assert len(timed(small, 21.0)["flat"]) == 11
    assert len(timed(small, 1e3)["flat"]) == 101


def test_a_difference_is_explained_only_where_there_is_one() -> None:
    assert where(-1.0, 2.0, 1.0, 1.0, 10) == "no difference beyond the noise"
    assert where(-2.0, -1.0, -1.0, 1.0, 10) == "the library is faster"
    assert where(1.0, 2.0, 6e-3, 1e-3, 10) == "1.0 ms once, 500 us an outer iteration"


def test_the_parts_of_a_call_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.overhead.EXPLAINED_SIZE", 37)
    *parts, whole = (line["ms"] for line in explained(1))
    assert sum(parts) == pytest.approx(whole, abs=1e-6)
