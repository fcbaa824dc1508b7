"""The outer loop with the exact gradient: each linearised problem is solved, rounded, and linearised anew.

    cost C(T) -> score -C / epsilon -> Sinkhorn scaling from the last potentials -> T, rounded onto its marginals

Rounding before the gradient is what keeps few iterations stable: gradient and objective then belong to a feasible plan,
however far Sinkhorn came. The loop ends when the last potentials already solved the new cost and the objective stopped
falling. From a good start that takes three iterations.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import LN2, LOG2E
from torchgw.losses import SQUARE
from torchgw.objective.linearise import Gradient, ModelGradient
from torchgw.objective.model import Model
from torchgw.options import GWOptions
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.annealing import annealed, epsilon_at, rescale
from torchgw.solvers.damping import Mixture
from torchgw.solvers.finish import largest_potential, require_resolved
from torchgw.solvers.inner import Inner, Linear
from torchgw.solvers.sampled import Solution, record
from torchgw.solvers.warm_start import Start
from torchgw.types import Coupling

MOVED_TOLERANCE = 10.0
FLAT = 10


@dataclass(frozen=True)
class Descent(Solution):
    """Where the descent ended, with the rounded plan; ``moved`` is by how much the last iteration changed it."""

    coupling: Coupling
    moved: float

    @property
    def plan(self) -> Tensor:
        """The rounded plan (N, K) of a descent that stores it."""
        assert isinstance(self.coupling, DenseCoupling)
        return self.coupling.plan

    def start(self) -> Start:
        """To go on from here at another epsilon."""
        return Start(self.cost, self.f, self.g, self.epsilon)

    def released(self) -> Solution:
        """All but the plan, whose memory the caller needs."""
        return Solution(**{entry.name: getattr(self, entry.name) for entry in fields(Solution)})

    def followed_by(self, other: Descent) -> Descent:
        """``other``, which went on from here, with the iterations of both."""
        return replace(
            other, n_iter=self.n_iter + other.n_iter, n_iter_sinkhorn=self.n_iter_sinkhorn + other.n_iter_sinkhorn
        )


def descend(
    gradient: Gradient,
    start: Start,
    model: Model,
    epsilon: float,
    inner: Inner,
    options: GWOptions,
    watch: Watch,
    max_iter: int | None = None,
    history: History | None = None,
    by_value: bool = False,
    resolved: bool = False,
) -> Descent:
    """Run from ``start``, in its dtype, with the gradient of the model's objective.

    A start whose potentials belong to no epsilon is annealed from above, any other from its own epsilon, halved at each
    iteration. ``inner`` solves the transport problems and says what memory that takes. ``history`` is gone on with
    where there is one. ``by_value`` ends it when the objective is still, wherever the potentials are.

    Raises
    ------
    FloatingPointError
        Where potentials must be ``resolved``, when they are no numbers, or too large to make a plan of in the end.
    """
    max_iter = options.stopping.max_iter if max_iter is None else max_iter
    history = History() if history is None else history
    dtype = start.f.dtype
    row, column = (mass.to(dtype) for mass in model.masses)
    log_p, log_q = (side.to(dtype) for side in model.logs)
    annealing = replace(options.annealing, n_iter=min(options.annealing.n_iter, max_iter - 1))
    cost = gradient(start.coupling(), row) if start.cost is None else start.cost
    f, g, last_epsilon = start.f, start.g, start.epsilon or epsilon_at(0, epsilon, annealing)
    value, status, n_inner, iteration = float("inf"), Status.MAX_ITER, 0, 0
    values: list[float] = []
    sums: tuple[Tensor, Tensor] | None = None
    changed = 0.0
    # Between plans with the same marginals the quadratic part of a squared loss is concave, and whole steps descend.
    mixture = None if model.fixed and model.loss is SQUARE else Mixture()
    before = watch.restored()
    if before is not None:
        cost, f, g, last_epsilon, sums, value, values, mixture, iteration, n_inner, entries = before
        history.go_on_from(entries)
    began, first = time.perf_counter() - history.seconds, iteration
    while iteration < max_iter:
        where = cost, f, g, last_epsilon, sums, value, values, mixture, iteration, n_inner
        if iteration > first and watch.pause(lambda: (*where, history)):  # noqa: B023 - called at once
            status = Status.CANCELLED
            break
        now = annealed(iteration, epsilon, start.epsilon, annealing)
        centred, row_term, column_term = cost.centred()
        unit = 2 * LOG2E / now
        f, g = (rescale(side, mass, last_epsilon, now) for side, mass in ((f, log_p), (g, log_q)))
        linear = Linear.of(centred, now, model)
        warm = f + unit * row_term, g + unit * column_term
        state = inner(linear, *(warm if sums is None else linear.settled(sums, *warm)))
        solved, f, g, last_epsilon = cost, state.f - unit * row_term, state.g - unit * column_term, now
        last_value = value
        terms, change = cost.a.abs() @ row + cost.b.abs() @ column, torch.zeros_like(row[0])
        if isinstance(gradient, ModelGradient):
            coupling = state.coupling
            if mixture is not None and isinstance(coupling, DenseCoupling):
                coupling = mixture(coupling.plan)
            cost, energy = gradient.evaluated(coupling, row)
            old, sums = sums, None if model.fixed else model.marginals_of(coupling)
            change = change if sums is None else _change(old, sums)
        else:
            energy = centred.expectation(state.overlap * (now * LN2 / 2), row, column)
        # All that the host is to know of the iteration, in one wait.
        known = torch.stack((energy, terms, change, largest_potential(state.f, state.g)))
        value, cancelling, changed, largest = known.tolist()
        if resolved:
            require_resolved(largest, epsilon)
        if isinstance(gradient, ModelGradient):
            values.append(value)
        # Below the rounding of the terms that cancel in it, a change of the value means nothing.
        noise = 4 * torch.finfo(dtype).eps * cancelling
        iteration, n_inner = iteration + 1, n_inner + state.n_iter
        record(
            history,
            watch,
            len(history.iteration) + 1,
            options.stopping.max_iter,
            value,
            state.residual,
            now,
            began,
        )
        still = abs(last_value - value) <= options.stopping.plan_tol * abs(value) + noise
        # Plans whose marginals may give way can slide for long at almost the same value.
        flat = (
            options.stopping.plan_tol > 0
            and len(values) > FLAT
            and abs(values[-1 - FLAT] - value) <= options.stopping.plan_tol * abs(value) + noise
        )
        step = 1.0 if mixture is None else mixture.step
        same = by_value or flat or max(state.moved, changed) <= MOVED_TOLERANCE * options.sinkhorn.tol * step
        if now == epsilon and still and same:
            status = Status.SETTLED
            break
        if iteration < max_iter and not isinstance(gradient, ModelGradient):
            cost = gradient(state.coupling, row)
    moved = max(state.moved, changed)
    return Descent(solved, f, g, last_epsilon, status, iteration, n_inner, history, state.coupling, moved)


def _change(old: tuple[Tensor, Tensor] | None, new: tuple[Tensor, Tensor]) -> Tensor:
    """L1 distance of the marginals of two plans, which tells of relaxed ones what warm potentials do not."""
    if old is None:
        return new[0].new_full((), torch.inf)
    return torch.maximum(*((one - other).abs().sum() for one, other in zip(old, new, strict=True)))
