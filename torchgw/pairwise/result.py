"""What comes out: one solved pair, how it ended, and all pairs in the order of SciPy's ``pdist`` or ``cdist``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np

from torchgw import validate
from torchgw.runtime.keywords import returned
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


def position(i: int, j: int, n: int) -> int:
    """Where SciPy's condensed matrices have the pair i < j of n."""
    return n * i - i * (i + 1) // 2 + j - i - 1


@returned
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

    def pair(self, i: int, j: int) -> int:
        """Where the vectors of pairs have two spaces.

        Parameters
        ----------
        i, j : their indices, in any order; with ``against`` that of a space and that of one of the others.
        """
        if self.n_against is not None:
            i = validate.integer("i", i, least=0, most=self.n_spaces - 1)
            return i * self.n_against + validate.integer("j", j, least=0, most=self.n_against - 1)
        i, j = (validate.integer(name, k, least=0, most=self.n_spaces - 1) for name, k in (("i", i), ("j", j)))
        if i == j:
            raise ValueError(f"i and j must differ, got {i} twice")
        return position(min(i, j), max(i, j), self.n_spaces)

    def matching(self, i: int, j: int) -> Array:
        """(N_i,) for each point of space i the index in space j that it sends most mass to; -1 for points without mass.

        Parameters
        ----------
        i, j : indices of the two spaces, as in `pair`.

        Raises
        ------
        ValueError
            Without ``keep="matchings"``, or where the pair was not solved or failed.
        """
        at = self.pair(i, j)
        if self.matchings is None:
            raise ValueError("matchings were not kept; use gw_pairwise(..., keep='matchings')")
        k = j if self.n_against is None else self.n_spaces + j
        both = self.matchings.get((min(i, k), max(i, k)))
        if both is None:
            raise ValueError(f"the pair ({i}, {j}) has no matching: {PairStatus(int(self.status[at]))}")
        return both[0] if i < k else both[1]

    def __repr__(self) -> str:
        counts = [f"{int((self.status == code).sum())} {code.name.lower()}" for code in PairStatus]
        kinds = ", ".join(text for text in counts if not text.startswith("0 "))
        spaces = self.n_spaces if self.n_against is None else f"{self.n_spaces} x {self.n_against}"
        return f"PairwiseResult({spaces} spaces, {len(self.values)} pairs: {kinds}, {self.seconds:.1f} s)"
