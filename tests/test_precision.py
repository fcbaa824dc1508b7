"""The precision policy: its bound against measured errors, the arithmetic of products, and when it warns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels import factors, softmin_oracle, wide
from tests.test_continuation import cloud
from torchgw import GWOptions, PrecisionWarning, SamplingOptions, gw_align
from torchgw.couplings.blocks import as_block_coupling
from torchgw.datasets import make_spiral
from torchgw.kernels import precision
from torchgw.objective.exact import ExactGradient
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Coupling


@pytest.mark.parametrize("reach", [5.0, 200.0, 2000.0])
@pytest.mark.parametrize("rank", [7, 64, 130])
def test_the_bound_holds_and_is_not_idle(reach: float, rank: int) -> None:
    A, B = factors(200, 300, rank, torch.float32, rank, reach)
    a, b = wide(A, B)
    found = (A @ B.T).double().numpy()
    zero = np.zeros(300)
    bits = np.abs(softmin_oracle(found, zero, 1) - softmin_oracle(a @ b.T, zero, 1)).max()
    bound = precision.rounding_bound(float(precision.reach(A, B)), rank)
    assert np.expm1(bits * np.log(2)) <= bound
    assert np.log1p(bound) < 2000 * bits


def test_reach_bounds_the_score() -> None:
    A, B = factors(50, 60, 9, torch.float64, 0, 37.0)
    assert 37.0 <= precision.reach(A, B) <= 37.0 * 9


def test_amd_and_other_dtypes_get_products_that_they_have() -> None:
    assert precision.dot_precision("tf32x3", torch.float32, amd=True) == "ieee"
    assert precision.dot_precision("", torch.float32, amd=False) == "tf32x3"
    assert precision.dot_precision("tf32", torch.float32, amd=False) == "tf32"
    assert precision.dot_precision("tf32", torch.float64, amd=False) == "ieee"
    assert precision.dot_precision("", torch.bfloat16, amd=False) == "ieee"


@pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning")
def test_scores_that_float32_cannot_carry_are_warned_of() -> None:
    assert precision.unsafe(1e4, 64) is None
    assert "mixed_precision=False" in str(precision.unsafe(1e8, 64))
    D = np.abs(np.subtract.outer(*[np.linspace(0, 1, 60) ** 2] * 2))
    short = GWOptions(gradient="sampled", coarse=None, sampling=SamplingOptions(n_control=0))
    with pytest.warns(PrecisionWarning, match="use a larger epsilon") as caught:
        gw_align(D, D, epsilon=1e-7, options=short, random_state=0)
    assert caught[0].filename == __file__


def test_an_ordinary_epsilon_is_not_warned_of() -> None:
    X = make_spiral(150)[0]
    assert gw_align(X, X, epsilon=1e-3, random_state=0).converged


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["epsilon", "small epsilon", "streamed"])
def test_plans_that_are_multiplied_have_normal_entries_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of float32 with subnormal numbers take some processors a hundred times as long."""
    least: list[float] = []
    made = ExactGradient.__call__

    def seen(self: ExactGradient, coupling: Coupling, p: torch.Tensor, q: torch.Tensor | None = None) -> FactoredCost:
        blocks = as_block_coupling(coupling, "the test").blocks()
        least.extend(float(block[block > 0].min()) for _, block in blocks if block.dtype == torch.float32)
        return made(self, coupling, p, q)

    monkeypatch.setattr(ExactGradient, "__call__", seen)
    X, Y, _ = cloud(300, 3, noise=0.02)
    options = GWOptions(strategy="streaming" if kind == "streamed" else "dense")
    epsilon = {"epsilon": 1e-3, "small epsilon": 1e-5, "streamed": 1e-4}[kind]
    gw_align(X, Y, epsilon=epsilon, options=options, random_state=0)
    assert least
    assert min(least) > torch.finfo(torch.float32).tiny
