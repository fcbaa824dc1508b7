"""Numbers at the ends of the range of floats: a right plan, or a refusal at once that names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.spatial.distance import cdist

from tests.problems import Own, daily, gw_by_enumeration, path_graph, random_distances
from torchgw import (
    Balanced,
    CoarseOptions,
    DijkstraDistances,
    EuclideanDistances,
    GWOptions,
    GWResult,
    LadderOptions,
    LowRankOptions,
    Partial,
    PrecomputedDistances,
    SemiRelaxed,
    SeparableLoss,
    SpaceOptions,
    Supervision,
    Unbalanced,
    gw_align,
    ranges,
)
from torchgw.couplings.rounding import residuals, round_tiles
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.softmin_tiles import choose
from torchgw.kernels.tiles import TiledPlan, all_tiles
from torchgw.marginals import Marginals

RNG = np.random.default_rng(0)
N, K = 24, 26
DX, DY = random_distances(N, RNG), random_distances(K, RNG)
CLOUD, OTHER = RNG.normal(size=(N, 2)) * (2.0, 1.0), RNG.normal(size=(K, 3)) * (1.5, 1.0, 0.5)
FEW = {
    "coarse": CoarseOptions(n_landmarks=10, n_starts=3),
    "ladder": LadderOptions(n_cells=16),
    "low_rank": LowRankOptions(rank=2, max_iter=40),
}
TINY = (1e-30, 1e-37, 1e-46, 1e-300, 5e-324)

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchgw.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::torchgw.AmbiguityWarning"),
]


def align(X: Any = DX, Y: Any = DY, strategy: str = "dense", **given: Any) -> GWResult:
    options = GWOptions(strategy=strategy, **FEW, **given.pop("options", {}))
    return gw_align(X, Y, options=options, random_state=0, **{"epsilon": 5e-3, **given})


def checked(
    result: GWResult, X: np.ndarray, Y: np.ndarray, p: np.ndarray, q: np.ndarray, model: Marginals | None = None
) -> np.ndarray:
    """The plan of a result that is consistent with itself, for scaled distances."""
    T: np.ndarray = result.coupling.to_dense().numpy()
    assert np.isfinite(T).all()
    assert (T >= 0).all()
    sums = torch.from_numpy(T.sum(1)), torch.from_numpy(T.sum(0))
    wanted = torch.from_numpy(p), torch.from_numpy(q)
    missed = residuals(*sums, *wanted, Partial(1.0) if model is None else model).tolist()
    assert max(missed, default=0.0) <= 2 * result.marginal_error + 1e-13 * p.sum()
    assert result.value_quad == pytest.approx(gw_by_enumeration(X, Y, T), rel=1e-6)
    assert 0 <= result.certificate.lower_bound <= result.value * (1 + 1e-9)
    return T


def squared(points: np.ndarray) -> EuclideanDistances:
    return EuclideanDistances(points, squared=True)


def scaled(points: np.ndarray) -> np.ndarray:
    D = ((points[:, None] - points[None]) ** 2).sum(-1)
    return D / D.max()


def masses(tiny: tuple[float, ...]) -> np.ndarray:
    p = np.full(N, 1.0 / (N - len(TINY)))
    p[3 : 3 + len(TINY)] = tiny
    return p


@pytest.mark.parametrize(
    ("strategy", "marginals"),
    [
        *[("low-rank", None), ("sharp", None)],
        *daily(
            [("dense", None), ("streaming", None), ("dense", Unbalanced(0.1, 0.1))],
            ["dense", "streaming"],
            [None, Unbalanced(0.1, 0.1), SemiRelaxed(0.1), Partial(0.5)],
        ),
    ],
)
def test_negligible_masses_leave_the_plan_as_it_is_without_them(strategy: str, marginals: Marginals | None) -> None:
    given: dict[str, Any] = {} if marginals is None else {"marginals": marginals}
    given |= {"epsilon": 0.0} if strategy in ("sharp", "low-rank") else {}
    q = np.full(K, 1 / K)
    plans = []
    for tiny in (TINY, (0.0,) * len(TINY)):
        strategy = "dense" if strategy == "sharp" else strategy
        result = align(squared(CLOUD), squared(OTHER), strategy, p=masses(tiny), q=q, **given)
        plans.append(checked(result, scaled(CLOUD), scaled(OTHER), masses(tiny), q, marginals))
    np.testing.assert_allclose(plans[0], plans[1], rtol=0, atol=1e-14)


def test_the_least_mass_that_counts_leaves_the_rest_alone() -> None:
    """In float32, on kept tiles: 1e-24 is just above 2^-80. Its point is one of the space, so other cells are made."""
    q, options = (
        np.full(K, 1 / K),
        {"strategy": "streaming", **FEW, "ladder": LadderOptions(n_cells=16, marginal_tol=1e-7)},
    )
    least, none = (
        gw_align(squared(CLOUD), squared(OTHER), p=p, q=q, options=GWOptions(**options), epsilon=5e-3, random_state=0)
        for p in (masses((mass, 0.0, 0.0, 0.0, 0.0)) for mass in (1e-24, 0.0))
    )
    assert 0 < least.plan[3].sum() < 1e-15
    assert least.value == pytest.approx(none.value, rel=1e-4)
    np.testing.assert_allclose(least.plan, none.plan, rtol=0, atol=1e-5)


def test_rounding_takes_nothing_from_a_plan_for_one_point_of_next_to_no_mass() -> None:
    """The point's mass lies below 2^-120 for each of its partners, so its row cannot be scaled down."""
    p, q = torch.full((40,), 1 / 39, dtype=torch.float64), torch.full((50,), 1 / 50, dtype=torch.float64)
    p[0] = 1e-38
    A, B = torch.zeros(40, 1, dtype=torch.float64), torch.zeros(50, 1, dtype=torch.float64)
    kernel = choose("eager", Workload(A.device, A.dtype, (40, 50), 1)).function
    plan = TiledPlan(A, B, p.log2(), q.log2(), all_tiles(40, 50, 32, A.device))
    found = round_tiles(kernel, plan, p, q)
    assert float(found.rows.sum() - found.x.sum() * found.y.sum()) > 1 - 1e-9
    assert found.residual < 1e-9


@pytest.mark.parametrize("size", [1e100, 1e-100])
def test_searched_distances_of_any_size_are_those_of_size_one_in_float32(size: float) -> None:
    graph, _ = path_graph([1.0, 2.0, 3.0])
    one, other = (DijkstraDistances(graph * s).to(torch.device("cpu"), torch.float32) for s in (1.0, size))
    torch.testing.assert_close(other.rows(torch.arange(4)), one.rows(torch.arange(4)))


@pytest.mark.parametrize("size", [1.7e308, 1e-290])
def test_matrices_of_any_size_are_those_of_size_one(size: float) -> None:
    cut = DX / DX.max()
    cut[0, 1:4] = cut[1:4, 0] = np.inf
    with pytest.warns(UserWarning, match="not connected"):
        one, other = PrecomputedDistances(cut), PrecomputedDistances(cut * size)
    torch.testing.assert_close(other.matrix, one.matrix, rtol=1e-13, atol=0)
    assert other.largest == pytest.approx(size)


def test_a_matrix_of_a_huge_range_is_aligned() -> None:
    D = np.triu(10 ** np.random.default_rng(1).uniform(-30, 30, (N, N)), 1)
    D += D.T
    p, q = np.full(N, 1 / N), np.full(K, 1 / K)
    checked(align(D), D / D.max(), DY / DY.max(), p, q)


def test_small_asymmetric_matrices_are_not_taken_for_symmetric() -> None:
    lopsided = np.random.default_rng(0).uniform(size=(5, 5)) * 1e-299
    np.fill_diagonal(lopsided, 0.0)
    with pytest.raises(ValueError, match="D must be a symmetric distance matrix"):
        PrecomputedDistances(lopsided)


@pytest.mark.parametrize("size", [1e148, 1e-148])
def test_points_of_any_size_are_those_of_size_one(size: float) -> None:
    for kind in (False, True):
        one, other = (EuclideanDistances(CLOUD * s, squared=kind) for s in (1.0, size))
        index = torch.arange(N)
        torch.testing.assert_close(other.rows(index), one.rows(index), rtol=1e-12, atol=0)
        assert 0 < other.scale < np.inf


def test_points_that_coincide_have_a_scale_of_one_whatever_their_mean_rounds_to() -> None:
    points = np.tile(np.random.default_rng(95).normal(size=5), (3, 1))
    assert (points - points.mean(0)).any()
    space = EuclideanDistances(points)
    assert space.scale == 1.0
    assert not space.rows(torch.arange(3)).any()


@pytest.mark.parametrize("largest", [1e-8, 1e8])
def test_factors_of_squared_distances_are_as_accurate_at_any_scale(largest: float) -> None:
    space = squared(CLOUD)
    space = space.with_scale(space.scale / largest).to(torch.device("cpu"), torch.float32)
    F, signs = space.factors()
    torch.testing.assert_close((F * signs) @ F.T / largest, torch.from_numpy(scaled(CLOUD)).float(), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torchgw.PrecisionWarning")
@pytest.mark.parametrize("epsilon", [0.0, 5e-3])
def test_distances_as_large_as_a_scale_may_leave_them(epsilon: float) -> None:
    X, Y = DX / DX.max() * 9e8, DY / DY.max() * 9e8
    p, q = np.full(N, 1 / N), np.full(K, 1 / K)
    checked(align(X, Y, epsilon=epsilon * 8.1e17, options={"spaces": SpaceOptions(scale=1.0)}), X, Y, p, q)


@pytest.mark.parametrize(("size", "alpha"), [(1e-300, 0.5), (1e10, 1 - 1e-6), (1e-300, 0.0)])
def test_costs_of_any_size_beside_which_something_is_left(size: float, alpha: float) -> None:
    M = np.random.default_rng(2).uniform(size=(N, K))
    result = align(cost=M * size, alpha=alpha)
    T = result.coupling.to_dense().numpy()
    assert np.isfinite(T).all()
    assert result.value_linear == pytest.approx((M * T).sum() * size, rel=1e-6)
    assert result.marginal_error < 1e-9


@pytest.mark.parametrize(
    "marginals", [Balanced(), SemiRelaxed(0.1), pytest.param(Unbalanced(1.0, 1.0), marks=pytest.mark.slow)]
)
def test_masses_beside_which_distances_are_nothing_leave_the_plan_of_the_cost_alone(marginals: Marginals) -> None:
    M = np.random.default_rng(2).uniform(size=(N, K))
    p, q = np.full(N, 2e-30 / N), np.full(K, 2e-30 / K)
    given: dict[str, Any] = {"cost": M, "p": p, "q": q, "marginals": marginals}
    found, expected = align(**given), align(**given, alpha=0.0)
    assert found.converged
    assert np.abs(found.plan - expected.plan).sum() < 0.02 * float(expected.plan.sum())


ONES, HUGE = np.full(N, 1e100), GWOptions(spaces=SpaceOptions(scale=1.0))


@pytest.mark.parametrize("mass", [pytest.param(1e-5, marks=pytest.mark.slow), 1e-8])
def test_a_sliver_of_the_masses_streams_as_it_is_stored(mass: float) -> None:
    stored, streamed = (
        align(CLOUD, OTHER, way, marginals=Partial(mass), distances="landmark", epsilon=0.05)
        for way in ("dense", "streaming")
    )
    assert streamed.converged
    assert streamed.value == pytest.approx(stored.value, rel=0.02)
    assert float(streamed.coupling.to_dense().sum()) == pytest.approx(mass, rel=1e-9)


def test_a_cost_beyond_digits_is_refused_while_epsilon_falls() -> None:
    cost = 1e10 * np.random.default_rng(4).random((7, 10))
    heard: list[int] = []
    with pytest.raises(FloatingPointError, match=r"epsilon = 0\.3 is too small"):
        gw_align(
            CLOUD[:7],
            OTHER[:10],
            marginals=Partial(0.9),
            epsilon=0.3,
            cost=cost,
            random_state=0,
            callback=lambda progress: heard.append(progress.iteration),
        )
    assert len(heard) < 20


@pytest.mark.filterwarnings("ignore::torchgw.SamplingWarning")
@pytest.mark.filterwarnings("ignore::torchgw.GraphWarning")
def test_a_start_whose_potentials_diverge_does_not_end_the_search() -> None:
    points = np.random.default_rng(52).normal(size=(9, 3))
    rules = Supervision(pairs=[(0, 0), (0, 1), (1, 1)])
    lengths = np.triu(np.random.default_rng(44).uniform(1, 2, (19, 19)), 1)
    kept = (np.random.default_rng(45).random((19, 19)) < 0.2) | (np.arange(19)[:, None] + 1 == np.arange(19))
    edges = ((lengths + lengths.T) * (kept | kept.T) > 0).astype(float)
    q = np.random.default_rng(96).random(19) + 0.1
    result = gw_align(
        points,
        edges,
        distances=("landmark", "auto"),
        q=q / q.sum(),
        marginals=Unbalanced(0.1, 0.1),
        supervision=rules,
        options=GWOptions(strategy="streaming"),
        random_state=0,
    )
    assert result.converged


UNCLAMPED = SeparableLoss(lambda a: a * a.log() - a, lambda b: b, lambda a: a, lambda b: b.log(), "unclamped")
HOLLOW = SeparableLoss(
    lambda a: a.square() + (a * (a - 1)).sqrt(), torch.square, lambda a: a, lambda b: 2 * b, "hollow"
)


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a scale that leaves distances": (
        lambda: gw_align(DX * 1e20, DY, options=HUGE),
        ValueError,
        "options.spaces.scale must be at least .* of X, .*e[+]20, got 1$",
    ),
    "a scale that leaves points": (
        lambda: gw_align(CLOUD, OTHER * 1e20, distances="euclidean", options=HUGE),
        ValueError,
        "options.spaces.scale must be at least .* of Y",
    ),
    "a scale beside which one space vanishes": (
        lambda: align(options={"spaces": SpaceOptions(scale=(1e30, 1.0))}),
        ValueError,
        "options.spaces.scale must be at most 1e[+]09 times the largest distance of X, .*, got 1e[+]30$",
    ),
    "a common scale beside which one space vanishes": (
        lambda: gw_align(DX * 1e-20, DY, options=GWOptions(spaces=SpaceOptions(scale="common"))),
        ValueError,
        "options.spaces.scale must be at most 1e[+]09 times the largest distance of X, .*e-20, got",
    ),
    "a provider without a scale": (
        lambda: gw_align(Own(DX * 1e20), DY),
        ValueError,
        "X.rows must be divided by X.scale",
    ),
    "points of 1e200": (lambda: gw_align(CLOUD * 1e200, OTHER), ValueError, "X must stay below 1e[+]150"),
    "points of 1e-310": (lambda: gw_align(CLOUD, OTHER * 1e-310), ValueError, "Y must reach 1e-300 or be zero"),
    "edges of 1e200": (lambda: gw_align(csr_matrix(DX * 1e200), DY), ValueError, "X.data must stay below 1e[+]150"),
    "squares of 1e-400": (lambda: squared(CLOUD * 1e-200), ValueError, "points must reach 1e-150 or be zero"),
    "distances of 1e-310": (lambda: gw_align(DX * 1e-310, DY), ValueError, "X must reach 1e-300 or be zero"),
    "a cost of 1e300": (lambda: align(cost=np.full((N, K), 1e300)), ValueError, "cost must be at most 1e[+]18"),
    "a cost alone": (lambda: align(cost=np.eye(N, K) * 1e300, alpha=0.0), ValueError, "cost must be at most 1e[+]18"),
    "a cost beyond digits": (lambda: align(cost=np.eye(N, K) * 1e16), FloatingPointError, "too small for cost: their"),
    "a tiny sum": (lambda: align(p=ONES * 1e-300, q=np.full(K, 1e-200)), ValueError, r"p must have .* within \[1e-150"),
    "sums far apart": (
        lambda: align(p=ONES, q=np.full(K, 1e-100), marginals=Unbalanced(0.1, 0.1)),
        ValueError,
        "p and q must have sums within a factor of 1e[+]09",
    ),
    "a sliver of the masses": (
        lambda: align(marginals=Partial(1e-30)),
        ValueError,
        "marginals must ask for 1e-09 of the smaller mass at least, got Partial",
    ),
    "a scale beside a small epsilon": (
        lambda: gw_align(DX * 1e7, DY * 1e7, epsilon=1e-3, options=HUGE, random_state=0),
        FloatingPointError,
        "epsilon = 0.001 is too small for squared distances.* larger options.spaces.scale",
    ),
    "marginals that leave nothing": (
        lambda: align(cost=np.ones((N, K)), alpha=0.0, marginals=Unbalanced(1e-12, 1e-12)),
        FloatingPointError,
        "marginals = .* must leave a plan of some mass, .*raise rho_x",
    ),
    "outliers of a cost beside hard marginals": (
        lambda: align(cost=np.eye(N, K) * 1e9),
        ValueError,
        "cost must have no entries .* options.sinkhorn.tol = 0.0001 .* forbid pairs by supervision=",
    ),
    "outliers of a cost beside a part of the masses": (
        lambda: align(
            cost=np.random.default_rng(0).random((N, K)) + np.eye(N, K) * 1e9, epsilon=0.5, marginals=Partial(0.7)
        ),
        ValueError,
        "cost must have no entries .* got .*e[+]08 .*beside matches of [0-9.]+; divide .* forbid pairs by supervision=",
    ),
    "outliers of a cost without distances": (
        lambda: align(cost=np.random.default_rng(0).random((N, K)) + np.eye(N, K) * 1e9, alpha=0.0),
        ValueError,
        "cost must have no entries .* got 1e[+]09 among others of 0[.][0-9]+, beside matches of 0",
    ),
    "labels that drown distances": (
        lambda: align(cost=1e5 * (np.arange(N)[:, None] % 3 != np.arange(K) % 3)),
        ValueError,
        "cost must have no entries .* in units of the largest squared distance, beside matches of 0; divide",
    ),
    "an epsilon that no weights mend": (
        lambda: align(epsilon=1e-9, marginals=Unbalanced(1e-2, 1e-2)),
        FloatingPointError,
        "epsilon = 1e-09 is too small for squared distances: .*; raise epsilon$",
    ),
    "a loss that is no number": (
        lambda: align(options={"loss": UNCLAMPED}),
        ValueError,
        "options.loss = 'unclamped' must be finite between scaled distances of 0 and 1, got nan",
    ),
    "a loss that is no number between its ends": (
        lambda: align(options={"loss": HOLLOW}),
        ValueError,
        "options.loss = 'hollow' must be finite between scaled distances of 0 and 1, got nan",
    ),
    "a huge epsilon": (lambda: align(epsilon=1e300), ValueError, "epsilon must be a finite number .* <= 1e[+]30"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_floats_do_not_carry_is_refused_by_name(case: str) -> None:
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        call()


PIXELS = np.random.default_rng(5).random((N, 2)) * [1000, 900]
COUNTS = np.random.default_rng(6).poisson(20, (N, 300)).astype(float)
LABELS = np.arange(N) % 3
EVEN: dict[str, tuple[np.ndarray, tuple[float, ...], tuple[float, ...]]] = {
    "squares of pixels": (cdist(PIXELS, PIXELS, "sqeuclidean"), (0.0, 0.5), (1e3, 1e2)),
    "squares of pixels alone": (cdist(PIXELS, PIXELS, "sqeuclidean"), (0.0,), (10.0,)),
    "counts": (cdist(COUNTS, COUNTS, "sqeuclidean"), (0.0,), (24.0,)),
    "labels": (1e5 * (LABELS[:, None] != LABELS), (0.0,), (1.0, 1e-3)),
    "labels beside much entropy": (1e5 * (LABELS[:, None] != LABELS), (0.5,), (5.0,)),
    "labels that are rounded": ((LABELS[:, None] != LABELS) + 2e-16, (0.0,), (1e-5,)),
    "a few ones": (1.0 * np.eye(N), (0.0,), (1e-5,)),
}


@pytest.mark.parametrize("case", EVEN)
def test_large_costs_that_are_spread_evenly_are_no_outliers(case: str) -> None:
    """Each has matches of no cost; the plan costs little beside its entropy, or beside what a random plan costs."""
    cost, alphas, epsilons = EVEN[case]
    order = np.random.default_rng(7).permutation(N)
    for alpha in alphas:
        for epsilon in epsilons:
            found = align(DX, DX[np.ix_(order, order)], cost=cost[:, order], alpha=alpha, epsilon=epsilon)
            assert found.value_linear < epsilon + 1e-4 * cost.max()


def test_a_mass_must_be_enough_for_every_pair() -> None:
    least = 100 * ranges.LEAST_ENTRY
    ranges.remaining_mass(1.01 * least, 1.0, 1.0, 100, Unbalanced(0.1, 0.1))
    with pytest.raises(FloatingPointError, match="some mass"):
        ranges.remaining_mass(0.99 * least, 1.0, 1.0, 100, Unbalanced(0.1, 0.1))


def test_a_plan_that_grows_beyond_its_masses_is_refused_where_its_square_is_no_number() -> None:
    """Where divergences weigh less than the entropy, a plan's mass is near the product of both sums, here 1e298."""
    X, Y = np.random.default_rng(0).normal(size=(2, 8, 3))
    p, q = np.full(8, 1e148), np.full(8, 2e148)
    with pytest.raises(FloatingPointError, match=r"sums .* got a mass of .*e\+16., .* rescale them"):
        gw_align(X, Y, p=p, q=q, marginals=Unbalanced(0.05, 0.05), epsilon=0.01, distances="euclidean", random_state=0)
    found = gw_align(
        X, Y, p=p, q=q, marginals=Unbalanced(0.3, 0.3), epsilon=0.01, distances="euclidean", random_state=0
    )
    assert 0 < found.value < math.inf


@pytest.mark.parametrize("marginals", [Balanced(), Partial(0.7)])
def test_a_large_cost_is_solved_as_the_same_cost_scaled_down(marginals: Marginals) -> None:
    """Beside both, distances are nothing."""
    cost, few = np.random.default_rng(4).random((7, 8)), GWOptions(coarse=CoarseOptions(n_landmarks=8, n_starts=3))
    small, large = (
        gw_align(
            DX[:7, :7],
            DY[:8, :8],
            cost=cost * size,
            epsilon=size / 100,
            marginals=marginals,
            options=few,
            random_state=0,
        )
        for size in (1e6, 1e9)
    )
    assert small.converged
    assert large.converged
    torch.testing.assert_close(large.plan, small.plan, rtol=0, atol=1e-5)
    assert large.value / 1e9 == pytest.approx(small.value / 1e6, rel=1e-3)


@pytest.mark.parametrize(
    ("refused", "mended", "reason", "remedy"),
    [
        ((1e-4, 1e-5), (1e-3, 1e-3), "no start has a finite objective", "raise weights$"),
        ((1e12, 1e12), (10.0, 1e-4), "epsilon = 0.0001 is too small", "lower weights above 1, or math.inf"),
    ],
)
def test_weights_changed_as_a_refusal_says_give_a_plan(
    refused: tuple[float, float], mended: tuple[float, float], reason: str, remedy: str
) -> None:
    def few(weights: tuple[float, float]) -> GWResult:
        options = GWOptions(coarse=CoarseOptions(n_landmarks=6, n_starts=3))
        model, masses = Unbalanced(*weights), np.full(6, 2 / 6)
        return gw_align(
            DX[:6, :6], DY[:6, :6], q=masses, epsilon=1e-4, marginals=model, options=options, random_state=0
        )

    with pytest.raises(FloatingPointError, match=rf"{reason}.*; raise epsilon; or change Unbalanced\(.*\): {remedy}"):
        few(refused)
    assert float(few(mended).coupling.marginal(1).sum()) > 0.1
