"""Signatures of a graph's nodes: vectors that are alike where neighbourhoods are, and that survive some wrong edges.

A network with random weights, the same for both graphs, looks at each node: degrees, triangles and sums of weights
first, then, round by round, sums of tanh(H W + b) over the neighbours, apart for edges with few and with many common
neighbours. What that is worth under noise is measured: the network looks at the first graph once more, with some edges
taken away and as many put elsewhere. In the basis of the generalised eigenproblem

    S v = lambda N v,    S = covariance of the signatures,    N = that of their differences under such noise,

coordinates are uncorrelated, those of a node and of its noisy copy have the correlation c = 1 - 1 / (2 lambda), and
the log likelihood ratio of a pair being one node is -c / (1 - c^2) (x - y)^2 / 2 for each of them, up to terms of x
alone and of y alone: weighted by (c / (1 - c^2))^(1/2), the nearest signatures are the likeliest matches.

Sources: N. Shervashidze et al., "Weisfeiler-Lehman graph kernels", 2011; J. Ding, Z. Ma, Y. Wu, J. Xu, "Efficient
random graph matching via degree profiles", 2021; C. R. Rao, "The utilization of multiple measurements in problems of
biological classification", 1948 (discriminants).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, diags_array

from torchgw.linalg.sparse_entries import entry_rows, make_csr, select_entries
from torchgw.types import Array

ROUNDS, WIDTH, GAIN = 3, 24, 1.5
BANDS = 4  # of edges, by their common neighbours
KEPT = 80  # coordinates
NOISE = 0.05  # share of the edges
SAMPLE, MOST_COPIES = 20_000, 8
RIDGE = 1e-6
CLOSEST = 1e-4  # least 1 - c
BLOCK = 1024


@dataclass(frozen=True, eq=False)
class GraphFeatures:
    """What the network reads of a graph.

    degrees : (N,).
    statistics : (N, s), what it begins with.
    edges : (N, N) of ones where there is an entry off the diagonal in either direction.
    support : log(1 + common neighbours) of each of them.
    weights : matrices whose entries differ, as they are; empty of a graph of equal entries.
    """

    degrees: Array
    statistics: Array
    edges: Any
    support: Array
    weights: tuple[Any, ...]

    @classmethod
    def of(cls, D: Any, symmetric: bool, weighted: bool) -> GraphFeatures:
        """Of a sparse matrix (N, N)."""
        turned = () if symmetric else (D.T.tocsr(),)
        edges = off_diagonal_pattern(D + D.T if turned else D)
        degrees = np.diff(edges.indptr).astype(float)
        wedges = ((edges @ edges).multiply(edges) + edges).tocsr()  # an entry wherever there is an edge
        wedges.sort_indices()
        common, row = wedges.data - 1, entry_rows(edges)
        support = np.log1p(common)
        mean, square, triangles = (np.bincount(row, values, len(degrees)) for values in (support, support**2, common))
        mean, square = (side / degrees.clip(min=1) for side in (mean, square))
        pairs = (degrees * (degrees - 1)).clip(min=1)
        columns = [np.log1p(degrees), np.log1p(triangles), triangles / pairs, mean, square - mean**2]
        for side in (D, *turned) if weighted or turned else ():
            columns += [
                np.diff(side.indptr),
                side.diagonal(),
                *(_signed_log(power.sum(1)) for power in (side, side**2)),
            ]
        return cls(degrees, np.stack(columns, 1), edges, support, (D, *turned) if weighted or turned else ())

    def make_bands(self, limits: Array) -> list[Any]:
        """Matrices of the edges with a support between these limits, over the square roots of the degrees; and the
        weights, if there are any."""
        over = diags_array(1 / self.degrees.clip(min=1) ** 0.5)
        place = np.searchsorted(limits, self.support)
        found = [select_entries(self.edges, place == band) for band in range(len(limits) + 1)]
        return [over @ side for side in (*found, *self.weights)]


def off_diagonal_pattern(D: Any) -> Any:
    """Ones at the entries off the diagonal."""
    off = select_entries(D, (entry_rows(D) != D.indices) & (D.data != 0))
    off.sort_indices()
    return csr_array((np.ones(off.nnz), off.indices, off.indptr), shape=off.shape)


def _signed_log(x: Array) -> Array:
    found: Array = np.sign(x) * np.log1p(np.abs(x))
    return found


def compute_signatures(X: Any, Y: Any, symmetric: bool, rng: np.random.Generator) -> tuple[Array, Array]:
    """Weighted signatures (N, d), (K, d) of the nodes of two graphs, sparse matrices (N, N), (K, K)."""
    weighted = any(np.ptp(D.data) > 0 for D in (X, Y) if D.nnz)
    copies = [_perturb_edges(X, symmetric, rng) for _ in range(min(-(-SAMPLE // X.shape[0]), MOST_COPIES))]
    x, y, *noisy = _run_network([GraphFeatures.of(D, symmetric, weighted) for D in (X, Y, *copies)], rng)
    differs = np.mean([np.cov((x - copy).T) for copy in noisy], 0)
    spread = (np.cov(x.T) + np.mean([np.cov(copy.T) for copy in noisy], 0)) / 2
    differs += RIDGE * np.trace(spread) / len(spread) * np.eye(len(spread))
    from scipy.linalg import eigh  # late: it takes long to import

    ratio, basis = eigh(spread, differs)
    ratio, basis = ratio[::-1][:KEPT], basis[:, ::-1][:, :KEPT]
    ratio = ratio.clip(min=0.5)  # c >= 0
    c = (1 - 0.5 / ratio).clip(max=1 - CLOSEST)
    basis = basis * np.sqrt(c / (1 - c**2) / ratio)
    return (x - x.mean(0)) @ basis, (y - y.mean(0)) @ basis


def _perturb_edges(D: Any, symmetric: bool, rng: np.random.Generator) -> Any:
    """The matrix without some of its entries off the diagonal, and with as many of the same values elsewhere."""
    row, n = entry_rows(D), D.shape[0]
    counted = np.flatnonzero(row < D.indices if symmetric else row != D.indices)
    stays = np.ones(D.nnz, dtype=bool)
    stays[counted] = rng.random(len(counted)) >= NOISE
    rest = select_entries(D, stays & ((row <= D.indices) if symmetric else True))
    many = int(NOISE * len(counted))
    values = D.data[rng.choice(counted, many)] if many else np.zeros(0)
    ends = rng.integers(n, size=(2, many))
    ends, values = ends[:, ends[0] != ends[1]], values[ends[0] != ends[1]]
    found = rest + make_csr(ends[0], ends[1], values, D.shape)
    if symmetric:
        found = found + found.T - diags_array(found.diagonal())
    return found.tocsr()


def _run_network(graphs: list[GraphFeatures], rng: np.random.Generator) -> list[Array]:
    """What the network makes of each graph, (N, d)."""
    limits = band_limits(graphs[0].support)
    bands = [graph.make_bands(limits) for graph in graphs]
    counts = [np.stack([_signed_log(np.diff(band.indptr)) for band in sides], 1) for sides in bands]
    states = [np.concatenate((graph.statistics, count), 1) for graph, count in zip(graphs, counts, strict=True)]
    found: list[list[Array]] = [[] for _ in graphs]
    for step in range(ROUNDS + 1):
        states = [(state - state.mean(0)) / (state.std(0) + 1e-9) for state in states]
        for seen, state in zip(found, states, strict=True):
            seen.append(state)
        if step == ROUNDS:
            break
        size = states[0].shape[1]
        W, b = rng.standard_normal((size, WIDTH)) * GAIN / size**0.5, rng.standard_normal(WIDTH)
        states = [_propagate(sides, state, W, b) for sides, state in zip(bands, states, strict=True)]
    return [np.concatenate(seen, 1) for seen in found]


def band_limits(support: Array) -> Array:
    """Quantiles that part edges into bands, each of which has some."""
    if not len(support):
        return support
    found: Array = np.unique(np.quantile(support, np.linspace(0, 1, BANDS + 1)[1:-1]))
    within: Array = found[found < support.max()]
    return within


def _propagate(bands: list[Any], state: Array, W: Array, b: Array) -> Array:
    heard = np.tanh(state @ W + b)
    parts = [band @ heard for band in bands]
    return np.concatenate((*parts, sum(bands) @ state[:, :WIDTH]), 1)


def find_nearest(x: Array, y: Array, k: int) -> tuple[Array, Array]:
    """Squared distances and indices (N, k) of the k vectors of y (K, d) nearest to each of x (N, d), the nearest first;
    O(N K d) time, in blocks."""
    one, other = (torch.from_numpy(side).float() for side in (x, y))
    squares = other.square().sum(1)
    found = [
        torch.addmm(squares, block, other.T, alpha=-2).topk(min(k, len(y)), dim=1, largest=False)
        for block in torch.split(one, BLOCK)
    ]
    distance = torch.cat([block.values for block in found]) + one.square().sum(1, keepdim=True)
    return distance.clamp_min(0.0).double().numpy(), torch.cat([block.indices for block in found]).numpy()
