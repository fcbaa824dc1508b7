"""Two checkouts side by side: either is imported from its own folder, rounds alternate, ratios are within rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import sides


def test_rounds_alternate_which_side_goes_first_after_one_that_does_not_count() -> None:
    order: list[str] = []

    def side(name: str, seconds: float) -> sides.Side:
        return lambda case: order.append(name + case) or seconds  # type: ignore[func-returns-value]

    found = sides.rounds((side("a", 1.0), side("b", 2.0)), "x", 3)
    assert order == ["ax", "bx", "ax", "bx", "bx", "ax", "ax", "bx"]
    assert found == [[1.0] * 3, [2.0] * 3]


def test_a_row_has_the_median_of_the_ratios_within_rounds() -> None:
    found = sides.row("x", (1.0, 3.0, 2.2), (1.0, 1.0, 2.0))
    assert (found["ratio"], found["range"], found["met"]) == (1.1, "1.00 to 3.00", True)
    assert not sides.row("x", (1.2,), (1.0,))["met"]


@pytest.mark.slow
def test_a_checkout_is_imported_from_its_folder_and_another_is_refused(tmp_path: Path) -> None:
    with sides.checkout(sides.HERE) as seconds:
        assert seconds(sides.IMPORT) > 0
    with (
        pytest.raises(SystemExit, match="must hold a checkout, but torchgw is imported from"),
        sides.checkout(tmp_path),
    ):
        pass


def test_unknown_cases_are_refused_at_once() -> None:
    with pytest.raises(SystemExit, match=r"cases must be words of spiral .*, got nosuch"):
        sides.run(".", ["nosuch"])


def test_every_case_has_a_call() -> None:
    assert list(sides.calls()) == list(sides.CASES)
