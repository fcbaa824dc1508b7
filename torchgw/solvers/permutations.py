"""Conditional gradients between permutations: where all masses are equal, vertices are permutations, and while whole
steps lower the value nothing else is met on the way.

    s' = argmin <E(s), P_s'>,    value = a . p + b . q + mean_i E(s)_is(i),
    gap = 2 mean_i (E(s)_is(i) - E(s)_is'(i)),

with E of `torchgw.objective.permuted`. So a step takes an assignment, the products of the points whose match changes,
and few reads of one matrix (N, N); plans are numbers (N,), and the Frank-Wolfe gap is exact. Between metrics of
negative type the objective is concave along each step, and whole steps are best; elsewhere the loop ends where one does
not lower the value, and conditional gradients can go on from there.

Source: J. Vogelstein et al., "Fast approximate quadratic programming for graph matching", 2015, of which these are the
whole steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.diagnostics.status import Status
from torchgw.objective.permuted import FactoredPermutations
from torchgw.persist.codec import storable
from torchgw.solvers.iterate import Check, Loop, State, iterate
from torchgw.solvers.linear_oracle import solve_assignment

STALLED = 0.1  # of the tolerance


@storable
@dataclass(frozen=True, kw_only=True)
class PermutationState(State):
    """Where permutations stand.

    match : s (N,).
    cost : E(s) (N, N), in units of the scaled squared distances.
    dual : column potentials (N,) of the last linear problem, likewise up to column terms.
    value : the objective.
    whole : whether whole steps lowered it so far.
    """

    match: Tensor
    cost: Tensor
    dual: Tensor
    value: float
    whole: bool = True

    @property
    def complete(self) -> bool:
        return True

    @property
    def plan(self) -> Tensor:
        """The permutation as a plan (N, N)."""
        n = len(self.match)
        return self.cost.new_zeros(n, n).scatter_(1, self.match[:, None], 1 / n)


def descend_permutations(
    objective: FactoredPermutations, match: Tensor, dual: Tensor, loop: Loop
) -> tuple[PermutationState, Status]:
    """The last permutation from ``match`` (N,), and why the loop ended; O(N^2) memory.

    Parameters
    ----------
    dual : column potentials (N,) of a linear problem near by, to begin with.
    loop : its ``tol`` is the gap over the value at which a permutation is stationary.
    """

    def begin() -> PermutationState:
        cost = objective.cost_of(match)
        return PermutationState(match=match, cost=cost, dual=dual, value=objective.value(match, cost))

    def step(state: PermutationState) -> tuple[PermutationState, Check, Status | None]:
        old, cost, value, n_iter = state.match, state.cost, state.value, state.n_iter + 1
        check = Check(value, 0.0, 0.0)
        column, price = solve_assignment(cost.cpu().numpy(), state.dual.cpu().numpy())
        new, dual = torch.from_numpy(column).to(old), torch.from_numpy(price).to(cost)
        state = replace(state, n_iter=n_iter, dual=dual)
        if value <= loop.least or torch.equal(old, new):
            return state, check, Status.STATIONARY
        ended = Status.STATIONARY if 2 * (value - objective.value(new, cost)) <= loop.tol * value else Status.SETTLED
        cost = objective.update_cost(cost, old, new)
        fall = value - objective.value(new, cost)
        if fall <= 0:
            cost = objective.update_cost(cost, new, old)
            return replace(state, cost=cost, whole=ended is Status.STATIONARY), check, ended
        state = replace(state, match=new, cost=cost, value=value - fall)
        return state, check, ended if fall <= STALLED * loop.tol * value else None

    return iterate(PermutationState, step, begin, loop)
