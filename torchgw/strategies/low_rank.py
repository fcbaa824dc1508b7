"""A solve for a coupling of low rank: the search on cells says where to begin, the rest is mirror descent."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.kernels.sums import inner_product
from torchgw.objective.certify import Objective, certify, read_block_plan
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
    wide = tuple(space.to(p.device, torch.float64) for space in asked.spaces)
    x, y = (side.label for side in problem.cells)
    chosen = replace(options.low_rank, step=options.low_rank.step * asked.unit)
    start = warm_factors(wide[0], (x, y), first.plan, p, q, chosen, generator)
    gradient = ExactGradient(wide[0], wide[1], p, q)
    solution = asked.stage(
        "descent", lambda: solve_low_rank(gradient, model, chosen, generator, start=start, watch=watch)
    )
    solved, coupling = time.perf_counter(), solution.coupling
    assert isinstance(coupling, LowRankCoupling)
    assert first.dual is not None
    F, G = (control.F for control in problem.controls)
    product = inner_product(F, coupling.Q) @ (inner_product(coupling.R, G) / coupling.g[:, None])
    marginals, quadratic = (coupling.marginal(1), coupling.marginal(0)), Objective(solution.energy)
    found = read_block_plan(coupling, product, problem.spaces, problem.controls, model.masses, 0, generator)
    found = replace(found, quadratic=quadratic, expected=solution.energy)
    return solution.with_certificate(
        marginals,
        quadratic,
        *certify(found, first.dual.to(p.dtype)[y], problem.spaces, model, asked.unit, generator),
        (began, searched, solved),
        gradient="exact",
        last_change=0.0,
        basins=first.basins,
        path=(make_epsilon_step(asked, solution, solved - began),) if asked.auto else (),
    )
