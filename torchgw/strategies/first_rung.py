"""The first rung of a large solve: the problem between some thousand cells, searched and solved like any small one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchgw.diagnostics.evidence import Basin
from torchgw.kernels.precision import loop_dtype
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import gradient_of
from torchgw.persist.watch import Watch
from torchgw.runtime.threads import threads_for
from torchgw.search.basins import listed
from torchgw.search.coarsen import CellSpace, Side
from torchgw.search.problem import Problem
from torchgw.solvers.solution import Solution
from torchgw.strategies.dense import solve_contenders, solve_smoothly, where_to_start
from torchgw.strategies.large_problem import Large, Task, cells_of

FEWEST = 16


@dataclass(frozen=True)
class FirstRung:
    """The cells, their solved problem, and the basins of the search on all points.

    ``searched`` is when the search ended, ``seconds`` what all of it took.
    """

    large: Large
    x: CellSpace
    y: CellSpace
    ended: Solution
    basins: tuple[Basin, ...]
    searched: float
    seconds: float


def first_rung(task: Task, epsilon: float, watch: Watch) -> FirstRung:
    """Search and solve between cells, at ``epsilon``; ``watch`` follows."""
    began, options, generator = time.perf_counter(), task.options, task.generator
    dtype = loop_dtype(options.mixed_precision)
    n_control = options.sampling.n_control
    first, second = (
        Side.of(space.to(mass.device, dtype), mass, dtype, n_control, generator)
        for space, mass in zip(task.spaces, task.model.masses, strict=True)
    )
    model = replace(task.model, epsilon=epsilon)
    large = Large(first, second, model, task.kernels, options, generator, task.exact, task.unit)
    count = options.ladder.n_cells
    x, y = (
        cells_of(large, side, features, min(count, max(len(side.mass) // 2, FEWEST)))
        for side, features in zip((first, second), _features(large), strict=True)
    )
    problem = replace(on_cells(large, x, y), watch=watch)
    with threads_for(x.cells.count * y.cells.count):
        candidates, reference = where_to_start(problem, seen_by_cells(task.init, x, y))
        searched = time.perf_counter()
        ended, candidates = solve_contenders(problem, candidates, solve_smoothly)
    basins: tuple[Basin, ...] = ()
    if reference is not None:
        small = listed(candidates, reference, problem.masses[0])
        basins = tuple(_on_points(basin, x, y) for basin in small)
    return FirstRung(large, x, y, ended, basins, searched, time.perf_counter() - began)


def on_cells(large: Large, x: CellSpace, y: CellSpace) -> Problem:
    """The problem between the cells, stored."""
    assert x.space is not None
    assert y.space is not None
    model, dtype = large.model.on_cells(x.cells, y.cells), large.x.control.F.dtype
    gradient = gradient_of(model, ExactGradient(x.space, y.space, model.p.to(dtype), model.q.to(dtype)))
    kernel, options = large.kernels.stored, large.options
    epsilon, generator, unit = large.epsilon, large.generator, large.unit
    return Problem(x.space, y.space, gradient, model, epsilon, False, kernel, options, generator, unit=unit)


def _features(large: Large) -> tuple[Tensor, Tensor]:
    """What cells are cut by: the factors of the distances, and those of the linear cost."""
    F, G = large.x.control.F, large.y.control.F
    linear = large.model.linear(F.dtype)
    return (F, G) if linear is None else (torch.cat((F, linear.U), 1), torch.cat((G, linear.V), 1))


def seen_by_cells(init: Tensor | None, x: CellSpace, y: CellSpace) -> Tensor | None:
    """What the user gave to start from, between cells instead of points."""
    if init is None:
        return None
    if not init.is_floating_point():
        return torch.stack((x.cells.label[init[:, 0]], y.cells.label[init[:, 1]]), 1)
    return y.cells.sums(x.cells.sums(init).T).T


def _on_points(basin: Basin, x: CellSpace, y: CellSpace) -> Basin:
    """A basin of the cells' problem, its matching and shift (N,) those of each point's cell."""
    label = x.cells.label
    return replace(basin, matching=y.centres[basin.matching[label]], shift=basin.shift[label])
