"""A solve between two sparse matrices whose plan has few entries: a matching of the graphs, then conditional gradients.

Nothing of the size N K is stored, and the value is exact; without entropy, of which plans of few entries have none.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_array

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.evidence import Basin, Certificate
from torchgw.diagnostics.status import History
from torchgw.objective.bounds import first_bound
from torchgw.objective.sparse import SparseObjective
from torchgw.search.graph_matching import matched, of_pairs, seeds
from torchgw.solvers.problem import Problem
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.sparse_descent import completed, descend_sparsely
from torchgw.spaces import AdjacencyDistances

TOLERANCE = 1e-6  # of the Frank-Wolfe gap, over the value


def solve_sparsely(asked: Problem) -> CertifiedSolution:
    """Solve with memory for the entries of D_X T D_Y; on the CPU, whatever the device of the masses."""
    began = time.perf_counter()
    model, watch, options = asked.model, asked.watch, asked.options
    problem = objective_of(asked)
    start = asked.stage("search", partial(_start, asked, problem))
    searched = time.perf_counter()
    history = History()
    least = float(np.finfo(float).eps) * asked.unit
    settings = TOLERANCE, options.stopping.plan_tol, least, options.stopping.max_iter, history, watch
    state, status = asked.stage("descent", lambda: descend_sparsely(problem, start.matrix, *settings))
    solved = time.perf_counter()
    value, plan = max(state.value, 0.0), state.plan
    coupling = SparseCoupling(*(side.to(model.p.device) for side in plan.tensors().values()))
    marginals = coupling.marginal(1), coupling.marginal(0)
    values = model.summed(value, 0.0, 0.0, *marginals)
    a, b = (torch.from_numpy(side) for side in (problem.a, problem.b))
    lower = min(first_bound(a, b, model.p.cpu(), model.q.cpu()), values.total)
    solution = Solution(
        coupling=coupling,
        end=None,
        status=status,
        n_iter=state.n_iter,
        n_iter_sinkhorn=0,
        history=history,
        energy=value,
    )
    return solution.certified(
        marginals=marginals,
        gradient="exact",
        value_exact=True,
        value_error=0.0,
        values=values,
        certificate=Certificate(
            stationarity=state.gap, stationarity_exact=True, lower_bound=lower, gap=values.total - lower
        ),
        basins=() if asked.init is not None else (_basin(coupling, value),),
        seconds={"search": searched - began, "solve": solved - searched, "finish": time.perf_counter() - solved},
    )


def _basin(coupling: SparseCoupling, value: float) -> Basin:
    """The one optimum that was looked for."""
    matching = coupling.argmax(1)
    return Basin(
        energy=value,
        count=1,
        level="full",
        origin="signatures",
        difference=0.0,
        matching=matching,
        shift=torch.zeros_like(matching, dtype=torch.float64),
    )


def objective_of(asked: Problem) -> SparseObjective:
    """The quadratic part of the problem between its two sparse matrices."""
    X, Y = asked.spaces
    assert isinstance(X, AdjacencyDistances)
    assert isinstance(Y, AdjacencyDistances)
    p, q = (mass.double().cpu().numpy() for mass in (asked.p, asked.q))
    return SparseObjective.of(X.matrix, Y.matrix, p, q, X.symmetric and Y.symmetric)


def _start(asked: Problem, problem: SparseObjective) -> SparseCoupling:
    """The plan that was given, else the matching that the pairs that were, or those that signatures find, lead to."""
    if asked.init is not None and asked.init.is_floating_point():
        given = asked.init.double().cpu().numpy()
        plan = csr_array(given / given.sum())
    else:
        if asked.init is None:
            rng = np.random.default_rng(int(torch.randint(2**62, (), generator=asked.generator)))
            plan = seeds(problem, rng)
        else:
            plan = of_pairs(problem, *asked.init.cpu().numpy().T)
        plan = matched(problem, plan, asked.watch.cut)
    return SparseCoupling.of(completed(plan, problem.p, problem.q), torch.device("cpu"))
