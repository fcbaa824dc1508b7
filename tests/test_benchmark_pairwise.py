"""The suite of all pairs: its spaces are metric, and its rows say who was faster and lower. POT is not needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import pairwise


@pytest.mark.parametrize("family", pairwise.FAMILIES)
def test_spaces_are_metric_and_ragged(family: str) -> None:
    spaces = pairwise.problem(family, 0, 4, (20, 40))
    assert max(D.max() for D in spaces) == 1
    assert len({len(D) for D in spaces}) > 1
    for D in spaces:
        np.testing.assert_allclose(D, D.T)
        assert (np.diag(D) == 0).all()
        assert ((D[:, :, None] + D[None]).min(1) + 1e-9 >= D).all()


def test_rows_say_who_was_faster_and_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = pairwise.problem("curves", 0, 3, (20, 30))
    _, own = pairwise.ours(spaces)
    for seconds, share, met in ((1000.0, 1.1, True), (1000.0, 0.9, False), (1e-9, 1.1, False)):
        monkeypatch.setattr(pairwise, "pot_loop", lambda *_, s=seconds, v=share: (s, own * v))
        row = pairwise.against_pot("curves", spaces, tmp_path, 1, rounds=1)
        assert row["met"] is met
        assert row["over POT's"] == pytest.approx(1 / share)
        assert row["pairs no worse"] == float(share > 1)
        assert pairwise.summary([row, row])["times faster"] == pytest.approx(row["times faster"])
