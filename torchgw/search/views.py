"""Views of a space: what it looks like as a graph, from which first plans come where landmarks mean nothing.

A view is a name and a function from both spaces to a plan between them. Some match points by features of theirs, some
by other distances of the same graph, whose own problem is easier: proximal steps on those end in the plan. All plans go
on by the matrices that were asked for, so that a view may be rough.

Edges are the entries off the diagonal that differ from what most others are, and weigh as much as they do; so a graph
and its complement look alike. Where no value is the one of most entries, an entry is its own weight.

What speaks of neighbours speaks of both directions of a directed graph: heat flows by its magnetic Laplacian, in which
an edge turns the phase by a quarter one way and back the other, and statistics are also of what edges lead to and of
what they come from.

Sources: N. Shervashidze et al., "Weisfeiler-Lehman graph kernels", 2011 (statistics of neighbours); S. Chowdhury, T.
Needham, "Generalized spectral clustering via Gromov-Wasserstein learning", 2021 (heat kernels); J. Sun, M. Ovsjanikov,
L. Guibas, "A concise and provably informative multi-scale signature based on heat diffusion", 2009; Z. Fan, C. Mao, Y.
Wu, J. Xu, "Spectral graph matching and regularized quadratic relaxations", 2020 (spectra, without signs to choose); M.
Fanuel, C. Alaiz, A. Fernandez, J. Suykens, "Magnetic eigenmaps for the visualization of directed networks", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import torch
from torch import Tensor

from torchgw.kernels import LOG2E
from torchgw.kernels.logsumexp import flush_small
from torchgw.objective.bounds import quantiles
from torchgw.objective.exact import PairLoss
from torchgw.persist.watch import Watch
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.transfer import to_host
from torchgw.search.initial_guesses import N_QUANTILES, SHARPNESS, relative_cost
from torchgw.search.subtrees import compare_subtrees
from torchgw.sinkhorn.scaling import solve_plans
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.solvers.entropic import epsilon_levels, proximal_steps
from torchgw.spaces.shortest_paths import compute_relative_hops
from torchgw.types import DistanceProvider

ROUNDS = 4  # of means over neighbours
ITERATIONS = 20
FEW_PAIRS = 90_000  # up to which every view is taken
TIMES = (1.0, 3.0, 10.0)
WIDTHS = (0.1, 0.3, 1.0)
DEPTHS = (6, 20)
EDGES, MOST_MISSING = 2.0, 20.0  # more in common, for e times the likelihood, and the largest exponent


@as_cuda_graph()
def count_entries(D: Tensor) -> tuple[Tensor, Tensor]:
    """The median entry () of a matrix; how many entries, and how many on its diagonal, are that and are zero (4,)."""
    middle, diagonal = D.median(), D.diagonal()
    return middle, torch.stack([(side == value).sum() for value in (middle, D.new_zeros(())) for side in (D, diagonal)])


@dataclass(frozen=True)
class SpaceGraph:
    """A space as a graph.

    D : its entries (N, N), scaled, float32.
    mass : (N,), of sum one.
    has_directions : whether views speak of the directions of edges, as they do where either graph of a pair has any.
    entry_counts : what `count_entries` says of D, on the host; None where nobody has looked.
    """

    D: Tensor
    mass: Tensor
    has_directions: bool = False
    entry_counts: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, space: DistanceProvider, mass: Tensor) -> SpaceGraph:
        """All rows of a space, and its masses (N,)."""
        D = space.rows(torch.arange(space.size, device=mass.device))
        return cls(D.to(mass.dtype), mass / mass.sum())

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether entries are the same in both directions."""
        return torch.equal(self.D, self.D.T)

    @cached_property
    def _common_entry(self) -> tuple[float, int, int]:
        """The value that most entries have, zero where none has; how many have it, and how many on the diagonal."""
        value, counts = self.entry_counts or to_host(*count_entries(self.D))
        many, at, zeros, zeros_at = counts.tolist()
        return (float(value), many, at) if 2 * many > self.D.numel() else (0.0, zeros, zeros_at)

    @property
    def common_value(self) -> float:
        """The value that most entries have, zero where none has."""
        return self._common_entry[0]

    @cached_property
    def is_sparse(self) -> bool:
        """Whether it is a graph of some pairs: at most half of the entries off the diagonal differ from the others."""
        _, many, at = self._common_entry
        edges = (self.D.numel() - many) - (len(self.D) - at)
        return 0 < 2 * edges <= len(self.D) * (len(self.D) - 1)

    @property
    def is_similarity(self) -> bool:
        """Whether pairs without an edge are at zero, which is no distance."""
        return self.common_value == 0.0

    @cached_property
    def contrast(self) -> Tensor:
        """The entries (N, N) beside the common value, without a diagonal where all of it is alike: between equal
        masses a sharp plan has the same value under these, and a blurred one is not drawn to the diagonal."""
        W = self.D - self.common_value
        return W.fill_diagonal_(0.0) if bool((self.D.diagonal() == self.D[0, 0]).all()) else W

    @cached_property
    def directed_weights(self) -> Tensor:
        """Weights (N, N) of the edges from i to j, without a diagonal; zero where there is no edge."""
        return (self.D - self.common_value).abs().fill_diagonal_(0.0)

    @cached_property
    def weights(self) -> Tensor:
        """Of the edges in either direction (N, N), the largest 1, without a diagonal; zero where there is no edge."""
        W = self.directed_weights + self.directed_weights.T
        return W / W.max().clamp_min(torch.finfo(W.dtype).tiny)

    @cached_property
    def degrees(self) -> Tensor:
        """Sums of the weights (N,)."""
        return self.weights.sum(1)

    @cached_property
    def hops(self) -> Tensor:
        """Hops (N, N) over the largest, and 1 between all points of a complete graph."""
        found = compute_relative_hops(self.weights)
        return (self.weights > 0).to(self.weights) if found is None else found

    @cached_property
    def diffusion(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (N,) and eigenvectors (N, N) of the normalised Laplacian, the magnetic one where edges have
        directions."""
        root = torch.where(self.degrees > 0, self.degrees, torch.inf).rsqrt()
        S = root[:, None] * self.weights * root
        if self.has_directions:
            both = (self.directed_weights + self.directed_weights.T).clamp_min(torch.finfo(S.dtype).tiny)
            S = torch.polar(S, math.pi / 2 * (self.directed_weights - self.directed_weights.T) / both)
        L = -S
        L.diagonal().add_((self.degrees > 0).to(L))
        values, vectors = torch.linalg.eigh(L)
        return values, vectors

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (N,) over their root mean square, and eigenvectors (N, N), of the weights."""
        values, vectors = torch.linalg.eigh(self.weights)
        return values / values.square().mean().sqrt().clamp_min(torch.finfo(values.dtype).tiny), vectors

    def diffuse_heat(self, time: float) -> Tensor:
        """What is left and where it went (N, N) of unit heat at each node; where edges have directions the sum of its
        real part, the same both ways, and of its imaginary one, which changes sign."""
        values, vectors = self.diffusion
        found = (vectors * torch.exp(-time * values)) @ vectors.mH
        return found.real + found.imag if self.has_directions else found

    def compute_statistics(self) -> Tensor:
        """Features (N, .): strength, degree, triangles, the entries' sums in both directions and their diagonal, and
        the same of neighbours in the mean, and of theirs; where edges have directions, of those along and against them
        as well."""
        W, D = self.weights, self.D
        own = [self.degrees, (W > 0).to(W).sum(1), ((W @ W) * W).sum(1), D.sum(0), D.sum(1), D.diagonal()]
        found = [torch.stack(own, 1)]
        for M in (W, self.directed_weights, self.directed_weights.T) if self.has_directions else (W,):
            step = M / M.sum(1, keepdim=True).clamp_min(torch.finfo(M.dtype).tiny)
            last = found[0]
            for _ in range(ROUNDS):
                last = step @ last
                found.append(last)
        return torch.cat(found, 1)


View: TypeAlias = Callable[[SpaceGraph, SpaceGraph, Watch], Tensor | None]
"""A plan (N, K) of mass one between two graphs, None where it says nothing of such graphs or takes too long."""


def product_plan(x: SpaceGraph, y: SpaceGraph, watch: Watch) -> Tensor:
    """All matches alike."""
    return x.mass[:, None] * y.mass


def match_by_features(
    x: SpaceGraph, y: SpaceGraph, watch: Watch, features: Callable[[SpaceGraph], Tensor], relative: bool = False
) -> Tensor:
    """Points of near features (., d) matched; ``relative`` ones count by their spread, each for itself."""
    u, v = features(x), features(y)
    if relative:
        both = torch.cat((u, v))
        spread = both.std(0)
        kept = spread > torch.finfo(u.dtype).eps * both.abs().amax(0)
        u, v = u[:, kept] / spread[kept], v[:, kept] / spread[kept]
    return plan_from_cost(relative_cost(u, v, product_plan(x, y, watch)), x.mass, y.mass)


def match_by_matrices(x: SpaceGraph, y: SpaceGraph, watch: Watch, matrix: Callable[[SpaceGraph], Tensor]) -> Tensor:
    """Where proximal steps take the product plan on other distances of the same points."""
    X, Y, p, q = matrix(x), matrix(y), x.mass, y.mass
    loss, product = PairLoss(X.square(), Y.square(), X, Y, not x.has_directions), p[:, None] * q
    first = loss.cost(product, p, q)
    unit = float(first.expectation((first.U * (product @ first.V)).sum(), p, q))
    score = lambda plan, epsilon: loss.cost(plan[0], p, q).centre_factors(epsilon)[0].stored_score(epsilon)  # noqa: E731
    return flush_small(proximal_steps(score, product.log2()[None], p, q, epsilon_levels(unit), watch)[0].exp2_())


def match_by_spectra(x: SpaceGraph, y: SpaceGraph, watch: Watch, width: float) -> Tensor:
    """Points matched by sum_kl <u_k, 1> <v_l, 1> u_k v_l^T / ((a_k - b_l)^2 + width^2) of both spectra (a, u), (b, v),
    in which no sign of an eigenvector matters."""
    (a, U), (b, V) = x.spectrum, y.spectrum
    weights = (U.sum(0)[:, None] * V.sum(0)) / ((a[:, None] - b).square() + width**2)
    likeness = U @ weights @ V.T
    cost = likeness.max() - likeness
    return plan_from_cost(cost / (cost * product_plan(x, y, watch)).sum().clamp_min(1e-30), x.mass, y.mass)


def match_by_subtrees(x: SpaceGraph, y: SpaceGraph, watch: Watch, depth: int) -> Tensor | None:
    """Points matched by what the trees around them have in common."""
    found = compare_subtrees(x.contrast, y.contrast, depth) if x.is_sparse and y.is_sparse else None
    if found is None:
        return None
    missing = ((found.amax(1, keepdim=True) - found) / EDGES).clamp_max(MOST_MISSING)
    return plan_from_cost(missing / SHARPNESS, x.mass, y.mass)


def hop_quantiles(x: SpaceGraph) -> Tensor:
    """The distribution of hops from each point (N, .)."""
    return quantiles(x.hops, x.mass, N_QUANTILES)


def heat_quantiles(x: SpaceGraph, time: float) -> Tensor:
    """The distribution over all points of the heat from each (N, .), and of that to each where these differ."""
    heat = x.diffuse_heat(time)
    ways = (heat, heat.T) if x.has_directions else (heat,)
    return torch.cat([quantiles(way, x.mass, N_QUANTILES) for way in ways], 1)


VIEWS: dict[str, View] = {
    "product plan": product_plan,
    "statistics": partial(match_by_features, features=SpaceGraph.compute_statistics, relative=True),
    "distributions of hops": partial(match_by_features, features=hop_quantiles),
    **{
        f"distributions of heat, time {t:g}": partial(match_by_features, features=partial(heat_quantiles, time=t))
        for t in TIMES
    },
    **{f"spectra, width {width:g}": partial(match_by_spectra, width=width) for width in WIDTHS},
    **{f"subtrees of depth {depth}": partial(match_by_subtrees, depth=depth) for depth in DEPTHS},
    "hops": partial(match_by_matrices, matrix=lambda x: x.hops),
    **{
        f"heat, time {time:g}": partial(match_by_matrices, matrix=partial(SpaceGraph.diffuse_heat, time=time))
        for time in TIMES
    },
}
# For few points: own steps by full matrices, and what differs little from others.
COSTLY = frozenset(
    (
        *(f"heat, time {time:g}" for time in TIMES),
        "hops",
        "spectra, width 0.1",
        "spectra, width 1",
        "distributions of heat, time 10",
    )
)


def plan_from_cost(cost: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """The plan (N, K) of a cost whose mean is one, blurred, and of masses of sum one."""
    row, column = MarginalConstraint(p.log2()), MarginalConstraint(q.log2())
    score = cost * (-SHARPNESS * LOG2E)
    return solve_plans(score, row, column, row.log_mass, column.log_mass, ITERATIONS)[0]
