"""What a result says about the gradient through its plan: condition, error, trust."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from tests.gradient_mode_cases import ENVELOPE, G, X, align, cloud, leaf
from torchgw import ConvergenceWarning, GradientWarning, Implicit


def clusters(n: int, d: int, seed: int) -> Tensor:
    """Two groups of points far from each other."""
    points = 0.3 * cloud(n, d, seed)
    points[n // 2 :] += 3
    return points


APART = clusters(15, 3, 0), clusters(20, 2, 1)
SHARES = torch.tensor([7 / 150] * 10 + [8 / 150] * 10, dtype=torch.float64)


def test_the_report_of_a_benign_gradient_is_trusted() -> None:
    x = leaf(X)
    result = align(x)
    assert result.gradient_report is None
    result.loss.backward(retain_graph=True)
    assert result.gradient_report is None
    (G * result.plan).sum().backward()
    report = result.gradient_report
    assert report.trusted
    assert 1 <= report.condition < 100
    assert 0 < report.rate < 1
    assert 1 <= report.relaxation < 2
    assert report.residual < 1e-10
    assert report.error == pytest.approx(report.residual * report.condition)
    assert report.n_iter > 0
    assert report.n_iter_inner == 0


def test_the_envelope_and_no_mode_have_no_report() -> None:
    result = align(leaf(X), mode=ENVELOPE)
    result.loss.backward()
    assert result.gradient_report is None
    assert align(mode=None).gradient_report is None


def test_only_plans_of_clusters_that_hardly_exchange_mass_are_warned_of() -> None:
    x = leaf(APART[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = align(x, APART[1], q=SHARES, epsilon=1e-4, init=None, mode=Implicit())
    result.loss.backward(retain_graph=True)
    assert x.grad is not None
    assert bool(torch.isfinite(x.grad).all())
    with pytest.warns(GradientWarning, match=r"may be off by about .* condition number of .*raise epsilon"):
        (cloud(15, 20, 60) * result.plan).sum().backward()
    report = result.gradient_report
    assert not report.trusted
    assert report.error > 1e-2
    assert report.rate == pytest.approx(1.0)
    assert bool(torch.isfinite(x.grad).all())


def test_what_is_trusted_is_for_the_mode_to_say() -> None:
    result = align(leaf(X), mode=Implicit(trusted_error=1e-30))
    with pytest.warns(GradientWarning):
        (G * result.plan).sum().backward()
    assert not result.gradient_report.trusted


def test_a_cut_off_solve_is_reported() -> None:
    x = leaf(X)
    result = align(x, mode=Implicit(tol=1e-12, max_iter=2))
    with pytest.warns(GradientWarning):
        (G * result.plan).sum().backward()
    assert result.gradient_report.n_iter == 2
    assert result.gradient_report.residual > 1e-6
