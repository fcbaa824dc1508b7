"""The precision policy: its bound against measured errors, what it chooses, and when it warns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.kernels import factors, softmin_oracle, wide
from torchgw import GWOptions, PrecisionWarning, SamplingOptions, gw_align
from torchgw.datasets import make_spiral
from torchgw.kernels import precision, softmin_stream


def rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 values rounded to nearest with ``bits`` bits of mantissa, as tf32 (10) and bfloat16 (7) do."""
    drop = 23 - bits
    words = x.contiguous().view(torch.int32)
    return ((words + (1 << (drop - 1))) & ~((1 << drop) - 1)).view(torch.float32)


@pytest.mark.parametrize("reach", [5.0, 200.0, 2000.0])
@pytest.mark.parametrize("rank", [7, 64, 130])
@pytest.mark.parametrize(("dot", "bits"), [("tf32", 10), ("bf16", 7), ("ieee", 23)])
def test_the_bound_holds_and_is_not_idle(reach: float, rank: int, dot: str, bits: int) -> None:
    A, B = factors(200, 300, rank, torch.float32, rank, reach)
    a, b = wide(A, B)
    narrow = (A, B) if dot == "ieee" else (rounded(A, bits), rounded(B, bits))
    zero = torch.zeros(300)
    found = softmin_stream.reference.KERNEL.on(*narrow).softmin(zero, 1)
    lost = float(np.expm1(np.abs(wide(found)[0] - softmin_oracle(a @ b.T, zero.numpy(), 1)).max() * np.log(2)))
    bound = precision.loss(dot, precision.reach(A, B), rank)
    assert lost <= bound
    assert np.log1p(bound) < 1000 * np.log1p(lost)


def test_reach_bounds_the_score() -> None:
    A, B = factors(50, 60, 9, torch.float64, 0, 37.0)
    assert 37.0 <= precision.reach(A, B) <= 37.0 * 9


@pytest.mark.parametrize(
    ("stage", "largest", "dot"),
    [("early", 50.0, "tf32"), ("early", 1000.0, "tf32x3"), ("gradient", 1.0, "tf32"), ("gradient", 300.0, "tf32x3"),
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
    with pytest.warns(PrecisionWarning, match="larger epsilon"):
        gw_align(D, D, epsilon=1e-7, options=short, random_state=0)


def test_an_ordinary_epsilon_is_not_warned_of() -> None:
    X = make_spiral(150)[0]
    assert gw_align(X, X, epsilon=1e-3, random_state=0).converged
