"""Inner solvers: the transport problem of one linearised cost, solved and rounded onto its marginals.

One stores score and plan and scales the plan (`torchgw.sinkhorn.scaling`), one stores neither: its half-steps make the
score tile by tile (`torchgw.kernels.softmin_tiles`), and what leaves it is a coupling by potentials.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.rounding import round_tiles, rounded
from torchgw.kernels import LOG2E
from torchgw.kernels.blocks import block_rows, blocks
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.shared import StreamedKernel, TileReader
from torchgw.kernels.sums import inner
from torchgw.kernels.tiles import TILE, UNIT, Tiles, all_tiles, choose_tiles
from torchgw.objective.model import Model
from torchgw.options import SinkhornOptions
from torchgw.persist.codec import storable
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.repeated import Repeated, State
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import SinkhornState, sinkhorn
from torchgw.sinkhorn.scaling import Scaler, scaling
from torchgw.sinkhorn.sides import LARGEST_RATIO, Side
from torchgw.solvers.warm_start import Start
from torchgw.types import Softmins

# Where a linear problem ended, its plan T (N, K) rounded onto the marginals, and <score, T> ().
Transported: TypeAlias = "tuple[SinkhornState, BlockCoupling, Tensor]"

SKIPPED_FROM = 4096
# Up to that rho / epsilon sums of solved problems tell potentials better than warm ones, where both sides give way;
# where one holds, warm ones need a tenth of the iterations (measured).
SETTLED_RATIO = 3e4


@storable
class Linear(NamedTuple):
    """A linear transport problem.

    A, B : factors (N, r), (K, r) of its score -cost / epsilon, in base 2, up to row and column terms.
    row, column : its sides: log masses, and the marginal model with those terms.
    extra : (N, K), added to the score, or None.
    """

    A: Tensor
    B: Tensor
    row: Side
    column: Side
    extra: Tensor | None = None

    @classmethod
    def of(cls, cost: FactoredCost, epsilon: float, model: Model) -> Linear:
        """The problem with this cost; its potentials are those of the score 2 U V^T log2(e) / epsilon."""
        A, B = cost.balanced_score(epsilon)
        row, column = model.sides(epsilon, cost, A.dtype)
        extra = None if cost.extra is None else cost.extra * (-LOG2E / epsilon)
        return cls(A, B, row, column, extra)

    def settled(self, sums: tuple[Tensor, Tensor], f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Warm potentials f, g, or those that belong to the sums of the last plan where divergences hold marginals."""
        rows, columns = (side.to(f.dtype) for side in sums)
        largest = SETTLED_RATIO if self.row.relaxed and self.column.relaxed else LARGEST_RATIO
        return self.row.settled(rows, f, largest), self.column.settled(columns, g, largest)


class Inner(Protocol):
    """Solves linear problems of a model from warm potentials f (N,), g (K,)."""

    def __call__(self, linear: Linear, f: Tensor, g: Tensor) -> Transported:
        """Its potentials and its plan."""

    def potentials(self, linear: Linear, f: Tensor, g: Tensor) -> SinkhornState:
        """Only its potentials."""


def solved(
    inner: Inner,
    cost: FactoredCost,
    epsilon: float,
    model: Model,
    warm: Start,
    sums: tuple[Tensor, Tensor] | None = None,
) -> tuple[Transported, Start, FactoredCost]:
    """The plan of a cost from warm potentials of any epsilon, the cost with its own potentials, and the centred cost.

    The marginals ``sums`` (N,), (K,) of the last plan, where they may give way, can tell potentials better.
    """
    centred, row, column, f, g = warm.at(cost, epsilon, model)
    linear = Linear.of(centred, epsilon, model)
    found = inner(linear, *((f, g) if sums is None else linear.settled(sums, f, g)))
    f, g = torch._foreach_sub((found[0].f, found[0].g), (row, column))
    return found, Start(cost, f, g, epsilon), centred


class StoredInner:
    """Stores score and plan, 8 bytes for each pair in float32, and reuses both, with the masses in their dtype."""

    def __init__(self, kernel: Kernel, model: Model, options: SinkhornOptions) -> None:
        self.kernel, self.model, self.options = kernel, model, options
        self._score, self._plan, self._masses = torch.empty(0), torch.empty(0), model.masses
        self._scaler: Scaler | None = None
        self._ended = Repeated(self._end)  # of no memory yet

    def __call__(self, linear: Linear, f: Tensor, g: Tensor) -> Transported:
        state = self.potentials(linear, f, g)
        if self.model.marginals.balanced:
            overlap = self._ended(None, *self._masses).seen
        else:  # which tell the host how much they miss
            _, overlap = self._end(None, *self._masses)
        return state, DenseCoupling(self._plan), overlap

    def _end(self, _: object, p: Tensor, q: Tensor) -> tuple[State, Tensor]:
        """<score, T> of the plan T, which is rounded."""
        rounded(self._plan, p, q, self.model.marginals)
        return (p, q), _overlap(self._score, self._plan)

    def potentials(self, linear: Linear, f: Tensor, g: Tensor) -> SinkhornState:
        """Leaves the plan, not rounded, in the buffer."""
        A, B = linear.A, linear.B
        shape, dtype = (len(A), len(B)), A.dtype
        if self._score.shape != shape or self._score.dtype != dtype or self._score.device != A.device:
            self._score, self._plan, self._scaler = A.new_empty(shape), A.new_empty(shape), None
            self._ended = Repeated(self._end, kernels=("rounded", shape))
            p, q = self.model.masses
            self._masses = p.to(dtype), q.to(dtype)
        score, options, sides = self._score, self.options, (linear.row, linear.column)
        torch.mm(A, B.T, out=score)
        if linear.extra is not None:
            score += linear.extra
        known = self._scaler
        if known is None or known.row is not linear.row or known.column is not linear.column:
            self._scaler = Scaler(self.kernel.on(score), *sides, self._plan)
        assert self._scaler is not None
        return scaling(self._scaler, f, g, options=options, max_iter=options.exact_max_iter)


class StreamedInner:
    """Stores neither. Points must be in an order in which neighbours are near; from 4096 x 4096 on, tiles without mass
    are left out, those outside of which all mass lies but the share ``omitted``."""

    def __init__(
        self,
        kernel: StreamedKernel,
        tiled: TileReader,
        model: Model,
        options: SinkhornOptions,
        omitted: float,
        ranks: Ranks = ALONE,
    ) -> None:
        self.kernel, self.tiled, self.model = kernel, tiled, model
        self.options, self.omitted, self.ranks = options, omitted, ranks

    def __call__(self, linear: Linear, f: Tensor, g: Tensor) -> Transported:
        A, B = linear.A, linear.B
        state = self.potentials(linear, f, g)
        tiles = self.tiles(A, B, state.f, state.g)
        (p, q), left, right = self.model.masses, self.ranks.own(A, UNIT), self.ranks.own(B, UNIT)
        f, g = state.f.double(), state.g.double()
        rounded = round_tiles(self.tiled, left, right, tiles, f, g, p, q, self.model.marginals, left, right)
        overlap = rounded.core.trace() + (rounded.x @ A.double()) @ (rounded.y @ B.double())
        return state, rounded.coupling(A, B), overlap.to(A.dtype)

    def potentials(self, linear: Linear, f: Tensor, g: Tensor) -> SinkhornState:
        assert linear.extra is None, "what streams has factors"
        score, most = self.score(linear.A, linear.B, f, g), self.options.exact_max_iter
        return sinkhorn(score, linear.row, linear.column, f, g, options=self.options, max_iter=most)

    def score(self, A: Tensor, B: Tensor, f: Tensor, g: Tensor) -> Softmins:
        """The score on the tiles that matter under these potentials; the whole, one product a pass, if all do."""
        tiles = self.tiles(A, B, f, g)
        return self.kernel.on(A, B) if tiles.nothing_skipped() else self.tiled.on(A, B, tiles)

    def tiles(self, A: Tensor, B: Tensor, f: Tensor, g: Tensor) -> Tiles:
        """The tiles that matter under these potentials."""
        if self.omitted == 0 or len(A) * len(B) <= SKIPPED_FROM**2:
            return all_tiles(len(A), len(B), TILE, A.device)
        A, B = self.ranks.own(A, UNIT), self.ranks.own(B, UNIT)
        return choose_tiles(A, B, f, g, *self.model.masses, TILE, self.omitted, self.ranks)[0]


def _overlap(score: Tensor, plan: Tensor) -> Tensor:
    """<score, plan>, in blocks that stay in the cache."""
    total, (n, k) = score.new_zeros(()), score.shape
    for where in blocks(n, block_rows(n, k, score.device)):
        total += inner(score[where], plan[where])
    return total
