"""Named problems with known answers, and slow, obvious oracles in plain NumPy float64."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from torchgw import EuclideanDistances, PrecomputedDistances
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.datasets import make_spiral

SPIRAL, SPIRAL_ANGLE = make_spiral(90)
ROLL, ROLL_ANGLE = make_spiral(110, random_state=1)


def daily(some: Collection[tuple[Any, ...]], *axes: Iterable[Any]) -> list[Any]:
    """The table of these axes for ``parametrize``: ``some`` of its cells by default, and the others are slow."""
    table = list(product(*axes))
    assert set(some) <= set(table)
    return [pytest.param(*cell, marks=() if cell in some else pytest.mark.slow) for cell in table]


def in_turn(first: Sequence[Any], *others: Sequence[Any]) -> list[Any]:
    """`daily` for every entry of ``first``, each with one combination of the others, in turn."""
    rest = list(product(*others))
    return daily({(entry, *rest[i % len(rest)]) for i, entry in enumerate(first)}, first, *others)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_distances(n: int, rng: np.random.Generator) -> np.ndarray:
    """Distances between normal points in the plane."""
    x = rng.normal(size=(n, 2))
    return np.linalg.norm(x[:, None] - x[None], axis=-1)


def random_space(kind: str, n: int, seed: int) -> PrecomputedDistances | EuclideanDistances:
    """A "dense" space of stored distances, or a "factored" one of squared distances in the plane."""
    rng = np.random.default_rng(seed)
    if kind == "dense":
        return PrecomputedDistances(random_distances(n, rng))
    return EuclideanDistances(rng.normal(size=(n, 2)), squared=True)


def random_masses(n: int, rng: np.random.Generator) -> np.ndarray:
    """Positive masses that sum to one."""
    mass = rng.uniform(0.2, 1.0, size=n)
    return mass / mass.sum()


def random_plan(p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A plan with marginals p, q that is far from the product one."""
    T = rng.exponential(size=(len(p), len(q))) ** 3
    for _ in range(500):
        T *= (p / T.sum(1))[:, None]
        T *= q / T.sum(0)
    T *= (p / T.sum(1))[:, None]
    return T + np.outer(p, q - T.sum(0))


def gw_by_enumeration(DX: np.ndarray, DY: np.ndarray, T: np.ndarray) -> float:
    """The objective as the four-index sum it is defined by."""
    gap = DX[:, :, None, None] - DY[None, None, :, :]
    return float(np.einsum("iajb,ij,ab->", gap**2, T, T))


def linearised_cost(DX: np.ndarray, DY: np.ndarray, T: np.ndarray) -> np.ndarray:
    """C_ij = sum_ab (D_X[i,a] - D_Y[j,b])^2 T_ab."""
    return np.einsum("iajb,ab->ij", (DX[:, :, None, None] - DY[None, None, :, :]) ** 2, T)


def sinkhorn_oracle(C: np.ndarray, p: np.ndarray, q: np.ndarray, epsilon: float, n_iter: int = 20_000) -> np.ndarray:
    """The entropic plan by plain scaling; for C / epsilon small enough not to underflow."""
    P = np.exp(-(C - C.min()) / epsilon)
    v = np.ones_like(q)
    for _ in range(n_iter):
        u = p / (P @ v)
        v = q / (P.T @ u)
    return u[:, None] * P * v


def path_graph(lengths: list[float]) -> tuple[csr_matrix, np.ndarray]:
    """A path with these edge lengths and its exact distances."""
    position = np.concatenate(([0.0], np.cumsum(lengths)))
    n = len(position)
    i = np.arange(n - 1)
    graph = csr_matrix((lengths, (i, i + 1)), shape=(n, n))
    return (graph + graph.T).tocsr(), np.abs(position[:, None] - position[None])


def potential_coupling(n: int, k: int, r: int, seed: int, correction: bool = True) -> PotentialCoupling:
    """A random coupling by potentials with total mass about one."""
    gen = torch.Generator().manual_seed(seed)
    A, B, f, g, x, y = (
        torch.randn(*shape, generator=gen, dtype=torch.float64) for shape in ((n, r), (k, r), (n,), (k,), (n,), (k,))
    )
    f = f - np.log2(n * k)
    return PotentialCoupling(A, B, f, g, x.abs() / n, y.abs() / k) if correction else PotentialCoupling(A, B, f, g)


def tiled_coupling(n: int, k: int, r: int, seed: int, size: int = 4) -> TiledCoupling:
    """A random coupling on about half of its tiles, in random orders, with total mass about one."""
    gen = torch.Generator().manual_seed(seed)
    plain = potential_coupling(n, k, r, seed).tensors()
    kept = torch.rand(-(-n // size), -(-k // size), generator=gen) < 0.5
    kept[:, 0], kept[0] = True, True
    count = kept.sum(1)
    first = torch.cat((count.new_zeros(1), count.cumsum(0)))
    orders = torch.randperm(n, generator=gen), torch.randperm(k, generator=gen)
    return TiledCoupling(
        **plain,
        row_order=orders[0],
        column_order=orders[1],
        tile_size=torch.tensor(size),
        tile_first=first,
        tile_column=kept.nonzero()[:, 1],
    )


def dense_coupling(n: int, k: int, seed: int) -> DenseCoupling:
    """A random stored plan."""
    gen = torch.Generator().manual_seed(seed)
    plan = torch.rand(n, k, generator=gen, dtype=torch.float64) ** 4
    return DenseCoupling(plan / plan.sum())
