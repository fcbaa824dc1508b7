"""Out-of-sample extension: new points mapped by the linearised cost and the potentials of a solve.

The score of a new source point x against the known targets is S(x, j) = A(x) . B_j, and its row of the plan is
proportional to 2^(S(x, j) + g_j): the half-step that gave the known points their rows. The factor of a cost is an
affine function of a point's distances to a few known points,

    A_i = (D(i, i_1), ..., D(i, i_L)) M + c,

exactly so for factored distances and their landmarks, and M and c are found from the known points by least squares.
Where score and plan are stored, S(x, .) = 2 D_X(x, .) T D_Y log2(e) / epsilon is computed instead. Targets likewise.
A plan without entropy is mapped by the potentials of its soft plan, which are those of its own score, see
`torchgw.solvers.soft_plan`.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.kernels import LOG2E
from torchgw.kernels.softmin_dense.reference import softmin as stored_softmin
from torchgw.kernels.softmin_stream.reference import softmin
from torchgw.results.matches import MatchMixin
from torchgw.runtime.keywords import hide_constructor
from torchgw.runtime.surroundings import isolate_methods
from torchgw.spaces.out_of_sample import KnownPoints
from torchgw.types import Array

Names: TypeAlias = "tuple[NDArray[np.object_] | None, NDArray[np.object_] | None]"
FITTED_POINTS = 20_000  # known points of the regression
MISFIT_BITS = 0.5  # root mean square error of the score, in bits, from which on the regression is refused
RESOLVED = 1e-10  # relative singular value below which a direction is left out


@hide_constructor
@isolate_methods
class Unseen(MatchMixin):
    """The plan between m new points of one side and all known points of the other; each new point has mass 1/m.

    New source points: shape (m, K), for ``argmax()``, ``top_k``, ``pull``, ``row``. New target points: shape (N, m),
    for ``argmax()`` and ``push``. A point far from all known ones is mapped all the same, like the known ones nearest
    to it: look at its distances where that may happen. Known points have the names that the result has, new ones those
    of the index of a data frame; `table` shows them.
    """

    def __init__(
        self, coupling: BlockCoupling, side: int, numpy_input: bool, max_memory: int, names: Names = (None, None)
    ) -> None:
        self.coupling, self.numpy_input, self._max_memory = coupling, numpy_input, max_memory
        self._axis = 1 - side
        self.names_x, self.names_y = names
        self.epsilon = math.nan

    @property
    def max_memory(self) -> int:
        return self._max_memory

    def argmax(self, axis: int | None = None) -> Array | Tensor:
        """For each new point the known point that it sends most mass to, (m,).

        Parameters
        ----------
        axis : as for a result, to go along the other side; None is the side of the new points.
        """
        return super().argmax(self._axis if axis is None else axis)

    def __repr__(self) -> str:
        return f"Unseen({self.shape[0]} x {self.shape[1]})"


def extend_coupling(
    coupling: BlockCoupling,
    at: BlockCoupling,
    known: tuple[KnownPoints, KnownPoints],
    points: Any,
    side: int,
    epsilon: float,
) -> BlockCoupling:
    """The coupling of new points of ``side`` (0: source, 1: target) with the known ones of the other.

    Parameters
    ----------
    coupling : the plan, with potentials.
    at : the plan T of the score, which is another one where ``coupling`` is a soft plan.

    Raises
    ------
    ValueError
        For points of another kind than the space's, for a plan of low rank, and where the cost is no affine function of
        the distances to a few points, to half a bit.
    """
    if coupling.potentials is None:
        few = isinstance(coupling, SparseCoupling)
        instead = "with an epsilon > 0" if few else "'streaming' where distances have no directions"
        raise ValueError(
            f"unseen points are mapped by potentials, and this {type(coupling).__name__} has none: align with "
            f"GWOptions(strategy='dense'), or {instead}"
        )
    potential = coupling.potentials[1 - side]
    if isinstance(coupling, DenseCoupling):
        score = _score(at, known, points, side, epsilon)
        new = -stored_softmin(score, potential, 1) - torch.tensor(len(score), dtype=score.dtype).log2()
        plan = score.add_(potential).add_(new[:, None]).exp2_()
        return DenseCoupling(plan if side == 0 else plan.T.contiguous())
    assert isinstance(coupling, PotentialCoupling | TiledCoupling)
    own, other = (coupling.A, coupling.B) if side == 0 else (coupling.B, coupling.A)
    reach = torch.linalg.vector_norm(other.double(), dim=1).square().mean().sqrt()
    factor = _factor(own.double(), known[side], points, float(reach))
    other = other.to(factor)
    new = -softmin(factor, other, potential, 1) - torch.tensor(len(factor), dtype=factor.dtype).log2()
    if side == 0:
        return PotentialCoupling(factor, other, new, potential)
    return PotentialCoupling(other, factor, potential, new)


def _factor(factor: Tensor, known: KnownPoints, points: Any, reach: float) -> Tensor:
    """The factor (m, r) of new points from that of the known ones (N, r); ``reach`` is the other side's usual norm."""
    index = known.anchors
    new = known.distances(points, index).to(factor)
    sample = known.pick_evenly(FITTED_POINTS)
    features = known.space.rows(index)[:, sample].T.to(factor)
    solved = torch.linalg.lstsq(_affine(features).cpu(), factor[sample].cpu(), rcond=RESOLVED, driver="gelsd").solution
    weights: Tensor = solved.to(factor)
    misfit = (_affine(features) @ weights - factor[sample]).square().sum(1).mean().sqrt()
    bits = float(misfit) * reach
    if not bits <= MISFIT_BITS:
        raise ValueError(
            f"the cost of this solve is no function of the distances to {len(index)} points (off by {bits:.2g} bits), "
            f"so unseen points cannot be mapped; use distances='landmark'"
        )
    return _affine(new) @ weights


def _affine(features: Tensor) -> Tensor:
    return torch.cat((features, torch.ones_like(features[:, :1])), 1)


def _score(
    coupling: BlockCoupling, known: tuple[KnownPoints, KnownPoints], points: Any, side: int, epsilon: float
) -> Tensor:
    """2 D(x, .) T D log2(e) / epsilon of new points (m, ...) with the known ones of the other side."""
    own, other = known[side], known[1 - side]
    device = coupling.device
    distances = own.distances(points, torch.arange(own.space.size)).to(device, coupling.dtype)
    moved = coupling.apply(distances.T.contiguous(), side)  # T^T D for new source points, T D for new target points
    every = torch.arange(other.space.size)
    rows = [other.space.rows(part).to(moved) @ moved for part in torch.split(every, 512)]
    return torch.cat(rows).T.contiguous() * (2 * LOG2E / epsilon / float(coupling.marginal(1).sum()))
