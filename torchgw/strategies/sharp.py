"""The optimum without entropy: epsilon annealed down while the value falls, then conditional gradients.

    potentials and a plan at a small epsilon -> a vertex of its linear problem -> steps to vertices -> stationary

Between many points that have factors, plans and vertices have few entries (`torchgw.solvers.sparse_descent`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.rounding import make_feasible
from torchgw.diagnostics.status import History, Status
from torchgw.objective.exact import ExactGradient
from torchgw.objective.model import mean_cost
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.assignment import AssignmentProblem
from torchgw.solvers.conditional_gradient import DenseProgram, DescentState, conditional_gradient
from torchgw.solvers.entropic import descend, start_precision_check
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import equal_masses, has_vertex_solver, north_west_corner
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.model_form import ModelForm
from torchgw.solvers.problem import StoredProblem
from torchgw.solvers.solution import Solution
from torchgw.solvers.sparse_descent import FactoredProgram, FactoredState
from torchgw.solvers.transport_costs import Order
from torchgw.solvers.warm_start import WarmStart
from torchgw.strategies.continuation import make_epsilon_step
from torchgw.types import is_symmetric

logger = logging.getLogger("torchgw")

FALL = 0.2  # of epsilon, to which it is annealed
RATIO = 0.5
STEPS = 4
PROGRESS = 1e-3
ANNEALED_TOL, ANNEALED_ITERATIONS = 1e-2, 20  # of linear problems while annealing: of their plans a vertex is read
TOLERANCE = 1e-6  # of the Frank-Wolfe gap, over the value
EXCHANGED_PAIRS = 250_000
FACTORED_PAIRS = 250_000  # from which vertices between factors take less by their entries alone
NEGLIGIBLE = 1e-13  # of the mass of a point, and of all mass that moves
FIRST = 1  # step, that says which of several plans leads lowest


def solve_unregularized(
    problem: StoredProblem, start: WarmStart, history: History | None = None, lead: StoredProblem | None = None
) -> Solution:
    """A stationary plan without entropy, found from a start; a ``history`` is gone on with.

    Conditional gradients begin from the plan of a start that brings one, and annealing only finds potentials, by the
    model of a ``lead`` where there is one."""
    # A search that has cooled further is gone on from where it came to.
    epsilon, history = min(problem.epsilon, start.epsilon or math.inf), History() if history is None else history
    limit = len(history.iteration) + problem.options.stopping.max_iter
    steps = STEPS if start.plan is None else 1
    warm = lead or problem
    now, step = _anneal(warm, start, epsilon, history, 0, min(steps, limit)), 1
    while start.plan is None and epsilon > FALL * problem.epsilon and not problem.watch.should_skip():
        before, epsilon, left = now.history.cost[-1], epsilon * RATIO, limit - len(now.history.iteration)
        if left <= 0:
            break
        assert now.warm_start is not None
        now = _anneal(warm, now.warm_start, epsilon, now.history, step, min(STEPS, left)).add_iterations(now)
        step += 1
        if now.history.cost[-1] > (1 - PROGRESS) * before:
            break
    assert now.warm_start is not None
    assert now.warm_start.cost is not None
    dual = now.warm_start.cost.column_dual(now.warm_start.g.to(torch.float64), problem.q, epsilon)
    descent = _Descent(problem, now.history, limit)
    found = descent.solve(now.plan if start.plan is None else start.plan, dual, start.plan is not None)
    found = _improve_by_exchanges(problem, descent, found)
    warning = start_precision_check(now.warm_start.cost, epsilon, problem.options)()
    return replace(found.add_iterations(now), precision_warning=warning)


def descend_unregularized(problem: StoredProblem, start: WarmStart) -> Solution:
    """The stationary plan that conditional gradients reach from the plan of a start, beside its own potentials."""
    assert start.plan is not None
    descent = _Descent(problem, History(), problem.options.stopping.max_iter)
    found = descent.solve(start.plan, start.column_dual(problem.masses[1]), True, rough=True)
    return _improve_by_exchanges(problem, descent, found)


def go_on_unregularized(problem: StoredProblem, found: Solution) -> Solution:
    """Where conditional gradients lead from an end of others, and exchanges of matches."""
    assert found.dual is not None
    limit = len(found.history.iteration) + problem.options.stopping.max_iter
    descent = _Descent(problem, found.history.copy(), limit)
    last = _improve_by_exchanges(problem, descent, descent.solve(found.plan, found.dual, True))
    return replace(last.add_iterations(found), precision_warning=found.precision_warning)


def take_first_step(problem: StoredProblem, start: WarmStart) -> DescentState[Tensor, Tensor]:
    """The first of these steps, which comes within 1 % of the end of a pure problem (measured)."""
    assert start.plan is not None
    descent = _Descent(problem, History(), FIRST)
    (p, q), plan = problem.model.masses, start.plan.to(torch.float64, copy=True)
    dual, loop = start.column_dual(problem.masses[1]), descent.make_loop()
    if problem.model.is_standard:
        program = DenseProgram(descent.exact_gradient, p, q)
        return conditional_gradient(program, make_feasible(plan, p, q), dual, loop)[0]
    form = ModelForm(problem.model, descent.exact_gradient)
    found, _ = conditional_gradient(form, form.extend(plan), torch.zeros_like(form.q), loop)
    return replace(found, plan=form.restrict(found.plan))


def sharpen_model(problem: StoredProblem, blurred: Solution, lead: StoredProblem) -> Solution:
    """Where an entropic optimum of any model leads, that of a ``lead``."""
    assert blurred.warm_start is not None
    start = blurred.warm_start.to(problem.masses[0].dtype)
    return problem.stage(
        "sharpen", partial(solve_unregularized, problem, start, blurred.history.copy(), lead)
    ).add_iterations(blurred)


def descend_model(
    problem: StoredProblem, starts: Iterable[WarmStart], plans: Iterable[Tensor], exact: bool
) -> list[Solution]:
    """Where other starts of any model lead that are annealed, and plans (N, K), by ``exact`` vertices or not."""
    nowhere, quiet = torch.zeros_like(problem.q), replace(problem, watch=problem.watch.without_callback())
    others, found = list[partial[Solution]](), list[Solution]()
    others += [partial(solve_unregularized, quiet, start, lead=quiet.search_problems[0]) for start in starts]
    for plan in plans:
        descent = _Descent(quiet, History(), problem.options.stopping.max_iter)
        others.append(partial(descent.solve_model, plan, nowhere, exact, True))
    for number, other in enumerate(others):
        if number == 0 or not problem.watch.should_skip():
            found.append(quiet.stage(f"other-{number}", other))
    return found


def sharpen(problem: StoredProblem, first: Solution) -> Solution:
    """The optimum without entropy that an entropic one becomes, at the end of its path; that one where it did not
    settle, or where nothing lower was found."""
    before = first.coupling if first.stored is None else first.stored
    if before is None or first.warm_start is None or not first.status.converged or problem.watch.should_skip():
        return first
    began, start = time.perf_counter(), first.warm_start.to(problem.masses[0].dtype)
    sharp = problem.with_epsilon(0.0)
    found = problem.stage("sharpen", partial(solve_unregularized, sharp, start, first.history.copy()))
    if found.energy > first.path[-1].value or not (found.status.converged or problem.watch.should_skip()):
        logger.info("the sharp end at %.6g is not taken: %s", found.energy, found.status)
        return first
    moved = float(problem.p @ (found.plan.argmax(1) != before.argmax(1)).to(problem.p) / problem.p.sum())
    step = replace(make_epsilon_step(sharp, found, time.perf_counter() - began), moved=moved)
    logger.info("sharpened: %s", step)
    return replace(found.add_iterations(first), path=(*first.path, step))


def _improve_by_exchanges(problem: StoredProblem, descent: _Descent, found: Solution) -> Solution:
    """What exchanges of matches lead to, where that is lower."""
    exchanged = None if problem.watch.should_skip() else _exchange_matches(problem, found)
    if exchanged is None:
        return found
    assert found.dual is not None
    with problem.watch.within("exchanged"):
        return descent.solve(exchanged, found.dual, True).add_iterations(found)


def _exchange_matches(problem: StoredProblem, found: Solution) -> Tensor | None:
    """The plan (N, N) that exchanges of matches lead to, which steps to first order do not see; None where it is no
    lower, and but between few points of equal masses."""
    p, q = problem.model.masses
    few = len(p) * len(q) <= EXCHANGED_PAIRS and equal_masses(*(mass.numpy() for mass in to_host(p, q)))
    if not few or not problem.model.is_standard or problem.wide is None:
        return None
    source, target = problem.wide.source, problem.wide.target
    every = torch.arange(len(p), device=p.device)
    symmetric = is_symmetric(source) and is_symmetric(target)
    between = AssignmentProblem(source.rows(every), target.rows(every), symmetric)
    plan = between.round_and_exchange(found.plan.cpu())
    return plan.to(problem.masses[0]) if between.value(plan) < (1 - TOLERANCE) * found.energy else None


def _anneal(
    problem: StoredProblem, start: WarmStart, epsilon: float, history: History, step: int, steps: int
) -> Solution:
    """A few iterations at one epsilon on the way to zero."""
    sinkhorn = problem.options.sinkhorn
    rough = replace(
        sinkhorn, tol=max(sinkhorn.tol, ANNEALED_TOL), exact_max_iter=min(sinkhorn.exact_max_iter, ANNEALED_ITERATIONS)
    )
    problem = replace(problem, options=replace(problem.options, sinkhorn=rough))
    loop = Loop(problem.watch, history, steps)
    whole = partial(descend, problem.gradient, start, problem.inner_at(epsilon), problem.options, loop)
    return problem.stage(f"anneal-{step}", whole)


@dataclass(frozen=True)
class _Descent:
    """Conditional gradients one after the other, that go on with one history.

    problem : whose optimum is looked for.
    history : of all of them, and of what came before.
    limit : entries that it may have in the end, at most.
    """

    problem: StoredProblem
    history: History
    limit: int

    @property
    def exact_gradient(self) -> ExactGradient:
        """The gradient that decides."""
        assert self.problem.wide is not None
        return self.problem.wide

    def make_loop(self) -> Loop:
        """The next loop, for the iterations that are left."""
        least = torch.finfo(self.problem.p.dtype).eps * self.problem.unit
        left = max(self.limit - len(self.history.iteration), 1)
        return Loop(self.problem.watch, self.history, left, TOLERANCE, least)

    def solve(self, plan: Tensor, dual: Tensor, kept: bool, rough: bool = False) -> Solution:
        """Where they end from a plan (N, K), which is left only for a lower one if it is to be ``kept``, and from
        column potentials (K,) of its linear problem, which of models may be ``rough``. Exact costs that they end with
        are kept."""
        problem, (p, q), before = self.problem, self.problem.model.masses, len(self.history.iteration)
        if not problem.model.is_standard:
            return self.solve_model(plan, dual, False, rough)
        exact, cost = self.exact_gradient, None
        plan = make_feasible(plan.to(torch.float64, copy=True), p, q)
        between = self._solve_between_factors(plan, dual, kept)
        if between is not None:
            state, status = between
            return self._make_solution(state.plan.to_dense(), state.value, status, before, state.dual)
        found, status = conditional_gradient(DenseProgram(exact, p, q), plan, dual, self.make_loop())
        if exact.has_matrices:
            a, b = exact.a, exact.b
            cost = FactoredCost.from_matrix(found.cost.sub_(a[:, None]).sub_(b), a, b)
        return self._make_solution(found.plan, found.value, status, before, found.dual, cost)

    def solve_model(self, plan: Tensor, dual: Tensor, exact: bool, rough: bool) -> Solution:
        """Where they end by the objective of any model; ``exact`` vertices are the best, and the first one is not
        sought by ``rough`` potentials."""
        before, form = len(self.history.iteration), ModelForm(self.problem.model, self.exact_gradient, exact)
        whole = form.extend(plan.to(torch.float64, copy=True))
        duals = torch.zeros_like(form.q) if rough else form.extend_duals(dual)
        found, status = conditional_gradient(form, whole, duals, self.make_loop())
        ended = form.restrict(found.plan)
        ended[ended < NEGLIGIBLE / max(ended.shape)] = 0.0  # what points keep by rounding alone
        return self._make_solution(ended, found.value, status, before, form.restrict_duals(found.dual))

    def _make_solution(
        self, plan: Tensor, value: float, status: Status, before: int, dual: Tensor, cost: FactoredCost | None = None
    ) -> Solution:
        """The end of a descent that began after so many entries of the history."""
        return Solution(
            coupling=DenseCoupling(plan),
            warm_start=None,
            status=status,
            n_iter=len(self.history.iteration) - before,
            n_iter_sinkhorn=0,
            history=self.history,
            energy=value,
            dual=dual,
            cost=cost,
        )

    def _solve_between_factors(self, plan: Tensor, dual: Tensor, kept: bool) -> tuple[FactoredState, Status] | None:
        """From vertex to vertex between factors; None where spaces have none, points are few or without mass, or where
        the end is above a plan to be ``kept``."""
        exact, (p, q) = self.problem.wide, self.problem.model.masses
        assert exact is not None
        many = len(p) * len(q) >= FACTORED_PAIRS and has_vertex_solver(len(p), len(q))
        if not many or min(p.min(), q.min()) <= 0 or self.problem.watch.should_skip():
            return None
        if exact.source.factors() is None or exact.target.factors() is None:
            return None
        coupling = DenseCoupling(plan)
        cost = exact(coupling, p)
        order = Order.of(cost)
        rows, columns = (mass.numpy() for mass in to_host(p, q))
        feasible = north_west_corner(rows, columns, order, plan.argmax(0).cpu().numpy())
        program = FactoredProgram(exact, order, p, q)
        descent = partial(program.descend_from_vertex, cost, dual, feasible)
        try:
            found, status, entries = self.problem.stage(
                "between-factors", lambda: (*descent(self.make_loop()), self.history)
            )
        except TransportError as error:
            logger.info("%s; whole matrices go on", error)
            return None
        self.history.go_on_from(entries.copy())
        return None if kept and found.value > float(mean_cost(cost, coupling, p, q)) else (found, status)
