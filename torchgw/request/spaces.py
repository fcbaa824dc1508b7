"""Spaces as they are given: points, graphs, matrices or providers, validated, and the kind of distances that each gets;
the start of a solve, and the device that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings.reader import Readable
from torchgw.objective.features import features_of
from torchgw.options import SpaceOptions
from torchgw.runtime.caller import warn_caller
from torchgw.spaces import AdjacencyDistances, FactoredDistances
from torchgw.spaces.prepare import InputSpace
from torchgw.types import Array, GraphWarning, is_graph, is_provider

DISTANCES = ("auto", "landmark", "dijkstra", "precomputed", "euclidean", "adjacency")
AUTO_ALL_PAIRS = 500
MOST_CHECKED = 8000


def check_distances(distances: object) -> tuple[str, str]:
    """One of `DISTANCES` for each space, from one for both or a pair."""
    pair = distances if isinstance(distances, tuple) else (distances, distances)
    if "cosine" in pair:
        raise ValueError(
            f"distances='cosine' goes as points with normalised rows and distances='euclidean', or as a matrix with "
            f"distances='precomputed'; distances must be one of {DISTANCES}, got {distances!r}"
        )
    if len(pair) != 2:
        raise ValueError(f"distances must be one of {DISTANCES} or a pair of them, got {len(pair)} entries")
    return validate.choice("distances", pair[0], DISTANCES), validate.choice("distances", pair[1], DISTANCES)


def check_spaces(
    X: Any, Y: Any, kinds: tuple[str, str], alpha: float, cost: Any, options: SpaceOptions
) -> tuple[InputSpace, InputSpace]:
    """Both validated spaces; those of a problem that has no use for distances have none."""
    if alpha == 0:
        (X, Y), kinds = without_distances(X, Y, cost), ("auto", "auto")
    return check_space("X", X, kinds[0], options), check_space("Y", Y, kinds[1], options)


def sizes_of(spaces: tuple[InputSpace, InputSpace]) -> tuple[int, int]:
    """(N, K)."""
    return spaces[0].size, spaces[1].size


def check_loss(spaces: tuple[InputSpace, InputSpace], loss: object) -> None:
    """Refuse negative entries under a loss that has none for them."""
    for space in spaces:
        if loss == "kl" and getattr(space.data, "negative", False):
            raise ValueError(
                f"{space.name} must have no negative entries with loss='kl', which takes their logarithms; use "
                f"loss='square'"
            )


def check_space(name: str, space: Any, distances: str, options: SpaceOptions) -> InputSpace:
    """The validated space and the kind of its distances.

    Raises
    ------
    ValueError, TypeError
        For what is no space, and a kind of distances that it cannot have.
    """
    if isinstance(space, str | PathLike):
        raise TypeError(
            f"{name} must be an array, a sparse graph or a provider, got a {type(space).__name__}; load it first"
        )
    validate.own_kind(name, space, distances)
    if isinstance(space, Tensor) and str(space.layout).startswith("torch.sparse"):
        raise TypeError(
            f"{name} must be a SciPy sparse graph of edge lengths, got a sparse tensor; with c = "
            f"{name}.detach().cpu().to_sparse_coo().coalesce(), scipy.sparse.coo_array((c.values(), c.indices()), "
            f"c.shape) makes one, and {name}.to_dense() points"
        )
    if distances == "adjacency" and not is_provider(space):
        return InputSpace(name, AdjacencyDistances(space, name=name, weight=options.weight), "adjacency")
    if is_provider(space):
        validate.provider(name, space)
        if distances != "auto":
            raise ValueError(f"distances must be 'auto' when {name} is a distance provider, got {distances!r}")
        if options.scale is not None and not hasattr(space, "with_scale"):
            raise TypeError(
                f"{name} must have a method with_scale(scale) for options.spaces.scale={options.scale!r}, got "
                f"{type(space).__name__} without one; scale=None leaves it as it is"
            )
        return InputSpace(name, space, "provider")
    if is_graph(space):
        if distances == "euclidean":
            raise ValueError(
                f"distances='euclidean' needs points, got a sparse matrix as {name}; {name}.toarray() has its rows for "
                f"points, 'landmark' takes it for a graph of edge lengths"
            )
        graph = validate.graph(name, space)
        if graph.diagonal().any():
            warn_caller(
                f"{name} has a diagonal, as similarities have, but was taken for edge lengths, which are larger the "
                f"further; distances='adjacency' compares similarities, and after {name}.setdiag(0) "
                f"lengths are meant",
                GraphWarning,
            )
        if graph.nnz == 0 and graph.shape[0] > 1:
            raise ValueError(f"{name} must have edges, got a graph of {graph.shape[0]} nodes without any")
        return InputSpace(name, graph, distances if distances != "auto" else geodesic_kind(graph.shape[0]))
    matrix_asked = distances in ("auto", "precomputed")
    shape = validate.shape_of(space)
    if matrix_asked and len(shape) == 2 and shape[0] == shape[1] and (shape[0] > 1 or distances == "precomputed"):
        matrix = validate.distance_matrix(name, space)
        return InputSpace(name, matrix, "matrix")
    if matrix_asked and len(shape) == 1 and validate.has_condensed_length(shape[0]):
        raise ValueError(
            f"{name} must have shape (N, D), got {shape}; one number for each row goes as a column, {name}[:, None], "
            f"and distances of pdist as a matrix, scipy.spatial.distance.squareform({name})"
        )
    points = validate.points(name, space)
    if validate.looks_like_distances(points):
        raise ValueError(
            f"{name} is a distance matrix, got distances={distances!r} for it; use 'precomputed' or 'auto'"
        )
    if distances != "euclidean" and options.k is not None:
        validate.check_neighbour_count(name, options.k, len(points))
    return InputSpace(name, points, distances if distances != "auto" else geodesic_kind(len(points)))


def warn_of_adjacencies(*spaces: InputSpace, asked: Sequence[str]) -> None:
    """Say which matrices that nobody called distances look like edges of graphs: of zeros and ones alone, or with more
    than half of their entries off the diagonal at exactly zero."""
    found = [s.name for s, kind in zip(spaces, asked, strict=True) if kind == "auto" and _looks_like_edges(s)]
    if found:
        warn_caller(
            f"{' and '.join(found)} taken for distances, but looking like an adjacency matrix: most pairs would be at "
            f"distance 0, or all at 0 or 1. distances='adjacency' compares edges, scipy.sparse."
            f"csr_matrix({found[0]}) gives shortest paths, distances='precomputed' says that distances are meant",
            GraphWarning,
        )


def _looks_like_edges(space: InputSpace) -> bool:
    if space.kind != "matrix":
        return False
    matrix: Array = space.data
    pairs, apart = matrix.size - len(matrix), int(np.count_nonzero(matrix))
    return 0 < apart < pairs and (2 * apart < pairs or int(np.count_nonzero(matrix == 1)) == apart)


def geodesic_kind(n: int) -> str:
    """All pairs while they are cheap; landmarks beyond, where they are accurate or nothing else is soon had."""
    return "precomputed" if n <= AUTO_ALL_PAIRS else "landmark" if n > MOST_CHECKED else "checked"


def check_init(init: object, n: int, k: int, device: torch.device) -> Tensor | None:
    """A float64 plan (N, K) over its largest entry, or matching pairs (m, 2) as int64, on ``device``; None stays None.

    From those, from a matching (N,) of integers, or from a result.
    """
    if init is None:
        return None
    if isinstance(init, Readable):
        init = init.plan
    values = validate.read("init", init)
    shape = values.shape
    if shape == (n,) and values.dtype.kind in "iu":
        values = np.stack((np.arange(n), values), 1)
        shape = values.shape
    if len(shape) == 2 and shape[1] == 2 and values.dtype.kind in "iu":
        return validate.pairs("init", values, n, k).to(device)
    return validate.plan("init", values, n, k).to(device)


def without_distances(X: Any, Y: Any, cost: Any) -> tuple[FactoredDistances, FactoredDistances]:
    """Spaces of the right sizes whose points all coincide, for a problem that has no use for distances."""
    sides = features_of(cost)
    shape = validate.shape_of(cost) if sides is None else tuple((*validate.shape_of(side), 0)[0] for side in sides)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"cost must be a matrix (N, K) or a pair of feature arrays, got shape {shape}")
    sizes = []
    for name, given, expected in zip("XY", (X, Y), shape, strict=True):
        found = expected if given is None else _length(name, given)
        if found != expected:
            raise ValueError(
                f"cost must have one row or column for each of the {found} points of {name}, got {expected}"
            )
        sizes.append(expected)
    one, other = (
        FactoredDistances.of(torch.zeros(size, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), 1.0)
        for size in sizes
    )
    return one, other


def _length(name: str, space: Any) -> int:
    """Number of points of a space whose distances are not looked at."""
    if is_provider(space):
        return validate.integer(f"{name}.size", getattr(space, "size", None), least=1)
    shape = validate.shape_of(space)
    if len(shape) == 0:
        raise TypeError(f"{name} must be points, a matrix, a graph or None with alpha=0, got {type(space).__name__}")
    return int(shape[0])


def with_factors(spaces: tuple[InputSpace, InputSpace], kinds: tuple[str, str]) -> tuple[InputSpace, InputSpace]:
    """The spaces with landmark distances where the choice is ours and there would be no factors."""
    x, y = (
        space._replace(kind="landmark") if asked == "auto" and space.kind in ("checked", "precomputed") else space
        for space, asked in zip(spaces, kinds, strict=True)
    )
    return x, y


def without_searches(spaces: tuple[InputSpace, InputSpace], max_memory: int) -> tuple[InputSpace, InputSpace]:
    """The spaces with landmark distances, however accurate, where all pairs would not fit the memory."""
    x, y = (
        space._replace(kind="landmark") if space.kind == "checked" and 8 * space.size**2 > max_memory else space
        for space in spaces
    )
    return x, y
