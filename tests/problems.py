"""Named problems with known answers, slow, obvious oracles in plain NumPy float64, and what many tests are made of."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from torchgw import Balanced, EuclideanDistances, Partial, PrecomputedDistances, SemiRelaxed, SeparableLoss, Unbalanced
from torchgw.couplings.blocks import DenseCoupling
from torchgw.couplings.factored import FactoredPlan
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.datasets import make_spiral
from torchgw.kernels.tiles import Tiles
from torchgw.losses import SQUARE
from torchgw.marginals import Marginals

SPIRAL, SPIRAL_ANGLE = make_spiral(90)
ROLL, ROLL_ANGLE = make_spiral(110, random_state=1)
INF = math.inf
# Each marginal model, and what it is to the oracle.
MODELS: dict[str, tuple[Marginals, dict[str, Any]]] = {
    "balanced": (Balanced(), {}),
    "semi-relaxed y": (SemiRelaxed(0.05, "y"), {"model": "relaxed", "rho": (INF, 0.05)}),
    "semi-relaxed x": (SemiRelaxed(0.05, "x"), {"model": "relaxed", "rho": (0.05, INF)}),
    "free y": (SemiRelaxed(0.0, "y"), {"model": "relaxed", "rho": (INF, 0.0)}),
    "unbalanced": (Unbalanced(0.1, 0.2), {"model": "relaxed", "rho": (0.1, 0.2)}),
    "unbalanced x": (Unbalanced(0.1, INF), {"model": "relaxed", "rho": (0.1, INF)}),
    "partial": (Partial(0.6), {"model": "partial", "mass": 0.6}),
}
T = TypeVar("T")


def daily(some: Collection[tuple[Any, ...]], *axes: Iterable[Any]) -> list[Any]:
    """The table of these axes for ``parametrize``: ``some`` of its cells by default, and the others are slow."""
    table = list(product(*axes))
    assert set(some) <= set(table)
    return [pytest.param(*cell, marks=() if cell in some else pytest.mark.slow) for cell in table]


def in_turn(first: Sequence[Any], *others: Sequence[Any]) -> list[Any]:
    """`daily` for every entry of ``first``, each with one combination of the others, in turn."""
    rest = list(product(*others))
    return daily({(entry, *rest[i % len(rest)]) for i, entry in enumerate(first)}, first, *others)


def quietly(call: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """What a call returns, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments, **keywords)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file can become larger than this."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


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


class Own:
    """A user's provider of a matrix: what one must have, and no more."""

    stored = True

    def __init__(self, D: Any, scale: float = 1.0) -> None:
        self._D = torch.as_tensor(np.asarray(D, dtype=np.float64))
        self.size, self.scale = len(self._D), scale

    def to(self, device: torch.device, dtype: torch.dtype) -> Own:
        other = type(self)(self._D, self.scale)
        other._D = self._D.to(device, dtype)
        return other

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return self._D[index]

    def factors(self) -> None:
        return None


def all_rows(space: Any) -> torch.Tensor:
    """The distances of a provider, as a matrix."""
    return space.rows(torch.arange(space.size))


def own_loss(name: str) -> SeparableLoss:
    """The square, as a user would write it."""
    return SeparableLoss(SQUARE.f1, SQUARE.f2, SQUARE.h1, SQUARE.h2, name)


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
    gen = generator(seed)
    A, B, f, g, x, y = (
        torch.randn(*shape, generator=gen, dtype=torch.float64) for shape in ((n, r), (k, r), (n,), (k,), (n,), (k,))
    )
    f = f - np.log2(n * k)
    return PotentialCoupling(A, B, f, g, x.abs() / n, y.abs() / k) if correction else PotentialCoupling(A, B, f, g)


def tiled_coupling(n: int, k: int, r: int, seed: int, size: int = 4) -> TiledCoupling:
    """A random coupling on about half of its tiles, in random orders, with total mass about one."""
    gen = generator(seed)
    plain = potential_coupling(n, k, r, seed).tensors()
    kept = torch.rand(-(-n // size), -(-k // size), generator=gen) < 0.5
    kept[:, 0], kept[0] = True, True
    count = kept.sum(1)
    first = torch.cat((count.new_zeros(1), count.cumsum(0)))
    orders = torch.randperm(n, generator=gen), torch.randperm(k, generator=gen)
    tiles = Tiles(size, n, k, first, kept.nonzero()[:, 1])
    return TiledCoupling(FactoredPlan(**plain, row_order=orders[0], column_order=orders[1], tiles=tiles))


def dense_coupling(n: int, k: int, seed: int) -> DenseCoupling:
    """A random stored plan."""
    gen = generator(seed)
    plan = torch.rand(n, k, generator=gen, dtype=torch.float64) ** 4
    return DenseCoupling(plan / plan.sum())
