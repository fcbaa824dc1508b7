"""The suite of requirements judges what a call without arguments finds, and epsilon 0 beside it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import quality


@pytest.mark.parametrize("group", [quality.gauss, quality.words])
@pytest.mark.parametrize(("wrong", "met"), [(None, True), ({"epsilon": 0.0}, False), ({}, False)])
def test_points_are_to_be_matched_without_entropy_and_by_default(monkeypatch, group, wrong, met):
    def gw_align(X, Y, *, distances=None, random_state, **given):
        matched = np.arange(len(X))
        if given == wrong:
            matched[:] = 0
        return SimpleNamespace(argmax=lambda: matched)

    def plan(DX, DY, p, q, loss, **settings):
        return np.eye(len(p))

    gromov = SimpleNamespace(gromov_wasserstein=plan, entropic_gromov_wasserstein=plan)
    monkeypatch.setitem(sys.modules, "ot", SimpleNamespace(gromov=gromov))
    monkeypatch.setattr(quality, "gw_align", gw_align)
    monkeypatch.setattr(quality.problems, "rotated_copy", lambda X, noise, rng: (X, np.arange(len(X))))
    assert {line["met"] for line in group()} == {met}
