"""How good a matching is, by the measures of single-cell integration, graph matching, word translation and shapes.

A matching is an array (N,) of target indices, with -1 for points without a match; wherever one is asked for, a result
or a plan does as well, and gives each point the target of its largest mass. A truth is such an array too, with -1 for
points whose true match is not known. One rule holds for all scores: points without a known truth do not count, and
points with a known truth and no match count as wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.reader import Readable
from torchgw.couplings.sparse import SparseCoupling
from torchgw.runtime.surroundings import isolate
from torchgw.search.automorphisms import maximise_agreements
from torchgw.types import Array, Coupling

__all__ = [
    "Correlation",
    "carried_correlation",
    "cycle_error",
    "foscttm",
    "geodesic_error_curve",
    "hits_at_k",
    "label_transfer_accuracy",
    "mean_reciprocal_rank",
    "node_correctness",
]

ANY_SIZE = -1
PIECE = 2**22  # distances that are held at once
KINDS = "a result of gw_align, a plan (N, K), or integer target indices (N,) with -1 for none"


class Correlation(NamedTuple):
    """Correlation coefficients of two lists of numbers, NaN where one of them is constant.

    Attributes
    ----------
    pearson : of the numbers.
    spearman : of their ranks.
    """

    pearson: float
    spearman: float


@isolate
def foscttm(
    X: Array | Tensor, Y: Array | Tensor, truth: Array | Tensor | None = None, *, per_point: bool = False
) -> Any:
    """Fraction of samples closer than the true match: 0 is perfect, 1/2 is chance.

        1/2 mean_i (#{k : |x_i - y_k| < d_i} / (K - 1)  +  #{k : |x_k - y_t(i)| < d_i} / (N - 1)),  d_i = |x_i - y_t(i)|

    over the pairs (i, t(i)) that truly belong together (Liu, Huang, Singh, Vert, Noble, "Jointly embedding multiple
    single-cell omics measurements", 2019).

    Parameters
    ----------
    X, Y : points (N, d), (K, d) in one space, such as ``result.pull(Y)`` and ``Y``.
    truth : (N,) the row of Y that each row of X belongs to, -1 where it is not known; None: row i belongs to row i.
    per_point : return both fractions of each pair instead of their mean.

    Returns
    -------
    A number; with ``per_point`` two arrays (m,), the fractions of Y closer to x_i and of X closer to y_t(i), in the
    order of the known pairs.

    Raises
    ------
    ValueError, TypeError
        For points of different dimensions, a single point, and a truth that does not fit.

    Notes
    -----
    O(N K d) time, in blocks. Points at exactly the same distance as the true match are not closer.

    Examples
    --------
    >>> import numpy as np
    >>> from torchgw.metrics import foscttm
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> foscttm(X, X), foscttm(X, X[::-1])
    (0.0, 0.6666666666666666)
    """
    validate.flag("per_point", per_point)
    x, y = (_read_points(name, side) for name, side in (("X", X), ("Y", Y)))
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"X and Y must be points in one space, got shapes {tuple(x.shape)} and {tuple(y.shape)}; "
            f"result.pull(Y) carries Y to the points of X, and result.push(X) the other way"
        )
    if truth is None and len(x) != len(y):
        raise ValueError(f"truth is needed where X and Y have different numbers of points, got {len(x)} and {len(y)}")
    known = _read_truth(np.arange(len(x)) if truth is None else truth, len(x), len(y))
    i = np.flatnonzero(known >= 0)
    j = known[i]
    found = _share_closer(x, y, i, j), _share_closer(y, x, j, i)
    if per_point:
        return tuple(_to_kind_of(side, X, Y) for side in found)
    return float(found[0].mean() + found[1].mean()) / 2


@isolate
def label_transfer_accuracy(labels_x: Any, labels_y: Any, carrier: Any, *, k: int = 5) -> float:
    """Share of source points that get their own label when those of the target are carried over.

    A plan gives a source point the label to which most of its mass goes, argmax_c sum_j T_ij [label_j = c]. Points in
    one space get the most frequent label among their ``k`` nearest target points, the classifier by which integrated
    single-cell data are usually scored (Johansen, Quon, "scAlign: a tool for alignment, integration, and rare cell
    identification from scRNA-seq data", 2019).

    Parameters
    ----------
    labels_x, labels_y : (N,), (K,) labels of any kind; None and NaN are labels that are not known.
    carrier : a result of `torchgw.gw_align`, a plan (N, K), or a matching (N,); or a tuple (X, Y) of points (N, d),
        (K, d) in one space.
    k : nearest neighbours, for points.

    Raises
    ------
    ValueError, TypeError
        For lengths that do not fit, and labels of which the two sides have none in common.

    Notes
    -----
    Source points without a label do not count; those to which no labelled point sends mass count as wrong. Of labels
    with equal shares the one that is first in ``labels_y`` wins. O(N K c) time for c labels, in blocks.

    Examples
    --------
    >>> from torchgw.metrics import label_transfer_accuracy
    >>> label_transfer_accuracy(["B", "T", "T"], ["T", "B"], [1, 0, 1])
    0.6666666666666666
    """
    x, y = _read_labels("labels_x", labels_x), _read_labels("labels_y", labels_y)
    place: dict[Any, int] = {}
    for label in y:
        if not validate.is_missing(label):
            place.setdefault(label, len(place))
    known = np.array([not validate.is_missing(label) for label in x], dtype=bool)
    own = np.array([-1 if validate.is_missing(label) else place.get(label, -1) for label in x])
    if not (own >= 0).any():
        one, other = (next((v for v in side if not validate.is_missing(v)), None) for side in (x, y))
        raise ValueError(f"labels_x and labels_y must have labels in common, got such as {one!r} and {other!r}")
    code = np.array([-1 if validate.is_missing(label) else place[label] for label in y])
    if isinstance(carrier, tuple):
        plan = _nearest_plan(carrier, k, (len(x), len(y)))
    else:
        plan = _read_plan("carrier", carrier, (len(x), len(y)))
    share = np.asarray(plan.pull((code[:, None] == np.arange(len(place))).astype(np.float64)))
    got = np.where(np.nan_to_num(share).max(1) > 0, np.nan_to_num(share).argmax(1), -2)
    return float((got == own)[known].mean())


@isolate
def node_correctness(matching: Any, truth: Array | Tensor, *, automorphisms_of: Any = None) -> float:
    """Share of nodes that get their true match, also up to the automorphisms of the target graph.

        max_sigma  #{i : matching_i = sigma(truth_i)} / #{i : truth_i is known}

    over sigma = identity, or with ``automorphisms_of`` over all automorphisms of that graph, which no method can tell
    from each other by edges alone (Kuchaiev, Milenkovic, Memisevic, Hayes, Przulj, "Topological network alignment
    uncovers biological function and phylogeny", 2010).

    Parameters
    ----------
    matching : a result, a plan (N, K), or target indices (N,) with -1 for none.
    truth : (N,) true target indices, -1 where they are not known.
    automorphisms_of : the target graph, (K, K) dense or sparse or a networkx graph; weights and directions count.

    Raises
    ------
    ValueError, TypeError
        For arrays that do not fit, and for graphs with so many automorphisms that the best one is not found; the error
        then says between which numbers the score lies.

    Notes
    -----
    The best automorphism is searched for exactly, by individualisation and refinement. Orbits alone would overrate:
    on a cycle, where all nodes are in one orbit, each permutation would be right. A search of few branches takes
    O(K) refinements of O(E log K) each.

    Examples
    --------
    >>> import numpy as np
    >>> from torchgw.metrics import node_correctness
    >>> path = np.diag([1, 1], 1) + np.diag([1, 1], -1)
    >>> node_correctness([2, 1, 0], [0, 1, 2]), node_correctness([2, 1, 0], [0, 1, 2], automorphisms_of=path)
    (0.3333333333333333, 1.0)
    """
    found, shape = _read_matching("matching", matching), validate.shape_of(matching)
    known = _read_truth(
        truth, len(found), shape[1] if len(shape) == 2 else ANY_SIZE
    )  # indices say not how many there are
    count = int((known >= 0).sum())
    if automorphisms_of is None:
        return float((found == known)[known >= 0].sum()) / count
    graph = validate.adjacency("automorphisms_of", automorphisms_of)
    size = graph.shape[0]
    for name, side in (("matching", found), ("truth", known)):
        if side.max() >= size:
            raise ValueError(f"{name} must hold nodes of automorphisms_of, indices below {size}, got {side.max()}")
    nodes = known[known >= 0]
    if len(np.unique(nodes)) < count:
        twice = int(np.flatnonzero(np.bincount(nodes) > 1)[0])
        raise ValueError(
            f"truth must give each node of the target to one point at most, got node {twice} twice; automorphisms map "
            f"nodes one to one"
        )
    wanted = np.full(size, -1)
    wanted[nodes] = found[known >= 0]
    best, most = maximise_agreements(graph, wanted)
    if most > best:
        raise ValueError(
            f"automorphisms_of has too many automorphisms to find the best one: the share of right nodes is between "
            f"{best / count:.4g} and {most / count:.4g}; leave automorphisms_of out to score the identity alone"
        )
    return best / count


@isolate
def hits_at_k(candidates: Any, truth: Array | Tensor, k: int) -> float:
    """Share of points whose true match is among their first k candidates (hits@k, also called precision@k).

    Parameters
    ----------
    candidates : a result or a plan (N, K), whose candidates are the targets of most mass; or integer indices (N, m),
        the best first, m >= k, with -1 for none.
    truth : (N,) true target indices, -1 where they are not known.
    k : how many candidates count.

    Raises
    ------
    ValueError, TypeError
        For arrays that do not fit, and fewer than k candidates.

    Notes
    -----
    Targets without mass are no candidates. O(N K) time for plans, in blocks, and O(N k) memory.

    Examples
    --------
    >>> from torchgw.metrics import hits_at_k
    >>> hits_at_k([[0, 1], [2, 0]], [1, 1], k=2)
    0.5
    """
    k = validate.integer("k", k, least=1)
    found, size = _read_candidates(candidates, k)
    if found.shape[1] < k:
        raise ValueError(f"candidates must hold at least k = {k} of each point, got shape {found.shape}; lower k")
    known = _read_truth(truth, len(found), size)
    return float((found[:, :k] == known[:, None]).any(1)[known >= 0].mean())


@isolate
def mean_reciprocal_rank(candidates: Any, truth: Array | Tensor, *, k: int = 100) -> float:
    """Mean of 1 / r_i, where r_i is the place of the true match among the candidates of point i, 1 for the first.

    A true match that is no candidate counts 0 (Voorhees, "The TREC-8 question answering track report", 1999).

    Parameters
    ----------
    candidates : as in `hits_at_k`.
    truth : (N,) true target indices, -1 where they are not known.
    k : candidates of each point that are looked at; the score of all K is at most 1 / (k + 1) higher.

    Raises
    ------
    ValueError, TypeError
        For arrays that do not fit.

    Notes
    -----
    O(N K) time for plans, in blocks, and O(N k) memory.

    Examples
    --------
    >>> from torchgw.metrics import mean_reciprocal_rank
    >>> mean_reciprocal_rank([[0, 1], [2, 0]], [1, 2])
    0.75
    """
    found, size = _read_candidates(candidates, validate.integer("k", k, least=1))
    found, known = found[:, :k], _read_truth(truth, len(found), size)
    right = (found == known[:, None])[known >= 0]
    return float(np.where(right.any(1), 1 / (right.argmax(1) + 1), 0.0).mean())


@isolate
def geodesic_error_curve(
    matching: Any,
    truth: Array | Tensor,
    distances: Any,
    thresholds: Array | Tensor | list[float],
    *,
    area: float | None = None,
) -> Any:
    """Share of points whose match lies within each geodesic distance of their true match, the Princeton protocol.

        curve(r) = #{i : D_Y[matching_i, truth_i] <= r s} / #{i : truth_i is known},    s = area^(1/2) or the diameter

    (Kim, Lipman, Funkhouser, "Blended intrinsic maps", 2011).

    Parameters
    ----------
    matching : a result, a plan (N, K), or target indices (N,) with -1 for none.
    truth : (N,) true target indices, -1 where they are not known.
    distances : geodesic distances of the target, a matrix (K, K); or a symmetric SciPy sparse graph (K, K) of edge
        lengths, along which they are measured.
    thresholds : (t,) radii as shares of s, such as ``np.linspace(0, 0.25, 26)``.
    area : of the target's surface, in the squared unit of the distances: s is its square root, as in the protocol.
        Without it s is the largest finite distance, which a graph does not know.

    Returns
    -------
    The curve (t,), which does not fall with the threshold. Points without a match are within no distance.

    Raises
    ------
    ValueError, TypeError
        For arrays that do not fit, and a graph without an area.

    Notes
    -----
    O(K^2) time to check a matrix; of a graph a search from each true match, O(N K log K).

    Examples
    --------
    >>> import numpy as np
    >>> from torchgw.metrics import geodesic_error_curve
    >>> line = np.abs(np.subtract.outer(np.arange(5.0), np.arange(5.0)))
    >>> geodesic_error_curve([0, 2, 4, 3, 4], np.arange(5), line, [0.0, 0.25, 0.5])
    array([0.6, 0.8, 1. ])
    """
    found = _read_matching("matching", matching)
    radii = np.asarray(validate.read("thresholds", thresholds, "an array of shape (t,)"))
    if radii.ndim != 1 or radii.dtype.kind not in "fiu" or not (radii >= 0).all():
        raise ValueError(f"thresholds must be numbers >= 0 of shape (t,), got shape {radii.shape} of {radii.dtype}")
    if area is not None:
        validate.real("area", area, above=0.0)
    elif issparse(distances):
        raise ValueError("area is needed where distances is a graph, whose diameter is not known; or give the matrix")
    read = validate.graph if issparse(distances) else validate.distance_matrix
    space = read("distances", distances)
    known = _read_truth(truth, len(found), space.shape[0])
    if found.max() >= space.shape[0]:
        raise ValueError(f"matching must hold indices below {space.shape[0]}, as distances does, got {found.max()}")
    matched = (known >= 0) & (found >= 0)
    error = np.full(len(found), np.inf)
    error[matched] = _pair_distances(space, found[matched], known[matched])
    scale = float(area) ** 0.5 if area is not None else validate.largest_finite(space)
    within = error[known >= 0, None] <= radii * scale
    return _to_kind_of(within.mean(0), thresholds, truth, distances)


@isolate
def carried_correlation(values_x: Array | Tensor, values_y: Array | Tensor, plan: Any) -> Correlation:
    """Pearson's and Spearman's correlation of a value on the source points with the same value carried from the target.

        corr(v, w),    w_i = sum_j T_ij values_y[j] / sum_j T_ij

    Parameters
    ----------
    values_x, values_y : (N,), (K,) real numbers, such as a gene's counts or a position; NaN where they are not known.
    plan : a result, a plan (N, K), or a matching (N,).

    Returns
    -------
    `Correlation`, a named tuple.

    Raises
    ------
    ValueError, TypeError
        For lengths that do not fit, and fewer than three points to compare.

    Notes
    -----
    Values of the target that are not known count for nothing in the means. Points without a value, and those to which
    none is carried, are left out. O(N K) time, in blocks.

    Examples
    --------
    >>> from torchgw.metrics import carried_correlation
    >>> carried_correlation([1.0, 2.0, 4.0], [4.0, 2.0, 1.0], [2, 1, 0])
    Correlation(pearson=1.0, spearman=1.0)
    """
    x, y = _read_values("values_x", values_x), _read_values("values_y", values_y)
    given = np.isfinite(y)
    columns = np.stack((given, np.where(given, y, 0.0)), 1)
    share, total = np.asarray(_read_plan("plan", plan, (len(x), len(y))).pull(columns)).T
    carried = np.divide(total, share, out=np.full(len(x), np.nan), where=share > 0)
    both = np.isfinite(x) & np.isfinite(carried)
    if both.sum() < 3:
        raise ValueError(f"values_x and values_y must have three points to compare at least, got {int(both.sum())}")
    from scipy.stats import rankdata  # late: it takes long to import

    one, other = x[both], carried[both]
    return Correlation(_pearson(one, other), _pearson(rankdata(one), rankdata(other)))


@isolate
def cycle_error(*matchings: Any, distances: Any = None) -> float:
    """How far a cycle of matchings is from the identity: the share of points that do not come back to themselves.

        mean_i [c(i) != i]   or, with distances,   mean_i D[i, c(i)] / max D,    c = m_n o ... o m_2 o m_1

    where m_1 leads from the first space to the second, and m_n from the last one back to the first. A low error is
    needed for right matchings and does not prove them (Nguyen, Ben-Chen, Welnicka, Ye, Guibas, "An optimization
    approach to improving collections of shape maps", 2011).

    Parameters
    ----------
    *matchings : two or more, in the order of the cycle: results, plans, or index arrays with -1 for none.
    distances : (N, N) distances of the first space, by which near misses count less.

    Raises
    ------
    ValueError, TypeError
        For fewer than two matchings, and for those that do not follow on each other.

    Notes
    -----
    Points that lose their match on the way count as wrong, by the largest distance. O(N) for each matching.

    Examples
    --------
    >>> from torchgw.metrics import cycle_error
    >>> cycle_error([1, 2, 0], [2, 0, 1]), cycle_error([1, 2, 0], [2, 1, 0])
    (0.0, 0.6666666666666666)
    """
    if len(matchings) < 2:
        raise ValueError(f"matchings must be two or more that lead round a cycle, got {len(matchings)}")
    maps = [_read_matching(f"matchings[{i}]", each) for i, each in enumerate(matchings)]
    for i, (one, after) in enumerate(zip(maps, [*maps[1:], maps[0]], strict=True)):
        if one.max() >= len(after):
            raise ValueError(
                f"matchings[{i}] must lead into the space of matchings[{(i + 1) % len(maps)}], indices below "
                f"{len(after)}, got {one.max()}"
            )
    start = np.arange(len(maps[0]))
    end = start
    for each in maps:
        end = np.where(end >= 0, each[end], -1)
    if distances is None:
        return float((end != start).mean())
    D = validate.distance_matrix("distances", distances)
    if len(D) != len(start):
        raise ValueError(f"distances must have shape ({len(start)}, {len(start)}), got {D.shape}")
    largest = validate.largest_finite(D)
    apart = np.where(end >= 0, np.minimum(D[start, end], largest), largest)
    return float(apart.mean()) / largest if largest > 0 else float((end != start).mean())


class _ReadablePlan(Readable):
    """A coupling to be read."""

    numpy_input = True

    def __init__(self, coupling: Coupling) -> None:
        self.coupling = coupling


def _read_plan(name: str, value: Any, shape: tuple[int, int]) -> Readable:
    """What is read of a result, a plan or a matching between ``shape`` points, of `ANY_SIZE` if nothing says more."""
    if isinstance(value, Readable):
        found = value
    elif issparse(value):
        if value.ndim != 2 or value.dtype.kind not in "fiub":
            raise ValueError(f"{name} must be {KINDS}, got shape {value.shape} of dtype {value.dtype}")
        entries = csr_array(value, dtype=np.float64, copy=True)
        _check_masses(name, entries.data)
        found = _ReadablePlan(SparseCoupling.of(entries, torch.device("cpu")))
    else:
        given = validate.read(name, value, KINDS)
        if given.ndim == 2 and given.dtype.kind == "f":
            _check_masses(name, given)
            found = _ReadablePlan(DenseCoupling(torch.from_numpy(given.astype(np.float64))))
        elif given.ndim == 1 and given.dtype.kind in "iu":
            found = _ReadablePlan(_matching_coupling(name, given.astype(np.int64), shape[1]))
        else:
            raise ValueError(f"{name} must be {KINDS}, got shape {given.shape} of dtype {given.dtype}")
    n, k = found.shape
    if shape[0] not in (ANY_SIZE, n) or shape[1] not in (ANY_SIZE, k):
        raise ValueError(f"{name} must have shape {shape}, one row or column for each point, got {(n, k)}")
    return found


def _check_masses(name: str, masses: Array) -> None:
    """Refuse entries of a plan that are no masses."""
    if not np.isfinite(masses).all():
        raise ValueError(f"{name} must be a plan of finite masses >= 0, got {validate.count_bad(masses)}")
    if masses.min(initial=0.0) < 0:
        raise ValueError(f"{name} must be a plan of finite masses >= 0, got a smallest of {masses.min():g}")


def _matching_coupling(name: str, matching: Array, k: int) -> SparseCoupling:
    """The plan with a mass of 1 on each pair of a matching (N,)."""
    least, most = int(matching.min(initial=0)), int(matching.max(initial=-1))
    if least < -1 or (k != ANY_SIZE and most >= k):
        span = "-1 or more" if k == ANY_SIZE else f"in [-1, {k})"
        raise ValueError(f"{name} must hold indices {span}, got some from {least} to {most}")
    rows = np.flatnonzero(matching >= 0)
    width = most + 1 if k == ANY_SIZE else k
    plan = csr_array((np.ones(len(rows)), (rows, matching[rows])), shape=(len(matching), max(width, 1)))
    return SparseCoupling.of(plan, torch.device("cpu"))


def _read_matching(name: str, value: Any) -> Array:
    """Target indices (N,), -1 where a point has none."""
    plan = _read_plan(name, value, (ANY_SIZE, ANY_SIZE))
    found = _best_targets(plan, 1)[:, 0]
    if not len(found):
        raise ValueError(f"{name} must hold at least one point, got none")
    return found


def _best_targets(plan: Readable, k: int) -> Array:
    """The targets of most mass of each point (N, k), the first one first, -1 where there is no mass."""
    mass, index = (validate.read("plan", side) for side in plan.top_k(k))
    found: Array = np.where(mass > 0, index, -1)
    return found


def _read_candidates(value: Any, k: int) -> tuple[Array, int]:
    """Candidates (N, m) of each point, the best first, -1 for none, at most k of a plan; and the number of targets, of
    which a plan alone knows."""
    if not isinstance(value, Readable) and not issparse(value):
        given = validate.read("candidates", value, "indices (N, m), a plan (N, K) or a result")
        if given.ndim == 2 and given.dtype.kind in "iu":
            if not given.size:
                raise ValueError(f"candidates must hold at least one of each point, got shape {given.shape}")
            if given.min() < -1:
                raise ValueError(f"candidates must hold indices, or -1 for none, got {given.min()}")
            return given.astype(np.int64), ANY_SIZE
    plan = _read_plan("candidates", value, (ANY_SIZE, ANY_SIZE))
    if 0 in plan.shape:
        raise ValueError(f"candidates must hold at least one of each point, got shape {tuple(plan.shape)}")
    return _best_targets(plan, min(k, plan.shape[1])), plan.shape[1]


def _read_truth(value: Any, n: int, k: int = ANY_SIZE) -> Array:
    """True target indices (n,), -1 where they are not known; some are."""
    given = validate.read("truth", value, "integer target indices (N,)")
    if given.shape != (n,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"truth must be integer target indices of shape ({n},), -1 where they are not known, got shape "
            f"{given.shape} of dtype {given.dtype}"
        )
    found = given.astype(np.int64)
    least, most = int(found.min(initial=0)), int(found.max(initial=-1))
    if least < -1 or (k != ANY_SIZE and most >= k):
        span = "-1 or more" if k == ANY_SIZE else f"in [-1, {k})"
        raise ValueError(f"truth must hold indices {span}, got some from {least} to {most}")
    if most < 0:
        raise ValueError("truth must be known of at least one point, got -1 for all")
    return found


def _read_labels(name: str, value: Any) -> Array:
    """Labels (n,) as objects."""
    if isinstance(value, np.ma.MaskedArray):
        value = np.where(np.ma.getmaskarray(value), np.array(None), value.data)
    given = validate.as_numpy(value) if isinstance(value, Tensor) else np.asarray(value, dtype=object)
    if given.ndim != 1 or not len(given):
        raise ValueError(f"{name} must be one label for each point, of shape (n,), got shape {given.shape}")
    found = validate.labels(name, given.tolist())
    return np.fromiter(found, dtype=object, count=len(found))


def _read_values(name: str, value: Any) -> Array:
    """Numbers (n,), float64."""
    given = validate.read(name, value, "an array of shape (n,)")
    if given.ndim != 1 or given.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be real numbers of shape (n,), got shape {given.shape} of dtype {given.dtype}")
    return given.astype(np.float64)


def _read_points(name: str, value: Any) -> Tensor:
    """Points (n, d), float64, on the device that they came from."""
    found = validate.as_tensor(validate.points(name, value, least=2))
    return found.to(value.device) if isinstance(value, Tensor) else found


def _share_closer(x: Tensor, y: Tensor, i: Array, j: Array) -> Array:
    """For each pair (i, j) the share of the other points of y that are closer to x_i than y_j is, (m,)."""
    found = np.empty(len(i))
    for here in _iterate_blocks(len(i), len(y)):
        # Not by x^2 - 2 x y + y^2, whose rounding would make true matches of distance zero lose.
        apart = torch.cdist(x[i[here]], y.to(x.device), compute_mode="donot_use_mm_for_euclid_dist")
        own = apart.gather(1, torch.from_numpy(j[here]).to(x.device)[:, None])
        found[here] = (apart < own).sum(1).cpu().numpy()
    return found / (len(y) - 1)


def _iterate_blocks(n: int, width: int) -> Iterator[slice]:
    """Blocks of n rows of so many entries."""
    step = max(1, PIECE // max(width, 1))
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def _nearest_plan(points: tuple[Any, ...], k: int, shape: tuple[int, int]) -> Readable:
    """The plan by which each of X has equal mass on its k nearest points of Y."""
    if len(points) != 2:
        raise ValueError(f"carrier must be a plan or a tuple of two arrays of points (X, Y), got {len(points)} entries")
    X, Y = (validate.points(f"carrier[{i}]", side) for i, side in enumerate(points))
    if X.shape[1] != Y.shape[1] or (len(X), len(Y)) != shape:
        raise ValueError(
            f"carrier must hold points in one space, of shapes ({shape[0]}, d) and ({shape[1]}, d), got {X.shape} and "
            f"{Y.shape}"
        )
    k = validate.integer("k", k, least=1, most=len(Y))
    from sklearn.neighbors import NearestNeighbors  # late: it takes long to import

    index = NearestNeighbors(n_neighbors=k).fit(Y).kneighbors(X, return_distance=False)
    plan = csr_array((np.full(index.size, 1 / k), (np.repeat(np.arange(len(X)), k), index.ravel())), shape=shape)
    return _ReadablePlan(SparseCoupling.of(plan, torch.device("cpu")))


def _pair_distances(space: Any, one: Array, other: Array) -> Array:
    """Distances (m,) between points of a matrix, or along a graph."""
    if not issparse(space):
        found: Array = space[one, other]
        return found
    from scipy.sparse.csgraph import dijkstra

    found = np.empty(len(one))
    for here in _iterate_blocks(len(one), space.shape[0]):
        sources, place = np.unique(other[here], return_inverse=True)
        found[here] = dijkstra(space, indices=sources)[place, one[here]]
    return found


def _pearson(a: Array, b: Array) -> float:
    """Pearson's correlation of two lists of numbers, NaN where one is constant."""
    a, b = _centre(a), _centre(b)
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(np.clip(a @ b / size, -1, 1)) if size > 0 else float("nan")


def _centre(values: Array) -> Array:
    """Numbers less their mean, in a unit in which neither their sum nor their squares overflow or vanish."""
    unit = np.abs(values).max()
    apart: Array = values / unit if unit > 0 else values
    apart = apart - apart.mean()
    spread = np.abs(apart).max()
    return apart / spread if spread > 0 else apart


def _to_kind_of(found: Array, *given: Any) -> Any:
    """As a tensor where one was given."""
    return torch.from_numpy(found) if any(isinstance(each, Tensor) for each in given) else found
