"""Points without mass are no part of a space: a request is for the points with mass alone, and its result is one of all
points again, between which nothing goes.

Points, matrices, costs, rules and starts are checked whole, and lose the rows and columns of the others. Only what a
point needs to be matched, such as a pair that a mask allows, is not asked of points without mass. Graphs that were
given keep them as way stations of shortest paths, but for components in which no node has mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.objective.features import FeatureCost, features_of
from torchgw.objective.supervision import Supervision, pairs_between
from torchgw.request.objective import check_cost
from torchgw.request.spaces import geodesic_kind
from torchgw.spaces.neighbours import components
from torchgw.spaces.prepare import ON_GRAPHS, InputSpace
from torchgw.spaces.subspace import subspace
from torchgw.types import AUTO, Array, is_graph, is_provider


@dataclass(frozen=True, eq=False)
class Support:
    """The points of two spaces that have mass.

    rows, columns : their indices (n,), (k,), in order.
    shape : (N, K), of all points.
    spaces : both spaces with all points, validated.
    """

    rows: Tensor
    columns: Tensor
    shape: tuple[int, int]
    spaces: tuple[InputSpace, InputSpace]

    @classmethod
    def of(cls, p: Array, q: Array, spaces: tuple[InputSpace, InputSpace]) -> Support | None:
        """That of masses p (N,), q (K,); None where all points have some."""
        rows, columns = np.flatnonzero(p), np.flatnonzero(q)
        if len(rows) == len(p) and len(columns) == len(q):
            return None
        return cls(torch.from_numpy(rows), torch.from_numpy(columns), (len(p), len(q)), spaces)

    def restrict(
        self,
        spaces: tuple[InputSpace, InputSpace],
        given: tuple[Any, Any],
        masses: tuple[Any, Any],
        kinds: tuple[str, str],
        neighbours: int | None,
    ) -> tuple[tuple[InputSpace, InputSpace], tuple[Any, Any], tuple[Any, Any]]:
        """The validated spaces, whose distances were asked for as ``kinds``, and X, Y, p and q as ``given``, as far as
        gradients flow to them; refused where a number of ``neighbours`` was given that is too large for the points that
        are left."""
        made, left = list[InputSpace](), list[Any]()
        for space, own, index, kind in zip(spaces, given, self.sides, kinds, strict=True):
            found, points = restrict_space(space, own, index, kind == AUTO)
            if neighbours is not None and found.is_points and found.kind in ON_GRAPHS:
                validate.check_neighbour_count(space.name, neighbours, found.size)
            made.append(found)
            left.append(points)
        p, q = (
            _select(mass, index) if isinstance(mass, Tensor) else mass
            for mass, index in zip(masses, self.sides, strict=True)
        )
        return (made[0], made[1]), (left[0], left[1]), (p, q)

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        """``rows`` and ``columns``."""
        return self.rows, self.columns

    def cost(self, cost: Any) -> Any:
        """A linear cost (N, K), or the features of one; refused where it is none of all points."""
        if cost is None:
            return None
        features = features_of(cost)
        check_cost(cost if features is None else features, *self.shape)
        if features is None:
            return _select(cost, self.rows, self.columns)
        x, y = (_select(side, index) for side, index in zip(features, self.sides, strict=True))
        return FeatureCost(x, y, cost.metric, cost.scale) if isinstance(cost, FeatureCost) else (x, y)

    def rules(self, supervision: Supervision | None) -> Supervision | None:
        """Rules of points with mass; None where there are none."""
        return None if supervision is None else supervision.between(self.rows, self.columns, self.shape)

    def init(self, init: Tensor | None) -> Tensor | None:
        """A plan (N, K), or matching pairs (m, 2)."""
        if init is None:
            return None
        if init.is_floating_point():
            found = init[self.rows.to(init.device)][:, self.columns.to(init.device)]
            if not bool(found.max() > 0):
                raise ValueError("init must have an entry for a pair of points that both have mass, p and q, got none")
            return found / found.max()
        found = pairs_between(init, self.rows, self.columns)
        if len(found) == 0:
            raise ValueError("init must have a pair of points that both have mass, p and q, got none")
        return found


def restrict_space(space: InputSpace, given: Any, index: Tensor, auto: bool = False) -> tuple[InputSpace, Any]:
    """The points ``index`` (n,) of a validated space, and of what was ``given`` as far as gradients flow to it. The
    kind of shortest paths is chosen once more where the choice is left (``auto``)."""
    if is_provider(space.data):
        made = subspace(space.data, index)
        space = space._replace(data=made)
        if is_provider(given):
            return space, made
        square = isinstance(given, Tensor) and space.kind == "adjacency"
        return space, _select(given, index, index) if square else given
    if is_graph(space.data):
        nodes, label = index.numpy(), components(space.data)[1]
        left = np.flatnonzero(np.isin(label, label[nodes]))
        graph = space.data if len(left) == len(label) else space.data[left][:, left]
        kept = None if len(left) == len(nodes) else np.searchsorted(left, nodes)
        found = space._replace(data=graph, kept=kept)
    else:
        sides = (index, index) if space.kind == "matrix" else (index,)
        found = space._replace(data=_select(space.data, *sides))
        given = _select(given, *sides) if isinstance(given, Tensor) else given
    chosen = auto and space.kind in ON_GRAPHS
    return found._replace(kind=geodesic_kind(found.size)) if chosen else found, given


def _select(given: Any, *sides: Tensor) -> Any:
    """Rows, and columns, of a validated array or a tensor, which keeps its gradients."""
    if isinstance(given, Tensor):
        for axis, index in enumerate(sides):
            given = given.index_select(axis, index.to(given.device))
        return given
    array = np.asarray(given)
    return array[np.ix_(*(index.numpy() for index in sides))]
