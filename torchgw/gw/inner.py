"""Inner solvers: the transport problem of one linearised cost, solved and rounded onto its marginals.

One stores score and plan and scales the plan (`torchgw.sinkhorn.scaling`), one stores neither: its half-steps make the
score tile by tile (`torchgw.kernels.softmin_tiles`), and what leaves it is a coupling by potentials.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchgw.couplings import DenseCoupling
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.softmin_tiles import TileKernel
from torchgw.kernels.tiles import TILE, Tiles, all_tiles, choose_tiles
from torchgw.options import SinkhornOptions
from torchgw.sinkhorn.loop import sinkhorn
from torchgw.sinkhorn.rounding import round_tiles
from torchgw.sinkhorn.scaling import feasible, scaling
from torchgw.types import Coupling, Softmins

SKIPPED_FROM = 4096


class Transported(NamedTuple):
    """A solved problem: base-2 potentials of the score A B^T, and the rounded plan.

    ``moved`` is the L1 column residual of the warm potentials under this score, ``residual`` that of the solution.
    ``overlap`` is <A B^T, T> for the rounded plan.
    """

    f: Tensor
    g: Tensor
    coupling: Coupling
    overlap: Tensor
    moved: float
    residual: float
    n_iter: int


class Solved(NamedTuple):
    """Potentials, and how they were found; see `Transported`."""

    f: Tensor
    g: Tensor
    moved: float
    residual: float
    n_iter: int


class Inner(Protocol):
    """Solves the score A (N, r), B (K, r) for float64 masses from warm potentials f (N,), g (K,)."""

    def __call__(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Transported:
        """The solution, in the dtype of the factors."""

    def potentials(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Solved:
        """Only its potentials."""


class StoredInner:
    """Stores score and plan, 8 bytes for each pair in float32, and reuses both."""

    def __init__(self, kernel: Kernel, options: SinkhornOptions) -> None:
        self.kernel, self.options = kernel, options
        self._score, self._plan = torch.empty(0), torch.empty(0)

    def __call__(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Transported:
        state = self.potentials(A, B, p, q, f, g)
        feasible(self._plan, p.to(A.dtype), q.to(A.dtype))
        overlap = _overlap(self._score, self._plan)
        return Transported(
            state.f, state.g, DenseCoupling(self._plan), overlap, state.moved, state.residual, state.n_iter
        )

    def potentials(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Solved:
        """Leaves the plan, not rounded, in the buffer."""
        shape, dtype = (len(A), len(B)), A.dtype
        if self._score.shape != shape or self._score.dtype != dtype or self._score.device != A.device:
            self._score, self._plan = A.new_empty(shape), A.new_empty(shape)
        score, plan, options = self._score, self._plan, self.options
        torch.mm(A, B.T, out=score)
        state = scaling(
            self.kernel.on(score),
            p.log2().to(dtype),
            q.log2().to(dtype),
            f,
            g,
            plan,
            max_iter=options.exact_max_iter,
            tol=options.tol,
            check_every=options.check_every,
            relaxation=options.relaxation,
        )
        return Solved(state.f, state.g, state.moved, state.residual, state.n_iter)


class StreamedInner:
    """Stores neither. Points must be in an order in which neighbours are near; from 4096 x 4096 on, tiles without mass
    are left out, those outside of which all mass lies but the share ``omitted``."""

    def __init__(self, kernel: Kernel, tiled: TileKernel, options: SinkhornOptions, omitted: float) -> None:
        self.kernel, self.tiled, self.options, self.omitted = kernel, tiled, options, omitted

    def __call__(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Transported:
        state = self.potentials(A, B, p, q, f, g)
        tiles = self.tiles(A, B, p, q, state.f, state.g)
        rounded = round_tiles(self.tiled, A, B, tiles, state.f.double(), state.g.double(), p, q, V=B)
        TB = rounded.read.moved[:, 1:] + rounded.x[:, None] * (rounded.y @ B.double())
        overlap = (A * TB).sum().to(A.dtype)
        return Transported(state.f, state.g, rounded.coupling(), overlap, state.moved, state.residual, state.n_iter)

    def potentials(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Solved:
        options = self.options
        state = sinkhorn(
            self.score(A, B, p, q, f, g),
            p.log2().to(A.dtype),
            q.log2().to(A.dtype),
            f,
            g,
            max_iter=options.exact_max_iter,
            tol=options.tol,
            check_every=options.check_every,
            relaxation=options.relaxation,
        )
        return Solved(state.f, state.g, float(state.moved), float(state.residual), state.n_iter)

    def score(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Softmins:
        """The score on the tiles that matter under these potentials; the whole, one product a pass, if all do."""
        tiles = self.tiles(A, B, p, q, f, g)
        return self.kernel.on(A, B) if tiles.nothing_skipped() else self.tiled.on(A, B, tiles)

    def tiles(self, A: Tensor, B: Tensor, p: Tensor, q: Tensor, f: Tensor, g: Tensor) -> Tiles:
        """The tiles that matter under these potentials."""
        if self.omitted == 0 or len(A) * len(B) <= SKIPPED_FROM**2:
            return all_tiles(len(A), len(B), TILE, A.device)
        return choose_tiles(A, B, f, g, p, q, TILE, self.omitted)[0]


def _overlap(score: Tensor, plan: Tensor) -> Tensor:
    """<score, plan>, in blocks that stay in the cache."""
    step = max(1, 2**19 // score.shape[1]) if score.device.type == "cpu" else len(score)
    total = score.new_zeros(())
    for start in range(0, len(score), step):
        total += torch.dot(score[start : start + step].flatten(), plan[start : start + step].flatten())
    return total
