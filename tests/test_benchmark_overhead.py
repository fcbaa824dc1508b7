"""The flat code that the library's overhead is measured against does the same work and finds the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.baselines import flat
from benchmarks.overhead import case, check_same, explained, row

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
    small = case(37, 45, torch.float32)
    found = row(small, 2, once=2e-3)
    assert (found["required"], found["met"]) == ("-", "-")
    assert found["iterations"] == small.library().n_iter
    monkeypatch.setattr("benchmarks.overhead.FROM", 30)
    judged = row(small, 2, once=2e-3)
    assert judged["required"] == "< 5 %"
    assert judged["met"] is (judged["overhead_percent"] < 5)


def test_the_parts_of_a_call_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.overhead.EXPLAINED_SIZE", 37)
    *parts, whole = (line["ms"] for line in explained(1))
    assert sum(parts) == pytest.approx(whole, abs=1e-6)
