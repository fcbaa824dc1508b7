"""Relaxed marginals beside an epsilon far below their weights: the right plan, or one that is said not to be solved."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from tests import oracle
from torchgw import (
    CoarseOptions,
    ConvergenceWarning,
    GWOptions,
    GWResult,
    LadderOptions,
    Partial,
    SemiRelaxed,
    Status,
    StoppingOptions,
    Unbalanced,
    gw_align,
)
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.kernels.softmin_dense.reference import KERNEL
from torchgw.options import SinkhornOptions
from torchgw.problem.problem import tolerances_for
from torchgw.sinkhorn import scaling as scaling_module
from torchgw.sinkhorn.loop import sinkhorn
from torchgw.sinkhorn.scaling import Scaler, solve_by_scaling
from torchgw.sinkhorn.sides import MarginalConstraint

FEW = CoarseOptions(n_landmarks=10, n_starts=4)
LOOP = {"options": SinkhornOptions(tol=1e-5, relaxation=1.5), "max_iter": 20}
ANY_BASIN = pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning", "ignore::torchgw.PrecisionWarning")


def solved(
    rho: float, epsilon: float, strategy: str = "dense", size: tuple[int, int] = (20, 15), coarse: CoarseOptions = FEW
) -> tuple[GWResult, float]:
    """A solve between two clouds, and its objective as the oracle finds it from the plan."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(size[0], 3)), rng.normal(size=(size[1], 2))
    D, E = cdist(X, X), cdist(Y, Y)
    p, q = (np.full(n, 1 / n) for n in size)
    posed = oracle.Problem(D / D.max(), E / E.max(), p, q, epsilon, model="relaxed", rho=(rho, rho))
    options = GWOptions(strategy=strategy, coarse=coarse, stopping=StoppingOptions(max_iter=100))
    result = gw_align(
        posed.D,
        posed.E,
        distances="precomputed",
        epsilon=epsilon,
        marginals=Unbalanced(rho, rho),
        options=options,
        random_state=0,
    )
    return result, float(oracle.objective(posed, np.asarray(result.plan, np.float64)).value)


def stale(
    dtype: torch.dtype,
) -> tuple[torch.Tensor, MarginalConstraint, MarginalConstraint, torch.Tensor, torch.Tensor]:
    """A score, sides whose divergence is 10^5 epsilon, and potentials that are off by thousands of bits."""
    gen = torch.Generator().manual_seed(0)
    score = -2e3 * torch.rand(12, 9, dtype=torch.float64, generator=gen)
    tau = 1 / (1 + 1e-5)
    row, column = (
        MarginalConstraint(torch.full((n,), 1 / n).log2().to(dtype), tau, torch.zeros(n, dtype=dtype)) for n in (12, 9)
    )
    return score.to(dtype), row, column, row.log_mass + 3e4, column.log_mass - 5e4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_potentials_far_from_a_score_are_brought_to_its_mass(dtype: torch.dtype) -> None:
    score, row, column, f, g = stale(dtype)
    plan = torch.empty_like(score)
    state = solve_by_scaling(Scaler(KERNEL.bind(score), row, column, plan), f, g, **LOOP)
    streamed = sinkhorn(KERNEL.bind(score), row, column, f, g, **LOOP)
    for total in (plan.sum(), (score + streamed.f[:, None] + streamed.g).exp2().sum()):
        assert float(total) == pytest.approx(1.0, abs=0.02)
    assert state.residual < 1
    assert float(streamed.residual) < 1


def test_a_residual_that_is_no_number_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    score, row, column, f, g = stale(torch.float32)
    monkeypatch.setattr(scaling_module, "translation", lambda *_: (torch.tensor([5e3]), torch.tensor([-5e3])))
    state = solve_by_scaling(Scaler(KERNEL.bind(score), row, column, torch.empty_like(score)), f, g, **LOOP)
    assert state.residual == np.inf


@ANY_BASIN
@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.parametrize(("rho", "strategy"), [(0.01, "dense"), (1e4, "streaming")])
def test_a_small_epsilon_ends_near_the_plan_of_a_larger_one(rho: float, strategy: str) -> None:
    small, value = solved(rho, 1e-5, strategy)
    assert small.converged
    assert small.marginal_residual > 0
    assert value == pytest.approx(small.value, rel=1e-6)
    assert value < 1.05 * solved(rho, 1e-3)[1]


@ANY_BASIN
def test_a_plan_that_is_not_solved_is_said_to_be_and_near_one_that_is() -> None:
    with pytest.warns(ConvergenceWarning, match="or epsilon"):
        found, value = solved(1.0, 1e-5)
    assert found.marginal_residual > GWOptions().sinkhorn.tol
    assert value < 1.05 * solved(1.0, 1e-3)[1]


def test_tolerances_follow_the_strongest_finite_divergence() -> None:
    def tolerances(marginals: Unbalanced | SemiRelaxed, epsilon: float) -> tuple[float, float]:
        found = tolerances_for(GWOptions(), epsilon, marginals)
        return found.sinkhorn.tol, found.ladder.marginal_tol

    usual = GWOptions().sinkhorn.tol, LadderOptions().marginal_tol
    assert tolerances(Unbalanced(0.1, 0.1), 5e-3) == usual
    assert tolerances(SemiRelaxed(0.0), 1e-3) == usual
    assert tolerances(SemiRelaxed(1e-300), np.float32(0.05)) == usual  # type: ignore[arg-type]
    assert tolerances(Unbalanced(np.inf, np.inf), 1e-3) == usual
    assert tolerances(Unbalanced(1e4, 0.1), 1e-5) == pytest.approx((1e-5, 1e-5))


@pytest.mark.slow
@ANY_BASIN
@pytest.mark.parametrize("strategy", ["dense", "streaming"])
@pytest.mark.parametrize("rho", [1e-2, 0.1, 1.0, 10.0, 1e4])
def test_what_counts_as_converged_is_near_the_lowest_of_all_epsilons(rho: float, strategy: str) -> None:
    converged, values = {}, []
    for epsilon in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            found, value = solved(rho, epsilon, strategy, (40, 30), CoarseOptions())
        assert found.converged != any(issubclass(entry.category, ConvergenceWarning) for entry in caught)
        assert value == pytest.approx(found.value, rel=1e-4)
        values.append(value)
        if found.converged:
            converged[epsilon] = value
    assert {1e-2, 1e-3} <= set(converged)
    # Solves end in basins of their own, up to a third apart here; what is not solved was off by a factor.
    assert max(value for epsilon, value in converged.items() if epsilon < 1e-2) < 1.4 * min(values)


def test_an_epsilon_beyond_floats_is_refused_by_name() -> None:
    with pytest.raises(FloatingPointError, match="epsilon"):
        gw_align(np.eye(4)[:, :2], np.eye(3)[:, :2], epsilon=1e-320, marginals=SemiRelaxed(1e3))


def test_a_partial_plan_of_many_points_that_streams_is_settled() -> None:
    """What a sample of its points says of its bounds is noise."""
    (X, _), (Y, _) = make_spiral(1100), make_swiss_roll(1100, random_state=1)
    options = GWOptions(strategy="streaming", coarse=CoarseOptions(n_landmarks=20, n_starts=4))
    result = gw_align(X, Y, marginals=Partial(0.6), options=options, random_state=0)
    assert result.status is Status.SETTLED
    assert result.marginal_residual < 1e-3
