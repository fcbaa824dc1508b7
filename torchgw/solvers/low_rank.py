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

Sources: M. Scetbon, G. Peyre, M. Cuturi, "Linear-time Gromov Wasserstein distances using low rank couplings and costs",
2022; M. Scetbon, M. Cuturi, "Low-rank optimal transport: approximation, statistics and debiasing", 2022 (step sizes).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.objective.exact import factored_mean_squares
from torchgw.options import LowRankOptions
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.lowrank import LowRankFactors, project, round_factors
from torchgw.solvers.low_rank_guesses import perturbed
from torchgw.solvers.sampled import record
from torchgw.types import DistanceProvider

FIRST_STEP, GROWTH, SHRINK = 0.03, 1.2, 0.5
LARGEST_EXPONENT = 100.0
MOST_CUTS = 30
PROJECTION_TOL, USABLE, MOST_SWEEPS = 1e-9, 1e-6, 100
MASS_TOLERANCE = 1e-6


@dataclass(frozen=True)
class LowRankSolve:
    """A feasible coupling of low rank, <C(T), T> of it, and how the descent ended.

    ``change`` is the last value of the criterion that ``LowRankOptions.tol`` is compared with, ``n_iter`` counts the
    iterations, ``n_sweeps`` those of their projections, ``residual`` is the L1 marginal
    error that rounding removed. ``history.cost`` is <C(T), T>.
    """

    coupling: LowRankCoupling
    value: float
    status: Status
    n_iter: int
    n_sweeps: int
    change: float
    residual: float
    history: History


def solve_low_rank(
    source: DistanceProvider,
    target: DistanceProvider,
    p: Tensor,
    q: Tensor,
    epsilon: float,
    options: LowRankOptions,
    generator: torch.Generator,
    *,
    start: LowRankFactors,
    watch: Watch | None = None,
) -> LowRankSolve:
    """Minimise the Gromov-Wasserstein objective over couplings of rank ``options.rank``.

    Parameters
    ----------
    source, target : spaces of N and K points with factors of rank r_X, r_Y.
    p, q : masses (N,), (K,) of sum 1, on the device to use; points without mass get zero rows.
    epsilon : weight of the entropies of Q, R and g, in units of the scaled squared distances; 0 for none.
    options : rank, step sizes and stopping.
    generator : breaks the ties between equal components.
    start : Q (N, r), R (K, r), g (r,) to begin with, see `torchgw.solvers.low_rank_guesses`.

    Raises
    ------
    ValueError
        For spaces without factors, a rank above the number of points, a start of other shapes, unequal masses.

    Notes
    -----
    O((N + K) r (r + r_X + r_Y)) time for each iteration and O((N + K) (r + r_X + r_Y)) memory, in float64.
    """
    epsilon = validate.real("epsilon", epsilon, least=0.0)
    p, q = _unit_mass("p", p), _unit_mass("q", q)
    _check_rank(options.rank, int((p > 0).sum()), int((q > 0).sum()))
    problem = _Problem.of(source, target, p, q, epsilon)
    start = perturbed(_restricted(start, p, q, options.rank), problem.p, problem.q, generator)
    descent = _Descent(problem, options, start)
    descent.run(Watch() if watch is None else watch)
    return descent.result(p, q)


def _restricted(start: LowRankFactors, p: Tensor, q: Tensor, rank: int) -> LowRankFactors:
    """A start without the points that have no mass."""
    expected = ((len(p), rank), (len(q), rank), (rank,))
    shapes = tuple(tuple(side.shape) for side in start)
    if shapes != expected:
        raise ValueError(f"start must hold Q, R, g of shapes {expected}, got {shapes}")
    return LowRankFactors(start.Q[p > 0].double(), start.R[q > 0].double(), start.g.double())


def _unit_mass(name: str, mass: Tensor) -> Tensor:
    """Masses that sum to 1 up to the rounding of their dtype, in float64 and to its rounding."""
    total = float(mass.double().sum())
    if not abs(total - 1) <= MASS_TOLERANCE:
        raise ValueError(f"{name} must sum to 1, got {total:.9g}; divide it by its sum")
    return mass.double() / total


def _check_rank(rank: int, n: int, k: int) -> None:
    if rank > min(n, k):
        raise ValueError(
            f"rank must be at most the number of points with mass in either space, {min(n, k)}, got {rank}; "
            f"lower it, or solve without a rank"
        )


def _signed_factors(name: str, space: DistanceProvider, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of a space in float64 on the device of its masses."""
    found = space.to(mass.device, torch.float64).factors()
    if found is None:
        raise ValueError(
            f"{name} must have factored distances for couplings of low rank, {type(space).__name__} has none; use "
            f"landmark distances, or squared Euclidean ones, EuclideanDistances(points, squared=True)"
        )
    return found


class _Point(NamedTuple):
    """Feasible factors and their logarithms, <C(T), T>, the objective that falls, half its gradient in each factor."""

    factors: LowRankFactors
    logs: LowRankFactors
    value: float
    objective: float
    gradient: LowRankFactors


@dataclass(frozen=True)
class _Problem:
    """Factors F (N, r_X), s and G (K, r_Y), t of the distances between the points with mass; p and q of those."""

    F: Tensor
    s: Tensor
    G: Tensor
    t: Tensor
    p: Tensor
    q: Tensor
    constant: float
    epsilon: float

    @classmethod
    def of(cls, source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor, epsilon: float) -> _Problem:
        (F, s), (G, t) = _signed_factors("source", source, p), _signed_factors("target", target, q)
        rows, columns = p > 0, q > 0
        F, G, p, q = F[rows], G[columns], p[rows], q[columns]
        constant = float(p @ factored_mean_squares(F, s, p) + q @ factored_mean_squares(G, t, q))
        return cls(F, s, G, t, p, q, constant, epsilon)

    def at(self, factors: LowRankFactors) -> _Point:
        """The objective and its gradient, O((N + K) r (r_X + r_Y))."""
        Q, R, g = factors
        FQ, GR = self.F.T @ Q, self.G.T @ R
        sFQ, tGR = self.s[:, None] * FQ, self.t[:, None] * GR
        # W_A = diag(1/g) A diag(1/g), the mean distances between components.
        W_A, W_B = (FQ.T @ sFQ) / g[:, None] / g, (GR.T @ tGR) / g[:, None] / g
        overlap = (W_A * W_B) @ g
        gradient = LowRankFactors(-2 * self.F @ (sFQ @ W_B), -2 * self.G @ (tGR @ W_A), 2 * overlap)
        value = self.constant - 2 * float(g @ overlap)
        return _Point(factors, factors.logarithms(), value, value / 2 - self.epsilon * _entropy(factors), gradient)

    def reduced(self, gradient: LowRankFactors) -> LowRankFactors:
        """The gradient without the terms that the constraints do not see."""
        weights, sides = gradient.g, []
        for side, mass in ((gradient.Q, self.p), (gradient.R, self.q)):
            centred = side - side.mean(1, keepdim=True)
            column = mass @ centred
            sides.append(centred - column)
            weights = weights + column
        return LowRankFactors(sides[0], sides[1], weights - weights.mean())


def _entropy(factors: LowRankFactors) -> float:
    """-sum x (log x - 1) over the entries of Q, R and g."""
    return float(sum((side - torch.xlogy(side, side)).sum() for side in factors))


def _divergence(new: _Point, old: _Point) -> float:
    """KL(new | old) + KL(old | new), summed over the three factors."""
    pairs = zip(new.factors, old.factors, new.logs, old.logs, strict=True)
    return float(sum(torch.nan_to_num((x - y) * (log_x - log_y), posinf=0.0).sum() for x, y, log_x, log_y in pairs))


@dataclass
class _Descent:
    """Mirror descent from one start; ``run`` goes on where it was stopped."""

    problem: _Problem
    options: LowRankOptions
    start: LowRankFactors
    point: _Point = field(init=False)
    step: float = field(init=False)
    status: Status = Status.MAX_ITER
    change: float = float("inf")
    n_sweeps: int = 0
    residual: float = float("inf")
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.step = self.options.step * FIRST_STEP
        factors, self.residual, self.n_sweeps = self._project(self.start.logarithms())
        self.point = self.problem.at(factors)

    def run(self, watch: Watch) -> None:
        """Up to ``options.max_iter`` iterations in all."""
        before = watch.restored()
        if before is not None:
            factors, self.step, self.status, self.change, self.n_sweeps, self.residual, entries = before
            self.history.go_on_from(entries)
            self.point = self.problem.at(factors)
        began = time.perf_counter() - self.history.seconds
        while self.status is Status.MAX_ITER and len(self.history.cost) < self.options.max_iter:
            where = self.point.factors, self.step, self.status, self.change, self.n_sweeps, self.residual
            if watch.pause(lambda: (*where, self.history)):  # noqa: B023 - called at once
                self.status = Status.CANCELLED
                break
            residual = self._advance()
            iteration, most = len(self.history.cost) + 1, self.options.max_iter
            record(self.history, watch, iteration, most, self.point.value, residual, self.problem.epsilon, began)
            if self.change <= self.options.tol:
                self.status = Status.SETTLED

    def _advance(self) -> float:
        """One accepted step, or none where no length lowers the objective; the projection's residual."""
        gradient = self.problem.reduced(self.point.gradient)
        norm = max(float(side.abs().amax()) for side in gradient)
        noise = torch.finfo(torch.float64).eps * self.problem.constant
        for _ in range(MOST_CUTS if norm > max(noise, 0.0) else 0):
            exponent = min(self.step / norm, LARGEST_EXPONENT)
            gamma = exponent / norm
            damping = 1 + gamma * self.problem.epsilon
            moved = ((log - gamma * side) / damping for log, side in zip(self.point.logs, gradient, strict=True))
            factors, residual, sweeps = self._project(LowRankFactors(*moved))
            self.n_sweeps += sweeps
            new = self.problem.at(factors)
            if residual <= USABLE and new.objective <= self.point.objective + noise:
                self.change = _divergence(new, self.point) / exponent**2
                self.point, self.residual = new, residual
                self.step = min(self.step * GROWTH, self.options.step)
                return residual
            self.step = exponent * norm * SHRINK
        self.change = 0.0
        return self.residual

    def _project(self, logs: LowRankFactors) -> tuple[LowRankFactors, float, int]:
        p, q = self.problem.p, self.problem.q
        done = project(logs, p, q, floor=self.options.floor, tol=PROJECTION_TOL, max_iter=MOST_SWEEPS)
        return done.factors, done.residual, done.n_iter

    def result(self, p: Tensor, q: Tensor) -> LowRankSolve:
        """The factors rounded onto exact marginals, with zero rows where there is no mass."""
        rounded = round_factors(self.point.factors, self.problem.p, self.problem.q)
        value = max(self.problem.at(rounded).value, 0.0)
        Q, R = p.new_zeros(len(p), self.options.rank), q.new_zeros(len(q), self.options.rank)
        Q[p > 0], R[q > 0] = rounded.Q, rounded.R
        return LowRankSolve(
            coupling=LowRankCoupling(Q, R, rounded.g),
            value=value,
            status=self.status if self.residual <= USABLE else Status.MARGINALS,
            n_iter=len(self.history.cost),
            n_sweeps=self.n_sweeps,
            change=self.change,
            residual=self.residual,
            history=self.history,
        )
