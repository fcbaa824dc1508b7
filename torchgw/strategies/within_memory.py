"""A solve by the strategy that was chosen, or by the streaming one where the device's
memory ends on the way.

Sizes choose before distances are known. Spaces without factors that carry them do not
stream where their plan can be stored: the dense strategy has their exact gradient, the
streaming one would sample it.

A solution between factors near the distances has its value and certificate by the distances
themselves: exactly where the plan can be stored and two products with it take seconds,
elsewhere estimated from pairs that are drawn from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.status import Status
from torchgw.objective.certify import certify, read_block_plan, read_dense_plan
from torchgw.problem.problem import Problem
from torchgw.runtime import cuda_graphs, scratch
from torchgw.runtime.caller import out_of_memory, warn_caller
from torchgw.solvers.solution import CertifiedSolution
from torchgw.strategies.dense import solve_dense
from torchgw.strategies.low_rank import solve_with_rank
from torchgw.strategies.multilevel import solve_from_cells
from torchgw.strategies.sparse import solve_by_vertices, solve_sparse_graphs
from torchgw.strategies.streaming import solve_streaming
from torchgw.strategies.surrogate import approximate_problem
from torchgw.types import OutOfMemoryWarning

Result = TypeVar("Result")

DENSE_BYTES = 16  # for each pair of points: score and plan
CERTIFIED_WORK = 5e11  # multiplications of the products that exact values take
LEADING = "leading factors"  # whose gradient a plan has that streamed between factors near the distances

SOLVERS: dict[str, Callable[[Problem], CertifiedSolution]] = {
    "dense": solve_from_cells,
    "streaming": lambda problem: (solve_by_vertices if problem.has_no_entropy else solve_streaming)(problem),
    "low-rank": solve_with_rank,
    "sparse": solve_sparse_graphs,
}


def run_strategy(problem: Problem, strategy: str) -> tuple[str, CertifiedSolution]:
    """The solution of the strategy; of streaming where memory ends and the options left the
    choice to us.

    The second attempt begins with the generator as the first one found it. What the
    callback raises passes through.
    """
    began = time.perf_counter()
    between = approximate_problem(problem) if strategy == "streaming" else None
    looked = time.perf_counter() - began
    if strategy == "streaming" and between is None and _prefers_dense(problem):
        strategy = "dense"
    given = problem.options.strategy != "auto" or problem.has_no_entropy
    solve = _solve_and_sharpen if strategy == "streaming" and problem.sharpens else _solve
    solve = partial(solve, problem, strategy, between)
    if given or strategy == "streaming":
        strategy, found = solve()
    else:
        what = f"the {strategy} strategy ran out of memory ({{}}), so the streaming one runs instead"
        streaming = partial(_solve, replace(problem, sharpens=False), "streaming", None)
        strategy, found = _solve_within_memory(problem, solve, what) or streaming()
    return strategy, replace(found, seconds=found.seconds | {"search": found.seconds["search"] + looked})


def _solve_within_memory(problem: Problem, solve: Callable[[], Result], what: str) -> Result | None:
    """What ``solve`` returns. Where memory ends, None, after a warning of ``what``
    happened: the generator is as it was before, and what can be freed is free."""
    state = problem.generator.get_state()
    try:
        return solve()
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        message = str(error).partition("\n")[0]
    # Here the error holds no memory any more.
    problem.generator.set_state(state)
    if torch.cuda.is_available():
        cuda_graphs.forget()
        scratch.forget()
        torch.cuda.empty_cache()  # what torch keeps for itself is missing to everyone else on the device
    advice = "GWOptions(strategy='streaming') takes it at once"
    warn_caller(f"{what.format(message)}; {advice}", OutOfMemoryWarning)
    return None


def _prefers_dense(problem: Problem) -> bool:
    """Whether streaming would sample gradients, while the dense strategy has exact ones and
    room for its plan."""
    (n, k), options = (len(side) for side in problem.model.masses), problem.options
    return (
        options.strategy == "auto"
        and problem.exact
        and any(space.factors() is None for space in problem.spaces)
        and (DENSE_BYTES * n * k <= options.max_memory)
    )


def _solve(problem: Problem, strategy: str, between: Problem | None) -> tuple[str, CertifiedSolution]:
    """The solution of a strategy, ``between`` leading factors where there are some."""
    with problem.watch.within(strategy):
        found = SOLVERS[strategy](between or problem)
        found = found if between is None else reevaluate(problem, found)
    return strategy, replace(found, status=Status.CANCELLED) if problem.watch.should_stop else found


def _solve_and_sharpen(problem: Problem, strategy: str, between: Problem | None) -> tuple[str, CertifiedSolution]:
    """The optimum without entropy from the solution that streams, its plan stored, or from
    a search of its own where that did not settle; that which streams where memory ends
    then."""
    _, found = _solve(between or problem, strategy, None)
    last: CertifiedSolution | None = found
    if not problem.watch.should_skip():
        alone = replace(problem, model=problem.model.with_epsilon(0.0), sharpens=False)
        settled = found.status.converged
        sharpen = partial(solve_dense, problem, found) if settled else partial(solve_dense, alone)
        what = "memory ran out where the plan was to be stored ({}), so the streaming one is the result"
        with problem.watch.within("dense"):
            last = _solve_within_memory(problem, sharpen, what)
    status = Status.CANCELLED if problem.watch.should_stop else (last or found).status
    if last is None or last is found:
        found = found if between is None else reevaluate(problem, found, stores=last is not None)
        return strategy, replace(found, status=status)
    seconds = {name: found.seconds[name] + taken for name, taken in last.seconds.items()}
    return "dense", replace(last, status=status, ladder=found.ladder, seconds=seconds)


def reevaluate(asked: Problem, found: CertifiedSolution, stores: bool = True) -> CertifiedSolution:
    """A solution between leading factors with its value and certificate by the distances
    that were asked for, which a plan that is stored has exactly."""
    model, options, began = asked.model, asked.options, time.perf_counter()
    x, y = (space.to(model.p.device, torch.float64) for space in asked.spaces)
    n, k = x.size, y.size
    if stores and n * k * (n + k) <= CERTIFIED_WORK and 16 * n * k <= options.max_memory:
        stored = DenseCoupling(found.coupling.to_dense().to(torch.float64))
        read, sample = read_dense_plan(stored, (x, y), model, options.max_memory, asked.generator), None
    else:
        read = replace(
            read_block_plan(found.coupling, None, (x, y), None, found.marginals, 0, asked.generator),
            linear=found.values.linear,
            penalty=found.values.violation * model.price,
        )
        sample = asked.generator
    dual = found.next_start.column_dual(model.q)
    values, certificate = certify(read, dual, (x, y), model, asked.unit, sample)
    # The last value of the path is that between the factors.
    path = found.path and (*found.path[:-1], replace(found.path[-1], value=max(values.total, 0.0)))
    return replace(
        found,
        path=path,
        gradient=LEADING,
        values=values,
        certificate=certificate,
        value_exact=read.quadratic.exact,
        value_error=read.quadratic.error,
        seconds=found.seconds | {"finish": found.seconds["finish"] + time.perf_counter() - began},
    )
