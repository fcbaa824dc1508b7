"""Shared aliases and the protocols that let layers meet without knowing each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
RandomState: TypeAlias = "int | torch.Generator | np.random.Generator | None"
Epsilon: TypeAlias = "float | Literal['auto']"
AUTO: Literal["auto"] = "auto"


class TorchGWWarning(UserWarning):
    """Base of every warning this library gives."""


class ConvergenceWarning(TorchGWWarning):
    """The returned result is not a converged one; its status says what to change."""


class GraphWarning(TorchGWWarning):
    """A neighbour graph or distance matrix had to be repaired before use, or may be none that was meant."""


class PrecisionWarning(TorchGWWarning):
    """The numbers of a space or a solve reach further than their precision carries."""


class OutOfMemoryWarning(TorchGWWarning):
    """A strategy did not fit the device's memory, and another one ran instead."""


class CheckpointWarning(TorchGWWarning):
    """A checkpoint could not be written, or goes on where bits may differ; the solve goes on."""


class SamplingWarning(TorchGWWarning):
    """The gradient was sampled, which nobody asked for: the optimum may be worse than an exact one would find."""


class SupervisionWarning(TorchGWWarning):
    """A constraint cannot hold for all the mass that has to move."""


class GradientWarning(TorchGWWarning):
    """A gradient through the plan is too ill-conditioned to be trusted."""


class AmbiguityWarning(TorchGWWarning):
    """Another matching is as good as the returned one: the spaces have a symmetry that nothing breaks."""


class RegularizationWarning(TorchGWWarning):
    """The plan of a given epsilon is blurred where a smaller one would sharpen it."""


class Softmins(Protocol):
    """A score S (N, K) in base-2 logarithms, stored or not, as the log-domain loop reads it."""

    def softmin(self, bias: Tensor, axis: int) -> Tensor:
        """log2 sum 2^(S + bias) over ``axis``: (K,) to (N,) for axis 1, (N,) to (K,) for axis 0."""

    def sweep(self, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """f + weight (log_p - softmin(g, 1) - f) and the softmin over the rows under it, in one read."""


class Score(Softmins, Protocol):
    """A score whose plan can be stored."""

    def absorb(self, f: Tensor, g: Tensor, out: Tensor) -> Tensor:
        """The plan 2^(S + f + g) into ``out`` (N, K)."""

    def update_scaling(self, mass: Tensor, sums: Tensor, old: Tensor, weight: float) -> Tensor:
        """old (mass / sums / old)^weight (N,), the scaling of rows whose sums without it are these."""


ProviderT = TypeVar("ProviderT", bound="DistanceProvider")


@runtime_checkable
class DistanceProvider(Protocol):
    """Distances D of ONE space of N points, divided by one scale that is fixed at construction.

    Beside these members a provider may have

    - ``apply(V, axis=1)``: D V for V (N, d), D^T V for axis 0, where that takes no matrix (N, N), and ``squares()``,
      a provider of the squared entries with such an ``apply``;
    - ``symmetric``: False where D^T is another matrix, see `is_symmetric`;
    - ``metric``: False where small entries do not mean nearness, so that no point stands for those around it, see
      `is_metric`.
    """

    @property
    def size(self) -> int:
        """N, the number of points."""

    @property
    def scale(self) -> float:
        """What the raw distances were divided by."""

    @property
    def stored(self) -> bool:
        """True when any row is a look-up or a product, False when it costs a graph search."""

    def to(self: ProviderT, device: torch.device, dtype: torch.dtype) -> ProviderT:
        """The same space, serving its rows and factors on ``device`` in ``dtype``."""

    def rows(self, index: Tensor) -> Tensor:
        """Scaled distances from the points ``index`` (M,) to all points, shape (M, N)."""

    def factors(self) -> tuple[Tensor, Tensor] | None:
        """F (N, r) and signs s (r,) with D = F diag(s) F^T, or None where there are none."""


class Carrier(Protocol):
    """What can be multiplied by a plan."""

    def apply(self, V: Tensor, axis: int) -> Tensor:
        """T V for axis 1, T^T V for axis 0."""


class DifferentiableSolution(Carrier, Protocol):
    """A solved problem as an expression of what it was made from, which automatic differentiation can follow."""

    @property
    def report(self) -> Any:
        """How far the last gradient through the plan can be trusted; None before there was one."""

    def loss(self) -> Tensor:
        """The regularised objective ()."""

    def plan(self) -> Tensor:
        """The dense plan (N, K)."""


@runtime_checkable
class Coupling(Carrier, Protocol):
    """A transport plan T (N, K) that is read through products and samples; only ``to_dense`` stores it."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""

    def rows(self, index: Tensor) -> Tensor:
        """T[index], shape (len(index), K)."""

    def marginal(self, axis: int) -> Tensor:
        """Sum over ``axis``: (N,) for 1, (K,) for 0."""

    def sample_columns(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """One column index for each entry of ``rows``, drawn from that row of T."""

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        """Values and column indices of the k largest entries of each row, both (N, k), largest first; of equal ones the
        lowest column."""

    def argmax(self, axis: int) -> Tensor:
        """Index of the largest entry along ``axis``, of equal ones the lowest."""

    def to_dense(self) -> Tensor:
        """T as one (N, K) tensor."""

    def to_sparse(self, mass: float) -> Any:
        """SciPy CSR matrix of the largest entries that carry ``mass`` of each row."""


def is_provider(space: Any) -> bool:
    """Whether a space brings its own distances; SciPy's matrices of lists and tables can have ``rows`` too."""
    return hasattr(space, "rows") and not (hasattr(space, "nnz") or is_table(space))


def is_table(space: Any) -> bool:
    """Whether this is a table of pandas or polars, whose columns are attributes too, and whose values are an array."""
    return hasattr(space, "columns") and hasattr(space, "to_numpy")


def is_symmetric(space: Any) -> bool:
    """Whether the distances of a provider are the same in both directions."""
    return bool(getattr(space, "symmetric", True))


def is_metric(space: Any) -> bool:
    """Whether the distances of a provider say which points are near each other."""
    return is_symmetric(space) and bool(getattr(space, "metric", True))


def multiplies(space: Any) -> bool:
    """Whether a provider has products of its own, without a matrix (N, N)."""
    return hasattr(space, "apply")


def is_graph(space: Any) -> bool:
    """Whether this object is a SciPy sparse matrix or array."""
    return hasattr(space, "tocsr") and hasattr(space, "nnz")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a callback receives at every check of the Gromov-Wasserstein loop.

    Attributes
    ----------
    iteration, max_iter : outer iterations so far, and their limit, which grows where a later loop has its own.
    cost : the scaled objective that steers the loop, see `History`.
    marginal_error : L1 residual of the last inner solve.
    epsilon : of this iteration; larger than the one asked for while it is annealed.
    elapsed : seconds since the loop began.
    """

    iteration: int
    max_iter: int
    cost: float
    marginal_error: float
    epsilon: float
    elapsed: float


Callback: TypeAlias = Callable[[Progress], object]
