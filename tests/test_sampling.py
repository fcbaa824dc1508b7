"""Draws from discrete distributions."""

from __future__ import annotations

import pytest
import torch

from torchgw.kernels import sampling


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
