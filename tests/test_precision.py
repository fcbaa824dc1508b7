"""The precision policy: its bound against measured errors, what it chooses, and when it warns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels import factors, softmin_oracle, wide
from torchgw import GWOptions, PrecisionWarning, SamplingOptions, gw_align
from torchgw.datasets import make_spiral
from torchgw.kernels import precision


def cut(x: torch.Tensor, bits: int, nearest: bool) -> torch.Tensor:
    """float32 values with ``bits`` bits of mantissa, rounded to nearest or cut off."""
    drop = 23 - bits
    words = x.contiguous().view(torch.int32) + ((1 << (drop - 1)) if nearest else 0)
    return (words & ~((1 << drop) - 1)).view(torch.float32)


def products(A: torch.Tensor, B: torch.Tensor, dot: str) -> torch.Tensor:
    """A B^T as each arithmetic makes it; tf32x3 from high and low parts of ten bits, without their smallest product."""
    if dot == "ieee":
        return A @ B.T
    if dot == "bf16":
        return cut(A, 7, True) @ cut(B, 7, True).T
    high, low = zip(*((cut(x, 10, False), cut(x - cut(x, 10, False), 10, False)) for x in (A, B)), strict=True)
    if dot == "tf32":
        return high[0] @ high[1].T
    return high[0] @ high[1].T + (high[0] @ low[1].T + low[0] @ high[1].T)


@pytest.mark.parametrize("reach", [5.0, 200.0, 2000.0])
@pytest.mark.parametrize("rank", [7, 64, 130])
@pytest.mark.parametrize("dot", ["tf32", "tf32x3", "bf16", "ieee"])
def test_the_bound_holds_and_is_not_idle(reach: float, rank: int, dot: str) -> None:
    A, B = factors(200, 300, rank, torch.float32, rank, reach)
    a, b = wide(A, B)
    found = products(A, B, dot).double().numpy()
    zero = np.zeros(300)
    bits = np.abs(softmin_oracle(found, zero, 1) - softmin_oracle(a @ b.T, zero, 1)).max()
    bound = precision.loss(dot, precision.reach(A, B), rank)
    assert np.expm1(bits * np.log(2)) <= bound
    assert np.log1p(bound) < 2000 * bits


def test_reach_bounds_the_score() -> None:
    A, B = factors(50, 60, 9, torch.float64, 0, 37.0)
    assert 37.0 <= precision.reach(A, B) <= 37.0 * 9


@pytest.mark.parametrize(
    ("stage", "largest", "dot"),
    [("early", 50.0, "tf32"), ("early", 1000.0, "tf32x3"), ("gradient", 0.5, "tf32"), ("gradient", 100.0, "tf32x3"),
     ("last", 5.0, "tf32x3"), ("last", 1e6, None)],
)  # fmt: skip
def test_each_stage_takes_the_fastest_arithmetic_that_keeps_to_its_budget(
    stage: str, largest: float, dot: str | None
) -> None:
    assert precision.choose_dot(stage, largest, 64) == dot
    if dot is not None:
        assert precision.loss(dot, largest, 64) <= precision.MAY_LOSE[stage]


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
