"""A result of the points with mass as one of all points, see `torchgw.request.support`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchgw.couplings.blocks import as_block_coupling
from torchgw.diagnostics.evidence import Basin
from torchgw.gradients.differentiable import PaddedDifferentiable
from torchgw.kernels.sums import scatter
from torchgw.request.support import Support
from torchgw.results.result import GWResult
from torchgw.spaces.adjacency import AdjacencyDistances
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.out_of_sample import KnownPoints


def of_all_points(result: GWResult, support: Support) -> GWResult:
    """The result with all N and K points: others than those of the support have no mass, and match the first point of
    the other side."""
    (n, k), sides, known, model = support.shape, support.sides, result.known, result.model
    places = zip(sides, support.shape, strict=True)
    if known is not None:
        known = _extend_known_points(known[0], support, 0), _extend_known_points(known[1], support, 1)
    if model is not None and known is not None:
        p, q = (scatter(mass, index, size) for mass, (index, size) in zip(model.masses, places, strict=True))
        at = [side.places.to(model.p.device) for side in known]
        cost, penalty = (None if each is None else each.restrict(at[0], at[1]) for each in (model.cost, model.penalty))
        model = replace(model, p=p, q=q, cost=cost, penalty=penalty)
    solved = result.differentiated
    return replace(
        result,
        coupling=as_block_coupling(result.coupling, "a result").zero_pad(*sides, (n, k)),
        basins=tuple(_basin(basin, support) for basin in result.basins),
        graphs=(_report(result.graphs[0], support.rows), _report(result.graphs[1], support.columns)),
        known=known,
        model=model,
        differentiated=None if solved is None else PaddedDifferentiable(solved, *sides, (n, k)),
    )


def _basin(basin: Basin, support: Support) -> Basin:
    n, (matching, shift) = support.shape[0], map(torch.as_tensor, (basin.matching, basin.shift))
    matching = support.columns.to(matching.device)[matching]
    return replace(basin, matching=scatter(matching, support.rows, n), shift=scatter(shift, support.rows, n))


def _report(report: GraphReport | None, index: Tensor) -> GraphReport | None:
    return None if report is None else replace(report, short_cuts=index.numpy()[report.short_cuts])


def _extend_known_points(known: KnownPoints, support: Support, side: int) -> KnownPoints:
    space = support.spaces[side]
    points = None if known.points is None else space.data
    graph = space.data if isinstance(space.data, AdjacencyDistances) else space.edges
    return replace(known, points=points, index=support.sides[side], size=support.shape[side], graph=graph)
