"""From a solution to its fixed point, in float64, by Newton's method on the outer iteration.

An outer iteration takes what the cost reads of a plan, y, to that of the plan which solves it, y'. Near the fixed point
y' - y falls by a constant factor only; solving (I + S B / w) d = y' - y instead (`torchgw.objective.curvature`) and
going on from y + d squares the error, at the price of some ten products of the plan with distances. Where a step does
not halve what is left, a plain one follows. A gradient through a plan is that of the stationary plan: what is left
grows by the condition number.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import LOG2E
from torchgw.objective.curvature import Curvature, level_of
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import ModelGradient, gradient_of
from torchgw.objective.model import Model
from torchgw.options import GWOptions, SinkhornOptions
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import Response
from torchgw.solvers.fixed_point import Descent, descend
from torchgw.solvers.inner import Inner, Linear, Transported
from torchgw.solvers.sampled import record
from torchgw.solvers.warm_start import Start

SATURATED = 1e-6
LANCZOS_STEPS = 30
MOST_INNER = 2000
LEAST_RELAXATION, MOST_RELAXATION = 1.0, 1.95
INEXACT = 1e-4
MOST_GMRES = 60
HALVED = 0.5
STALLED = 1e-6
SETTLED = 10.0


def refined(
    quadratic: ExactGradient,
    start: Start,
    model: Model,
    inner: Inner,
    options: GWOptions,
    watch: Watch,
    history: History | None = None,
) -> Descent:
    """The fixed point near float64 potentials of the model's own epsilon, with options from `tightened`."""
    stored = options.strategy != "streaming"
    if model.marginals.free_mass and not stored:  # its cost is no linear function of a plan that is not stored
        gradient = gradient_of(model, quadratic)
        return descend(gradient, start, model, model.epsilon, inner, options, watch, history=history)
    return _newton(quadratic, start, model, inner, options, watch, history, stored)


def _newton(
    quadratic: ExactGradient,
    start: Start,
    model: Model,
    inner: Inner,
    options: GWOptions,
    watch: Watch,
    history: History | None,
    stored: bool,
) -> Descent:
    history = History() if history is None else history
    began = time.perf_counter() - history.seconds
    whole = stored and model.marginals.free_mass
    gradient, tol = gradient_of(model, quadratic), options.sinkhorn.tol
    assert start.cost is not None
    cost, f, g, status, n_inner = start.cost, start.f, start.g, Status.MAX_ITER, 0
    y, left, n_iter = None, float("inf"), 0
    while n_iter < options.stopping.max_iter:
        state, f, g = solved(inner, cost, model, f, g)
        n_iter, n_inner = n_iter + 1, n_inner + state.n_iter
        rows, columns = model.marginals_of(state.coupling)
        curvature = Curvature(quadratic, model, level_of(cost, model), whole)
        new = curvature.read(_blocks(state.coupling), rows, columns)
        last = left
        if y is not None:
            tiny = torch.finfo(new.dtype).tiny
            left = float(torch.linalg.vector_norm(new - y) / torch.linalg.vector_norm(new).clamp_min(tiny))
        if model.alpha == 0:  # the cost does not depend on the plan
            left = 0.0
        value = history.cost[-1] if history.cost else float("nan")
        record(history, watch, len(history.iteration) + 1, options.stopping.max_iter, value, left, model.epsilon, began)
        if left <= SETTLED * tol or (left <= STALLED and left > HALVED * last):
            status = Status.SETTLED
            break
        if watch.cut():
            status = Status.CANCELLED
            break
        if n_iter == options.stopping.max_iter:  # potentials and cost that belong together are returned
            break
        if y is not None and left <= HALVED * last:
            held, total = firmness(rows, columns, model)
            respond = Response(_blocks(state.coupling), held, model.epsilon, total, n_lanczos=LANCZOS_STEPS)
            y = y + curvature.solve(respond, new - y, INEXACT, MOST_GMRES).x
        else:
            y = new.clone()  # what is stored is overwritten by the next solve
        cost = _cost(curvature, gradient, y)
    return Descent(cost, f, g, model.epsilon, status, n_iter, n_inner, history, state.coupling, left)


def solved(inner: Inner, cost: FactoredCost, model: Model, f: Tensor, g: Tensor) -> tuple[Transported, Tensor, Tensor]:
    """The plan of a cost from warm potentials of its uncentred score, and the new ones."""
    centred, row, column = cost.centred()
    unit = 2 * LOG2E / model.epsilon
    state = inner(Linear.of(centred, model.epsilon, model), f + unit * row, g + unit * column)
    return state, state.f - unit * row, state.g - unit * column


def _cost(curvature: Curvature, gradient: object, y: Tensor) -> FactoredCost:
    """The cost of the whole objective from what was read of a plan."""
    model = curvature.model
    if curvature.factors is None:
        plan = y.view(len(model.p), len(model.q))
        plan = plan.clamp_min(0.0) if model.marginals.free_mass else plan
        assert isinstance(gradient, ExactGradient | ModelGradient)
        return gradient(DenseCoupling(plan), model.p)
    raw, _, _ = curvature.quadratic_of(y, *model.masses)
    return raw if model.plain else model.combined(raw, model.linear(y.dtype))


def _blocks(coupling: object) -> BlockCoupling:
    assert isinstance(coupling, BlockCoupling)
    return coupling


def tightened(options: GWOptions, tol: float, relaxation: float) -> GWOptions:
    """Options whose every problem is solved to ``tol``."""
    sinkhorn: SinkhornOptions = replace(
        options.sinkhorn,
        tol=tol,
        exact_max_iter=MOST_INNER,
        final_max_iter=max(options.sinkhorn.final_max_iter, 5 * MOST_INNER),
        relaxation=min(max(relaxation, LEAST_RELAXATION), MOST_RELAXATION),
    )
    return replace(options, sinkhorn=sinkhorn, stopping=replace(options.stopping, plan_tol=0.0))


def relaxation_for(plan: BlockCoupling, model: Model) -> float:
    """The over-relaxation with which half-steps converge fastest near this plan; see `torchgw.sinkhorn.implicit`."""
    held, total = firmness(plan.marginal(1), plan.marginal(0), model)
    return Response(plan, held, model.epsilon, total, n_lanczos=LANCZOS_STEPS).relaxation


def firmness(
    rows: Tensor, columns: Tensor, model: Model, prices: tuple[Tensor, Tensor] | None = None
) -> tuple[tuple[Tensor, Tensor], bool]:
    """How firmly each marginal of a plan is held (see `torchgw.sinkhorn.implicit`), and whether its total is.

    Points of a partial plan that give all they have are told by their sums, or by the ``prices`` (N,), (K,) of their
    marginals below that of the total, which say so however well the sums are solved.
    """
    ends = list(zip((rows, columns), model.masses, model.marginals.damping(model.epsilon), strict=True))
    if model.marginals.total is None:
        h, k = (torch.full_like(sums, tau) for sums, _, tau in ends)
        return (h, k), False
    if prices is None:
        h, k = ((sums >= mass.to(sums) * (1 - SATURATED)).to(sums) for sums, mass, _ in ends)
    else:
        h, k = ((f < -SATURATED * model.epsilon).to(sums) for f, sums in zip(prices, (rows, columns), strict=True))
    slack = [bool(((held == 0) & (mass.to(held) > 0)).any()) for held, mass in zip((h, k), model.masses, strict=True)]
    return (h, k), all(slack)
