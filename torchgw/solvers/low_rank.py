"""Gromov-Wasserstein transport by couplings of low rank: mirror descent on T = Q diag(1/g) R^T.

With D_X = F diag(s) F^T and D_Y = G diag(t) G^T everything is a product of thin matrices. For A = Q^T D_X Q and
B = R^T D_Y R, both (r, r), the objective and half its gradient are

    <C(T), T> = p . a + q . b - 2 sum_cd A_cd B_cd / (g_c g_d),      a = (D_X o D_X) p,   b = (D_Y o D_Y) q,
    G_Q = -2 D_X Q W_B,   G_R = -2 D_Y R W_A,   G_g = 2 diag(A diag(1/g) B) / g^2,        W_B = diag(1/g) B diag(1/g).

Half of it, because epsilon belongs to the linearised problem min <C, T> - epsilon entropy, as in every solve here. What
falls from iteration to iteration is <C(T), T> / 2 + epsilon sum x (log x - 1) over the entries x of Q, R and g. A step
minimises that with the quadratic part linearised, plus the Kullback-Leibler divergence from the last factors over
gamma: it projects (Q exp(-gamma G_Q))^(1 / (1 + gamma epsilon)), and R and g likewise, onto the constraints.

The constraints do not see a term added to a row of G_Q, nor one added to column c of G_Q and taken off G_g at c. Such
terms are removed first, so that gamma = step / |gradient|_oo^2 measures what moves the plan. The step grows while the
objective falls and is cut where it would not.

Equal components are a saddle point, and so, nearly, are components of independent noise, whose differences average out
over many points. So the first factors follow the spaces (`warm_factors`): they group the cells of a coarse plan that
lie close together and send each group where the plan sends it, blurred, so that mirror descent, which only rescales,
can change it.

Sources: M. Scetbon, G. Peyre, M. Cuturi, "Linear-time Gromov Wasserstein distances using low rank couplings and costs",
2022; M. Scetbon, M. Cuturi, "Low-rank optimal transport: approximation, statistics and debiasing", 2022 (step sizes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import Model
from torchgw.options import LowRankOptions
from torchgw.persist.codec import storable
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.low_rank import LowRankFactors, Projection, project, round_factors
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.solution import Solution
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.coarsening import Cells, choose_landmarks, refine_cells
from torchgw.types import DistanceProvider

FIRST_STEP, GROWTH, SHRINK = 0.03, 1.2, 0.5
ROUNDING = torch.finfo(torch.float64).eps
LARGEST_EXPONENT = 100.0
MOST_CUTS = 30
PROJECTION_TOL, USABLE, MOST_SWEEPS = 1e-9, 1e-6, 100
BLUR = 0.1
NOISE, LEAST = 0.05, 1e-3


def solve_low_rank(
    gradient: ExactGradient,
    model: Model,
    options: LowRankOptions,
    generator: torch.Generator,
    *,
    start: LowRankFactors,
    watch: Watch | None = None,
) -> Solution:
    """Minimise the Gromov-Wasserstein objective over couplings of rank ``options.rank``.

    Parameters
    ----------
    gradient : of the points with mass, N and K, in float64, between factors of rank r_X, r_Y.
    model : their masses p (N,), q (K,) and epsilon, the weight of the entropies of Q, R and g; 0 for none.
    options : rank, at most the number of points in either space, step sizes and stopping.
    generator : breaks the ties between equal components.
    start : Q (N, r), R (K, r), g (r,) to begin with, see `warm_factors`.

    Notes
    -----
    O((N + K) r (r + r_X + r_Y)) time for each iteration and O((N + K) (r + r_X + r_Y)) memory, in float64.
    """
    p, q, epsilon = model.p, model.q, model.epsilon
    start = perturb_factors(LowRankFactors(*(side.double() for side in start)), p, q, generator)
    loop, noise = Loop(watch or Watch(), History(), options.max_iter), ROUNDING * float(p @ gradient.a + q @ gradient.b)

    def project_logs(logs: LowRankFactors) -> Projection:
        return project(logs, p, q, floor=options.floor, tol=PROJECTION_TOL, max_iter=MOST_SWEEPS)

    def begin() -> MirrorState:
        first = project_logs(start.logarithms())
        value, objective, slope = evaluate(gradient, model, first.factors)
        return MirrorState(
            n_iter_sinkhorn=first.n_iter,
            factors=first.factors,
            value=value,
            objective=objective,
            gradient=slope,
            step=options.step * FIRST_STEP,
            residual=first.residual,
        )

    def step(state: MirrorState) -> tuple[MirrorState, Check, Status | None]:
        """One accepted step, or none where no length lowers the objective."""
        along, logs = remove_null_terms(state.gradient, p, q), state.factors.logarithms()
        norm = max(float(side.abs().amax()) for side in along)
        new, change, length, n_sweeps = state, 0.0, state.step, state.n_iter_sinkhorn
        for _ in range(MOST_CUTS if norm > max(noise, 0.0) else 0):
            exponent = min(length / norm, LARGEST_EXPONENT)
            gamma = exponent / norm
            damping = 1 + gamma * epsilon
            moved = ((log - gamma * side) / damping for log, side in zip(logs, along, strict=True))
            found = project_logs(LowRankFactors(*moved))
            n_sweeps += found.n_iter
            value, objective, slope = evaluate(gradient, model, found.factors)
            if found.residual <= USABLE and objective <= state.objective + noise:
                change = _divergence(found.factors, state.factors) / exponent**2
                length = min(length * GROWTH, options.step)
                new = replace(
                    state,
                    factors=found.factors,
                    value=value,
                    objective=objective,
                    gradient=slope,
                    residual=found.residual,
                )
                break
            length = exponent * norm * SHRINK
        new = replace(new, n_iter=state.n_iter + 1, n_iter_sinkhorn=n_sweeps, step=length, last_change=change)
        return new, Check(new.value, new.residual, epsilon), Status.SETTLED if change <= options.tol else None

    state, status = iterate(MirrorState, step, begin, loop)
    rounded = round_factors(state.factors, p, q)
    return Solution(
        coupling=LowRankCoupling(*rounded),
        warm_start=None,
        energy=max(evaluate(gradient, model, rounded)[0], 0.0),
        marginal_residual=state.residual,
        status=status if state.residual <= USABLE else Status.MARGINALS,
        n_iter=state.n_iter,
        n_iter_sinkhorn=state.n_iter_sinkhorn,
        history=loop.history,
        last_change=state.last_change,
    )


@storable
@dataclass(frozen=True, kw_only=True)
class MirrorState(State):
    """Where mirror descent stands; ``n_iter_sinkhorn`` counts sweeps of its projections.

    factors : Q (N, r), R (K, r), g (r,) on the marginals.
    value, objective, gradient : there, as `evaluate` returns them.
    step : length of the next step, in units of the largest squared distance.
    residual : L1 marginal residual of the last projection.
    last_change : symmetric Kullback-Leibler divergence of the last step over its squared length.
    """

    factors: LowRankFactors
    value: float
    objective: float
    gradient: LowRankFactors
    step: float
    residual: float
    last_change: float = float("inf")

    @property
    def complete(self) -> bool:
        return True


def evaluate(gradient: ExactGradient, model: Model, factors: LowRankFactors) -> tuple[float, float, LowRankFactors]:
    """<C(T), T>; half of it less the entropies, which descent lowers; and half the derivative of <C(T), T> in each
    factor, without terms that the constraints do not see. O((N + K) r (r_X + r_Y)): no cost is made."""
    (Q, R, g), left, right = factors, gradient.source.factors(), gradient.target.factors()
    assert left is not None  # the request refuses a rank for other spaces
    assert right is not None
    (F, s), (G, t) = left, right
    FQ, GR = F.T @ Q, G.T @ R
    sFQ, tGR = s[:, None] * FQ, t[:, None] * GR
    # W_A = diag(1/g) A diag(1/g), the mean distances between components.
    W_A, W_B = (FQ.T @ sFQ) / g[:, None] / g, (GR.T @ tGR) / g[:, None] / g
    overlap = (W_A * W_B) @ g
    slope = LowRankFactors(-2 * F @ (sFQ @ W_B), -2 * G @ (tGR @ W_A), 2 * overlap)
    value = float(model.p @ gradient.a + model.q @ gradient.b - 2 * (g @ overlap))
    entropy = float(sum((side - torch.xlogy(side, side)).sum() for side in factors))
    return value, value / 2 - model.epsilon * entropy, slope


def remove_null_terms(gradient: LowRankFactors, p: Tensor, q: Tensor) -> LowRankFactors:
    """The gradient without the terms that the constraints do not see."""
    weights, sides = gradient.g, []
    for side, mass in ((gradient.Q, p), (gradient.R, q)):
        centred = side - side.mean(1, keepdim=True)
        column = mass @ centred
        sides.append(centred - column)
        weights = weights + column
    return LowRankFactors(sides[0], sides[1], weights - weights.mean())


def _divergence(new: LowRankFactors, old: LowRankFactors) -> float:
    """KL(new | old) + KL(old | new), summed over the three factors."""
    pairs = zip(new, old, strict=True)
    return float(sum(torch.nan_to_num((x - y) * (x.log() - y.log()), posinf=0.0).sum() for x, y in pairs))


def perturb_factors(start: LowRankFactors, p: Tensor, q: Tensor, generator: torch.Generator) -> LowRankFactors:
    """Factors near the given ones with positive entries and no two equal components; p, q positive."""
    share = (start.g / start.g.sum()).clamp_min(LEAST / len(start.g))
    sides = []
    for side, mass in ((start.Q, p), (start.R, q)):
        noise = torch.randn(side.shape, generator=generator, dtype=side.dtype, device=side.device)
        sides.append((side + LEAST * mass[:, None] * share) * (NOISE * noise).exp())
    return LowRankFactors(sides[0], sides[1], share)


def warm_factors(
    source: DistanceProvider,
    cells: tuple[Tensor, Tensor],
    plan: Tensor,
    p: Tensor,
    q: Tensor,
    options: LowRankOptions,
    generator: torch.Generator,
) -> LowRankFactors:
    """The components that a plan between cells of the two spaces suggests.

    The source's cells are grouped by k-means of their factors, one group for each component, and component c takes mass
    from group c to where the plan sends it. Where the rank exceeds the number of cells, the heaviest cells have several
    components.

    Parameters
    ----------
    source : the space of the source points, with factors in float64.
    cells : cell of each source point (N,) out of n_X, and of each target point (K,) out of n_Y.
    plan : mass between cells (n_X, n_Y), float64, not negative, some from and to each cell.
    p, q : masses (N,), (K,) in float64, of sum 1.

    Notes
    -----
    O(n_X r r_X + n_X n_Y r + (N + K) r + N r_X) time.
    """
    rows, columns = cells
    plan = plan.to(p) / plan.sum().to(p)
    factors = source.factors()
    assert factors is not None  # the request refuses a rank for other spaces
    means = Cells(rows, len(plan)).means(factors[0], p)
    group = group_cells(means, plan.sum(1), options.rank, generator)
    from_plan = plan.T @ group
    from_plan /= from_plan.sum(1, keepdim=True)
    g = plan.sum(1) @ group
    Q, R = (
        mass[:, None] * ((1 - BLUR) * side[label] + BLUR * g)
        for mass, side, label in ((p, group, rows), (q, from_plan, columns))
    )
    return LowRankFactors(Q, R, g)


def group_cells(points: Tensor, mass: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """Shares (n, rank) of each cell in ``rank`` groups of cells that lie close together; rows sum to one.

    k-means of the points (n, d), weighted by ``mass`` (n,) > 0; where fewer differ, the heaviest have several groups.
    """
    apart = PrecomputedDistances.stored_matrix(torch.cdist(points, points), 1.0)
    groups = refine_cells(choose_landmarks(apart, mass, "spread", rank, generator), points, mass)
    shares = torch.nn.functional.one_hot(groups.label).to(mass)
    weight, parts = mass @ shares, torch.ones(shares.shape[1], dtype=torch.int64, device=mass.device)
    for _ in range(rank - len(parts)):
        parts[(weight / parts).argmax()] += 1
    return (shares / parts).repeat_interleave(parts, dim=1)
