"""A solve between two sparse matrices whose plan has few entries: a matching of the graphs, then conditional gradients.

Nothing of the size N K is stored, and the value is exact; without entropy, of which plans of few entries have none.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_array

from torchgw.couplings.sparse import SparseCoupling
from torchgw.diagnostics.evidence import Basin, Certificate
from torchgw.diagnostics.status import History
from torchgw.objective.bounds import first_bound
from torchgw.objective.certify import Objective
from torchgw.objective.exact import SparseObjective
from torchgw.problem.problem import Problem
from torchgw.search.anneal import SAME_PLAN
from torchgw.search.candidate import is_as_low
from torchgw.search.crossing import CROSSED
from torchgw.search.graph_matching import match_nodes, plan_from_pairs
from torchgw.search.sparse_basins import SparseEnd, search_sparse_graphs
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import repair_marginals
from torchgw.solvers.solution import CertifiedSolution, Solution
from torchgw.solvers.sparse_descent import descend_sparsely
from torchgw.spaces import AdjacencyDistances
from torchgw.strategies.entropic import make_epsilon_step
from torchgw.types import Array

TOLERANCE = 1e-6  # of the Frank-Wolfe gap, over the value


def solve_sparse_graphs(asked: Problem) -> CertifiedSolution:
    """Solve with memory for the entries of D_X T D_Y; on the CPU, whatever the device of the masses."""
    began = time.perf_counter()
    model, watch, options = asked.model, asked.watch, asked.options
    problem = make_sparse_objective(asked)
    start, basins = asked.stage("search", partial(_find_start, asked, problem))
    searched = time.perf_counter()
    history = History()
    least = float(np.finfo(float).eps) * asked.unit
    loop, progress = Loop(watch, history, options.stopping.max_iter, TOLERANCE, least), options.stopping.plan_tol
    state, status = asked.stage("descent", lambda: descend_sparsely(problem, start.matrix, progress, loop))
    solved = time.perf_counter()
    value, plan = max(state.value, 0.0), state.plan
    coupling = SparseCoupling(*(side.to(model.p.device) for side in plan.tensors().values()))
    marginals = coupling.marginal(1), coupling.marginal(0)
    values = model.values_from_parts(value, 0.0, 0.0, *marginals)
    a, b = (torch.from_numpy(side) for side in (problem.a, problem.b))
    lower = min(float(first_bound(a, b, model.p.cpu(), model.q.cpu())), values.total)
    solution = Solution(
        coupling=coupling,
        warm_start=None,
        status=status,
        n_iter=state.n_iter,
        n_iter_sinkhorn=0,
        history=history,
        energy=value,
        basins=_list_basins(asked, basins, coupling, value),
    )
    return solution.with_certificate(
        marginals,
        Objective(value),
        values,
        Certificate(stationarity=state.gap, stationarity_exact=True, lower_bound=lower, gap=values.total - lower),
        (began, searched, solved),
        gradient="exact",
        path=(make_epsilon_step(asked, solution, solved - began),) if asked.auto else (),
    )


def _list_basins(
    asked: Problem, basins: tuple[Basin, ...], coupling: SparseCoupling, value: float
) -> tuple[Basin, ...]:
    """The basins with the plan that the best one ended in; matchings differ by the mass that they match otherwise."""
    if not basins:
        return ()
    last = coupling.argmax(1)
    best = replace(basins[0], energy=value, matching=last)
    p = asked.p.double() / asked.p.sum()
    found = []
    for basin in (best, *basins[1:]):
        matching = torch.as_tensor(basin.matching, device=p.device)
        shift = (matching != last).to(p)
        found.append(replace(basin, matching=matching, shift=shift, difference=float(p @ shift)))
    return tuple(found)


def _group_ends(ends: list[SparseEnd], p: Array, unit: float) -> tuple[Basin, ...]:
    """Ends that agree in values and in the matches of most of the mass, with how many starts came to each."""
    groups: list[list[SparseEnd]] = []
    for end in ends:
        for group in groups:
            otherwise = float(p @ (end.matching != group[0].matching).numpy()) / p.sum()
            if is_as_low(end.value, group[0].value, unit) and otherwise <= SAME_PLAN / 2:
                group.append(end)
                break
        else:
            groups.append([end])
    return tuple(
        Basin(
            energy=max(group[0].value, 0.0),
            count=sum(end.origin != CROSSED for end in group),
            level="full",
            origin=group[0].origin,
            difference=0.0,
            matching=group[0].matching,
            shift=torch.zeros(len(p), dtype=torch.float64),
        )
        for group in groups
    )


def make_sparse_objective(asked: Problem) -> SparseObjective:
    """The quadratic part of the problem between its two sparse matrices."""
    X, Y = asked.spaces
    assert isinstance(X, AdjacencyDistances)
    assert isinstance(Y, AdjacencyDistances)
    p, q = (mass.double().cpu().numpy() for mass in (asked.p, asked.q))
    return SparseObjective(X.matrix, Y.matrix, p, q, X.symmetric and Y.symmetric)


def _find_start(asked: Problem, problem: SparseObjective) -> tuple[SparseCoupling, tuple[Basin, ...]]:
    """The plan that was given, the matching that given pairs lead to, or the lowest end of the search; and the basins
    of the search."""
    basins: tuple[Basin, ...] = ()
    if asked.init is None:
        ends = search_sparse_graphs(asked, problem)
        plan, basins = ends[0].plan, _group_ends(ends, problem.p, asked.unit)
    elif asked.init.is_floating_point():
        given = asked.init.double().cpu().numpy()
        plan = csr_array(given / given.sum())
    else:
        plan = match_nodes(problem, plan_from_pairs(problem, *asked.init.cpu().numpy().T), asked.watch.should_skip)
    return SparseCoupling.of(repair_marginals(plan, problem.p, problem.q), torch.device("cpu")), basins
