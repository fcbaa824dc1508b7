"""From a solution to its fixed point, in float64, by Newton's method on the outer iteration.

An outer iteration takes what the cost reads of a plan, y, to that of the plan which solves it, y'. Near the fixed point
y' - y falls by a constant factor only; solving (I + S B / w) d = y' - y instead (`torchgw.objective.curvature`) and
going on from y + d squares the error, at the price of some ten products of the plan with distances. Where a step does
not halve what is left, a plain one follows. A gradient through a plan is that of the stationary plan: what is left
grows by the condition number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.diagnostics.status import History, Status
from torchgw.objective.curvature import Curvature, level_of
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import ModelGradient, gradient_of, linearise
from torchgw.objective.model import Model
from torchgw.options import GWOptions, SinkhornOptions
from torchgw.persist.codec import storable
from torchgw.persist.watch import Watch
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import Response
from torchgw.solvers.fixed_point import descend
from torchgw.solvers.inner import InnerSolver
from torchgw.solvers.iterate import Check, Loop, iterate
from torchgw.solvers.solution import PlanState, Solution
from torchgw.solvers.warm_start import WarmStart

SATURATED = 1e-6
LANCZOS_STEPS = 30
MOST_INNER = 2000
LEAST_RELAXATION, MOST_RELAXATION = 1.0, 1.95
INEXACT = 1e-4
MOST_GMRES = 60
HALVED = 0.5
STALLED = 1e-6
SETTLED = 10.0


@storable
@dataclass(frozen=True, kw_only=True)
class NewtonState(PlanState):
    """Where Newton's method stands.

    origin : y, what the cost was taken at; None where it was given.
    read : y', what the cost reads of the plan that solves it; may lie in the memory of the plan.
    last_change : |y' - y| / |y'|.
    halved : whether the last step halved that.
    """

    origin: Tensor | None = None
    read: Tensor | None = None
    last_change: float = float("inf")
    halved: bool = False


def refine_by_newton(
    quadratic: ExactGradient,
    start: WarmStart,
    model: Model,
    inner: InnerSolver,
    options: GWOptions,
    watch: Watch,
    history: History,
) -> Solution:
    """The fixed point near float64 potentials of the model's own epsilon, with options from `with_tolerance`."""
    loop = Loop(watch, history, options.stopping.max_iter)
    gradient, tol, whole = gradient_of(model, quadratic), options.sinkhorn.tol, model.marginals.free_mass
    if whole and options.strategy == "streaming":  # its cost is no linear function of a plan that is not stored
        return descend(gradient, start, inner, options, loop)
    value = history.cost[-1] if history.cost else float("nan")

    def make_curvature(cost: FactoredCost) -> Curvature:
        return Curvature(quadratic, model, level_of(cost, model), whole)

    def next_cost(state: NewtonState) -> tuple[FactoredCost, Tensor | None]:
        """The next cost, and what of a plan it is taken at."""
        assert state.warm_start.cost is not None
        if state.read is None or state.coupling is None:
            return state.warm_start.cost, None
        curvature, y = make_curvature(state.warm_start.cost), state.origin
        if y is not None and state.halved:
            rows, columns = model.marginals_of(state.coupling)
            stiffness, total = marginal_stiffness(rows, columns, model)
            respond = Response(state.coupling, stiffness, model.epsilon, total, n_lanczos=LANCZOS_STEPS)
            y = y + curvature.solve(respond, state.read - y, INEXACT, MOST_GMRES).x
        else:
            y = state.read.clone()  # what is stored is overwritten by the next solve
        return _cost(curvature, gradient, y), y

    def step(state: NewtonState) -> tuple[NewtonState, Check, Status | None]:
        cost, y = next_cost(state)
        found = inner.solve_linearization(cost, model.epsilon, state.warm_start)
        coupling, end = found.coupling, found.warm_start
        read = make_curvature(cost).compress_coupling(coupling, *model.marginals_of(coupling))
        last, change = state.last_change, float("inf")
        if y is not None:
            tiny = torch.finfo(read.dtype).tiny
            change = float(torch.linalg.vector_norm(read - y) / torch.linalg.vector_norm(read).clamp_min(tiny))
        if model.alpha == 0:  # the cost does not depend on the plan
            change = 0.0
        halved = change <= HALVED * last
        state = NewtonState(
            n_iter=state.n_iter + 1,
            n_iter_sinkhorn=state.n_iter_sinkhorn + found.n_iter,
            warm_start=end,
            coupling=coupling,
            origin=y,
            read=read,
            last_change=change,
            halved=halved,
        )
        settled = change <= SETTLED * tol or (change <= STALLED and not halved)
        return state, Check(value, change, model.epsilon), Status.SETTLED if settled else None

    state, status = iterate(NewtonState, step, lambda: NewtonState(warm_start=start), loop)
    return Solution.of(state, status, history)


def _cost(curvature: Curvature, gradient: object, y: Tensor) -> FactoredCost:
    """The cost of the whole objective from what was read of a plan."""
    model = curvature.model
    if curvature.factors is None:
        plan = y.view(len(model.p), len(model.q))
        plan = plan.clamp_min(0.0) if model.marginals.free_mass else plan
        assert isinstance(gradient, ExactGradient | ModelGradient)
        return gradient(DenseCoupling(plan), model.p)
    core, rows, columns, _ = curvature.parts(y)
    p, q = (mass.to(y) for mass in model.masses) if model.has_hard_marginals else (rows, columns)
    raw = curvature.quadratic.cost_from_factored_plan(core, p, q)
    return linearise(model, raw, model.linear(y.dtype))


def with_tolerance(options: GWOptions, tol: float, plan: BlockCoupling, model: Model) -> GWOptions:
    """Options whose every problem is solved to ``tol``, over-relaxed as half-steps converge fastest near this plan; see
    `torchgw.sinkhorn.implicit`."""
    stiffness, total = marginal_stiffness(plan.marginal(1), plan.marginal(0), model)
    relaxation = Response(plan, stiffness, model.epsilon, total, n_lanczos=LANCZOS_STEPS).relaxation
    sinkhorn: SinkhornOptions = replace(
        options.sinkhorn,
        tol=tol,
        exact_max_iter=MOST_INNER,
        final_max_iter=max(options.sinkhorn.final_max_iter, 5 * MOST_INNER),
        relaxation=min(max(relaxation, LEAST_RELAXATION), MOST_RELAXATION),
    )
    return replace(options, sinkhorn=sinkhorn, stopping=replace(options.stopping, plan_tol=0.0))


def marginal_stiffness(
    rows: Tensor, columns: Tensor, model: Model, prices: tuple[Tensor, Tensor] | None = None
) -> tuple[tuple[Tensor, Tensor], bool]:
    """The stiffness of each marginal of a plan (see `torchgw.sinkhorn.implicit`), and whether its total is held.

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
    return (h, k), all(bool((side == 0).any()) for side in (h, k))
