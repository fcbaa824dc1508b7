"""A solve for a coupling of low rank: the search on cells says where to begin, the rest is mirror descent."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.objective.certify import certify, read_streamed
from torchgw.objective.exact import inner_product
from torchgw.objective.value import Objective
from torchgw.solvers.low_rank import solve_low_rank, warm_factors
from torchgw.solvers.solution import CertifiedSolution
from torchgw.strategies.first_rung import first_rung
from torchgw.strategies.large_problem import Task

SEARCH_EPSILON = 1e-3  # of the largest squared distance


def run_low_rank(
    task: Task,
) -> CertifiedSolution:
    """Solve the task with O((N + K) r) memory; without entropy the search takes a little."""
    began, options, generator = time.perf_counter(), task.options, task.generator
    (p, q), epsilon = task.model.masses, task.epsilon
    rung = first_rung(task, epsilon or SEARCH_EPSILON * task.unit, task.watch.silent())
    wide = tuple(space.to(p.device, torch.float64) for space in task.spaces)
    labels = rung.x.cells.label, rung.y.cells.label
    chosen = replace(options.low_rank, step=options.low_rank.step * task.unit)
    start = warm_factors(wide[0], labels, rung.ended.plan, p, q, chosen, generator)
    arguments = wide[0], wide[1], p, q, epsilon, chosen, generator
    done = task.watch.stage("descent", lambda: solve_low_rank(*arguments, start=start, watch=task.watch))
    solved = time.perf_counter()
    coupling = done.coupling
    assert isinstance(coupling, LowRankCoupling)
    assert rung.ended.dual is not None
    F, G = rung.large.x.control.F, rung.large.y.control.F
    product = inner_product(F, coupling.Q) @ (inner_product(coupling.R, G) / coupling.g[:, None])
    dual = rung.ended.dual.to(p.dtype)[rung.y.cells.label]
    marginals = coupling.marginal(1), coupling.marginal(0)
    large, model = rung.large, rung.large.model
    sums = model.masses if model.fixed else marginals
    found = read_streamed(coupling, product, large.spaces, large.controls, sums, 0.0, 0.0, 0, generator)
    found = replace(found, quadratic=Objective(done.energy, True, 0.0), expected=done.energy)
    values, certificate = certify(found, dual, large.spaces, model, large.unit, generator)
    return CertifiedSolution(
        coupling=coupling,
        marginals=marginals,
        gradient="exact",
        marginal_residual=done.marginal_residual,
        status=done.status,
        end=None,
        last_change=0.0,
        n_iter=done.n_iter,
        n_iter_sinkhorn=done.n_iter_sinkhorn,
        history=done.history,
        objective=found.quadratic,
        values=values,
        certificate=certificate,
        basins=rung.basins,
        seconds={
            "search": rung.searched - began,
            "solve": solved - rung.searched,
            "finish": time.perf_counter() - solved,
        },
    )
