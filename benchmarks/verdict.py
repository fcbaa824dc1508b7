"""What `GWResult.verdict` says of matchings, beside the share of their points that is right: 800 problems of ten kinds.

Two draws have forty problems of each kind with a known true matching: noise and the like from next to none to all, by
equal factors, as the difficulty ``hard`` rises evenly from 0 to 1. A match is right within 10 % of the target's
diameter, which is what the library calls one matching; a matching is right if at least four fifths of its matches are,
wrong if at most half are, and partly right between. The thresholds of the verdict were chosen on other draws: all that
is measured here is held out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import cdist
from sklearn.neighbors import kneighbors_graph

import torchgw
from benchmarks.common import rehearsed, show, write
from benchmarks.problems import cosine_distances, rotation
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.diagnostics.verdict import value_over_chance
from torchgw.types import Array

Row = dict[str, Any]

PROBLEMS = 40  # of each kind and draw
DRAWS = (11, 12)  # which none of the thresholds was chosen on
NEAR = 0.1  # of the target's diameter
RIGHT, WRONG = 0.8, 0.5  # of the matches: at least, at most
LEAST, MOST = 40, 151  # points
ONE_SCALE = torchgw.GWOptions(spaces=torchgw.SpaceOptions(scale="common"))


@dataclass(frozen=True)
class Known:
    """A problem with its true matching.

    X, Y : the two spaces.
    truth : (N,) index of the true partner of each source point, -1 for a point that has none.
    near : (K, K) distances by which a match may miss its partner.
    arguments : of `gw_align`.
    """

    X: Array
    Y: Array
    truth: Array
    near: Array
    arguments: dict[str, Any] = field(default_factory=dict)

    def share(self, matches: Array) -> float:
        """Share of the points with a partner that are matched with it, or nearly; 0 where no point has one."""
        has = self.truth >= 0
        missed = self.near[matches[has], self.truth[has]]
        return float((missed <= NEAR * self.near.max()).mean()) if has.any() else 0.0


def size(rng: np.random.Generator) -> int:
    """A number of points."""
    return int(rng.integers(LEAST, MOST))


def shuffled(X: Array, Y: Array, rng: np.random.Generator, **arguments: Any) -> Known:
    """Point i of X belongs to point i of Y, whose order is then drawn anew."""
    order = rng.permutation(len(Y))
    place = np.argsort(order)
    return Known(X, Y[order], place[: len(X)], cdist(Y[order], Y[order]), {"distances": "euclidean"} | arguments)


def unrelated_to(X: Array, Y: Array, **arguments: Any) -> Known:
    """No point of X belongs to any of Y."""
    return Known(X, Y, np.full(len(X), -1), cdist(Y, Y), {"distances": "euclidean"} | arguments)


def turned(X: Array, rng: np.random.Generator) -> Array:
    """The points under a random rotation."""
    return X @ rotation(X.shape[1], rng)


def cloud(rng: np.random.Generator, n: int, d: int) -> Array:
    """A Gaussian cloud, of variances that differ or not."""
    return rng.normal(size=(n, d)) * rng.uniform(0.3, 1.0, size=d) ** rng.integers(2)


def noisy_copies(hard: float, rng: np.random.Generator) -> Known:
    """A cloud in R^2 to R^10 and its rotated copy, with noise of 0.01 to 4 times its spread."""
    X = cloud(rng, size(rng), int(rng.integers(2, 11)))
    return shuffled(X, turned(X + 0.01 * 400**hard * X.std() * rng.normal(size=X.shape), rng), rng)


def unrelated(hard: float, rng: np.random.Generator) -> Known:
    """Two clouds of different distributions, drawn apart from each other; some have points far from all others."""
    shapes: list[Callable[[int], Array]] = [
        lambda n: cloud(rng, n, int(rng.integers(1, 11))),
        lambda n: rng.exponential(size=(n, int(rng.integers(1, 5)))),
        lambda n: rng.uniform(size=(n, int(rng.integers(1, 5)))),
        lambda n: np.stack([f(rng.random(n) * 6) for f in (np.cos, np.sin)], 1) + 0.02 * rng.normal(size=(n, 2)),
        lambda n: rng.normal(size=(4, 3))[rng.integers(0, 4, n)] * 3 + rng.normal(size=(n, 3)),
        lambda n: make_spiral(n, random_state=rng)[0],
        lambda n: (z := rng.normal(size=(n, 3))) / np.linalg.norm(z, axis=1, keepdims=True),
        lambda n: rng.standard_t(2, size=(n, 2)),
        lambda n: np.exp(rng.uniform(1, 2) * rng.normal(size=(n, int(rng.integers(2, 5))))),
    ]
    one, other = rng.choice(len(shapes), 2, replace=False)
    if rng.random() < 0.2:
        sides = shapes[one](size(rng)), shapes[other](size(rng))
        far = rng.uniform(5, 50)  # of each side one point, so many times the spread of the others away
        X, Y = (np.concatenate((side, side[:1] + far * side.std())) for side in sides)
        return unrelated_to(X, Y)
    return unrelated_to(shapes[one](size(rng)), shapes[other](size(rng)))


def wrong_units(hard: float, rng: np.random.Generator) -> Known:
    """A copy with little noise, one coordinate in other units by up to 1000, or a column that counts the rows."""
    X = cloud(rng, size(rng), int(rng.integers(2, 5)))
    Y = X + 0.02 * X.std() * rng.normal(size=X.shape)
    if rng.random() < 0.5:
        Y[:, rng.integers(Y.shape[1])] *= 1000**hard
        return shuffled(X, Y, rng)
    known = shuffled(X, Y, rng)
    weight = 0.01 * 10000**hard / len(X)  # the column is up to 100 long, where the spread is at most one
    X, Y = (np.c_[weight * np.arange(len(side)), side] for side in (known.X, known.Y))
    return Known(X, Y, known.truth, known.near, known.arguments)


def outliers(hard: float, rng: np.random.Generator) -> Known:
    """A copy of which some points are anywhere, up to all, or one is far away."""
    X = cloud(rng, size(rng), int(rng.integers(2, 6)))
    Y = X + 0.03 * X.std() * rng.normal(size=X.shape)
    if rng.random() < 0.9:
        gone = rng.permutation(len(Y))[: int(hard * len(Y))]
        Y[gone] = rng.uniform(Y.min(0), Y.max(0), size=(len(gone), Y.shape[1]))
    else:
        Y[0] += 1000**hard
    return shuffled(X, Y, rng)


def near_symmetric(hard: float, rng: np.random.Generator) -> Known:
    """Planar shapes of two to six equal parts, or with a mirror, whose parts are told apart by less and less."""
    n, parts = size(rng), int(rng.integers(1, 7))
    each = n // parts
    part = rng.normal(size=(each, 2)) * [0.5, 0.2] + [1.0, 0.0]
    angles = 2 * np.pi * np.arange(parts) / parts
    if parts == 1:
        half = np.abs(rng.normal(size=(n // 2, 2)) * [1.0, 0.6])
        X = np.concatenate((half, half * [1, -1]))
    else:
        X = np.concatenate([part @ np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]) for a in angles])
    X = X + 0.001**hard * X.std() * rng.normal(size=X.shape)
    noise = 0.02 * 20 ** rng.random() * X.std()
    return shuffled(X, turned(X + noise * rng.normal(size=X.shape), rng), rng)


def body(t: Array, bend: float) -> Array:
    """A tapering limb of a surface (n, 3) from its parameters (n, 2), length and angle; bent."""
    length, angle = t.T
    bumps = [np.exp(-3 * (length - at) ** 2) * (1 + np.cos(angle - side)) for at, side in ((0.8, 0.0), (2.1, 2.0))]
    radius = 0.3 + 0.1 * length + 0.2 * sum(bumps)
    around = np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1)
    turn = bend * length / 3
    middle = np.stack((length * np.sinc(turn / np.pi), length * turn / 2), 1)
    across = np.stack((-np.sin(turn), np.cos(turn)), 1) * around[:, :1]
    return np.c_[middle + across, around[:, 1]]


def geodesics(points: Array, k: int = 6) -> Array:
    """Lengths of paths along the neighbour graph (n, n), over the largest; parts that lie apart are joined."""
    D = cdist(points, points)
    graph = kneighbors_graph(points, k, mode="distance")
    paths = dijkstra(graph, directed=False)
    while not np.isfinite(paths).all():
        inside = np.isfinite(paths[0])
        i, j = np.unravel_index(np.where(inside[:, None] & ~inside, D, np.inf).argmin(), D.shape)
        graph = graph.tolil()
        graph[i, j] = D[i, j]
        paths = dijkstra(graph.tocsr(), directed=False)
    return np.asarray(paths / paths.max())


def surfaces(hard: float, rng: np.random.Generator) -> Known:
    """A limb and its bent copy by paths along them, with noise of 0.005 to 1; its radius is 0.3 to 1."""
    n = size(rng)
    t = np.c_[rng.uniform(0, 3, n), rng.uniform(0, 2 * np.pi, n)]
    s = t + rng.choice([0.0, 0.1]) * rng.normal(size=t.shape)  # the same places, or others near them
    X, Y = body(t, 0.0), body(s, rng.uniform(0.2, 1.0))
    truth, clean = cdist(X, body(s, 0.0)).argmin(1), geodesics(Y)
    X, Y = (side + 0.005 * 200**hard * rng.normal(size=side.shape) for side in (X, Y))
    return reordered(X, Y, truth, clean, rng)


def curves(hard: float, rng: np.random.Generator) -> Known:
    """A spiral and a Swiss roll by paths, with noise of 0.01 to 1 of their radius."""
    n, k, noise = *rng.integers(80, MOST, size=2), 0.01 * 100**hard
    (X, s), (Y, t) = (make(m, noise, rng) for make, m in ((make_spiral, n), (make_swiss_roll, k)))
    return reordered(X, Y * [1, 0.2, 1], np.abs(s[:, None] - t).argmin(1), np.abs(t[:, None] - t), rng)


def along_manifolds(hard: float, rng: np.random.Generator) -> Known:
    """Surfaces or curves, by the distances that are taken by default."""
    return (surfaces, curves)[rng.integers(2)](hard, rng)


def reordered(X: Array, Y: Array, truth: Array, near: Array, rng: np.random.Generator, **arguments: Any) -> Known:
    """Points, or with ``distances`` matrices of them, of which the target's order is drawn anew."""
    order = rng.permutation(len(Y))
    at = np.ix_(order, order)
    return Known(X, Y[at] if arguments else Y[order], np.argsort(order)[truth], near[at], arguments)


def slices(hard: float, rng: np.random.Generator) -> Known:
    """Two slices of an elongated tissue, of jittered spots, with features of both that say more or less."""
    X = rng.uniform(size=(size(rng) * 3 // 2, 2)) * [3.0, 1.0]
    middle = 0.5 + rng.uniform(0.0, 0.5) * np.sin(X[:, 0])  # bent or not
    X = X[(X[:, 0] - 1.5) ** 2 / 2.25 + (X[:, 1] - middle) ** 2 / 0.25 <= 1.0]
    Y = X + rng.uniform(0.02, 0.12) * rng.normal(size=X.shape)
    waves = [(rng.normal(size=2), rng.uniform(0, 2 * np.pi)) for _ in range(8)]
    F, G = (np.stack([np.sin(1.3 * side @ wave + phase) for wave, phase in waves], 1) for side in (X, Y))
    F, G = (side + 0.05 * 200**hard * rng.normal(size=side.shape) for side in (F, G))
    known = shuffled(X, turned(Y, rng), rng)
    cost = cdist(F, G[np.argsort(known.truth)], "sqeuclidean")
    fused = {"cost": cost / cost.max(), "alpha": float(rng.choice([0.5, 0.9, 0.98]))}
    return replace(known, arguments=known.arguments | fused)


def rewired(A: Array, share: float, rng: np.random.Generator) -> Array:
    """The graph with a share of its edges elsewhere."""
    n = len(A)
    upper = np.triu_indices(n, 1)
    edges, free = np.flatnonzero(A[upper]), np.flatnonzero(A[upper] == 0)
    count = int(share * len(edges))
    flat = A[upper].copy()
    flat[rng.choice(edges, count, replace=False)] = 0
    flat[rng.choice(free, min(count, len(free)), replace=False)] = 1
    B = np.zeros_like(A)
    B[upper] = flat
    return B + B.T


def graphs(hard: float, rng: np.random.Generator) -> Known:
    """Graphs of five kinds by adjacency, up to a half of their edges rewired."""
    n, seed = size(rng), int(rng.integers(2**31))
    G = [
        lambda: nx.gnp_random_graph(n, 8 / n, seed=seed),
        lambda: nx.powerlaw_cluster_graph(n, 4, 0.3, seed=seed),
        lambda: nx.watts_strogatz_graph(n, 6, 0.2, seed=seed),
        lambda: nx.random_geometric_graph(n, 1.8 / n**0.5, seed=seed),
        lambda: nx.stochastic_block_model([n // 3] * 3, 0.3 * np.eye(3) + 0.03, seed=seed),
    ][rng.integers(5)]()
    A = nx.to_numpy_array(G)
    B = rewired(A, 0.5 * hard, rng)
    return reordered(A, B, np.arange(len(A)), 1 - np.eye(len(A)), rng, distances="adjacency")


def embeddings(hard: float, rng: np.random.Generator) -> Known:
    """Two embeddings of the same objects in clusters by cosine, with noise of 0.05 to 6 times their spread."""
    n, groups = size(rng), int(rng.integers(2, 9))
    z = rng.normal(size=(groups, 8))[rng.integers(0, groups, n)] + rng.uniform(0.3, 2.0) * rng.normal(size=(n, 8))
    noise = 0.05 * 120**hard
    X, Y = ((side := z @ rng.normal(size=(8, d)) / 8**0.5) + noise * rng.normal(size=side.shape) for d in (30, 50))
    C = cosine_distances(z)
    given = (cosine_distances(X), cosine_distances(Y))
    return reordered(*given, np.arange(n), C, rng, distances="precomputed")


def parts(hard: float, rng: np.random.Generator) -> Known:
    """A part of a cloud in the whole, or two parts that overlap, in one scale; noise of 0.002 to 0.6 of the spread."""
    n, d = int(rng.integers(LEAST, 90)), int(rng.integers(2, 4))
    P = rng.normal(size=(n, d)) * rng.uniform(0.4, 1.0, size=d)
    Q = turned(P + 0.002 * 300**hard * P.std() * rng.normal(size=P.shape), rng)
    near = np.argsort(np.linalg.norm(P - P[0], axis=1))
    if rng.random() < 0.5:
        source, target = near[: int(rng.uniform(0.3, 0.8) * n)], np.arange(n)
        marginals: torchgw.SemiRelaxed | torchgw.Partial = torchgw.SemiRelaxed(0.0, "y")
    else:
        source, target = near[: n - n // 4], near[n // 4 :]
        marginals = torchgw.Partial(1 - (n // 4) / len(source))
    place = np.full(n, -1)
    place[target] = np.arange(len(target))
    Y = P[target]
    arguments = {"distances": "euclidean", "marginals": marginals, "epsilon": 0.0, "options": ONE_SCALE}
    return Known(Q[source], Y, place[source], cdist(Y, Y), arguments)


KINDS: dict[str, Callable[[float, np.random.Generator], Known]] = {
    "noisy copies": noisy_copies,
    "unrelated": unrelated,
    "wrong units": wrong_units,
    "outliers": outliers,
    "near-symmetric shapes": near_symmetric,
    "surfaces and curves": along_manifolds,
    "slices with features": slices,
    "graphs": graphs,
    "embeddings": embeddings,
    "parts": parts,
}


def problem(kind: str, number: int, draw: int) -> Known:
    """The problem of a kind and draw with this number, which says how hard it is."""
    rng = np.random.default_rng([draw, list(KINDS).index(kind), number])
    return KINDS[kind]((number + rng.random()) / PROBLEMS, rng)


def judged(kind: str, number: int, draw: int) -> Row:
    """A problem solved by default: what the verdict says, and what is right."""
    given = problem(kind, number, draw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = torchgw.gw_align(given.X, given.Y, random_state=0, **given.arguments)
    best, rival = result.basins[0].energy if result.basins else None, result.rival
    return {
        "kind": kind,
        "draw": draw,
        "number": number,
        "points": list(result.shape),
        "share": given.share(np.asarray(result.argmax())),
        "verdict": result.verdict.name.lower(),
        "reasons": list(result.reasons),
        "value / chance": value_over_chance(result),
        "rival": None if rival is None or not best else rival.energy / best,
    }


def outcome(share: float) -> str:
    """What a share of right matches makes of a matching."""
    return "right" if share >= RIGHT else "wrong" if share <= WRONG else "partly right"


def by_kind(found: list[Row]) -> list[Row]:
    """How many matchings of each kind and outcome are called convincing."""
    groups = {kind: [line for line in found if line["kind"] == kind] for kind in KINDS} | {"all": found}
    rows = []
    for kind, lines in groups.items():
        row: Row = {"kind": kind}
        for name in ("right", "partly right", "wrong"):
            verdicts = [x["verdict"] for x in lines if outcome(x["share"]) == name]
            row |= {name: len(verdicts), f"{name}, called convincing": verdicts.count("convincing")}
        rows.append(row)
    return rows


def by_verdict(found: list[Row]) -> list[Row]:
    """How much is right of the matchings with each verdict."""
    rows = []
    for verdict in ("convincing", "doubtful", "chance"):
        shares = [x["share"] for x in found if x["verdict"] == verdict]
        outcomes = [outcome(share) for share in shares]
        counts = {name: outcomes.count(name) for name in ("right", "partly right", "wrong")}
        median = float(np.median(shares)) if shares else None
        rows.append({"verdict": verdict, "matchings": len(shares), "median share of points right": median} | counts)
    return rows


def run() -> None:
    """Judge all problems, print the tables, and store them."""
    numbers, draws = range(1 if rehearsed() else PROBLEMS), DRAWS[: 1 if rehearsed() else None]
    found = [judged(kind, number, draw) for kind in KINDS for draw in draws for number in numbers]
    show(by_kind(found))
    show(by_verdict(found))
    write("verdict", by_kind(found), verdicts=by_verdict(found), problems=found)
