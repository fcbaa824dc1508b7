"""Sums in a fixed order against float64 sums by hand, as CPUs and GPUs take them."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from tests.problems import generator
from tests.simulated_device import simulated_gpu
from torchgw.kernels import sums

N, C = 500, 7
DEVICES = ("cpu", "cuda")


def on(device: str):
    return simulated_gpu() if device == "cuda" else nullcontext()


def tolerance(dtype: torch.dtype) -> float:
    return N * torch.finfo(dtype).eps


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, 5), (0,), (0, 3)])
def test_sums_by_label_are_those_by_hand_and_come_on_top(device, dtype, shape):
    values = torch.randn(shape, generator=generator(), dtype=dtype)
    label = torch.randint(C - 1, shape[:1], generator=generator(1))  # the last label is nobody's
    before = torch.randn(C, *shape[1:], generator=generator(2), dtype=dtype)
    expected = before.double().numpy().copy()
    np.add.at(expected, label.numpy(), values.double().numpy())
    with on(device):
        total = before.clone().to(device)
        found = sums.add_by_label(total, label.to(device), values.to(device))
        assert found is total
        found = found.cpu()
    np.testing.assert_allclose(found.numpy(), expected, atol=tolerance(dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((N,), 0), ((N,), -1), ((N, 1), 0), ((1, N), 1), ((1, N), -1), ((4, N), 1), ((70_000,), 0), ((0,), 0)],
)
def test_running_sums_are_those_of_float64(device, shape, dim):
    values = torch.rand(shape, generator=generator())
    with on(device):
        found = sums.cumulative_sum(values.to(device), dim).cpu()
        logs = sums.cumulative_logsumexp(values.to(device), dim).cpu()
    wide = values.double().numpy()
    loose = max(values.shape) * torch.finfo(torch.float32).eps
    np.testing.assert_allclose(found.numpy(), wide.cumsum(dim), rtol=loose)
    np.testing.assert_allclose(logs.numpy(), np.log(np.exp(wide).cumsum(dim)), rtol=loose)


@pytest.mark.parametrize("most", [2**30, 64, 7])
def test_products_longer_than_a_dot_may_be_are_whole(monkeypatch, most):
    monkeypatch.setattr(sums, "MOST_ENTRIES", most)
    x, y = (torch.randn(20, 13, generator=generator(seed), dtype=torch.float64) for seed in range(2))
    assert float(sums.inner(x, y)) == pytest.approx(float((x * y).sum()), rel=1e-12)
    assert float(sums.inner(x.T, y.T)) == pytest.approx(float((x * y).sum()), rel=1e-12)
    assert float(sums.inner(x[:0], y[:0])) == 0.0


def test_sums_by_label_carry_gradients():
    values = torch.randn(N, 2, generator=generator(), dtype=torch.float64).requires_grad_()
    label = torch.randint(C, (N,), generator=generator(1))
    weight = torch.randn(C, 2, generator=generator(2), dtype=torch.float64)
    for device in DEVICES:
        with on(device):
            found = sums.add_by_label(
                torch.zeros(C, 2, dtype=torch.float64, device=device), label.to(device), values.to(device)
            )
            (gradient,) = torch.autograd.grad((found * weight.to(device)).sum(), values)
        assert torch.equal(gradient, weight[label])
