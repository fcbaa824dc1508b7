"""The suite beside busy programs: they run when they should and are gone afterwards; ratios are within rounds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import beside
from torchgw.runtime import threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_programs_run_when_they_should_and_are_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "BUSY", "print('ready', flush=True)\nwhile True: pass")
    seen = []

    def running() -> int:
        states = [Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] for other in others]
        return len(others) - states.count("T")

    with beside.programs(2) as others:

        def solve() -> None:
            with threads.threads_for(1):
                time.sleep(0.05)  # a signal takes a moment
                seen.append((torch.get_num_threads(), running()))

        before = torch.get_num_threads()
        torch.set_num_threads(3)
        try:
            found = beside.timed(solve, others, 1, with_all=True)
            few = beside.timed(solve, others, 2, with_all=False)
        finally:
            torch.set_num_threads(before)
    assert seen == [(1, 0), (1, 0), (1, 1), (1, 2), (3, 0), (3, 1), (1, 0), *[(1, 0), (1, 1), (1, 2)] * 2]
    assert [len(seconds) for seconds in found.values()] == [1] * 5
    assert [len(seconds) for seconds in few.values()] == [2] * 3
    assert all(other.returncode is not None for other in others)


def test_rows_say_how_many_times_longer_than_alone() -> None:
    found = {("chosen", 0): [1.0, 2.0, 1.0], ("all", 0): [1.0, 1.0, 1.0]}
    found |= {("chosen", 1): [4.0, 4.0, 4.0], ("all", 1): [9.0, 9.0, 9.0], ("chosen", 2): [5.0, 6.0, 7.0]}
    rows = beside.rows(100, 130, 0.0, found)
    assert [row["times_alone"] for row in rows] == [1.0, 1.0, 4.0, 9.0, 5.0]
    assert [row["met"] for row in rows] == ["-", "-", False, "-", "-"]
    found = {("chosen", 0): [1.0], ("chosen", 1): [2.0]}
    assert [row["met"] for row in beside.rows(2000, 2500, "auto", found)] == ["-", True]
