"""Data sets with a known matching, for the quality suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import cdist
from sklearn.neighbors import kneighbors_graph


def rotation(d: int, rng: np.random.Generator) -> np.ndarray:
    """A random orthogonal matrix (d, d)."""
    Q, R = np.linalg.qr(rng.normal(size=(d, d)))
    return Q * np.sign(np.diag(R))


def rotated_copy(X: np.ndarray, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The points rotated, shuffled and moved by ``noise`` times their spread; and where each point went."""
    order = rng.permutation(len(X))
    moved = X[order] + noise * X.std() * rng.normal(size=X.shape)
    place = np.empty(len(X), dtype=int)
    place[order] = np.arange(len(X))
    return moved @ rotation(X.shape[1], rng), place


def skewed_clouds(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Independent points of one skewed density in space and, turned, in five dimensions; with their coordinates."""
    rng = np.random.default_rng(seed)
    x, y = (rng.exponential(size=(size, 3)) * [3.0, 1.5, 0.7] for size in (n, k))
    return x, np.concatenate((y, np.zeros((k, 2))), 1) @ rotation(5, rng), x, y


def power_law_vectors(n: int, rng: np.random.Generator, d: int = 300) -> np.ndarray:
    """Gaussian vectors whose k-th coordinate has standard deviation 1 / k^(1/2), like word vectors."""
    return rng.normal(size=(n, d)) / np.sqrt(np.arange(1, d + 1))


def cosine_distances(X: np.ndarray) -> np.ndarray:
    """1 - cosine, (N, N), symmetric with a zero diagonal."""
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    D = np.clip(1 - unit @ unit.T, 0, None)
    D = (D + D.T) / 2
    np.fill_diagonal(D, 0)
    return D


def y_fork(n: int, rng: np.random.Generator, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """A spiral in the plane with two tails of lengths 1 and 2 at its outer end, and the branch of each point."""
    parts = np.sort(rng.choice(3, size=n, p=(0.6, 0.13, 0.27)))
    s = rng.uniform(size=n)
    angle, radius = 7.5 * s, 0.3 + 0.7 * s
    points = np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1)
    end = np.array([np.cos(7.5), np.sin(7.5)])
    tangent = np.array([-end[1], end[0]])
    for part, length, turn in ((1, 1.0, -0.5), (2, 2.0, 0.5)):
        direction = np.cos(turn) * tangent + np.sin(turn) * -end
        if part == 1:
            direction = np.cos(0.9) * tangent + np.sin(0.9) * end
        else:
            direction = np.cos(0.1) * tangent + np.sin(0.1) * end
        here = parts == part
        points[here] = end + length * s[here, None] * direction
    position = np.where(parts == 0, s * 4.9, np.where(parts == 1, 4.9 + s, 6.0 + 2 * s))
    return points + noise * rng.normal(size=points.shape), position


def helix(n: int, rng: np.random.Generator, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """A conical helix in space, sampled more densely at its narrow end, and the angle of each point."""
    t = 12 * np.sort(rng.uniform(size=n)) ** 1.3
    points = np.stack(((0.4 + t / 12) * np.cos(t), (0.4 + t / 12) * np.sin(t), 0.25 * t), 1)
    return points + noise * rng.normal(size=points.shape), t


def mirror_shape(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A shape with exactly one mirror symmetry: points (n, 2) in pairs (i, i + n / 2)."""
    t = np.sort(rng.uniform(0, np.pi, size=n // 2))
    half = np.stack((np.sin(t) * (1 + 0.4 * np.cos(t)), np.cos(t) - 0.3 * np.cos(2 * t)), 1)
    half[:, 0] += 0.05
    return np.concatenate((half, half * [-1, 1])), np.concatenate((t, -t))


def branching_views(n: int, seed: int, d: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two noisy views of n points in 4 clusters along a branching curve: (view, view, cluster, order).

    The second view is shuffled: its row i is point order[i] of the first.
    """
    rng = np.random.default_rng(seed)
    cluster = np.sort(rng.choice(4, size=n, p=(0.35, 0.3, 0.2, 0.15)))
    centre = np.array([0.5, 1.6, 2.6, 2.4])[cluster]
    s = centre + 0.28 * rng.normal(size=n)
    branch = np.where(cluster == 3, s - 1.9, 0.0).clip(0)
    trunk = np.where(cluster == 3, 1.9 + 0 * s, s)
    latent = np.stack((trunk, branch, np.sin(1.5 * trunk), np.cos(1.1 * trunk) + 0.5 * branch), 1)
    views = []
    for _ in range(2):
        mixing = rng.normal(size=(latent.shape[1], d))
        views.append(np.tanh(latent @ mixing / 2) + 0.5 * rng.normal(size=(n, d)))
    order = rng.permutation(n)
    return views[0], views[1][order], cluster, order


def hop_distances(X: np.ndarray, k: int) -> np.ndarray:
    """Hop counts on the symmetric k-nearest-neighbour graph by correlation, unreachable pairs at the largest."""
    graph = kneighbors_graph(X, k, mode="connectivity", metric="correlation", include_self=False)
    hops = dijkstra(graph.maximum(graph.T), directed=False, unweighted=True)
    return np.where(np.isinf(hops), hops[np.isfinite(hops)].max(), hops)


def feature_views() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Real tables of scikit-learn split into two views of the same rows: (view, view, label).

    Images by alternate rows of pixels, where the true matching is the lowest optimum that is known (by alternate
    columns it is not, see OPTIMIZATION_LOG.md); tables standardised, their features dealt in the order of their loading
    on the first principal component, so that both views share the leading structure.
    """
    from sklearn.datasets import load_breast_cancer, load_digits, load_wine

    images: Any = load_digits()
    found = {"digits": (*(images.images[:, i::2].reshape(len(images.target), -1) for i in (0, 1)), images.target)}
    for name, load in (("wine", load_wine), ("breast_cancer", load_breast_cancer)):
        table: Any = load()
        Z = (table.data - table.data.mean(0)) / table.data.std(0)
        order = np.argsort(-np.abs(np.linalg.svd(Z, full_matrices=False)[2][0]))
        found[name] = (Z[:, np.sort(order[::2])], Z[:, np.sort(order[1::2])], table.target)
    return found


def foscttm(moved: np.ndarray, target: np.ndarray) -> float:
    """Fraction of samples closer than the true match, averaged over both directions; row i matches row i."""
    D = np.linalg.norm(moved[:, None] - target[None], axis=-1) if len(moved) < 700 else distances(moved, target)
    own = np.diag(D)
    return float(((own[:, None] > D).mean() + (own[None] > D).mean()) / 2)


def pixel_splits(most: int | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two views of the first ``most`` digits: the fields of a checkerboard of pixels, or alternate columns of them."""
    from sklearn.datasets import load_digits

    images = np.asarray(load_digits().images, dtype=np.float64)[:most]
    black = np.indices(images.shape[1:]).sum(0) % 2 == 0
    return {
        "checkerboard": (images[:, black], images[:, ~black]),
        "alternate columns": tuple(images[:, :, i::2].reshape(len(images), -1) for i in (0, 1)),
    }


def distances(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    """Euclidean distances between two clouds of points, or within one."""
    return cdist(x, x if y is None else y)


Matched: TypeAlias = tuple[Any, Any, np.ndarray, str]


def clustered_words(rng: np.random.Generator, n: int = 500, d: int = 50, noise: float = 0.6) -> Matched:
    """Vectors in twelve clusters and a rotated, noisy, shuffled copy, and where each one went."""
    X = rng.normal(size=(12, d))[rng.integers(12, size=n)] + 0.7 * rng.normal(size=(n, d))
    order = rng.permutation(n)
    moved = (X + noise * rng.normal(size=X.shape)) @ rotation(d, rng)
    return X, moved[order], np.argsort(order), "euclidean"


def manifold_views(rng: np.random.Generator, n: int = 500, noise: float = 0.05) -> Matched:
    """Two noisy, bent views of points on one surface, as of cells in two modalities, and where each one went."""
    z = np.stack((2 * rng.random(n), rng.random(n) ** 1.5), 1)
    z[:, 1] *= 0.3 + z[:, 0] / 2
    views = []
    for d in (10, 15):
        bent = np.sin(2 * z @ rng.normal(size=(2, d)) + 6 * rng.random(d))
        views.append(z @ rotation(d, rng)[:2] + (0.15 * bent + 2**0.5 * noise * rng.normal(size=(n, d))) / d**0.5)
    order = rng.permutation(n)
    return views[0], views[1][order], np.argsort(order), "auto"


def rewired_graph(rng: np.random.Generator, n: int = 300, rewired: float = 0.1) -> Matched:
    """The adjacency of a geometric graph, and that of a shuffled one of which some edges go elsewhere."""
    points = rng.random((n, 2))
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    pairs = np.argwhere(np.triu(apart < (8 / np.pi / n) ** 0.5, 1))
    moved = np.where(rng.random((len(pairs), 1)) < rewired, rng.integers(n, size=(len(pairs), 2)), pairs)
    order = rng.permutation(n)
    A, B = np.zeros((2, n, n))
    for matrix, edges in ((A, pairs), (B, moved[moved[:, 0] != moved[:, 1]])):
        matrix[edges[:, 0], edges[:, 1]] = matrix[edges[:, 1], edges[:, 0]] = 1.0
    return csr_array(A), csr_array(B[np.ix_(order, order)]), np.argsort(order), "adjacency"


CANDIDATES: dict[str, Callable[[np.random.Generator], Matched]] = {
    "words": clustered_words,
    "cells": manifold_views,
    "graph": rewired_graph,
}
