"""About 300 problems of all kinds: value, share right, seconds, gradients, inner iterations, and where each plan began.

The net says what a change of the search, a strategy or a solver loses, which no single suite does. Three quarters of
its problems take less than a second. ``python -m benchmarks net`` solves those that are not stored for this very code,
so that a run that was stopped goes on; with groups it solves these again. ``python -m benchmarks compare BEFORE AFTER``
lists what got worse between two stored nets. No other library is needed.

A gradient evaluation is a linearisation of the quadratic objective at one plan, between all points of both sides:
the plan has as many rows and columns as the problem, N x K, whether it is stored, factored, sparse, a permutation or
sampled. A batch counts for each of its plans. An update from the gradient at another plan counts as one evaluation, and
so does one that calls others. Evaluations of plans between landmarks or cells do not count, so that streamed solves
may have none. Where the landmarks of a small problem are all its points they count. `EVALUATIONS` lists the methods.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple
from unittest import mock

import networkx as nx
import numpy as np
from scipy import sparse
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from benchmarks import models, quality, small
from benchmarks import problems as data
from benchmarks.common import RESULTS, kept, rehearsed, show, write
from benchmarks.kinds import graphs
from benchmarks.kinds.solve import thinned
from benchmarks.verify import fingerprint
from torchgw import GWOptions, GWResult, SpaceOptions, Supervision, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.marginals import Marginals, Partial, SemiRelaxed, Unbalanced
from torchgw.objective import certify
from torchgw.objective.exact import ExactGradient, PairLoss, SparseObjective
from torchgw.objective.sampled import SampledGradient
from torchgw.solvers import low_rank
from torchgw.solvers.assignment import Cross

Row = dict[str, Any]
Array = np.ndarray
Right = Callable[[GWResult], float]
STORED_EVERY = 10.0  # seconds
LARGE = 2000  # points beyond which the library values its plans itself
COMMON = GWOptions(spaces=SpaceOptions(scale="common"))


class Instance(NamedTuple):
    """One problem as `gw_align` takes it.

    X, Y : the two spaces.
    arguments : the other arguments of `gw_align`.
    value : the objective of a result, computed apart from the library where matrices are at hand.
    right : the share of points that are matched with the right ones, or the signed rank correlation; None where no
        truth is known.
    """

    X: Any
    Y: Any
    arguments: dict[str, Any]
    value: Callable[[GWResult], float]
    right: Right | None


class NetProblem(NamedTuple):
    """A problem that is drawn when it is made.

    name : unique; says kind, sizes and seed.
    kind : the group that it runs with.
    make : draws it.
    slow : whether a solve takes more than about three seconds.
    """

    name: str
    kind: str
    make: Callable[[], Instance]
    slow: bool


# -- counting


def _of_terms(gradient: Any, *_: Any) -> tuple[int, ...]:
    return len(gradient.a), len(gradient.b)


def _of_plans(_: Any, plan: Any, *__: Any) -> tuple[int, ...]:
    return tuple(plan.shape)


EVALUATIONS: tuple[tuple[Any, str, Callable[..., tuple[int, ...]]], ...] = (
    (ExactGradient, "cost", _of_terms),
    (ExactGradient, "cost_from_factored_plan", _of_terms),
    (certify, "assemble_factored_cost", lambda left, right, *_: (len(left[0]), len(right[0]))),
    (ExactGradient, "change", _of_terms),
    (ExactGradient, "change_by_rows", _of_terms),
    (SampledGradient, "__call__", lambda gradient, *_: (gradient.source.size, gradient.target.size)),
    (SparseObjective, "cross", lambda objective, *_: objective.shape),
    (PairLoss, "cost", _of_plans),
    (Cross, "__call__", _of_plans),
    (Cross, "of_permutation", lambda _, order: (len(order), len(order))),
    (low_rank, "evaluate", lambda _, model, *__: (len(model.p), len(model.q))),
)
"""Owner and name of each method that evaluates a gradient, and the shape (..., N, K) of its plans by its arguments."""


@contextmanager
def evaluations() -> Iterator[Counter[tuple[int, int]]]:
    """Within it, gradient evaluations are counted by the shape (N, K) of their plans."""
    found, lock, inside = Counter[tuple[int, int]](), threading.Lock(), threading.local()

    def counting(method: Callable[..., Any], shape: Callable[..., tuple[int, ...]]) -> Callable[..., Any]:
        @wraps(method)
        def counted(*arguments: Any, **named: Any) -> Any:
            if getattr(inside, "evaluation", False):
                return method(*arguments, **named)
            inside.evaluation = True
            try:
                made = method(*arguments, **named)
            finally:
                inside.evaluation = False
            if made is not None:  # an update may say that it would take longer than an evaluation, which follows
                *batch, n, k = shape(*arguments)
                with lock:
                    found[n, k] += int(np.prod(batch, dtype=int))
            return made

        return counted

    with ExitStack() as patches:
        for owner, name, shape in EVALUATIONS:
            patches.enter_context(mock.patch.object(owner, name, counting(getattr(owner, name), shape)))
        yield found


def measure(problem: NetProblem) -> Row:
    """Solve one problem once, and say what came of it."""
    instance = problem.make()
    with warnings.catch_warnings(), evaluations() as counted:
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        result = gw_align(instance.X, instance.Y, **instance.arguments)
        seconds = time.perf_counter() - began
    levels = Counter(basin.level for basin in result.basins)
    return {
        "problem": problem.name,
        "kind": problem.kind,
        "value": float(instance.value(result)),
        "right": None if instance.right is None else float(instance.right(result)),
        "seconds": seconds,
        "gradients": counted[result.coupling.shape],
        "inner": result.n_iter_sinkhorn,
        "origin": result.basins[0].origin if result.basins else "-",
        "candidates": ", ".join(f"{level} {count}" for level, count in sorted(levels.items())) or "-",
        "status": result.status.name.lower(),
    }


# -- instances


def told(result: GWResult) -> float:
    """The library's own value, where no matrices are at hand."""
    return float(result.value)


def share_right(place: Array) -> Right:
    """The share of points that are matched with those at ``place`` (N,)."""
    return lambda result: float((np.asarray(result.argmax()) == place).mean())


def correlation(x: Array, y: Array) -> Right:
    """Signed rank correlation of the positions of matched points."""
    return lambda result: float(spearmanr(x, y[np.asarray(result.argmax())])[0])


def of_matrices(
    A: Any, B: Any, right: Right | None = None, distances: str = "precomputed", common: bool = False, **arguments: Any
) -> Instance:
    """Two matrices, each divided by its largest entry in the value, or both by the larger one."""
    largest = [float(abs(matrix).max()) for matrix in (A, B)]
    if common:
        largest = [max(largest)] * 2
        arguments["options"] = COMMON
    D, E = (matrix / most for matrix, most in zip((A, B), largest, strict=True))
    arguments = {"distances": distances, "random_state": 0} | arguments
    return Instance(
        A,
        B,
        arguments,
        told if A.shape[0] > LARGE else lambda result: quality.objective(D, E, thinned(result.plan)),
        right,
    )


def of_points(X: Array, Y: Array, right: Right | None, **arguments: Any) -> Instance:
    """Two clouds of points, valued by the library but for Euclidean distances."""
    arguments = {"random_state": 0} | arguments
    if arguments.get("distances") != "euclidean" or len(X) > LARGE:
        return Instance(X, Y, arguments, told, right)
    return of_matrices(cdist(X, X), cdist(Y, Y), right, **arguments)._replace(X=X, Y=Y)


def graph_pair(kind: str, n: int, share: float, add: bool, with_weights: bool, seed: int) -> Instance:
    """A graph that is made, and its altered copy, see `benchmarks.kinds.graphs`."""
    A = graphs.adjacency((graphs.MADE | graphs.DIRECTED | THOUSAND)[kind](n, seed))
    return _pair(kind, graphs.weighted(A, np.random.default_rng(seed)) if with_weights else A, share, add, seed)


def real_pair(kind: str, share: float, add: bool, seed: int) -> Instance:
    """A graph that networkx ships, and its altered copy."""
    return _pair(kind, graphs.adjacency(graphs.REAL[kind]()), share, add, seed)


def _pair(kind: str, A: Array, share: float, add: bool, seed: int, **arguments: Any) -> Instance:
    pair = graphs.pair(kind, A, share, add, seed)
    return of_matrices(
        pair.A, pair.B, lambda result: pair.right(np.asarray(result.argmax())), distances="adjacency", **arguments
    )


def rewired(A: Array, share: float, rng: np.random.Generator) -> Array:
    """A graph of which a share of the edges goes elsewhere."""
    return graphs.altered(graphs.altered(A, share, False, rng), share, True, rng)


def rewired_pair(kind: str, n: int, share: float, seed: int, as_sparse: bool = False, **arguments: Any) -> Instance:
    """A graph, and a shuffled copy of which a share of the edges goes elsewhere."""
    rng = np.random.default_rng(seed)
    A = graphs.adjacency((graphs.MADE | THOUSAND)[kind](n, seed))
    order = rng.permutation(len(A))
    B = rewired(A, share, rng)[np.ix_(order, order)]
    pair = graphs.GraphPair(kind, kind, A, B, np.argsort(order))
    shown = (sparse.csr_array(A), sparse.csr_array(B)) if as_sparse else (A, B)
    right = lambda result: pair.right(np.asarray(result.argmax()))  # noqa: E731
    return of_matrices(*shown, right, distances="adjacency", **arguments)


def _grid(n: int, seed: int) -> nx.Graph:
    width = round(n**0.5)
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(width, n // width))


THOUSAND: dict[str, graphs.Maker] = {
    "dense power law": lambda n, seed: nx.powerlaw_cluster_graph(n, 8, 0.3, seed=seed),
    "grid": _grid,
    "caveman": lambda n, seed: nx.connected_caveman_graph(n // 8, 8),
    "regular": lambda n, seed: nx.random_regular_graph(6, n, seed=seed),
}


def small_pair(kind: str, n: int) -> Instance:
    """A problem of the suite ``small``, without entropy."""
    case = small.problem(kind, n)
    return of_matrices(case.DX, case.DY, distances=case.distances, p=case.p, q=case.q, epsilon=0.0)


def assignment(kind: str, n: int) -> Instance:
    """min sum A_ij B_s(i)s(j) over permutations s is the problem between the adjacencies A and -B."""
    rng = np.random.default_rng(1000 + n)

    def drawn() -> Array:
        upper = np.triu(rng.integers(0, 100, (n, n)), 1).astype(float)
        return upper + upper.T

    B = drawn()
    if kind == "uniform":
        A = drawn()
    elif kind == "tree":
        A = graphs.adjacency(nx.random_labeled_tree(n, seed=n)) * drawn()
    else:
        width = int(np.ceil(n**0.5))
        places = np.stack((np.arange(n) // width, np.arange(n) % width), 1)
        A, kept_flows = cdist(places, places, "cityblock"), np.triu(rng.random((n, n)) < FLOWS[kind], 1)
        B *= kept_flows + kept_flows.T
    return of_matrices(A, -B, distances="adjacency")


FLOWS = {"grid": 0.5, "sparse flows": 0.15}  # share of the pairs of machines that have a flow


def part(d: int, n: int, k: int, noise: float, seed: int) -> Instance:
    """A part of a cloud, turned and moved by noise, in the whole, whose marginal is free."""
    rng = np.random.default_rng(100 * d + seed)
    whole = rng.random((n, d))
    index = np.argsort(np.linalg.norm(whole - whole[seed], axis=1))[:k]
    own = whole[index] @ data.rotation(d, rng) + noise * rng.normal(size=(k, d))
    arguments = {"distances": "euclidean", "marginals": SemiRelaxed(0.0, "y"), "common": True}
    return of_points(own, whole, share_right(index), **arguments)


def cell_views(n: int, k: int, noise: float, seed: int) -> tuple[Array, Array]:
    """Noisy views (n, 40) and (k, 50) of cells of five types; the first cells of the longer one are those of the
    other."""
    rng = np.random.default_rng(seed)
    most = max(n, k)
    latent = rng.normal(size=(5, 6))[rng.integers(0, 5, most)] + 0.6 * rng.normal(size=(most, 6))
    X, Y = (
        latent[:size] @ rng.normal(size=(6, d)) + noise * rng.normal(size=(size, d)) for size, d in ((n, 40), (k, 50))
    )
    return X, Y


def noisy_hops(n: int, k: int, near: int, noise: float, seed: int, **arguments: Any) -> Instance:
    """Hop counts on neighbour graphs of two noisy views of cells."""
    A, B = (data.hop_distances(view, near) for view in cell_views(n, k, noise, seed))
    return of_matrices(A, B, share_right(np.arange(n)), **arguments)


def cosines(n: int, k: int, noise: float, seed: int, **arguments: Any) -> Instance:
    """Cosine distances of two noisy views of cells."""
    A, B = map(data.cosine_distances, cell_views(n, k, noise, seed))
    return of_matrices(A, B, share_right(np.arange(n)), **arguments)


def branching_hops(n: int, near: int, seed: int, **arguments: Any) -> Instance:
    """Hop counts of clusters along a branching curve; right is the share of points in the right cluster."""
    X, Y, cluster, order = data.branching_views(n, seed)
    right = lambda result: float((cluster[order][np.asarray(result.argmax())] == cluster).mean())  # noqa: E731
    return of_matrices(data.hop_distances(X, near), data.hop_distances(Y, near), right, **arguments)


def words(n: int, noise: float, seed: int, **arguments: Any) -> Instance:
    """Cosine distances of power-law vectors and of their rotated, noisy copy."""
    X = data.power_law_vectors(n, np.random.default_rng(seed))
    Y, place = data.rotated_copy(X, noise, np.random.default_rng(1000 + seed))
    return of_matrices(data.cosine_distances(X), data.cosine_distances(Y), share_right(place), **arguments)


def pixels(n: int, name: str, **arguments: Any) -> Instance:
    """Two halves of the pixels of the same digits."""
    X, Y = data.pixel_splits(n)[name]
    order = np.random.default_rng(0).permutation(len(X))
    return of_matrices(data.distances(X), data.distances(Y[order]), share_right(np.argsort(order)), **arguments)


def feature_views(name: str, **arguments: Any) -> Instance:
    """Two feature views of a real table; right is the share of rows of the right label."""
    X, Y, label = data.feature_views()[name]
    right = lambda result: float((label[np.asarray(result.argmax())] == label).mean())  # noqa: E731
    return of_points(X, Y, right, **arguments)


def candidates(name: str, seed: int) -> Instance:
    """A data set of the suite ``quality`` for candidates."""
    X, Y, place, distances = data.CANDIDATES[name](np.random.default_rng(seed))
    if distances == "adjacency":
        return of_matrices(X, Y, share_right(place), distances=distances)
    return of_points(X, Y, share_right(place), distances=distances)


def cloud(n: int, d: int, noise: float, seed: int, **arguments: Any) -> Instance:
    """A Gaussian cloud and its rotated, noisy copy."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y, place = data.rotated_copy(X, noise, rng)
    return of_points(X, Y, share_right(place), **arguments)


def skewed(n: int, k: int, seed: int, **arguments: Any) -> Instance:
    """Independent points of one skewed density; right is the rank correlation along its longest axis."""
    X, Y, x, y = data.skewed_clouds(n, k, seed)
    return of_points(X, Y, correlation(x[:, 0], y[:, 0]), distances="euclidean", **arguments)


def curves(n: int, k: int, seed: int, **arguments: Any) -> Instance:
    """A spiral and a roll."""
    X, x, Y, y = quality.clouds(n, k, seed)
    return of_points(X, Y, correlation(x, y), **arguments)


def geodesics(n: int, k: int, seed: int, **arguments: Any) -> Instance:
    """Distances along a spiral and a roll."""
    X, x, Y, y = quality.clouds(n, k, seed)
    return of_matrices(*quality.geodesics(X, Y), correlation(x, y), **arguments)


def shape(make: Callable[..., tuple[Array, Array]], n: int, k: int, seed: int, **arguments: Any) -> Instance:
    """A curve with a shape of its own, and a turned one of other points."""
    rng = np.random.default_rng(seed)
    (X, x), (Y, y) = make(n, rng), make(k, rng)
    return of_points(X, Y @ data.rotation(Y.shape[1], rng), correlation(x, y), **arguments)


def modelled(
    seed: int, sizes: tuple[int, int] | None, marginals: Marginals | None, alpha: float, **more: Any
) -> Instance:
    """A problem of the suite ``models``, with these marginals, or fused with the weight ``alpha``."""
    of = models.problem(seed, sizes)
    arguments: dict[str, Any] = {"p": of.p, "q": of.q} | more
    if marginals is not None:
        arguments["marginals"] = marginals
    if alpha < 1:
        arguments |= {"cost": of.M, "alpha": alpha}
    made = of_matrices(of.D, of.E, **arguments)
    if isinstance(marginals, Unbalanced) or (isinstance(marginals, SemiRelaxed) and marginals.rho > 0):
        return made._replace(value=told)  # which has divergences
    return made._replace(value=lambda result: models.valued(of, alpha, np.asarray(result.plan)))


def missing(marginals: Marginals, total: float, whole: tuple[int, int], seed: int) -> Instance:
    """A spiral without its middle, and a whole roll."""
    X, x = make_spiral(whole[0], random_state=seed)
    Y, y = make_swiss_roll(whole[1], random_state=1000 + seed)
    lowest, highest = models.PARTS["middle 30 %"]
    kept_points = (x < lowest) | (x >= highest)
    p, q = np.full(kept_points.sum(), total / kept_points.sum()), np.full(len(Y), 1 / len(Y))
    arguments: dict[str, Any] = {"distances": "euclidean", "p": p, "q": q, "marginals": marginals}
    return of_points(X[kept_points], Y, correlation(x[kept_points], y), **arguments)._replace(value=told)


def weighted_clouds(n: int, k: int, d: int, seed: int, total: float = 1.0, **arguments: Any) -> Instance:
    """Two clouds whose masses differ, and sum to ``total``."""
    rng = np.random.default_rng(seed)
    A, B = (small.cloud(d, size, rng) for size in (n, k))
    p, q = (rng.uniform(0.1, 1.0, size) for size in (n, k))
    return of_matrices(A, B, p=p * total / p.sum(), q=q * total / q.sum(), **arguments)


def initial(n: int, d: int, given: str, seed: int, **arguments: Any) -> Instance:
    """A cloud and its noisy copy, from a start that is given: an index of which some are right, pairs, or a plan."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y, place = data.rotated_copy(X, 0.05, rng)
    start: Any = np.where(rng.random(n) < 0.5, place, rng.permutation(n))
    if given == "pairs":
        start = np.stack((np.arange(n), place), 1)[:: max(n // 10, 1)]
    elif given == "plan":
        start = rng.random((n, n)) + 5 * np.eye(n)[place]
        start /= start.sum()
    return of_points(X, Y, share_right(place), distances="euclidean", init=start, **arguments)


def supervised(n: int, rule: str, seed: int, **arguments: Any) -> Instance:
    """A cloud and its noisy copy, with known pairs, or labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    Y, place = data.rotated_copy(X, 0.1, rng)
    label = (X[:, 0] > 0).astype(int)
    given = Supervision(pairs=np.stack((np.arange(10), place[:10]), 1))
    if rule == "labels":
        given = Supervision(labels=(label, label[np.argsort(place)]), strength=0.1)
    arguments = {"distances": "euclidean", "supervision": given} | arguments
    return of_points(X, Y, share_right(place), **arguments)._replace(value=told)


# -- the list


def _problem(kind: str, text: str, make: Callable[[], Instance], slow: bool = False) -> NetProblem:
    return NetProblem(f"{kind}: {text}", kind, make, slow)


def of_graphs() -> Iterator[NetProblem]:
    """Graphs of thirty to four hundred nodes by adjacency, some edges added or removed; real ones among them."""
    for at, (kind, n) in enumerate(itertools.product(graphs.MADE, (30, 60, 100, 200, 400))):
        share, add, weights = graphs.SHARES[(at + at // 4) % 4], at % 2 == 0, at // 3 % 2 == 1
        text = f"{kind} {n}{' weighted' if weights else ''}, {share:.0%} {'added' if add else 'removed'}, seed {at}"
        make = partial(graph_pair, kind, n, share, add, weights, at)
        yield _problem("graphs", text, make, n == 400 or (kind == "tree" and n >= 200))
    for at, (kind, share) in enumerate(itertools.product(graphs.REAL, (0.05, 0.2))):
        text = f"{kind}, {share:.0%} {'added' if at % 2 else 'removed'}, seed {at}"
        yield _problem("graphs", text, partial(real_pair, kind, share, at % 2 == 1, at))


def of_directed() -> Iterator[NetProblem]:
    """Directed graphs."""
    for at, (kind, n) in enumerate(itertools.product(graphs.DIRECTED, (50, 100, 200))):
        share, add, weights = graphs.SHARES[at % 4], at // 2 % 2 == 0, at % 2 == 1
        text = f"{kind} {n}{' weighted' if weights else ''}, {share:.0%} {'added' if add else 'removed'}, seed {at}"
        yield _problem("directed", text, partial(graph_pair, kind, n, share, add, weights, at), n == 200)


def of_rewired() -> Iterator[NetProblem]:
    """Adjacencies of which some edges go elsewhere, to a thousand nodes; and sparse matrices of them."""
    listed = (
        *(("caveman", 96, 0.05), ("regular", 100, 0.05), ("grid", 100, 0.15), ("grid", 196, 0.05)),
        *(("small world", 200, 0.15), ("tree", 200, 0.05), ("dense power law", 300, 0.25)),
        *(("dense power law", 1000, 0.15), ("dense power law", 1000, 0.25), ("small world", 1000, 0.05)),
        *(("geometric", 1000, 0.05), ("blocks", 1000, 0.1), ("preferential", 1000, 0.1)),
        *(("grid", 1024, 0.05), ("caveman", 1000, 0.05), ("tree", 1000, 0.02)),
    )
    for seed, (kind, n, share) in enumerate(listed):
        make = partial(rewired_pair, kind, n, share, seed)
        yield _problem("rewired", f"{kind} {n}, {share:.0%}, seed {seed}", make, n >= 300 or kind in ("tree", "grid"))
    asked = {"options": GWOptions(strategy="sparse")}
    for seed, (kind, n) in enumerate(itertools.product(("power law", "geometric", "small world"), (100, 300, 1000))):
        make = partial(rewired_pair, kind, n, 0.05, seed, True, **asked)
        yield _problem("rewired", f"{kind} {n} sparse, 5%, seed {seed}", make, n == 1000)
    for kind in ("power law", "geometric"):
        yield _problem(
            "rewired", f"{kind} 4000 sparse, 5%, seed 0", partial(rewired_pair, kind, 4000, 0.05, 0, True), True
        )


def of_small() -> Iterator[NetProblem]:
    """The suite ``small`` to a thousand points."""
    for n, kind in itertools.product((30, 100, 200, 400), small.KINDS):
        slow = kind in small.ADJACENCY and n >= 200
        yield _problem("small", f"{kind}, {n}", partial(small_pair, kind, n), slow)
    for kind in ("cloud in R^2", "ring", "squared"):
        yield _problem("small", f"{kind}, 1000", partial(small_pair, kind, 1000), True)


def of_assignment() -> Iterator[NetProblem]:
    """Dense quadratic assignment problems."""
    sizes = {"uniform": (12, 16, 20, 24), "grid": (12, 20, 30, 36), "tree": (15, 20, 30), "sparse flows": (16, 24, 32)}
    for kind, own in sizes.items():
        for n in own:
            yield _problem("assignment", f"{kind} {n}", partial(assignment, kind, n))


def of_parts() -> Iterator[NetProblem]:
    """Parts in wholes, and a spiral of which a part is missing."""
    for d, n, k, noise in ((2, 40, 14, 0.003), (2, 60, 20, 0.0), (3, 60, 20, 0.0), (2, 150, 60, 0.0)):
        for seed in range(3):
            make = partial(part, d, n, k, noise, seed)
            yield _problem("parts", f"{k} of {n} points in R^{d}, noise {noise:g}, seed {seed}", make)
    for model in ("partial", "unbalanced"):
        total, marginals = models.MODELS[model]
        for whole, slow in (((143, 125), model == "partial"), ((571, 500), True)):
            make = partial(missing, marginals, total, whole, 0)
            yield _problem("parts", f"spiral without its middle, {model}, {whole[0]} x {whole[1]}, seed 0", make, slow)


def of_hops() -> Iterator[NetProblem]:
    """Noisy hop graphs of unequal sizes, and of clusters along a branching curve."""
    for n, near, seed in (
        (200, 10, 0),
        (300, 5, 1),
        (300, 15, 2),
        (300, 30, 3),
        (1000, 20, 4),
        (1000, 50, 5),
        (1000, 110, 6),
    ):
        make = partial(branching_hops, n, near, seed)
        yield _problem("hops", f"branches {n}, {near} neighbours, seed {seed}", make)
    for n, k, near, slow in (
        (200, 210, 15, False),
        (400, 420, 20, False),
        (1000, 1050, 30, True),
        (2000, 2100, 30, True),
    ):
        make = partial(noisy_hops, n, k, near, 0.8, n)
        yield _problem("hops", f"cells {n} x {k}, {near} neighbours, noise 0.8, seed {n}", make, slow)


def of_epsilons() -> Iterator[NetProblem]:
    """Named epsilons on hop counts, cosines, clouds and graphs."""
    for epsilon in (0.0, 5e-4, 2e-3, 2e-2):
        for n in (100, 300):
            hops = partial(noisy_hops, n, n, n // 15, 0.5, 5, epsilon=epsilon)
            yield _problem("epsilons", f"hops {n}, epsilon {epsilon:g}", hops)
            yield _problem(
                "epsilons", f"cosines {n}, epsilon {epsilon:g}", partial(cosines, n, n, 0.5, 5, epsilon=epsilon)
            )
        make = partial(rewired_pair, "blocks", 100, 0.05, 7, epsilon=epsilon)
        yield _problem("epsilons", f"blocks 100, epsilon {epsilon:g}", make)
        yield _problem(
            "epsilons", f"curves 300 x 360, epsilon {epsilon:g}", partial(curves, 300, 360, 2, epsilon=epsilon)
        )
    for epsilon in (5e-4, 5e-3):
        hops = partial(noisy_hops, 1000, 1000, 60, 0.5, 5, epsilon=epsilon)
        yield _problem("epsilons", f"hops 1000, epsilon {epsilon:g}", hops, True)
        make = partial(cosines, 1000, 1000, 0.5, 5, epsilon=epsilon)
        yield _problem("epsilons", f"cosines 1000, epsilon {epsilon:g}", make, True)


def of_clouds() -> Iterator[NetProblem]:
    """Gaussian clouds, words and pixels, and their copies; independent skewed clouds; views of tables."""
    for seed, (d, noise) in enumerate(itertools.product((2, 3, 10, 50), (0.01, 0.1))):
        yield _problem("clouds", f"R^{d}, 300, noise {noise:g}, seed {seed}", partial(cloud, 300, d, noise, seed))
    for seed, (n, d, noise) in enumerate(((1000, 2, 0.01), (1000, 3, 0.03), (1000, 10, 0.01), (3000, 3, 0.01))):
        make = partial(cloud, n, d, noise, seed)
        yield _problem("clouds", f"R^{d}, {n}, noise {noise:g}, seed {seed}", make, n * d >= 9000)
    for seed, n in enumerate((8, 30, 100, 300, 1000)):
        make = partial(cloud, n, 10, 0.05, seed, distances="euclidean")
        yield _problem("clouds", f"euclidean R^10, {n}, noise 0.05, seed {seed}", make, n == 1000)
    for seed, (n, k) in enumerate(((8, 11), (40, 50), (100, 130), (250, 300))):
        yield _problem("clouds", f"skewed {n} x {k}, seed {seed}", partial(skewed, n, k, seed))
    for seed, noise in enumerate((0.1, 0.3, 0.5)):
        yield _problem("clouds", f"words 300, noise {noise:g}, seed {seed}", partial(words, 300, noise, seed))
    yield _problem("clouds", "words 2000, noise 0.3, seed 1", partial(words, 2000, 0.3, 1), True)
    for name in ("checkerboard", "alternate columns"):
        yield _problem("clouds", f"pixels 300, {name}", partial(pixels, 300, name))
    yield _problem("clouds", "pixels 1797, checkerboard", partial(pixels, 1797, "checkerboard"), True)
    for name in ("wine", "breast_cancer"):
        yield _problem("clouds", f"views of {name}", partial(feature_views, name))
        yield _problem("clouds", f"views of {name}, euclidean", partial(feature_views, name, distances="euclidean"))
    for name, seed in itertools.product(data.CANDIDATES, range(2)):
        yield _problem("clouds", f"candidates, {name}, seed {seed}", partial(candidates, name, seed), name != "cells")


def of_curves() -> Iterator[NetProblem]:
    """Spirals and rolls from points and from distances; a fork, a helix, and a shape with a mirror image."""
    sizes = ((100, 120), (250, 300), (400, 500), (1000, 1200), (2000, 2500), (4000, 5000), (20_000, 20_000))
    for seed, (n, k) in enumerate(sizes):
        yield _problem("curves", f"spiral {n} x {k}, seed {seed}", partial(curves, n, k, seed), n > 4000)
    for seed, (n, k) in enumerate(((60, 70), (200, 250), (400, 500))):
        yield _problem("curves", f"geodesics {n} x {k}, seed {seed}", partial(geodesics, n, k, seed))
        yield _problem(
            "curves", f"geodesics {n} x {k}, epsilon 0, seed {seed}", partial(geodesics, n, k, seed, epsilon=0.0)
        )
    yield _problem("curves", "geodesics 2000 x 2500, seed 4", partial(geodesics, 2000, 2500, 4), True)
    shapes = {"fork": data.y_fork, "helix": data.helix}
    for (name, make), seed in itertools.product(shapes.items(), range(2)):
        yield _problem("curves", f"{name} 300 x 350, seed {seed}", partial(shape, make, 300, 350, seed))
    for seed in range(2):
        make = partial(shape, data.mirror_shape, 200, 220, seed, distances="euclidean")
        yield _problem("curves", f"mirror 200 x 220, seed {seed}", make)


def of_models() -> Iterator[NetProblem]:
    """Every model of marginals, and fused costs, with and without entropy; masses that differ; fused graphs."""
    listed: dict[str, tuple[Marginals | None, float]] = {
        "fused 0.3": (None, 0.3),
        "partial 0.5": (Partial(0.5), 1.0),
        "partial 0.8": (Partial(0.8), 1.0),
        "semi-relaxed y": (SemiRelaxed(0.0, "y"), 1.0),
        "semi-relaxed x, rho 0.05": (SemiRelaxed(0.05, "x"), 1.0),
        "unbalanced kl": (Unbalanced(0.05, 0.1), 1.0),
        "fused 0.5": (None, 0.5),
        "fused 0.8": (None, 0.8),
        "partial 0.7 fused 0.5": (Partial(0.7), 0.5),
        "unbalanced kl fused 0.5": (Unbalanced(0.1, 0.1), 0.5),
        "linear": (None, 0.0),
    }
    for name, (marginals, alpha) in listed.items():
        prices = () if marginals is None else marginals.weights
        kl = any(0 < price < np.inf for price in prices)
        for seed, epsilon in ((0, 0.0), (1, 5e-3)):
            if (kl or alpha == 0) and epsilon == 0:
                epsilon = 1e-2 / (seed + 1)
            make = partial(modelled, seed, None, marginals, alpha, epsilon=epsilon)
            yield _problem("models", f"{name}, epsilon {epsilon:g}, 20 to 40 points, seed {seed}", make)
        sizes = (150, 180)
        yield _problem("models", f"{name}, 150 x 180, seed 3", partial(modelled, 3, sizes, marginals, alpha))
    for name in ("partial 0.8", "semi-relaxed y", "fused 0.5", "unbalanced kl"):
        make = partial(modelled, 4, (400, 480), *listed[name])
        yield _problem("models", f"{name}, 400 x 480, seed 4", make, True)


def of_masses() -> Iterator[NetProblem]:
    """Masses that differ, of any sum."""
    for seed, (n, k, d) in enumerate(((8, 8, 2), (8, 12, 3), (40, 40, 2), (60, 45, 3), (150, 200, 10))):
        yield _problem("masses", f"{n} x {k} in R^{d}, seed {seed}", partial(weighted_clouds, n, k, d, seed))
        make = partial(weighted_clouds, n, k, d, seed, 3.0, epsilon=5e-3)
        yield _problem("masses", f"{n} x {k} in R^{d}, sum 3, epsilon 0.005, seed {seed}", make)


def of_starts() -> Iterator[NetProblem]:
    """Starts that are given, and known pairs and labels."""
    for seed, (given, n) in enumerate(itertools.product(("index", "pairs", "plan"), (40, 200))):
        make = partial(initial, n, 3, given, seed)
        yield _problem("starts", f"{given} {n}, seed {seed}", make)
    make = partial(initial, 200, 3, "plan", 9, epsilon=2e-3)
    yield _problem("starts", "plan 200, epsilon 0.002, seed 9", make)
    for seed, rule in enumerate(("pairs", "labels")):
        yield _problem("starts", f"supervised by {rule} 150, seed {seed}", partial(supervised, 150, rule, seed))


def of_strategies() -> Iterator[NetProblem]:
    """The same problems by each strategy, gradient and kind of distances that is named."""
    named: dict[str, dict[str, Any]] = {
        "dense": {"options": GWOptions(strategy="dense"), "epsilon": 2e-3},
        "streaming": {"options": GWOptions(strategy="streaming"), "epsilon": 2e-3},
        "streaming, epsilon 0": {"options": GWOptions(strategy="streaming"), "epsilon": 0.0},
        "low-rank": {"options": GWOptions(strategy="low-rank"), "epsilon": 2e-3},
        "sampled": {"options": GWOptions(gradient="sampled"), "epsilon": 5e-3},
        "double precision": {"options": GWOptions(mixed_precision=False), "epsilon": 2e-3},
        "without search": {"options": GWOptions(coarse=None), "epsilon": 2e-3},
        "euclidean": {"distances": "euclidean"},
        "landmark": {"distances": "landmark"},
        "dijkstra": {"distances": "dijkstra"},
        "loss kl": {"options": GWOptions(loss="kl"), "distances": "euclidean", "epsilon": 5e-3},
    }
    for name, arguments in named.items():
        for seed, (n, k) in enumerate(((150, 180), (500, 600))):
            yield _problem(
                "strategies", f"{name}, curves {n} x {k}, seed {seed}", partial(curves, n, k, seed, **arguments)
            )
    for name in ("streaming", "streaming, epsilon 0", "low-rank"):
        make = partial(curves, 2500, 3000, 2, **named[name])
        yield _problem("strategies", f"{name}, curves 2500 x 3000, seed 2", make, True)
    large = named["streaming"] | {"epsilon": 1e-3}
    yield _problem(
        "strategies", "streaming, curves 20000 x 20000, seed 3", partial(curves, 20_000, 20_000, 3, **large), True
    )


GROUPS: dict[str, Callable[[], Iterator[NetProblem]]] = {
    "graphs": of_graphs,
    "directed": of_directed,
    "rewired": of_rewired,
    "small": of_small,
    "assignment": of_assignment,
    "parts": of_parts,
    "hops": of_hops,
    "epsilons": of_epsilons,
    "clouds": of_clouds,
    "curves": of_curves,
    "models": of_models,
    "masses": of_masses,
    "starts": of_starts,
    "strategies": of_strategies,
}


def problems() -> list[NetProblem]:
    """All problems in a fixed order; nothing is drawn yet."""
    return [problem for group in GROUPS.values() for problem in group()]


def run(groups: list[str] | None = None) -> None:
    """Solve the problems of the named groups, or all that are not stored for this code, and store their rows."""
    code, path = fingerprint(), RESULTS / "net.json"
    before = {} if rehearsed() else kept(path, groups)
    codes: dict[str, str] = before.get("codes", {})
    rows = {row["problem"]: row for row in before.get("rows", [])}
    if groups is None:
        rows = {name: row for name, row in rows.items() if codes.get(name) == code}
    every = problems()
    left = [each for each in every if (each.name not in rows if groups is None else each.kind in groups)]
    stored = time.perf_counter()
    for number, problem in enumerate(left, 1):
        rows[problem.name], codes[problem.name] = solved(problem), code
        print(f"{number} of {len(left)}: {rows[problem.name]}", file=sys.stderr, flush=True)
        if number == len(left) or time.perf_counter() > stored + STORED_EVERY:
            found = [rows[each.name] for each in every if each.name in rows]
            own = {each["problem"]: codes[each["problem"]] for each in found}
            write("net", found, partial=bool(before), codes=own)
            stored = time.perf_counter()
    found = [rows[each.name] for each in every if each.name in rows]
    show(found)


def solved(problem: NetProblem) -> Row:
    """What `measure` says; of a solve that breaks off, the error is its status."""
    try:
        return measure(problem)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        nothing = dict.fromkeys(("value", "right", "seconds", "gradients", "inner"))
        known = {"problem": problem.name, "kind": problem.kind} | nothing
        return known | {"origin": "-", "candidates": "-", "status": text}
