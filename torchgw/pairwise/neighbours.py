"""Nearest neighbours among spaces, solving as few pairs as lower bounds allow.

A pair's bound costs microseconds, its value milliseconds. Candidates of a query are solved in the order of their
bounds, until the next bound is above the k-th smallest value found: no candidate left can be nearer. So neighbours and
distances are those that solving all pairs gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchgw import validate
from torchgw.entry import ADVICE_ON_MANY, OF_MANY, check_options, entry
from torchgw.kernels.sampling import make_generator
from torchgw.objective.bounds import lower_bounds, signature
from torchgw.options import GWOptions
from torchgw.pairwise.api import warn_of_status
from torchgw.pairwise.inputs import as_list, check_jobs, read_spaces
from torchgw.pairwise.result import Pair, PairStatus
from torchgw.pairwise.schedule import TaskMaker, iterate_results
from torchgw.request.devices import pick_device
from torchgw.types import Array, RandomState

AT_ONCE = 2


@dataclass(frozen=True)
class Neighbours:
    """The k nearest spaces of Q queries.

    Attributes
    ----------
    indices : (Q, k) places in the list of spaces, nearest first.
    distances : (Q, k), as in `PairwiseResult.condensed`.
    n_pairs, n_solved, n_pruned : pairs of a query and a space (counted once where both are queries), those that were
        solved, and those that their bounds ruled out.
    """

    indices: Array
    distances: Array
    n_pairs: int
    n_solved: int
    n_pruned: int


@entry(OF_MANY | dict.fromkeys(("k", "n_neighbors"), "n_neighbours"), ADVICE_ON_MANY)
def gw_neighbours(
    spaces: Sequence[Any] | Mapping[Any, Any],
    n_neighbours: int = 5,
    *,
    queries: Sequence[Any] | None = None,
    masses: Sequence[Any] | Mapping[Any, Any] | None = None,
    distances: str = "auto",
    scale: str = "auto",
    tol: float = 1e-2,
    options: GWOptions | None = None,
    n_jobs: int | None = None,
    device: str | torch.device | None = None,
    random_state: RandomState = None,
) -> Neighbours:
    """The nearest spaces of some or all of many, by Gromov-Wasserstein distance, without solving all pairs.

    Parameters
    ----------
    spaces, masses, distances, scale, tol, options, n_jobs, device, random_state : as in `torchgw.gw_pairwise`.
    n_neighbours : k, below the number of spaces. A space is no neighbour of itself.
    queries : places in ``spaces`` whose neighbours are asked for; all of them when None. To look up other spaces, put
        them last in ``spaces`` and name their places; they count as neighbours of each other.

    Returns
    -------
    Neighbours

    Raises
    ------
    ValueError, TypeError, MemoryError
        As in `torchgw.gw_pairwise`.

    Warns
    -----
    ConvergenceWarning
        When pairs that were solved are not settled, or failed.

    Notes
    -----
    O(n^2) bounds of microseconds each, and a solve for each pair whose bound does not rule it out.

    References
    ----------
    F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011.

    Examples
    --------
    >>> import torchgw
    >>> spaces = [torchgw.datasets.make_spiral(n, random_state=n)[0] for n in (40, 50, 60, 70)]
    >>> torchgw.gw_neighbours(spaces, 2, queries=[0], random_state=0).indices.shape
    (1, 2)
    """
    options = check_options(options)
    validate.real("tol", tol, above=0.0, most=1.0)
    check_jobs(n_jobs)
    where = pick_device(device, tuple(spaces) if isinstance(spaces, list | tuple) else ())
    seed = int(torch.randint(2**62, (1,), generator=make_generator(random_state, torch.device("cpu"))))
    n = len(as_list("spaces", spaces, 2))
    k = validate.integer("n_neighbours", n_neighbours, least=1, most=n - 1)
    asked = _read_queries(queries, n)
    inputs = read_spaces(spaces, masses, distances, scale, options)
    made = [signature(inputs.distances_over_divisor(i), mass[mass > 0]) for i, mass in enumerate(inputs.masses)]
    bounds = lower_bounds([made[i] for i in asked], made)
    values: dict[Pair, float] = {}
    status: list[PairStatus] = []
    maker = TaskMaker(inputs, tol, where, False, options, seed)
    while wanted := _choose_pairs(asked, bounds, values, k):
        with closing(iterate_results(maker.make_tasks(wanted), n_jobs)) as results:
            for solved in results:
                values.update({each.pair: each.value for each in solved})
                status += [each.status for each in solved]
    warn_of_status(np.array(status))
    pairs = len({_order_pair(i, j) for i in asked for j in range(n) if i != j})
    nearest = [_rank_by_value(i, n, values)[:k] for i in asked]
    indices = np.array([[j for _, j in row] for row in nearest])
    found = np.sqrt(np.array([[value for value, _ in row] for row in nearest]) * inputs.unit**2)
    return Neighbours(indices, found, pairs, len(values), pairs - len(values))


def _read_queries(queries: Sequence[Any] | None, n: int) -> list[int]:
    if queries is None:
        return list(range(n))
    if not isinstance(queries, Sequence | np.ndarray):
        raise TypeError(f"queries must be a list of places in spaces, or None, got {type(queries).__name__}")
    found = [validate.integer(f"queries[{at}]", i, least=0, most=n - 1) for at, i in enumerate(queries)]
    if not found:
        raise ValueError("queries must name at least one space, got none")
    return found


def _order_pair(i: int, j: int) -> Pair:
    return min(i, j), max(i, j)


def _rank_by_value(i: int, n: int, values: dict[Pair, float]) -> list[tuple[float, int]]:
    """Values and places of the solved pairs of a query, lowest first; those that failed last."""
    found = [(values[_order_pair(i, j)], j) for j in range(n) if _order_pair(i, j) in values]
    return sorted(found, key=lambda each: (np.isnan(each[0]), each))


def _choose_pairs(asked: list[int], bounds: Array, values: dict[Pair, float], k: int) -> list[Pair]:
    """The next pairs of every query, in the order of their bounds; none where no bound is below the k-th value."""
    found: dict[Pair, None] = {}
    n = bounds.shape[1]
    for row, i in zip(bounds, asked, strict=True):
        known = _rank_by_value(i, n, values)
        limit = known[k - 1][0] if len(known) >= k else np.inf
        left = [j for j in np.argsort(row, kind="stable").tolist() if j != i and _order_pair(i, j) not in values]
        count = max(k - len(known), AT_ONCE)
        # A value that is not a number rules nothing out.
        found.update({_order_pair(i, j): None for j in left[:count] if not row[j] > limit})
    return sorted(found)
