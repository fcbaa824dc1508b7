"""A streaming solve between spaces without factors, by factors near their distances (`torchgw.spaces.low_rank`).

Distances that are smooth along curves and surfaces have leading factors whose error is below that of landmarks. Between
them a solve streams like any other, and the ladder's test at full size says when its cells are fine enough. Value and
certificate are those of the distances themselves: exact where the plan can be stored and two products with it take
seconds, elsewhere estimated from pairs that are drawn from it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import torch

from torchgw.couplings.blocks import DenseCoupling
from torchgw.objective.certify import certify, read_block_plan, read_dense_plan
from torchgw.solvers.problem import Problem, approximate_spaces, products_are_slow
from torchgw.solvers.solution import CertifiedSolution
from torchgw.strategies.streaming import solve_streaming

WANTED, RESIDUAL, MOST_RANK = 0.005, 0.01, 128  # residual of the factors: sought, accepted, and their most rank
CERTIFIED_WORK = 5e11  # multiplications of the products that exact values take
LEADING = "leading factors"  # whose gradient such a plan has


def make_surrogate(asked: Problem) -> Problem | None:
    """The problem between factors, where products of distances take long, these may be stored to find factors, and the
    factors leave little; else None."""
    if asked.tol is not None or all(space.factors() is not None for space in asked.spaces):
        return None
    if not products_are_slow(asked):
        return None
    spaces = asked.stage("factors", partial(approximate_spaces, asked, WANTED, RESIDUAL, MOST_RANK))
    return None if spaces is None else Problem.of(asked, spaces=spaces)


def solve_surrogate(asked: Problem, between: Problem) -> CertifiedSolution:
    """The solution ``between`` leading factors, judged by the distances that were asked for."""
    return reevaluate(asked, solve_streaming(between))


def reevaluate(asked: Problem, found: CertifiedSolution, stores: bool = True) -> CertifiedSolution:
    """A solution between leading factors with its value and certificate by the distances that were asked for, which a
    plan that is stored has exactly."""
    model, options = asked.model, asked.options
    began = time.perf_counter()
    spaces = asked.source.to(model.p.device, torch.float64), asked.target.to(model.p.device, torch.float64)
    n, k = len(model.p), len(model.q)
    assert found.warm_start is not None
    assert found.warm_start.cost is not None
    dual = found.warm_start.cost.column_dual(found.warm_start.g, model.q, asked.epsilon)
    if stores and n * k * (n + k) <= CERTIFIED_WORK and 16 * n * k <= options.max_memory:
        stored = DenseCoupling(found.coupling.to_dense().to(torch.float64))
        read, sample = read_dense_plan(stored, spaces, model, options.max_memory, asked.generator), None
    else:
        linear, penalty = found.values.linear, found.values.violation * model.price
        read = read_block_plan(found.coupling, None, spaces, None, found.marginals, 0, asked.generator)
        read = replace(read, linear=linear, penalty=penalty)
        sample = asked.generator
    values, certificate = certify(read, dual, spaces, model, asked.unit, sample)
    path = found.path
    if path:  # whose values are those between the factors
        path = (*path[:-1], replace(path[-1], value=max(values.total, 0.0)))
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
