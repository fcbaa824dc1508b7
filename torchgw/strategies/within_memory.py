"""A solve by the strategy that was chosen, or by the streaming one where the device's memory ends on the way.

Sizes choose before distances are known. Spaces without factors that carry them do not stream where their plan can be
stored: the dense strategy has their exact gradient, the streaming one would sample it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from torchgw.diagnostics.status import Status
from torchgw.runtime import cuda_graphs, scratch
from torchgw.runtime.caller import out_of_memory, warn_caller
from torchgw.solvers.problem import Problem
from torchgw.solvers.solution import CertifiedSolution
from torchgw.strategies.dense import solve_dense
from torchgw.strategies.ladder import solve_from_cells
from torchgw.strategies.low_rank import solve_with_rank
from torchgw.strategies.sparse import solve_sparse_graphs
from torchgw.strategies.streaming import solve_streaming
from torchgw.strategies.surrogate import make_surrogate, reevaluate, solve_surrogate
from torchgw.strategies.vertices import solve_by_vertices
from torchgw.types import OutOfMemoryWarning

DENSE_BYTES = 16  # for each pair of points: score and plan

SOLVERS: dict[str, Callable[[Problem], CertifiedSolution]] = {
    "dense": solve_from_cells,
    "streaming": lambda problem: (solve_by_vertices if problem.has_no_entropy else solve_streaming)(problem),
    "low-rank": solve_with_rank,
    "sparse": solve_sparse_graphs,
}


def run_strategy(problem: Problem, strategy: str) -> tuple[str, CertifiedSolution]:
    """The solution of the strategy; of streaming where memory ends and the options left the choice to us.

    The second attempt begins with the generator as the first one found it. What the callback raises passes through.
    """
    began, state = time.perf_counter(), problem.generator.get_state()
    between = make_surrogate(problem) if strategy == "streaming" else None
    looked = time.perf_counter() - began
    if strategy == "streaming" and between is None and _prefers_dense(problem):
        strategy = "dense"
    strategy, found = _run_with_fallback(problem, strategy, between, state)
    return strategy, replace(found, seconds=found.seconds | {"search": found.seconds["search"] + looked})


def _run_with_fallback(
    problem: Problem, strategy: str, between: Problem | None, state: Tensor
) -> tuple[str, CertifiedSolution]:
    """The solution of the strategy, or of the next where memory ends; that begins with the generator in this state."""
    try:
        if strategy == "streaming" and problem.sharpens:
            return _solve_and_sharpen(problem, between)
        return strategy, _run_strategy(problem, strategy, between)
    except (MemoryError, RuntimeError) as error:
        given = problem.options.strategy != "auto" or problem.has_no_entropy
        if given or strategy == "streaming" or not out_of_memory(error):
            raise
        message = str(error).partition("\n")[0]
    _warn_of_memory(f"the {strategy} strategy ran out of memory ({message}), so the streaming one runs instead")
    problem.generator.set_state(state)
    return "streaming", _run_strategy(replace(problem, sharpens=False), "streaming")


def _warn_of_memory(what: str) -> None:
    """Warn of what happened where memory ended, and free what can be."""
    if torch.cuda.is_available():
        cuda_graphs.forget()
        scratch.forget()
        torch.cuda.empty_cache()  # what torch keeps for itself is missing to everyone else on the device
    warn_caller(f"{what}; GWOptions(strategy='streaming') takes it at once", OutOfMemoryWarning)


def _prefers_dense(problem: Problem) -> bool:
    """Whether streaming would sample gradients, while the dense strategy has exact ones and room for its plan."""
    (n, k), options = (len(side) for side in problem.model.masses), problem.options
    return (
        options.strategy == "auto"
        and problem.exact
        and any(space.factors() is None for space in problem.spaces)
        and (DENSE_BYTES * n * k <= options.max_memory)
    )


def _solve_and_sharpen(problem: Problem, between: Problem | None) -> tuple[str, CertifiedSolution]:
    """The optimum without entropy from the solution that streams, its plan stored, or from a search of its own where
    that did not settle; that which streams where memory ends then."""
    found = _run_strategy(problem if between is None else between, "streaming")
    if problem.watch.should_skip():
        return "streaming", found if between is None else reevaluate(problem, found)
    state = problem.generator.get_state()
    try:
        with problem.watch.within("dense"):
            alone = replace(problem, model=problem.model.with_epsilon(0.0), sharpens=False)
            last = solve_dense(problem, found) if found.status.converged else solve_dense(alone)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        message, last = str(error).partition("\n")[0], None
    if last is None:
        problem.generator.set_state(state)
        _warn_of_memory(
            f"memory ran out where the plan was to be stored ({message}), so the streaming one is the result"
        )
        return "streaming", found if between is None else reevaluate(problem, found, stores=False)
    status = Status.CANCELLED if problem.watch.should_stop else last.status
    if last is found:
        return "streaming", replace(found if between is None else reevaluate(problem, found), status=status)
    seconds = {name: found.seconds[name] + taken for name, taken in last.seconds.items()}
    return "dense", replace(last, status=status, ladder=found.ladder, seconds=seconds)


def _run_strategy(problem: Problem, strategy: str, between: Problem | None = None) -> CertifiedSolution:
    with problem.watch.within(strategy):
        found = SOLVERS[strategy](problem) if between is None else solve_surrogate(problem, between)
    return replace(found, status=Status.CANCELLED) if problem.watch.should_stop else found
