"""What a fuzzed call is made of: tables of Python expressions, usable ones and ones that must be refused.

In an expression {n} stands for the points of its space, {m} for those of the other one, {d} for a dimension, {s} for a
seed and {N}, {K} for the points of X and Y. The first entry of a table is the usual one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from torchgw import (  # noqa: F401 - the expressions have them
    AnnealingOptions,
    Balanced,
    CoarseOptions,
    DijkstraDistances,
    Envelope,
    EuclideanDistances,
    FactoredDistances,
    FeatureCost,
    GWOptions,
    HeatDistances,
    Implicit,
    LadderOptions,
    LandmarkDistances,
    LowRankOptions,
    Partial,
    PrecomputedDistances,
    SamplingOptions,
    SemiRelaxed,
    SeparableLoss,
    SinkhornOptions,
    SpaceOptions,
    StoppingOptions,
    Supervision,
    Unbalanced,
    Unrolled,
    gw_align,
)

Table = dict[str, str]


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def apart(points: Any) -> np.ndarray:
    """Distances between points."""
    points = np.asarray(points, dtype=np.float64)
    return np.linalg.norm(points[:, None] - points, axis=-1)


def ultrametric(n: int) -> np.ndarray:
    """Distances in a binary tree."""
    levels = np.arange(n)[:, None] ^ np.arange(n)
    return np.ceil(np.log2(levels + 1.0))


def cut_off(D: np.ndarray) -> np.ndarray:
    """The second half of the points out of the reach of the first."""
    half = np.arange(len(D)) < len(D) / 2
    return np.where(half[:, None] == half, D, np.inf)


def edited(array: np.ndarray, row: int, column: int, value: float) -> np.ndarray:
    """An array with one other entry."""
    array = np.array(array, dtype=np.float64)
    array[row, column] = value
    return array


def walk(n: int, seed: int, share: float = 0.2) -> sparse.csr_matrix:
    """A path with some more edges, of lengths between 1 and 2."""
    lengths = np.triu(rng(seed).uniform(1, 2, (n, n)), 1)
    kept = (rng(seed + 1).random((n, n)) < share) | (np.arange(n)[:, None] + 1 == np.arange(n))
    return sparse.csr_matrix((lengths + lengths.T) * (kept | kept.T))


def parted(graph: sparse.csr_matrix) -> sparse.csr_matrix:
    """The graph without edges between its first and its second half."""
    half = np.arange(graph.shape[0]) < graph.shape[0] / 2
    return sparse.csr_matrix(graph.toarray() * (half[:, None] == half))


def with_zero_edge(graph: sparse.csr_matrix) -> sparse.csr_matrix:
    """The graph with an edge of length zero between its first two points."""
    graph = graph.tolil().tocoo()
    row, column = np.append(graph.row, [0, 1]), np.append(graph.col, [1, 0])
    at = ~((row < 2) & (column < 2) & (np.append(graph.data, [0, 0]) > 0))
    return sparse.csr_matrix((np.append(graph.data, [0.0, 0.0])[at], (row[at], column[at])), shape=graph.shape)


def shares(weights: Any) -> np.ndarray:
    """The weights over their sum."""
    weights = np.asarray(weights, dtype=np.float64)
    return weights / weights.sum()


def locked(array: Any) -> np.ndarray:
    """An array that must not be written to."""
    array = np.array(array)
    array.flags.writeable = False
    return array


def learned(array: Any) -> Tensor:
    """A tensor whose gradient is wanted."""
    return torch.tensor(np.asarray(array, dtype=np.float64), requires_grad=True)


class Own:
    """A user's provider of a matrix: rows alone."""

    stored = True

    def __init__(self, D: Any) -> None:
        self._D = torch.as_tensor(np.asarray(D, dtype=np.float64))
        self.size, self.scale = len(self._D), 1.0

    def to(self, device: torch.device, dtype: torch.dtype) -> Own:
        other = Own(self._D)
        other._D = self._D.to(device, dtype)
        return other

    def rows(self, index: Tensor) -> Tensor:
        return self._D[index]

    def factors(self) -> None:
        return None


class Bare:
    """What has rows and nothing else."""

    def rows(self, index: Tensor) -> Tensor:
        return torch.ones(len(index), 5)


CLOUD = "rng({s}).normal(size=({n}, {d}))"
POINTS: Table = {
    "normal": CLOUD,
    "duplicated": f"{CLOUD}[np.arange({{n}}) // 3]",
    "constant": "np.full(({n}, {d}), 3.0)",
    "on a line": "np.arange({n})[:, None] * np.ones({d})",
    "few integers": "rng({s}).integers(-2, 3, ({n}, {d}))",
    "flags": "rng({s}).random(({n}, {d})) < 0.5",
    "one far away": f"edited({CLOUD}, -1, 0, 1e6)",
    "two clouds": f"{CLOUD} + 1e3 * (np.arange({{n}}) % 2)[:, None]",
    "far from 0": f"1e8 + {CLOUD}",
    "of size 1e-149": f"1e-149 * {CLOUD}",
    "of size 1e-30": f"1e-30 * {CLOUD}",
    "of size 1e30": f"1e30 * {CLOUD}",
    "of size 1e149": f"1e149 * {CLOUD}",
    "uneven scales": f"{CLOUD} * np.logspace(-150, 100, {{d}})",
}
BAD_POINTS: Table = {
    "of size 1e-300": f"1e-300 * {CLOUD}",
    "of size 1e-320": f"1e-320 * {CLOUD}",
    "NaN": f"edited({CLOUD}, 1, 0, np.nan)",
    "inf": f"edited({CLOUD}, 1, 0, -np.inf)",
    "of size 1e300": f"1e300 * {CLOUD}",
    "complex": f"{CLOUD} + 1j",
    "complex tensor": f"torch.tensor({CLOUD} + 1j)",
    "object": f"np.array({CLOUD}, dtype=object)",
    "text": f"{CLOUD}.astype(str)",
    "dates": f"{CLOUD}.astype('M8[s]')",
    "None": "None",
    "a number": "3.0",
    "a path": "'points.npy'",
    "one point": "np.ones((1, {d}))",
    "no points": "np.ones((0, {d}))",
    "no coordinates": "np.ones(({n}, 0))",
    "flat": "np.ones({n})",
    "three axes": "np.ones(({n}, {d}, 2))",
    "ragged": "[[1.0, 2.0], [3.0]]",
    "dictionary": "{{'x': 1}}",
    "sparse tensor": f"torch.tensor({CLOUD}).to_sparse()",
    "of tensors": "[torch.ones({d}) for _ in range({n})] + [torch.ones(77)]",
}
DRESSED: Table = {
    "float64": "{x}",
    "list": "({x}).tolist()",
    "tensor": "torch.tensor({x})",
    "float32": "({x}).astype(np.float32)",
    "float16": "({x}).astype(np.float16)",
    "long double": "({x}).astype(np.longdouble)",
    "big endian": "({x}).astype('>f8')",
    "float32 tensor": "torch.tensor({x}).float()",
    "bfloat16 tensor": "torch.tensor({x}).bfloat16()",
    "Fortran order": "np.asfortranarray({x})",
    "every second row": "np.repeat({x}, 2, axis=0)[::2]",
    "backwards": "np.array(({x})[::-1])[::-1]",
    "turned tensor": "torch.tensor(({x}).T.copy()).T",
    "read-only": "locked({x})",
    "tuple of rows": "tuple(map(tuple, {x}))",
}
MATRICES: Table = {
    "Euclidean": f"apart({CLOUD})",
    "squared": f"apart({CLOUD}) ** 2",
    "with duplicates": f"apart({CLOUD}[np.arange({{n}}) // 2])",
    "zeros": "np.zeros(({n}, {n}))",
    "adjacency": "(walk({n}, {s}) > 0).toarray()",
    "adjacency in integers": "(walk({n}, {s}) > 0).toarray().astype(int)",
    "all alike": "1.0 - np.eye({n})",
    "ultrametric": "ultrametric({n})",
    "infinite entries": f"cut_off(apart({CLOUD}))",
    "all infinite": "np.where(np.eye({n}) > 0, 0.0, np.inf)",
    "near 1e308": f"apart({CLOUD}) / apart({CLOUD}).max() * 1.7e308",
    "of size 1e200": f"1e200 * apart({CLOUD})",
    "of size 1e-200": f"1e-200 * apart({CLOUD})",
    "one long": f"edited(edited(apart({CLOUD}), 0, -1, 1e200), -1, 0, 1e200)",
    "rounded asymmetry": f"apart({CLOUD}) * (1 + 1e-9 * rng({{s}}).random(({{n}}, {{n}})))",
}
BAD_MATRICES: Table = {
    "of size 1e-310": f"1e-310 * apart({CLOUD})",
    "asymmetric": f"edited(apart({CLOUD}), 0, 1, 99.0)",
    "one way infinite": f"edited(apart({CLOUD}), 0, 1, np.inf)",
    "negative": f"-apart({CLOUD})",
    "NaN": f"apart({CLOUD}) * np.nan",
    "similarities": f"np.exp(-apart({CLOUD}))",
    "infinite diagonal": f"edited(apart({CLOUD}), 0, 0, np.inf)",
    "complex": f"apart({CLOUD}) * 1j",
}
GRAPHS: Table = {
    "path and more": "walk({n}, {s})",
    "0/1": "(walk({n}, {s}) > 0).astype(float)",
    "flags": "walk({n}, {s}) > 0",
    "in parts": "parted(walk({n}, {s}))",
    "no edges": "sparse.csr_matrix(({n}, {n}))",
    "zero edge": "with_zero_edge(walk({n}, {s}))",
    "zero edges alone": "walk({n}, {s}) * 0.0",
    "loops": "walk({n}, {s}) + sparse.eye({n})",
    "of size 1e149": "walk({n}, {s}) * 1e149",
    "of size 1e-149": "walk({n}, {s}) * 1e-149",
    "integers": "(walk({n}, {s}) * 3).astype(np.int32)",
}
FORMATS: Table = {
    "csr": "{x}",
    "csc": "({x}).tocsc()",
    "coo": "({x}).tocoo()",
    "lil": "({x}).tolil()",
    "dok": "({x}).todok()",
    "dia": "({x}).todia()",
    "bsr": "({x}).tobsr()",
    "csr array": "sparse.csr_array({x})",
    "coo array": "sparse.coo_array({x})",
    "float32": "({x}).astype(np.float32)",
}
BAD_GRAPHS: Table = {
    "of size 1e305": "walk({n}, {s}) * 1e305",
    "of size 1e-320": "walk({n}, {s}) * 1e-320",
    "of size 1e-300": "walk({n}, {s}) * 1e-300",
    "negative": "-walk({n}, {s})",
    "asymmetric": "sparse.triu(walk({n}, {s}))",
    "not square": "walk({n}, {s})[:-1]",
    "NaN": "walk({n}, {s}) * np.nan",
    "inf": "walk({n}, {s}) * np.inf",
    "lengths near 1e308": "walk({n}, {s}) * 8e307",
    "complex": "walk({n}, {s}) * 1j",
    "one point": "sparse.csr_matrix((1, 1))",
    "object": "type('Graph', (), {{'edges': [], 'nodes': []}})()",
}
PROVIDERS: Table = {
    "Euclidean": f"EuclideanDistances({CLOUD})",
    "squared Euclidean": f"EuclideanDistances({CLOUD}, squared=True)",
    "squared, constant": "EuclideanDistances(np.ones(({n}, 2)), squared=True)",
    "squared, huge": f"EuclideanDistances(1e100 * {CLOUD}, squared=True)",
    "squared, tiny": f"EuclideanDistances(1e-100 * {CLOUD}, squared=True)",
    "landmarks": "LandmarkDistances(walk({n}, {s}), 5)",
    "landmarks in parts": "LandmarkDistances(parted(walk({n}, {s})), 5)",
    "factors": "FactoredDistances(rng({s}).random(({n}, 2)) / 2, np.ones(2))",
    "Dijkstra": "DijkstraDistances(walk({n}, {s}))",
    "matrix": f"PrecomputedDistances(apart({CLOUD}))",
    "heat": f"HeatDistances({CLOUD})",
    "own": f"Own(apart({CLOUD}) / apart({CLOUD}).max())",
    "own, large": f"Own(1e3 * apart({CLOUD}))",
}
FACTORED = ("squared Euclidean", "squared, constant", "squared, huge", "squared, tiny", "landmarks", "factors")
BAD_PROVIDERS: Table = {
    "tiny": f"EuclideanDistances(1e-200 * {CLOUD}, squared=True)",
    "rows alone": "Bare()",
    "NaN": f"Own(apart({CLOUD}) * np.nan)",
    "not square": "Own(np.ones(({n}, {n} + 1)))",
    "asymmetric": f"Own(edited(apart({CLOUD}), 0, 1, 99.0))",
    "NaN later": f"Own(edited(apart({CLOUD}), -1, 0, np.nan))",
    "of NaN": f"EuclideanDistances(edited({CLOUD}, 0, 0, np.nan))",
    "time 0": f"HeatDistances({CLOUD}, time=0.0)",
    "signs": "FactoredDistances(np.ones(({n}, 2)), np.ones(3))",
    "one landmark": "LandmarkDistances(walk({n}, {s}), 1)",
}

MASSES: Table = {
    "random": "shares(rng({s}).random({n}) + 0.1)",
    "alike": "np.full({n}, 1 / {n})",
    "uneven": "shares(rng({s}).random({n}) ** 8 + 1e-9)",
    "some zero": "shares((np.arange({n}) % 3 != 1) * (rng({s}).random({n}) + 0.1))",
    "one point": "np.eye({n})[{n} // 2]",
    "two points": "shares(np.arange({n}) >= {n} - 2)",
    "one of 1e-37": "shares(np.where(np.arange({n}) == 0, 1e-37, 1.0))",
    "one of 1e-46": "shares(np.where(np.arange({n}) == 0, 1e-46, 1.0))",
    "one of 1e-300": "shares(np.where(np.arange({n}) == 0, 1e-300, 1.0))",
    "one of 1e-320": "shares(np.where(np.arange({n}) == 0, 1e-320, 1.0))",
    "all but one of 1e-46": "shares(np.where(np.arange({n}) > 0, 1e-46, 1.0))",
}
SUMS: Table = {
    "1": "{x}",
    "37": "37 * {x}",
    "1e-30": "1e-30 * {x}",
    "1e-100": "1e-100 * {x}",
    "1e100": "1e100 * {x}",
    "1e-149": "1e-149 * {x}",
    "1e149": "1e149 * {x}",
}
MASS_FORMS: Table = {
    "array": "{x}",
    "tensor": "torch.tensor({x})",
    "list": "list({x})",
    "float32 tensor": "torch.tensor({x}).float()",
    "every second": "np.repeat({x}, 2)[::2]",
    "read-only": "locked({x})",
}
BAD_MASSES: Table = {
    "negative": "np.linspace(-1, 1, {n})",
    "NaN": "np.full({n}, np.nan)",
    "inf": "np.full({n}, np.inf)",
    "zeros": "np.zeros({n})",
    "short": "np.ones({n} - 1)",
    "column": "np.ones(({n}, 1))",
    "text": "['a'] * {n}",
    "complex": "np.ones({n}) * 1j",
    "beyond floats": "np.full({n}, 1.7e308)",
    "of sum 1e-300": "np.full({n}, 1e-301)",
    "of sum 1e300": "np.full({n}, 1e299)",
    "another sum": "np.full({n}, 5.0)",
    "a number": "1.0",
}
EPSILON: Table = {
    "default": "1e-3",
    "0.01": "0.01",
    "0.1": "0.1",
    "0.3": "0.3",
    "1": "1",
    "float32": "np.float32(0.05)",
    "0": "0",
    "1e3": "1e3",
    "1e6": "1e6",
    "1e-5": "1e-5",
    "1e-8": "1e-8",
    "1e-12": "1e-12",
    "1e-17": "1e-17",
}
BAD_EPSILON: Table = {
    "1e-320": "1e-320",
    "1e-300": "1e-300",
    "1e300": "1e300",
    "NaN": "float('nan')",
    "inf": "float('inf')",
    "negative": "-1e-3",
    "text": "'small'",
    "None": "None",
    "flag": "True",
    "array": "np.array([0.1])",
    "tensor": "torch.tensor(0.1)",
}
MARGINALS: Table = {
    "balanced": "Balanced()",
    "free y": "SemiRelaxed()",
    "free x": "SemiRelaxed(0.0, 'x')",
    "semi-relaxed y": "SemiRelaxed(0.1)",
    "semi-relaxed x": "SemiRelaxed(1e-3, side='x')",
    "semi-relaxed, strong": "SemiRelaxed(1e3)",
    "semi-relaxed, 1e17": "SemiRelaxed(1e17)",
    "semi-relaxed, inf": "SemiRelaxed(np.inf)",
    "unbalanced": "Unbalanced(0.1, 0.1)",
    "unbalanced, weak": "Unbalanced(1e-3, 1e-4)",
    "semi-relaxed, 1e-17": "SemiRelaxed(1e-17)",
    "unbalanced, 1e-17": "Unbalanced(1e-17, 1.0)",
    "unbalanced, 1e-12": "Unbalanced(1e-12, 1e-12)",
    "unbalanced, strong": "Unbalanced(100, 30)",
    "unbalanced, 1e17": "Unbalanced(1e17, 1e17)",
    "unbalanced, x": "Unbalanced(0.1, np.inf)",
    "unbalanced, inf": "Unbalanced(np.inf, np.inf)",
    "partial, half": "Partial({least} * 0.5)",
    "partial, most": "Partial({least} * 0.9)",
    "partial, all": "Partial({least})",
    "partial, 1e-8": "Partial({least} * 1e-8)",
    "partial, 1e-3": "Partial({least} * 1e-3)",
}
BAD_MARGINALS: Table = {
    "unbalanced, 1e-300": "Unbalanced(1e-300, 1.0)",
    "semi-relaxed, 1e-300": "SemiRelaxed(1e-300)",
    "partial, 1e-200": "Partial({least} * 1e-200)",
    "partial, 1e-12": "Partial({least} * 1e-12)",
    "unbalanced, 1e300": "Unbalanced(1e300, 1e300)",
    "semi-relaxed, 1e300": "SemiRelaxed(1e300)",
    "text": "'balanced'",
    "None": "None",
    "class": "Balanced",
    "partial, too much": "Partial({least} * 1.5 + 1e-9)",
    "partial, 0": "Partial(0)",
    "partial, NaN": "Partial(np.nan)",
    "unbalanced, 0": "Unbalanced(0.0, 1.0)",
    "semi-relaxed, negative": "SemiRelaxed(-1.0)",
    "semi-relaxed, z": "SemiRelaxed(side='z')",
}
FEATURES = "(rng({s}).normal(size=({N}, 3)), rng({s} + 1).normal(size=({K}, 3)))"
COSTS: Table = {
    "features": FEATURES,
    "tensors of features": "tuple(torch.tensor(side) for side in {f})".replace("{f}", FEATURES),
    "list of features": f"list({FEATURES})",
    "cosine": f"FeatureCost(*{FEATURES}, metric='cosine')",
    "features as they are": f"FeatureCost(*{FEATURES}, scale=1.0)",
    "features alike": "(np.ones(({N}, 2)), np.ones(({K}, 2)))",
    "huge features": f"tuple(1e140 * side for side in {FEATURES})",
    "small features": f"tuple(1e-100 * side for side in {FEATURES})",
    "features, huge scale": f"FeatureCost(*{FEATURES}, scale=1e300)",
    "matrix": "rng({s}).random(({N}, {K}))",
    "integers": "rng({s}).integers(0, 3, ({N}, {K}))",
    "zeros": "np.zeros(({N}, {K}))",
    "tensor": "torch.tensor(rng({s}).random(({N}, {K}))).float()",
    "list": "rng({s}).random(({N}, {K})).tolist()",
    "of size 1e-300": "1e-300 * rng({s}).random(({N}, {K}))",
    "of size 1e10": "1e10 * rng({s}).random(({N}, {K}))",
}
STREAMED_COSTS = tuple(kind for kind in COSTS if "features" in kind or kind == "cosine")
BAD_COSTS: Table = {
    "tiny features": f"tuple(1e-200 * side for side in {FEATURES})",
    "of size 1e200": "1e200 * rng({s}).random(({N}, {K}))",
    "features, tiny scale": f"FeatureCost(*{FEATURES}, scale=1e-300)",
    "NaN": "np.full(({N}, {K}), np.nan)",
    "inf": "np.full(({N}, {K}), np.inf)",
    "negative": "-np.ones(({N}, {K}))",
    "another shape": "np.ones(({N} + 1, {K}))",
    "flat": "np.ones({N})",
    "complex": "np.ones(({N}, {K})) * 1j",
    "three parts": "(np.ones(({N}, 1)), np.ones(({K}, 1)), np.ones(({K}, 1)))",
    "short features": "(np.ones(({N} - 1, 2)), np.ones(({K}, 2)))",
    "other features": "(np.ones(({N}, 2)), np.ones(({K}, 3)))",
    "NaN in features": "(np.full(({N}, 2), np.nan), np.ones(({K}, 2)))",
    "zero features": "FeatureCost(np.zeros(({N}, 2)), np.ones(({K}, 2)), metric='cosine')",
    "metric": f"FeatureCost(*{FEATURES}, metric='city')",
    "text": "'features'",
    "a number": "1.0",
}
ALPHA: Table = {
    "default": "None",
    "a half": "0.5",
    "0": "0",
    "1e-6": "1e-6",
    "1e-300": "1e-300",
    "0.99": "0.99",
    "1": "1",
    "float32": "np.float32(0.3)",
    "tensor": "torch.tensor(0.7)",
}
BAD_ALPHA: Table = {
    "negative": "-0.1",
    "above 1": "1.1",
    "NaN": "float('nan')",
    "text": "'0.5'",
    "flag": "True",
    "array": "np.array([0.5, 0.5])",
    "tensor of two": "torch.tensor([0.5, 0.5])",
    "complex": "0.5j",
}
MATCHED = "np.stack([np.arange(min({N}, {K}))] * 2, 1)"
RULES: Table = {
    "pairs": f"pairs={MATCHED}[:2]",
    "many pairs": f"pairs={MATCHED}",
    "several partners": "pairs=[(0, 0), (0, 1), (1, 1)]",
    "tensor of pairs": f"pairs=torch.tensor({MATCHED}[-2:])",
    "forbidden": f"forbidden={MATCHED}[:3]",
    "a forbidden row": "forbidden=[(0, j) for j in range({K})]",
    "pairs and forbidden": "pairs=[(0, 0)], forbidden=[(1, 0), (0, 1)]",
    "labels": "labels=(np.arange({N}) % 2, np.arange({K}) % 2)",
    "labels, some none": "labels=(np.arange({N}) % 3 - 1, np.arange({K}) % 3 - 1)",
    "labels of one side": "labels=(np.zeros({N}, int), np.ones({K}, int))",
    "lists of labels": "labels=([0] * {N}, list(np.arange({K}) % 2))",
    "mask": "mask=(np.arange({N})[:, None] + np.arange({K})) % 2 == 0",
    "sparse mask": "mask=sparse.csr_matrix(np.ones(({N}, {K})))",
}
STRENGTHS: Table = {
    "inf": "",
    "0.1": ", strength=0.1",
    "1e-17": ", strength=1e-17",
    "1e-3": ", strength=1e-3",
    "10": ", strength=10",
    "1e17": ", strength=1e17",
}
BAD_RULES: Table = {
    "none": "",
    "pairs outside": "pairs=[({N}, 0)]",
    "negative pairs": "forbidden=[(0, -1)]",
    "no pairs": "pairs=np.empty((0, 2), int)",
    "fractions": "pairs=[(0.5, 1.5)]",
    "both": "pairs=[(0, 0)], forbidden=[(0, 0)]",
    "text": "pairs='all'",
    "one list of labels": "labels=np.zeros({N}, int)",
    "short labels": "labels=(np.zeros({N} - 1, int), np.zeros({K}, int))",
    "labels in words": "labels=(['a'] * {N}, ['b'] * {K})",
    "labels below -1": "labels=(np.full({N}, -2), np.zeros({K}, int))",
    "empty mask": "mask=np.zeros(({N}, {K}))",
    "mask of another shape": "mask=np.ones(({K} + 1, {N}))",
    "strength 1e-300": "pairs=[(0, 0)], strength=1e-300",
    "strength 1e300": "pairs=[(0, 0)], strength=1e300",
    "strength 0": "pairs=[(0, 0)], strength=0.0",
    "strength NaN": "pairs=[(0, 0)], strength=np.nan",
}
INIT: Table = {
    "plan": "rng({s}).random(({N}, {K}))",
    "index": "rng({s}).integers(0, {K}, {N})",
    "pairs": f"{MATCHED}[::2]",
    "one pair": "[(0, 1)]",
    "identity": "np.eye({N}, {K})",
    "one entry": "edited(np.zeros(({N}, {K})), 0, 0, 1.0)",
    "integer plan": "rng({s}).integers(0, 2, ({N}, {K})) + np.eye({N}, {K}, dtype=int)",
    "tensor": "torch.tensor(rng({s}).random(({N}, {K}))).float()",
    "learned": "learned(rng({s}).random(({N}, {K})))",
    "of size 1e-300": "1e-300 * rng({s}).random(({N}, {K}))",
    "of size 1e-320": "1e-320 * (1 + rng({s}).random(({N}, {K})))",
    "of size 1e305": "1e305 * rng({s}).random(({N}, {K}))",
    "of size 1e308": "1.7e308 * rng({s}).random(({N}, {K}))",
    "uneven": "10.0 ** rng({s}).uniform(-300, 100, ({N}, {K}))",
    "result": "gw_align({x}, {y}, options=GWOptions(coarse=None), random_state=0)",
}
BAD_INIT: Table = {
    "negative": "-np.ones(({N}, {K}))",
    "NaN": "np.full(({N}, {K}), np.nan)",
    "zeros": "np.zeros(({N}, {K}))",
    "another shape": "np.ones(({N}, {K} + 1))",
    "flat": "np.ones({N})",
    "pairs outside": "[(0, {K})]",
    "no pairs": "np.empty((0, 2), int)",
    "index outside": "np.full({N}, {K})",
    "text": "'search'",
    "dictionary": "{{}}",
    "sparse": "sparse.eye({N}, {K})",
    "complex": "np.ones(({N}, {K})) * 1j",
}
MODES: Table = {
    "envelope": "Envelope()",
    "implicit": "Implicit()",
    "implicit, coarse": "Implicit(tol=1e-5, max_iter=3, n_lanczos=2)",
    "unrolled": "Unrolled(n_outer=2, n_inner=4)",
    "envelope, tol 1e-15": "Envelope(tol=1e-15)",
}
BAD_MODES: Table = {
    "text": "'implicit'",
    "class": "Envelope",
    "tol": "Envelope(tol=0.0)",
    "max_iter": "Implicit(max_iter=0)",
    "n_outer": "Unrolled(n_outer=1.5)",
    "base": "object()",
    "a huge record": "Unrolled(n_outer=10**6, n_inner=10**6)",
}
WORDS: Table = {"auto": "'auto'", "landmark": "'landmark'", "dijkstra": "'dijkstra'", "precomputed": "'precomputed'"}
BAD_WORDS: Table = {
    "unknown": "'geodesic'",
    "number": "3",
    "three": "('auto',) * 3",
    "None": "None",
    "list": "['auto', 'auto']",
}
CALLBACKS: Table = {
    "none": "None",
    "reads": "lambda progress: None",
    "stops": "lambda progress: progress.iteration >= 2",
    "stops at once": "lambda progress: True",
}
STATES: Table = {
    "seed": "0",
    "large seed": "2**63 - 1",
    "NumPy integer": "np.int32(5)",
    "NumPy generator": "rng(1)",
    "torch generator": "torch.Generator().manual_seed(3)",
}
OTHERS: dict[str, tuple[Table, Table]] = {
    "random_state": (STATES, {"negative": "-1", "text": "'zero'", "too large": "2**64", "flag": "True"}),
    "callback": (CALLBACKS, {"number": "3"}),
    "device": (
        {"none": "None", "cpu": "'cpu'", "object": "torch.device('cpu')"},
        {"unknown": "'abacus'", "absent": "'cuda:99'", "meta": "'meta'", "number": "0", "empty": "''"},
    ),
    "backend": ({"auto": "'auto'", "eager": "'eager'"}, {"unknown": "'cuda'", "triton": "'triton'", "number": "1"}),
}
CROSS = "SeparableLoss(lambda a: a**2, lambda b: b**2, lambda a: a, lambda b: 2 * b)"  # the square, by another name
FIELDS: dict[str, dict[str, str]] = {  # values by group and field, apart by "|"; those after "||" must be refused
    "spaces": {
        "k": "1|2|5|{least_n} - 1||0|1.5|{most_n}|'many'",
        "n_landmarks": "2|5|100||1|None",
        "cache_rows": "1|3||0",
        "scale": "'common'|2.0|(0.5, 3)|1e-3|1e3|1e100||0.0|-1|1e-300|np.inf|'own'|(1.0, 2.0, 3.0)",
    },
    "sampling": {
        "n_anchors": "1|2|20|500||0",
        "step": "1.0|1e-3||0.0|2.0",
        "n_control": "0|2|3||1|-1",
        "cost_ema": "0.1|1e-12|1.0||1.5",
    },
    "sinkhorn": {
        "max_iter": "1|50||0",
        "exact_max_iter": "2|7||1",
        "final_max_iter": "1|10|5000||0|2.5",
        "tol": "1e-9|1e-15|1e-300|0.1|10.0||0.0|np.nan",
        "check_every": "1|1000||0",
        "relaxation": "1.0|1.99||0.5|2.0",
    },
    "annealing": {"factor": "1.0|10||0.5|11", "n_iter": "0|1|50||-1"},
    "stopping": {
        "max_iter": "1|2|1000||0",
        "min_iter": "0|100||-1",
        "check_every": "3|1000||0",
        "ema_weight": "1|1e-300||0.0|2.0",
        "improvement": "0.0|1.0||-1.0|np.inf",
        "patience": "1|1000||0",
        "plan_tol": "0|1e-9|1.0||-1.0|np.nan",
    },
    "coarse": {"n_landmarks": "2|3|1000||1", "n_starts": "1|2|9||0", "n_basins": "1|2|50||0"},
    "ladder": {
        "marginal_tol": "1e-6|0.1|1.0|1e-12||0.0|2.0",
        "n_cells": "16|17|10**6||15",
        "omitted_mass": "0.0|0.1|1e-9||0.5",
    },
    "low_rank": {
        "rank": "1|2|{least_n}||0|{most_n} + 1",
        "max_iter": "1|50||0",
        "tol": "0.0|1e-4||-1.0",
        "step": "1e-3|1e3|1e30||0.0",
        "floor": "1e-3|1e-300||0.0|1.0",
    },
    "": {
        "gradient": "'exact'|'sampled'||'full'",
        "loss": f"'kl'|{CROSS}||'cube'|3",
        "mixed_precision": "False|True||1",
        "max_memory": "10**6|50_000||0|100|1e9",
        "coarse": "None||3",
        "strategy": "'dense'||'fast'|None",
    },
}
GROUPS = {
    "spaces": "SpaceOptions",
    "sampling": "SamplingOptions",
    "sinkhorn": "SinkhornOptions",
    "annealing": "AnnealingOptions",
    "stopping": "StoppingOptions",
    "coarse": "CoarseOptions",
    "ladder": "LadderOptions",
    "low_rank": "LowRankOptions",
}
SPACES = {"points": POINTS, "matrix": MATRICES, "graph": GRAPHS, "provider": PROVIDERS}
