"""A solve for a coupling of low rank: the search on cells says where to begin, the rest is
mirror descent."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from torchgw.objective.certify import certify, read_dense_plan
from torchgw.objective.exact import ExactGradient
from torchgw.problem.problem import Problem
from torchgw.solvers.low_rank import solve_low_rank, warm_factors
from torchgw.solvers.solution import CertifiedSolution
from torchgw.strategies.entropic import make_epsilon_step
from torchgw.strategies.multilevel import solve_on_cells

SEARCH_EPSILON = 1e-3  # of the largest squared distance


def solve_with_rank(asked: Problem) -> CertifiedSolution:
    """Solve with O((N + K) r) memory; without entropy the search takes a little."""
    began, options, generator, watch = time.perf_counter(), asked.options, asked.generator, asked.watch
    model, (p, q) = asked.model, asked.model.masses
    searchable = replace(model, epsilon=model.epsilon or SEARCH_EPSILON * asked.unit)
    problem, first, _ = solve_on_cells(Problem.of(asked, model=searchable, watch=watch.without_callback()))
    searched = began + first.seconds["search"]
    x, y = (space.to(p.device, torch.float64) for space in asked.spaces)
    labels = problem.cells[0].label, problem.cells[1].label
    chosen = replace(options.low_rank, step=options.low_rank.step * asked.unit)
    start = warm_factors(x, labels, first.plan, p, q, chosen, generator)
    gradient = ExactGradient(x, y, p, q)
    solution = asked.stage(
        "descent", lambda: solve_low_rank(gradient, model, chosen, generator, start=start, watch=watch)
    )
    solved, coupling = time.perf_counter(), solution.coupling
    assert coupling is not None
    assert first.dual is not None
    found = read_dense_plan(coupling, (x, y), model, 0, generator, gradient(coupling, p))
    return solution.with_certificate(
        (coupling.marginal(1), coupling.marginal(0)),
        found.quadratic,
        *certify(found, first.dual.to(p.dtype)[labels[1]], problem.spaces, model, asked.unit, generator),
        (began, searched, solved),
        gradient="exact",
        last_change=0.0,
        basins=first.basins,
        path=(make_epsilon_step(asked, solution, solved - began),) if asked.auto else (),
    )
