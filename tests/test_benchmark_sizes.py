"""The suite of sizes: its problems are what they say, and its lines are judged as they say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import sizes


def test_a_bent_tube_keeps_its_vertices_and_nearly_its_lengths():
    straight, bent = sizes.tubes(501, 0.0), sizes.tubes(501, 0.25)
    assert straight.shape == bent.shape == (501, 3)
    np.testing.assert_allclose(np.linalg.norm(straight, axis=1), np.linalg.norm(bent, axis=1), rtol=1e-12)
    assert np.linalg.norm(straight - bent, axis=1).max() > 1


@pytest.mark.parametrize(
    ("seconds", "rho", "met"),
    [
        (lambda n: n / 1000, 0.9999, True),
        (lambda n: n / 1000, 0.9, False),  # another matching
        (lambda n: n / 1000 if n < 1050 else n / 400, 0.9999, False),  # a cliff
        (lambda n: n / 1000 if n < 1050 else n / 2000, 0.9999, False),  # a fall
    ],
)
def test_the_curve_sees_cliffs_and_falls(monkeypatch, seconds, rho, met):
    monkeypatch.setattr(sizes, "CURVE", (500, 800, 1000, 1600))
    monkeypatch.setattr(sizes, "point", lambda n: {"N": n, "seconds": seconds(n), "rho": rho, "value": 1.0})
    line, last = sizes.of_curve()
    assert line["met"] is met
    assert last["met"] is False
    assert len(line["detail"]["runs"]) == 9


def test_a_point_is_the_default_call():
    run = sizes.point(250)
    assert run["N"] == 250
    assert run["seconds"] > 0
    assert run["rho"] > 0.99
