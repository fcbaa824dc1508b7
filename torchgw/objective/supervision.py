"""What is known of a matching beforehand, as penalties of pairs that stream."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchgw import ranges, validate
from torchgw.persist.codec import storable
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.types import Array

MOST_COLUMNS = 256
UNLABELLED = -1
SAME_MASS = 1e-9


@storable
@dataclass(frozen=True, eq=False, kw_only=True)
class Supervision:
    """Pairs, labels and masks that a matching should respect.

    Parameters
    ----------
    pairs : known matches (m, 2), integer indices into X and Y. Of each pair,
        the point with less mass should not be matched with others; a point may
        have several partners.
    forbidden : pairs (m, 2) that should not be matched.
    labels : a pair of arrays (N,), (K,) of integers, texts or categories;
        points of different labels should not be matched. -1, None and NaN are
        no label, which goes with any. Or the name of a node attribute of
        networkx graphs, or of a column of tables, that has the labels; a pair
        of names where they differ.
    mask : (N, K), an array or a SciPy sparse matrix; pairs whose entry is zero
        should not be matched. Needs the dense strategy.
    strength : what a unit of mass on a pair costs that breaks one of these
        rules, in units of the scaled squared distances, > 0. Infinity, the
        default, forbids it: then only mass that has nowhere else to go is on
        such pairs, and what rounding onto the marginals spreads
        (``marginal_residual``).

    Notes
    -----
    Rules break ties: the search for the basin has the points of ``pairs`` and
    ``forbidden`` among its landmarks. Pairs and labels are columns of factors,
    so they stream; up to 256 of them.
    """

    pairs: Any = None
    forbidden: Any = None
    labels: tuple[Any, Any] | str | None = None
    mask: Any = None
    strength: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", validate.real("strength", self.strength, above=0.0, infinite=True))
        ranges.price("strength", self.strength, "forbids what breaks a rule")
        if all(rule is None for rule in (self.pairs, self.forbidden, self.labels, self.mask)):
            raise ValueError("Supervision must have at least one of pairs, forbidden, labels and mask, got none")
        named = self.labels is None or isinstance(self.labels, str)
        if not named and not (isinstance(self.labels, tuple) and len(self.labels) == 2):
            raise TypeError(
                f"labels must be a pair of arrays (N,), (K,), or the name of an attribute of the points, got "
                f"{type(self.labels).__name__}"
            )

    def between(self, rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> Supervision | None:
        """The rules between some points, ``rows`` (n,) and ``columns`` (k,), of
        all (N, K); None where none names any.

        Raises
        ------
        ValueError, TypeError
            As `rules`, for pairs, labels and masks that do not fit all points,
            and masks without a pair for one of these.
        """
        found: dict[str, Any] = {}
        for name, every in self._pairs(*shape).items():
            left = pairs_between(torch.from_numpy(every), rows, columns)
            if len(left):
                found[name] = left
        if self.labels is not None:
            x, y = _read_labels(self.labels, shape)
            found["labels"] = x[rows.numpy()], y[columns.numpy()]
        if self.mask is not None:
            found["mask"] = _read_mask(self.mask, shape, rows.numpy(), columns.numpy())
        return Supervision(**found, strength=self.strength) if found else None

    def rules(self, p: Array, q: Array, stored: bool) -> Rules:
        """Penalties of strength one between points of masses p (N,), q (K,);
        ``stored`` says that a matrix may be kept.

        Raises
        ------
        ValueError, TypeError
            For indices that are out of range, labels or masks of other shapes,
            and rules that need a matrix where none may be kept.
        """
        shape = len(p), len(q)
        given = self._pairs(*shape)
        parts = list[FactoredCost]()
        named = list(given.get("pairs", np.zeros((0, 2), dtype=np.int64)).T)
        groups = [np.zeros(size, dtype=np.int64) for size in shape]
        if "pairs" in given:
            parts.append(_pair_penalty(given["pairs"], p, q, stored))
        if self.labels is not None:
            x, y = _read_labels(self.labels, shape)
            parts.append(_label_penalty(x, y))
            groups = [np.unique(side, return_inverse=True)[1] for side in (x, y)]
        if "forbidden" in given:
            pairs = given["forbidden"]
            zeros = [torch.zeros(size, dtype=torch.float64) for size in shape]
            penalty, few = _penalty_at(pairs, (zeros[0], zeros[1]), -0.5, 1.0, "forbidden", stored)
            parts.append(penalty)
            named[few] = np.concatenate((named[few], pairs[:, few]))
            if penalty.extra is None:  # points that the same others are forbidden to go together
                partners = (penalty.U, penalty.V)[1 - few].numpy()
                same = np.concatenate((groups[1 - few][:, None], partners), axis=1)
                groups[1 - few] = np.unique(same, axis=0, return_inverse=True)[1]
        if self.mask is not None:
            refused = 1.0 - _read_mask(self.mask, shape)
            parts.append(FactoredCost.from_matrix(torch.from_numpy(refused)))
        named = [np.unique(index) for index in named]
        for group, index in zip(groups, named, strict=True):
            group[index] = group.max() + 1 + np.arange(len(index))
        return Rules(
            FactoredCost.weighted_sum(parts, [1.0] * len(parts)),
            (torch.from_numpy(named[0]), torch.from_numpy(named[1])),
            (torch.from_numpy(groups[0]), torch.from_numpy(groups[1])),
        )

    def _pairs(self, n: int, k: int) -> dict[str, Array]:
        """Those of ``pairs`` and ``forbidden`` that were given, (m, 2), each
        pair once, in order."""
        found = {
            name: np.unique(validate.pairs(f"supervision.{name}", given, n, k).numpy(), axis=0)
            for name, given in (("pairs", self.pairs), ("forbidden", self.forbidden))
            if given is not None
        }
        if len(found) == 2:
            both = [tuple(pair.tolist()) for pair in found["forbidden"] if (found["pairs"] == pair).all(1).any()]
            if both:
                raise ValueError(f"supervision must not have a pair both in pairs and forbidden, got {both[0]}")
        return found


class Rules(NamedTuple):
    """Rules between N and K points.

    cost : penalties (N, K) of strength one.
    points : indices (n,), (k,) of the points that rules name.
    groups : (N,), (K,), labels of points that coarsening must not merge where
        they differ.
    """

    cost: FactoredCost
    points: tuple[Tensor, Tensor]
    groups: tuple[Tensor, Tensor]


def _read_labels(labels: Any, shape: tuple[int, int]) -> list[Array]:
    """Integer labels (N,), (K,), at least -1."""
    found = []
    for i, (side, n) in enumerate(zip(labels, shape, strict=True)):
        name, array = f"supervision.labels[{i}]", validate.read(f"supervision.labels[{i}]", side)
        if array.shape != (n,) or array.dtype.kind not in "iu":
            hint = (
                "; np.unique(np.concatenate(labels), return_inverse=True)[1] numbers those of both sides"
                if array.ndim == 1 and array.dtype.kind not in "ciu"
                else ""
            )
            raise ValueError(f"{name} must be {n} integers, got shape {array.shape} of dtype {array.dtype}{hint}")
        if n and array.min() < -1:
            raise ValueError(f"{name} must be at least -1, which is no label, got {array.min()}")
        found.append(array.astype(np.int64))
    return found


def _keeps_factors(name: str, rank: int, stored: bool) -> bool:
    """Whether the rule is kept as factors; an error where it can be kept in no
    form."""
    if rank <= MOST_COLUMNS or stored:
        return rank <= MOST_COLUMNS
    raise ValueError(
        f"supervision.{name} must need at most {MOST_COLUMNS} columns of factors, got {rank}; take fewer"
        + ("" if name == "labels" else ", or options.strategy='dense'")
    )


def _penalty_at(
    pairs: Array, terms: tuple[Tensor, Tensor], unit: float, weight: Tensor | float, name: str, stored: bool
) -> tuple[FactoredCost, int]:
    """Row (N,) and column (K,) terms less 2 ``unit`` times ``weight`` (m,) at
    the pairs, and the side, 0 or 1, on which fewer points have any: each of
    these is a column of factors, or a matrix is stored."""
    shape = len(terms[0]), len(terms[1])
    rank, few = min((len(np.unique(pairs[:, side])), side) for side in (0, 1))
    if not _keeps_factors(name, rank, stored):
        matrix = torch.zeros(shape, dtype=torch.float64)
        matrix[pairs[:, 0], pairs[:, 1]] = weight
        return FactoredCost.from_matrix(-2 * unit * matrix, *terms), few
    points, column = np.unique(pairs[:, few], return_inverse=True)
    factors = [torch.zeros(size, rank, dtype=torch.float64) for size in shape]
    factors[few][points, np.arange(rank)] = unit
    factors[1 - few][pairs[:, 1 - few], column] = weight
    return FactoredCost(*terms, *factors), few


def _pair_penalty(pairs: Array, p: Array, q: Array, stored: bool) -> FactoredCost:
    """1 for each point that its partners have room for and that is matched with
    another."""
    i, j = pairs.T
    room = np.bincount(i, q[j], len(p)), np.bincount(j, p[i], len(q))
    a, b = (
        torch.from_numpy(((space > 0) & (mass <= space * (1 + SAME_MASS))).astype(np.float64))
        for space, mass in zip(room, (p, q), strict=True)
    )
    return _penalty_at(pairs, (a, b), 0.5, a[i] + b[j], "pairs", stored)[0]


def _label_penalty(x: Array, y: Array) -> FactoredCost:
    """1 for pairs that both have labels, and different ones: known known^T
    minus the sum over the shared labels."""
    values = np.intersect1d(x[x != UNLABELLED], y[y != UNLABELLED])
    _keeps_factors("labels", len(values) + 1, stored=False)
    U, V = (
        torch.from_numpy(
            np.concatenate(((labels != UNLABELLED)[:, None], labels[:, None] == values), axis=1).astype(np.float64)
        )
        for labels in (x, y)
    )
    sign = torch.full((len(values) + 1,), 0.5, dtype=torch.float64)
    sign[0] = -0.5
    return FactoredCost(U.new_zeros(len(U)), V.new_zeros(len(V)), U * sign, V)


def pairs_between(pairs: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The pairs (m, 2) of points out of ``rows`` (n,) and ``columns`` (k,),
    both in order, by their places there."""
    sides = [side.to(pairs.device) for side in (rows, columns)]
    at = [torch.searchsorted(side, pairs[:, i].contiguous()).clamp_max(len(side) - 1) for i, side in enumerate(sides)]
    known = (sides[0][at[0]] == pairs[:, 0]) & (sides[1][at[1]] == pairs[:, 1])
    return torch.stack(at, 1)[known]


def _read_mask(mask: Any, shape: tuple[int, int], *sides: Array) -> Array:
    """1.0 where a mask of all (N, K) points allows a pair, 0.0 elsewhere,
    between the points ``sides``, (n,) and (k,); all unless given."""
    array = validate.read("supervision.mask", mask.toarray() if hasattr(mask, "toarray") else mask)
    if array.shape != shape:
        n, k = shape
        raise ValueError(f"supervision.mask must have shape (N, K) = ({n}, {k}), got {array.shape}")
    rows, columns = sides or map(np.arange, shape)
    allowed = array[np.ix_(rows, columns)] != 0
    for name, side, axis, index in (("row", "X", 1, rows), ("column", "Y", 0, columns)):
        empty = index[~allowed.any(axis)]
        if len(empty):
            raise ValueError(
                f"supervision.mask must allow a pair for every point, got an empty {name} {empty[0]} of {side}"
            )
    found: Array = allowed.astype(np.float64)
    return found
