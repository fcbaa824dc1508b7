"""`gw_align` as a scikit-learn transformer, from the space of X to the space of y.

A row x_i of the source goes to the barycentric projection of its row of the plan T,

    x_i -> sum_j T_ij y_j / sum_j T_ij,

the conditional mean of the target given x_i, and a target row to the mean of the sources in its column. Rows that the
fit has not seen take the row of the plan that `torchgw.results.out_of_sample` gives them.

Source: N. Courty, R. Flamary, D. Tuia, A. Rakotomamonjy, "Optimal transport for domain adaptation", 2017.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from scipy.spatial import cKDTree
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array, check_is_fitted

from torchgw import validate
from torchgw.align import gw_align
from torchgw.diagnostics.status import Status
from torchgw.entry import entry
from torchgw.marginals import Balanced, Marginals
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.request.names import check_names
from torchgw.request.request import Cost
from torchgw.request.spaces import check_distances
from torchgw.runtime.surroundings import isolate_methods
from torchgw.types import Array, Callback, Epsilon, RandomState

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn below 1.6 has it as a method

    def validate_data(estimator: Any, X: Any, **how: Any) -> Any:
        return estimator._validate_data(X, **how)


SIDES = ("source", "target")
NUMBERS: dict[str, Any] = {"dtype": np.float64, "order": "C"}
BATCH_ROWS, BATCH_ELEMENTS = 1024, 2**24
ROUNDING, TINY = 1e-5, 1e-150  # of the extent, and absolute: below it rows are equal


@isolate_methods
class GromovWasserstein(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Map the points X of one space to the space of the points y by Gromov-Wasserstein transport.

    The rows of ``y`` are points of the target, as many as there are, in any order: no row of ``y`` belongs to a row of
    ``X``. Only `score` reads them as pairs.

    Parameters
    ----------
    distances, alpha, epsilon, device, backend, callback : as in `torchgw.gw_align`, but that "precomputed" takes square
        matrices of distances alone, no points; the rows that are transformed are then distances to all points of
        `fit`, and scikit-learn splits X by rows and columns, as with "adjacency", which
        transforms no other rows than those of `fit`. Under "auto" square arrays are distance matrices where they can
        be, and all others points.
    marginals : `Balanced` and so on; None is ``Balanced()``.
    options : None is ``GWOptions()``.
    random_state : int, torch.Generator, numpy.random.Generator or numpy.random.RandomState; the same seed gives the
        same fit. None takes fresh entropy.

    Attributes
    ----------
    result_ : the `GWResult`, with certificate, basins, history and everything else.
    coupling_ : the plan (N, K) as a `Coupling`, which stores its N x K entries only where the solve did.
    value_ : Gromov-Wasserstein objective of the plan.
    n_iter_, converged_ : outer iterations, and whether they ended by themselves.
    n_features_in_, feature_names_in_ : columns of X, and their names where X was a data frame.

    Notes
    -----
    Data arguments (masses, linear cost, supervision) belong to `fit`. A plan of low rank, with a linear cost,
    supervision or another loss than the square maps the rows of `fit` alone: others raise ValueError, see
    `GWResult.transform`. All checks of scikit-learn's `check_estimator` pass.

    Examples
    --------
    >>> import torchgw
    >>> from torchgw.estimator import GromovWasserstein
    >>> X, _ = torchgw.datasets.make_spiral(100, noise=0.01)
    >>> Y, _ = torchgw.datasets.make_swiss_roll(110, noise=0.01)
    >>> GromovWasserstein(epsilon=5e-3, random_state=0).fit_transform(X, Y).shape
    (100, 3)
    """

    @entry()
    def __init__(
        self,
        *,
        distances: str | tuple[str, str] = "auto",
        alpha: float | None = None,
        epsilon: Epsilon = "auto",
        marginals: Marginals | None = None,
        options: GWOptions | None = None,
        device: str | torch.device | None = None,
        backend: str = "auto",
        random_state: RandomState | np.random.RandomState = None,
        callback: Callback | None = None,
    ) -> None:
        self.distances = distances
        self.alpha = alpha
        self.epsilon = epsilon
        self.marginals = marginals
        self.options = options
        self.device = device
        self.backend = backend
        self.random_state = random_state
        self.callback = callback

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        p: Array | None = None,
        q: Array | None = None,
        cost: Cost | None = None,
        supervision: Supervision | None = None,
    ) -> GromovWasserstein:
        """Align X with y.

        Parameters
        ----------
        X : points (N, D) of the source: an array or a data frame of numbers, N >= 2. A copy is kept.
        y : points (K, E) of the target, K >= 2, or (K,), which are points on a line; required. A copy is kept.
        p, q : masses (N,), (K,), uniform when None.
        cost : linear cost, see `torchgw.gw_align`; ``alpha`` weighs it.
        supervision : known and forbidden pairs, labels and masks.

        Errors, all of them before any work, warnings, and cost are those of `torchgw.gw_align`. Ctrl-C raises
        KeyboardInterrupt, so that a search ends with it; with a ``callback`` the best so far is kept. Returns self.
        """
        if y is None:
            name = type(self).__name__
            raise ValueError(f"{name} requires y to be passed, but the target y is None; give its points (K, E) as y")
        source = validate_data(self, _read_array("X", X), copy=True, ensure_min_samples=2, **NUMBERS)
        target = _read_target("y", y, copy=True, ensure_min_samples=2)
        for name, space, kind in zip("Xy", (source, target), check_distances(self.distances), strict=True):
            if kind == "precomputed" and space.shape[0] != space.shape[1]:
                raise ValueError(
                    f"{name} must be a square matrix of distances with distances='precomputed', got {space.shape}; "
                    f"if its rows are points, pass distances='dijkstra' or 'landmark'"
                )
        settings = self.get_params(deep=False) | {
            "marginals": Balanced() if self.marginals is None else self.marginals,
            "options": self.options,
            "random_state": _to_seed(self.random_state),
            "names_x": check_names("X", None, X, len(source)),
            "names_y": check_names("Y", None, y, len(target)),
        }
        result = gw_align(source, target, p=p, q=q, cost=cost, supervision=supervision, **settings)
        if result.status is Status.CANCELLED and self.callback is None:
            raise KeyboardInterrupt
        self._points = source, target
        self._n_features_out = target.shape[1]
        self._target_names = _column_names(y)
        self.result_, self.coupling_ = result, result.coupling
        self.value_, self.n_iter_, self.converged_ = result.value, result.n_iter, result.converged
        return self

    def transform(self, X: Any) -> Array:
        """Rows of the source's space (m, D) in the target's space, (m, E) float64.

        Rows of `fit` take their row of the plan, so that ``fit_transform(X, y)`` is ``fit(X, y).transform(X)``. They
        are recognised up to 1e-5 of the extent of X, more than what rounding does to them in the steps of a
        pipeline; those that are equal share their mean by mass, and one without mass gives NaN. All others are mapped
        by `GWResult.transform`, also where they are far from everything that `fit` saw. O(N K) time for known rows,
        O(m K r) for others.

        Parameters
        ----------
        X : (m, D), rows of the fit, others, or both.

        Raises
        ------
        ValueError
            For rows that were not in `fit`, where the plan cannot be carried on to them; see the notes of the class.
        """
        return self._average_by_plan(self._read_rows("X", X, 0), self._points[1], 0)

    def inverse_transform(self, X: Any) -> Array:
        """Rows of the target's space in the source's space, (m, D) float64; see `transform`.

        Parameters
        ----------
        X : (m, E), rows of the target of the fit, others, or both.
        """
        return self._average_by_plan(self._read_rows("X", X, 1), self._points[0], 1)

    def transform_labels(
        self, labels: Any, X: Any = None, *, side: str = "target", return_confidence: bool = False
    ) -> Array | tuple[Array, Array]:
        """Carry labels from one side to the points of the other: the label of most of the mass that each exchanges.

        Parameters
        ----------
        labels : (K,) of the target points, or (N,) of the source points for ``side="source"``: numbers, strings or
            anything that sorts.
        X : rows of the side that gets the labels; the points of `fit` when None.
        side : "source" or "target", where the labels are.
        return_confidence : whether to return the shares as well.

        Returns
        -------
        found : (m,) of the labels' dtype. Of equal shares the label that sorts first wins; a point without mass gets
            the first of all, with confidence 0.
        confidence : (m,) share of the point's mass that carries its label, in [0, 1]; with ``return_confidence``.

        O((N + K) C) memory for C different labels.
        """
        check_is_fitted(self)
        origin = SIDES.index(validate.choice("side", side, SIDES))
        given = validate.read("labels", labels)
        if given.shape != (size := len(self._points[origin]),):
            raise ValueError(f"labels must have shape ({size},), one for each {side} point, got {given.shape}")
        try:
            classes, index = np.unique(given, return_inverse=True)
        except TypeError as error:
            raise TypeError(f"labels must sort, so be of one kind and none missing, got others ({error})") from None
        rows = self._points[1 - origin] if X is None else self._read_rows("X", X, 1 - origin)
        shares = np.nan_to_num(self._average_by_plan(rows, np.eye(len(classes))[index], 1 - origin))
        found = classes[shares.argmax(1)]
        return (found, shares.max(1)) if return_confidence else found

    def score(self, X: Any, y: Any) -> float:
        """R^2 of ``transform(X)`` as a prediction of ``y``, the mean over columns; 1 is best.

        Pairs are not needed to fit, and `fit` does not use them.

        Parameters
        ----------
        X : (m, D), rows of the source's space.
        y : (m, E); here row i is the true partner of row i of ``X``.

        Raises
        ------
        ValueError
            When the numbers of rows differ.
        """
        true, found = self._read_rows("y", y, 1), np.asarray(self.transform(X))
        if len(found) != len(true):
            raise ValueError(f"y must hold the partner of each row of X, ({len(found)}, E), got shape {true.shape}")
        return float(r2_score(true, found))

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names (E,) of the columns of `transform`: those of ``y`` where it had any, else gromovwasserstein0 and on.

        Parameters
        ----------
        input_features : taken for scikit-learn's sake; those of `fit` or None.
        """
        made: Array = super().get_feature_names_out(input_features)
        return made if self._target_names is None else self._target_names.copy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.pairwise = self._is_pairwise()
        return tags

    def _more_tags(self) -> dict[str, bool]:
        """The same for scikit-learn below 1.6."""
        return {"requires_y": True, "pairwise": self._is_pairwise()}

    def _is_pairwise(self) -> bool:
        """Whether X is a matrix of pairs, by the parameters alone, which are not checked yet."""
        given = self.distances[:1] if isinstance(self.distances, tuple) else (self.distances,)
        return given in (("precomputed",), ("adjacency",))

    def _read_rows(self, name: str, X: Any, side: int) -> Array:
        """Points (m, .) like those of ``side`` in `fit`."""
        check_is_fitted(self)
        if side == 0:
            return cast(Array, validate_data(self, _read_array("X", X), reset=False, **NUMBERS))
        found, names = _read_target(name, X), _column_names(X)
        wanted = self._n_features_out
        if found.shape[1] != wanted:
            raise ValueError(f"{name} must have the {wanted} columns of the y in fit, got shape {found.shape}")
        if names is not None and self._target_names is not None and (names != self._target_names).any():
            raise ValueError(f"{name} must have the columns of the y in fit, {self._target_names}, got {names}")
        return found

    def _average_by_plan(self, rows: Array, values: Array, side: int) -> Array:
        """For these rows (m, .) of ``side`` the mean by the plan of the values (., d) of the other side, (m, d)."""
        result = self.result_
        group, place = _number_equal_rows(self._points[side], rows)
        known, new = np.flatnonzero(place >= 0), np.flatnonzero(place < 0)
        found = np.empty((len(rows), values.shape[1]))
        if len(known):
            moved = np.asarray(result.pull(values) if side == 0 else result.push(values))
            if group.max() + 1 < len(group):
                moved = _group_means(moved, result.coupling.marginal(1 - side).cpu().numpy(), group)
            found[known] = moved[place[known]]
        step = max(BATCH_ROWS, BATCH_ELEMENTS // max(result.shape))
        for part in (new[start : start + step] for start in range(0, len(new), step)):
            try:
                unseen = result.transform(rows[part], SIDES[side])
            except ValueError as error:
                raise ValueError(f"{len(new)} of {len(rows)} rows were not in fit: {error}") from error
            found[part] = unseen.pull(values) if side == 0 else unseen.push(values)
        return found


def _read_target(name: str, y: Any, **how: Any) -> Array:
    """Points (m, E); numbers (m,) are points on a line."""
    found: Array = check_array(_read_array(name, y), ensure_2d=False, input_name=name, **NUMBERS, **how)
    return found.reshape(-1, 1) if found.ndim == 1 else found


def _read_array(name: str, given: Any) -> Any:
    """What scikit-learn cannot read, or would read wrongly: the numbers of tensors, and masked arrays."""
    return validate.read(name, given) if isinstance(given, torch.Tensor | np.ma.MaskedArray) else given


def _column_names(y: Any) -> Array | None:
    """The names of the columns of a data frame (E,), of objects, where all are strings."""
    names = getattr(y, "columns", None)
    named = names is not None and all(isinstance(name, str) for name in names)
    return np.asarray(names, dtype=object) if named else None


def _to_seed(random_state: Any) -> Any:
    """What `gw_align` takes; NumPy's older generator gives one draw as a seed."""
    return int(random_state.randint(2**31 - 1)) if isinstance(random_state, np.random.RandomState) else random_state


def _number_equal_rows(known: Array, rows: Array) -> tuple[Array, Array]:
    """Numbers of the groups of equal rows: of each known row (N,), and of each other row (m,) that is one, else -1."""
    numbers: dict[bytes, int] = {}
    group = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in known + 0.0])  # -0.0 equals 0.0
    first = np.unique(group, return_index=True)[1]
    reach = ROUNDING * float(np.ptp(known, axis=0).max()) + TINY
    place = cKDTree(known[first], balanced_tree=False).query(rows, distance_upper_bound=reach)[1]
    return group, np.where(place < len(first), place, -1)


def _group_means(values: Array, mass: Array, group: Array) -> Array:
    """Row g is the mean by ``mass`` (N,) of the rows of ``values`` (N, d) in group g; NaN for a group without mass."""
    weighted = np.where(mass[:, None] > 0, values, 0.0) * mass[:, None]
    with np.errstate(invalid="ignore"):
        total = np.bincount(group, mass)
        return np.stack([np.bincount(group, column) / total for column in weighted.T], 1)
