"""The suite of requirements judges what a call without arguments finds, and epsilon 0 beside it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import quality


@pytest.mark.parametrize(("wrong", "met"), [(None, True), ({"epsilon": 0.0}, False), ({}, False)])
def test_a_cloud_is_to_be_matched_without_entropy_and_by_default(monkeypatch, wrong, met):
    def gw_align(X, Y, *, distances, random_state, **given):
        matched = np.arange(len(X))
        if given == wrong:
            matched[:] = 0
        return SimpleNamespace(argmax=lambda: matched)

    def gromov_wasserstein(DX, DY, p, q, loss):
        return np.eye(len(p))

    monkeypatch.setattr(quality, "gw_align", gw_align)
    monkeypatch.setattr(quality.problems, "rotated_copy", lambda X, noise, rng: (X, np.arange(len(X))))
    monkeypatch.setitem(
        sys.modules, "ot", SimpleNamespace(gromov=SimpleNamespace(gromov_wasserstein=gromov_wasserstein))
    )
    assert [line["met"] for line in quality.gauss()] == [met] * 4
