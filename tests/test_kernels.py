"""Softmin implementations against a float64 oracle, the dispatch chain, and sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import Tensor

from torchgw.kernels import LN2, dispatch, sampling, softmin_dense
from torchgw.kernels.dispatch import Implementation, Request
from torchgw.kernels.softmin_dense import compiled, reference

CPU = torch.device("cpu")
SIZES = ((1, 1), (1, 7), (63, 65), (500, 33), (257, 1000))


def oracle(score: Tensor, bias: Tensor, axis: int) -> np.ndarray:
    exponent = score.double().numpy() + (bias.double().numpy() if axis == 1 else bias.double().numpy()[:, None])
    with np.errstate(divide="ignore"):
        return np.asarray(logsumexp(exponent * LN2, axis=axis) / LN2)


def problem(n: int, k: int, dtype: torch.dtype, spread: float, holes: bool, axis: int) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(n * 7919 + k)
    score = torch.randn(n, k, generator=gen, dtype=torch.float64) * spread
    bias = torch.randn(k if axis == 1 else n, generator=gen, dtype=torch.float64) * spread
    if holes:
        bias[::3] = -torch.inf
    return score.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
@pytest.mark.parametrize("size", SIZES)
def test_reference_agrees_with_the_oracle(
    size: tuple[int, int], dtype: torch.dtype, tolerance: float, holes: bool, axis: int
) -> None:
    score, bias = problem(*size, dtype, 200.0, holes, axis)
    np.testing.assert_allclose(
        reference.softmin_dense(score, bias, axis).numpy(), oracle(score, bias, axis), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_reference_merges_many_blocks(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference.BLOCK_ELEMENTS, "cpu", 100)
    score, bias = problem(97, 41, torch.float64, 300.0, True, axis)
    np.testing.assert_allclose(
        reference.softmin_dense(score, bias, axis).numpy(), oracle(score, bias, axis), atol=1e-10
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_reference_reads_a_transposed_score(axis: int) -> None:
    score, bias = problem(60, 80, torch.float64, 50.0, False, axis)
    turned = score.T.contiguous().T
    assert not turned.is_contiguous()
    np.testing.assert_allclose(reference.softmin_dense(turned, bias, axis), oracle(score, bias, axis), atol=1e-11)


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_nothing_are_minus_infinity(axis: int) -> None:
    out = reference.softmin_dense(torch.zeros(3, 3), torch.full((3,), -torch.inf), axis)
    assert torch.isneginf(out).all()


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("holes", [False, True])
def test_compiled_agrees_with_the_oracle(holes: bool, axis: int) -> None:
    assert compiled.unable(Request(CPU, torch.float32, (1, 1))) is None
    for n, k in SIZES:
        score, bias = problem(n, k, torch.float32, 200.0, holes, axis)
        np.testing.assert_allclose(
            compiled.build()(score, bias, axis).numpy(), oracle(score, bias, axis), atol=1e-4, rtol=1e-4
        )


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("backend", ["eager", "compile"])
def test_gpu_backends_agree_with_the_oracle(backend: str, holes: bool, axis: int) -> None:
    device = torch.device("cuda")
    for n, k in SIZES:
        score, bias = problem(n, k, torch.float32, 200.0, holes, axis)
        chosen = softmin_dense.choose(backend, Request(device, torch.float32, (n, k)))
        out = chosen.function(score.to(device), bias.to(device), axis)
        np.testing.assert_allclose(out.cpu().numpy(), oracle(score, bias, axis), atol=1e-4, rtol=1e-4)


def test_auto_on_the_cpu_takes_the_eager_kernel_and_says_why_not_the_others() -> None:
    chosen = softmin_dense.choose("auto", Request(CPU, torch.float32, (100, 100)))
    assert chosen.name == "eager"
    assert chosen.function is reference.softmin_dense
    assert "GPU" in chosen.passed_over["triton"]
    assert "compilation" in chosen.passed_over["compile"]


def test_a_named_backend_that_cannot_run_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="triton: Triton kernels need a GPU"):
        softmin_dense.choose("triton", Request(CPU, torch.float32, (10, 10)))


def test_on_a_gpu_the_triton_slot_says_what_is_missing() -> None:
    assert "no Triton kernel" in str(softmin_dense.triton.unable(Request(torch.device("cuda"), torch.float32, (9, 9))))


def test_the_dispatcher_asks_whether_it_is_wise_before_whether_it_is_able() -> None:
    asked: list[str] = []

    def unable(_: Request) -> str | None:
        asked.append("able")
        return None

    slow = Implementation("compile", unable, lambda _: "too small", lambda: 1)
    last = Implementation("eager", lambda _: None, lambda _: None, lambda: 2)
    request = Request(CPU, torch.float32, (2, 2))
    assert dispatch.select((slow, last), "auto", request).function == 2
    assert asked == []
    assert dispatch.select((slow, last), "compile", request).function == 1
    assert asked == ["able"]


def test_without_a_compiler_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.shutil, "which", lambda _: None)
    compiled._broken_compiler.cache_clear()
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler"):
        softmin_dense.choose("compile", Request(CPU, torch.float32, (9, 9)))
    compiled._broken_compiler.cache_clear()


def test_a_compiler_that_fails_its_trial_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> reference.SoftminDense:
        raise RuntimeError("no linker\nsecond line")

    monkeypatch.setattr(compiled, "build", broken)
    compiled._broken_compiler.cache_clear()
    assert compiled._broken_compiler("cpu") == "torch.compile failed on a trial: RuntimeError: no linker"
    compiled._broken_compiler.cache_clear()


def test_draws_follow_the_weights() -> None:
    weights = torch.tensor([1.0, 0.0, 3.0, 6.0])
    drawn = sampling.draw(weights, 40_000, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(share, weights / 10, atol=0.01, rtol=0)
    assert share[1] == 0


@pytest.mark.parametrize("limit", [2**24, 1])
@pytest.mark.parametrize("weights", [[0.0, 0.0, 0.0], [float("nan")] * 3, [-1.0, 0.0, 0.0]])
def test_weights_without_mass_are_drawn_from_uniformly(
    weights: list[float], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MULTINOMIAL_LIMIT", limit)
    drawn = sampling.draw(torch.tensor(weights), 3000, torch.Generator().manual_seed(0))
    assert torch.bincount(drawn, minlength=3).min() > 850


def test_draws_beyond_the_category_limit_follow_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MULTINOMIAL_LIMIT", 1)
    weights = torch.tensor([[1.0, 0.0, 3.0, 0.0], [0.0, 5.0, 5.0, 0.0]])
    drawn = sampling.draw(weights, 20_000, torch.Generator().manual_seed(0))
    share = torch.stack([torch.bincount(row, minlength=4) for row in drawn]) / 20_000
    torch.testing.assert_close(share, weights / weights.sum(1, keepdim=True), atol=0.015, rtol=0)
    assert share[0, 1] == share[0, 3] == share[1, 0] == 0


def test_tiny_weights_keep_their_proportions() -> None:
    drawn = sampling.draw(torch.tensor([1e-40, 3e-40]), 20_000, torch.Generator().manual_seed(0))
    assert abs(float(drawn.double().mean()) - 0.75) < 0.02
