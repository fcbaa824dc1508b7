"""What comes out: one solved pair, how it ended, and all pairs in the order of SciPy's ``pdist`` or ``cdist``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from torchgw import validate
from torchgw.results.matches import import_pandas, to_names
from torchgw.runtime.keywords import hide_constructor
from torchgw.types import Array

Pair: TypeAlias = tuple[int, int]


class PairStatus(IntEnum):
    """One for each pair. ``text`` says what happened and what to do."""

    PENDING = 0
    SETTLED = 1
    UNSETTLED = 2
    FAILED = 3

    @property
    def text(self) -> str:
        """What happened and what to do."""
        return TEXTS[self]

    def __str__(self) -> str:
        return f"{self.name.lower()}: {self.text}"


TEXTS = {
    PairStatus.PENDING: "not solved yet; the same call with the same store goes on",
    PairStatus.SETTLED: "no plan nearby betters this one by more than tol times the value, to first order",
    PairStatus.UNSETTLED: "the gap is above tol after the last step; the value is an upper bound, and "
    "gw_align(X, Y, epsilon=0) may find a lower one",
    PairStatus.FAILED: "no finite value was found; gw_align(X, Y) may say why",
}


@dataclass(frozen=True)
class SolvedPair:
    """One pair of spaces, solved.

    pair : (i, j), places in the list of spaces.
    value : the objective at the plan found, in squared units of the scaled distances; NaN where it failed.
    gap : a bound on its Frank-Wolfe gap, over the value.
    marginal_error : L1 distances of both marginals from the masses, added; that of a `GWResult` is the larger one.
    status : how the solve ended.
    matching : where asked for, for each point of either space the one of the other that it sends most mass to, (N_i,)
        and (N_j,); -1 for points without mass.
    """

    pair: Pair
    value: float
    gap: float
    marginal_error: float
    status: PairStatus
    matching: tuple[Array, Array] | None = None


def condensed_index(i: int, j: int, n: int) -> int:
    """Where SciPy's condensed matrices have the pair i < j of n."""
    return n * i - i * (i + 1) // 2 + j - i - 1


@hide_constructor
@dataclass(frozen=True, repr=False, eq=False)
class PairwiseResult:
    """Gromov-Wasserstein distances between all pairs of n spaces, or between n spaces and k others.

    Vectors of pairs (m,), m = n (n - 1) / 2, are in the order of SciPy's condensed distance matrices: (0, 1), (0, 2),
    ..., (0, n - 1), (1, 2), ... With ``against``, m = n k and the pairs are (0, 0), (0, 1), ..., (0, k - 1), (1, 0),
    ..., where the second number counts these others. Pairs that were not solved are NaN.

    Attributes
    ----------
    condensed : (m,) distances, the square roots of ``values``; for `scipy.cluster.hierarchy.linkage`.
    values : (m,) objectives sum (D_X[i,i'] - D_Y[j,j'])^2 T_ij T_i'j' at the plans found, in squared units of the data
        (of scaled distances with ``scale="own"``): what POT's ``gromov_wasserstein2`` returns. Each belongs to a plan
        with exact marginals, so it is an upper bound on the minimum.
    marginal_errors : (m,) L1 distances of both marginals from the masses, added; of a `GWResult` it is the larger one.
    gaps : (m,) first-order bounds on how far plans nearby could lower a value, over the value.
    status : (m,) codes, see `PairStatus`.
    n_spaces, n_against : n and k; the latter is None for all pairs among the n spaces.
    scales : (n,) or (n + k,) what each space's distances were divided by within the solve.
    n_solved, n_stored : pairs that this call solved, and that it found in its store.
    seconds : time of the call.
    matchings : for each pair that keeps one, its indices into both spaces; None unless they were asked for. Read it
        through `matching`. The spaces of ``against`` count on from n here.
    names, names_against : of the spaces (n,) and (k,), which `pair`, `matching` and `matches` take in place of indices;
        None of spaces that came in a list.
    names_points : for each space (n,) or (n + k,) the names of its points (N_i,), None where it brought none.
    """

    values: Array
    marginal_errors: Array
    gaps: Array
    status: Array
    n_spaces: int
    scales: Array
    n_solved: int
    n_stored: int
    seconds: float
    matchings: Mapping[Pair, tuple[Array, Array]] | None = None
    n_against: int | None = None
    names: tuple[Any, ...] | None = None
    names_against: tuple[Any, ...] | None = None
    names_points: tuple[NDArray[np.object_] | None, ...] | None = None

    @property
    def condensed(self) -> Array:
        """(m,) distances, the square roots of ``values``."""
        found: Array = np.sqrt(self.values)
        return found

    @property
    def complete(self) -> bool:
        """Whether all pairs were solved."""
        return bool((self.status != PairStatus.PENDING).all())

    @property
    def converged(self) -> bool:
        """Whether all pairs are settled."""
        return bool((self.status == PairStatus.SETTLED).all())

    def square(self) -> Array:
        """(n, n) distances with a zero diagonal, for ``metric="precomputed"`` of scikit-learn; with ``against`` (n, k),
        a row for each of the n spaces."""
        if self.n_against is not None:
            return self.condensed.reshape(self.n_spaces, self.n_against)
        found = np.zeros((self.n_spaces, self.n_spaces))
        found[np.triu_indices(self.n_spaces, 1)] = self.condensed
        return found + found.T

    def table(self) -> Any:
        """`square` as a pandas DataFrame, whose rows and columns have the names of the spaces, or else their indices.

        Raises
        ------
        ImportError
            Without pandas.
        """
        return import_pandas().DataFrame(
            self.square(), self.names, self.names if self.n_against is None else self.names_against
        )

    def pair(self, i: Any, j: Any) -> int:
        """Where the vectors of pairs have two spaces.

        Parameters
        ----------
        i, j : their names or indices, in any order; with ``against`` that of a space and that of one of the others.
        """
        one, other = self._space_indices(i, j)
        if self.n_against is not None:
            return one * self.n_against + other
        return condensed_index(min(one, other), max(one, other), self.n_spaces)

    def _space_indices(self, i: Any, j: Any) -> tuple[int, int]:
        """The indices of two spaces; of the second among those of ``against`` if there are such."""
        alone = self.n_against is None
        i = _space_index("i", i, self.n_spaces, self.names)
        j = _space_index("j", j, *((self.n_spaces, self.names) if alone else (self.n_against, self.names_against)))
        if alone and i == j:
            raise ValueError(f"i and j must differ, got {i} twice")
        return i, j

    def matching(self, i: Any, j: Any) -> Array:
        """(N_i,) for each point of space i the index in space j that it sends most mass to; -1 for points without mass.

        Parameters
        ----------
        i, j : names or indices of the two spaces, as in `pair`.

        Raises
        ------
        ValueError
            Without ``keep="matchings"``, or where the pair was not solved or failed.
        """
        at = self.pair(i, j)
        i, j = self._space_indices(i, j)
        if self.matchings is None:
            raise ValueError("matchings were not kept; use gw_pairwise(..., keep='matchings')")
        k = j if self.n_against is None else self.n_spaces + j
        both = self.matchings.get((min(i, k), max(i, k)))
        if both is None:
            raise ValueError(f"the pair ({i}, {j}) has no matching: {PairStatus(int(self.status[at]))}")
        return both[0] if i < k else both[1]

    def matches(self, i: Any, j: Any) -> Any:
        """`matching` as a pandas DataFrame of the columns ``source`` and ``target``, a row for each point of space i.

        Points have their names, or else their indices. ``target`` is missing for points without mass.

        Parameters
        ----------
        i, j : names or indices of the two spaces, as in `pair`.

        Raises
        ------
        ValueError, ImportError
            As `matching`, and without pandas.
        """
        found = torch.from_numpy(self.matching(i, j))
        i, j = self._space_indices(i, j)
        known = self.names_points or (None,) * (self.n_spaces + (self.n_against or 0))
        source, target = known[i], known[j if self.n_against is None else self.n_spaces + j]
        columns = {
            "source": np.arange(len(found)) if source is None else source,
            "target": to_names(found, found >= 0, target),
        }
        return import_pandas().DataFrame(columns)

    def __repr__(self) -> str:
        counts = [f"{int((self.status == code).sum())} {code.name.lower()}" for code in PairStatus]
        kinds = ", ".join(text for text in counts if not text.startswith("0 "))
        spaces = self.n_spaces if self.n_against is None else f"{self.n_spaces} x {self.n_against}"
        return f"PairwiseResult({spaces} spaces, {len(self.values)} pairs: {kinds}, {self.seconds:.1f} s)"


def _space_index(argument: str, given: Any, count: int | None, names: tuple[Any, ...] | None) -> int:
    """The index of a space that is given by its name, or by its index."""
    if names is not None and given in names:
        return names.index(given)
    if names is not None and not isinstance(given, int | np.integer):
        raise ValueError(f"{argument} must be the name of a space or its index, got {given!r}; names begin {names[:5]}")
    return validate.integer(argument, given, least=0, most=(count or 0) - 1)
