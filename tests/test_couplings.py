"""The coupling contract: every product and sample agrees with the dense plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.problems import dense_coupling, potential_coupling, random_masses, tiled_coupling
from torchgw.couplings import blocks
from torchgw.couplings.blocks import BlockCoupling
from torchgw.couplings.rounding import compute_rounding
from torchgw.marginals import Balanced
from torchgw.types import Coupling

MAKERS: dict[str, Callable[[], BlockCoupling]] = {
    "dense": lambda: dense_coupling(23, 31, 0),
    "potential": lambda: potential_coupling(23, 31, 4, 0, correction=False),
    "corrected": lambda: potential_coupling(23, 31, 4, 1),
    "tiled": lambda: tiled_coupling(23, 31, 4, 2),
}


@pytest.fixture(params=MAKERS)
def coupling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BlockCoupling:
    monkeypatch.setitem(blocks.BLOCK_ELEMENTS, "cpu", 5 * 31)  # several blocks and a short last one
    return MAKERS[request.param]()


def test_it_is_a_coupling_of_its_shape(coupling: BlockCoupling) -> None:
    assert isinstance(coupling, Coupling)
    assert coupling.shape == (23, 31)
    assert coupling.to_dense().shape == (23, 31)


def test_rows_are_those_of_the_plan(coupling: BlockCoupling) -> None:
    index = torch.tensor([22, 0, 7, 7])
    torch.testing.assert_close(coupling.rows(index), coupling.to_dense()[index])


@pytest.mark.parametrize("axis", [0, 1])
def test_products_and_marginals_are_those_of_the_plan(coupling: BlockCoupling, axis: int) -> None:
    plan = coupling.to_dense() if axis == 1 else coupling.to_dense().T
    V = torch.randn(plan.shape[1], 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(coupling.apply(V, axis), plan @ V)
    torch.testing.assert_close(coupling.marginal(axis), plan.sum(1))


@pytest.mark.parametrize("mass", [1e-140, 1e-30, 1e30, 1e140])
def test_products_of_a_plan_of_any_mass_are_in_proportion(coupling: BlockCoupling, mass: float) -> None:
    scaled: Any = coupling.times(mass)  # type: ignore[attr-defined]
    V = torch.randn(31, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scaled.apply(V, 1) / mass, coupling.apply(V, 1))
    torch.testing.assert_close(scaled.marginal(0) / mass, coupling.marginal(0))
    assert scaled.argmax(0).equal(coupling.argmax(0))


def test_a_product_of_the_wrong_length_is_refused(coupling: BlockCoupling) -> None:
    with pytest.raises(ValueError, match="V must have 31 rows for axis 1"):
        coupling.apply(torch.ones(23, 1, dtype=torch.float64), 1)


@pytest.mark.parametrize("axis", [0, 1])
def test_argmax_is_that_of_the_plan(coupling: BlockCoupling, axis: int) -> None:
    torch.testing.assert_close(coupling.argmax(axis), coupling.to_dense().argmax(axis))


def test_top_k_is_that_of_the_plan(coupling: BlockCoupling) -> None:
    values, index = coupling.top_k(4)
    expected = coupling.to_dense().topk(4, dim=1)
    torch.testing.assert_close(values, expected.values)
    torch.testing.assert_close(index, expected.indices)


@pytest.mark.parametrize("mass", [0.3, 0.9, 1.0])
def test_the_sparse_plan_carries_the_mass_with_the_fewest_entries(coupling: BlockCoupling, mass: float) -> None:
    plan = coupling.to_dense().numpy()
    sparse = coupling.to_sparse(mass).toarray()
    kept = sparse > 0
    np.testing.assert_allclose(sparse[kept], plan[kept])
    share = sparse.sum(1) / plan.sum(1)
    assert (share >= mass - 1e-12).all()
    if mass < 1:
        smallest = np.where(kept, plan, np.inf).min(1)
        assert ((sparse.sum(1) - smallest) / plan.sum(1) < mass).all()


def test_columns_are_sampled_from_the_rows_of_the_plan(coupling: BlockCoupling) -> None:
    rows = torch.full((40_000,), 5)
    drawn = coupling.sample_columns(rows, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn, minlength=31) / len(rows)
    expected = coupling.to_dense()[5]
    expected = expected / expected.sum()
    error = (expected * (1 - expected) / len(rows)).sqrt()
    assert ((share - expected).abs() <= 4.5 * error + 1e-9).all()


@given(n=st.integers(1, 12), k=st.integers(1, 12), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_rounding_gives_exact_marginals_and_moves_at_most_twice_the_error(n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = (torch.from_numpy(random_masses(m, rng)) for m in (n, k))
    before = potential_coupling(n, k, 2, seed, correction=False)
    rounding = compute_rounding(before, p, q, Balanced())
    residual = float(rounding.marginal_errors.max())
    after = rounding.apply_to(before).to_dense()
    assert float((after.sum(1) - p).abs().sum()) < 1e-12
    assert float((after.sum(0) - q).abs().sum()) < 1e-12
    assert float(after.min()) >= 0
    plan = before.to_dense()
    rows, columns = (plan.sum(1) - p).abs().sum(), (plan.sum(0) - q).abs().sum()
    assert residual == pytest.approx(float(torch.maximum(rows, columns)))
    error = rows + columns
    assert float((after - plan).abs().sum()) <= 2 * float(error) + 1e-12


def test_rounding_leaves_a_feasible_plan_alone() -> None:
    before = potential_coupling(6, 9, 2, 3, correction=False)
    p, q = before.marginal(1), before.marginal(0)
    rounded = compute_rounding(before, p, q, Balanced()).apply_to(before)
    torch.testing.assert_close(rounded.to_dense(), before.to_dense(), rtol=1e-12, atol=1e-15)


def test_rounding_fills_a_plan_without_mass_with_the_product() -> None:
    empty = potential_coupling(4, 5, 2, 0, correction=False)
    empty.f = torch.full_like(empty.f, -torch.inf)
    p, q = torch.full((4,), 0.25, dtype=torch.float64), torch.full((5,), 0.2, dtype=torch.float64)
    rounded = compute_rounding(empty, p, q, Balanced()).apply_to(empty)
    torch.testing.assert_close(rounded.to_dense(), torch.outer(p, q))
