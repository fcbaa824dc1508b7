"""Where the descent on couplings of low rank begins: factors (Q, R, g) that already tell the components apart.

Equal components are a saddle point, and so, nearly, are components of independent noise, whose differences average out
over many points. So the start follows the spaces: it groups the cells of a coarse plan by their mutual distances and
sends each group where the plan sends it, blurred, so that mirror descent, which only rescales, can change it.

Source: H.-S. Park, C.-H. Jun, "A simple and fast algorithm for K-medoids clustering", 2009.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchgw.kernels.sampling import draw
from torchgw.kernels.sums import add_by_label
from torchgw.options import LowRankOptions
from torchgw.sinkhorn.lowrank import LowRankFactors
from torchgw.types import DistanceProvider

BLUR = 0.1
NOISE, LEAST = 0.05, 1e-3
MEDOID_ROUNDS = 20


def perturbed(start: LowRankFactors, p: Tensor, q: Tensor, generator: torch.Generator) -> LowRankFactors:
    """Factors near the given ones with positive entries and no two equal components; p, q positive."""
    share = (start.g / start.g.sum()).clamp_min(LEAST / len(start.g))
    sides = []
    for side, mass in ((start.Q, p), (start.R, q)):
        noise = torch.randn(side.shape, generator=generator, dtype=side.dtype, device=side.device)
        sides.append((side + LEAST * mass[:, None] * share) * (NOISE * noise).exp())
    return LowRankFactors(sides[0], sides[1], share)


def warm_start(
    source: DistanceProvider,
    cells: tuple[Tensor, Tensor],
    plan: Tensor,
    p: Tensor,
    q: Tensor,
    options: LowRankOptions,
    generator: torch.Generator,
) -> LowRankFactors:
    """The components that a plan between cells of the two spaces suggests.

    The source's cells are grouped around medoids, one group for each component, and component c takes mass from group c
    to where the plan sends it. Where the rank exceeds the number of cells, the heaviest cells have several components.

    Parameters
    ----------
    source : the space of the source points, with factors.
    cells : cell of each source point (N,) out of n_X, and of each target point (K,) out of n_Y.
    plan : mass between cells (n_X, n_Y), float64, not negative, not zero.
    p, q : masses (N,), (K,) in float64, of sum 1.

    Notes
    -----
    O(n_X^2 (r + r_X) + n_X n_Y r + (N + K) r + N r_X) time.
    """
    rows, columns = cells
    plan = plan.to(p) / plan.sum().to(p)
    group = group_cells(_mean_distances(source, rows, p, len(plan)), plan.sum(1), options.rank, generator)
    to_group, from_plan = group, plan.T @ group
    g = plan.sum(1) @ group
    # A cell that the plan does not reach says nothing.
    reached = from_plan.sum(1, keepdim=True)
    from_plan = torch.where(reached > 0, from_plan / reached.clamp_min(torch.finfo(p.dtype).tiny), g)
    Q, R = (
        mass[:, None] * ((1 - BLUR) * side[label] + BLUR * g)
        for mass, side, label in ((p, to_group, rows), (q, from_plan, columns))
    )
    return LowRankFactors(Q, R, g)


def group_cells(distances: Tensor, mass: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """Shares (n, rank) of each cell in ``rank`` groups of cells that lie close together; rows sum to one.

    k-medoids of the squared distances (n, n), weighted by ``mass`` (n,), from k-means++ seeds.
    """
    squares = distances.square().fill_diagonal_(0.0)
    medoids, nearest = draw(mass, 1, generator), torch.full_like(mass, torch.inf)
    for _ in range(min(rank, int((mass > 0).sum())) - 1):
        nearest = torch.minimum(nearest, squares[medoids[-1]])
        nearest[medoids[-1]] = 0.0
        weight = mass * nearest
        unused = mass.index_fill(0, medoids, 0.0)
        medoids = torch.cat((medoids, draw(weight if bool(weight.any()) else unused, 1, generator)))
    label = _nearest(squares, medoids)
    for _ in range(MEDOID_ROUNDS):
        members = torch.nn.functional.one_hot(label, len(medoids)).to(mass) * mass[:, None]
        inside = torch.where(members.T > 0, (squares @ members).T, torch.inf)
        medoids = torch.where(inside.amin(1).isfinite(), inside.argmin(1), medoids)
        last, label = label, _nearest(squares, medoids)
        if torch.equal(last, label):
            break
    shares = torch.nn.functional.one_hot(label, len(medoids)).to(mass)
    parts = _parts(mass @ shares, rank)
    return (shares / parts).repeat_interleave(parts, dim=1)


def _nearest(squares: Tensor, medoids: Tensor) -> Tensor:
    """Position of the nearest medoid of each cell; a medoid's own is itself."""
    label = squares[medoids].argmin(0)
    label[medoids] = torch.arange(len(medoids), device=medoids.device)
    return label


def _parts(mass: Tensor, rank: int) -> Tensor:
    """How many components each group gets, ``rank`` in all: one, and the heaviest more."""
    parts = torch.ones_like(mass, dtype=torch.int64)
    for _ in range(rank - len(mass)):
        parts[(mass / parts).argmax()] += 1
    return parts


def _mean_distances(space: DistanceProvider, label: Tensor, mass: Tensor, count: int) -> Tensor:
    """Mean distances (n, n) between the points of cells, from the factors of their space."""
    found = space.to(mass.device, mass.dtype).factors()
    if found is None:
        raise ValueError(f"source must have factored distances for a warm start, {type(space).__name__} has none")
    F, signs = found
    total = add_by_label(mass.new_zeros(count), label, mass)
    mean = add_by_label(mass.new_zeros(count, F.shape[1]), label, F * mass[:, None])
    mean = mean / total.clamp_min(torch.finfo(mass.dtype).tiny)[:, None]
    return ((mean * signs) @ mean.T).clamp_min(0.0)
