"""What a solve asks of a GPU: no more launches and waits than it is said to."""

from __future__ import annotations

import pytest

from benchmarks.launches import CASES, Case, counted, largest_crossing

SMALL, DENSE, STREAMED = CASES
BINS = (2 * (2**14 + 1) + 3) * 8  # bytes of what lower bounds are made of: histograms of distances and three numbers
STARTS = 47 * 60**2  # entries of first guesses between landmarks


@pytest.mark.parametrize(
    "case", [SMALL, *(pytest.param(case, marks=pytest.mark.slow) for case in (DENSE, STREAMED))], ids=str
)
def test_a_solve_launches_and_waits_no_more_than_is_said(case: Case) -> None:
    found = counted(case)
    assert 0 < found.n_launches <= case.launches
    assert 0 < found.n_waits <= case.waits, found.table()
    assert sum(count for place, count in found.launches.items() if place.endswith(" graph")) > 50
    assert largest_crossing(found) <= max(BINS, STARTS)  # whatever the number of points


@pytest.mark.slow
def test_a_second_solve_of_a_size_is_warm() -> None:
    assert counted(SMALL).n_launches < 0.95 * SMALL.launches
