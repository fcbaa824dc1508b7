"""Options as frozen dataclasses: validated when made, varied with ``dataclasses.replace``, passed on whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from torchgw import validate
from torchgw.losses import LOSSES, SeparableLoss
from torchgw.persist.codec import storable
from torchgw.runtime.keywords import Worded

GRADIENTS = ("auto", "exact", "sampled")
STRATEGIES = ("auto", "dense", "streaming", "low-rank", "sparse")


def _store_values(options: object, **values: object) -> None:
    """Store validated values, so that NumPy numbers become Python ones."""
    for name, value in values.items():
        object.__setattr__(options, name, value)


def _check_scale(value: object) -> str | float | tuple[float, float] | None:
    """A scale of distances, or one for each space."""
    if isinstance(value, str) and value != "common":
        raise ValueError(f"scale must be 'common', a number, a pair of numbers, or None, got {value!r}")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, tuple | list) and len(value) == 2:
        return validate.real("scale[0]", value[0], above=0.0), validate.real("scale[1]", value[1], above=0.0)
    return validate.real("scale", value, above=0.0)


@dataclass(frozen=True, kw_only=True)
class SpaceOptions(Worded):
    """How distances come from points or graphs.

    Parameters
    ----------
    k : neighbours of each point in the k-nearest-neighbour graph; None chooses, and leaves short cuts out.
    n_landmarks : landmarks of the factored geodesic distances (all points when there are fewer).
    cache_rows : rows of geodesic distances that the on-demand provider keeps.
    scale : what raw distances (of `EuclideanDistances` with squares, the squares) are divided by. None: each space by
        its own largest known distance. "common": both by the larger of the two, so that sizes count, as for a part
        against a whole. A positive number: both by it; a pair: one each, leaving each space a largest distance within
        [1e-9, 1e9], which float32 carries with its powers. ``epsilon`` is in units of squared scaled distances, so with
        distances well above 1 it is relatively smaller, below 1 larger.
    weight : the attribute of edges of networkx graphs that is their entry in an adjacency. "weight" counts 1 where an
        edge has none, as networkx does; other attributes must be there. None counts each edge 1.
    """

    k: int | None = None
    n_landmarks: int = 100
    cache_rows: int = 2000
    scale: str | float | tuple[float, float] | None = None
    weight: str | None = "weight"

    def __post_init__(self) -> None:
        if self.weight is not None:
            validate.instance("weight", self.weight, str, ", the name of an attribute of edges, or None")
        if self.k is not None:
            _store_values(self, k=validate.integer("k", self.k, least=1))
        _store_values(self, n_landmarks=validate.integer("n_landmarks", self.n_landmarks, least=2))
        _store_values(self, cache_rows=validate.integer("cache_rows", self.cache_rows, least=1))
        _store_values(self, scale=_check_scale(self.scale))


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Worded):
    """How anchor pairs are drawn from the plan.

    Parameters
    ----------
    n_anchors : M, pairs behind each linearised cost; noise falls as 1/sqrt(M), work grows as M.
    step : probability that a pair is drawn afresh at an iteration; 1 forgets the last plan at once.
    n_control : landmarks whose factored distances serve as control variates; 0 for none. With them 80 anchors have less
        error than 1600 without.
    cost_ema : weight in (0, 1] of the newest sampled cost in an exponential moving average over iterations; 0 is no
        average. Smaller weights are smoother and slower. The average goes back 16 iterations at the most, whose weights
        are scaled to sum to one.
    """

    n_anchors: int = 80
    step: float = 0.5
    n_control: int = 60
    cost_ema: float = 0.0

    def __post_init__(self) -> None:
        _store_values(self, n_anchors=validate.integer("n_anchors", self.n_anchors, least=1))
        _store_values(self, step=validate.real("step", self.step, above=0.0, most=1.0))
        _store_values(self, n_control=validate.integer("n_control", self.n_control, least=0))
        _store_values(self, cost_ema=validate.real("cost_ema", self.cost_ema, least=0.0, most=1.0))
        if self.n_control == 1:
            raise ValueError("n_control must be 0 or >= 2, got 1")

    @property
    def ema_window(self) -> int:
        """Iterations whose anchors are kept: all but a twentieth of the average's weight, up to 16."""
        if self.cost_ema in (0.0, 1.0):
            return 1
        return min(math.ceil(math.log(0.05) / math.log1p(-self.cost_ema)), 16)


@dataclass(frozen=True, kw_only=True)
class SinkhornOptions(Worded):
    """The inner solver.

    Parameters
    ----------
    max_iter : most iterations within one outer iteration of the sampled loop; potentials are carried to the next.
    exact_max_iter : the same with the exact gradient, whose every problem is worth solving.
    final_max_iter : most iterations of the last solve, whose plan is returned.
    tol : L1 marginal residual at which the last solve stops, and those of the exact loop; the sampled loop's own solves
        stop at ten times this. Lower where a divergence of weight rho makes much of little: sqrt(0.1 epsilon / rho).
    check_every : iterations between two checks of the residual (each waits for the device).
    relaxation : over-relaxation of the half-steps where a problem is solved to its end, in [1, 2); 1 means none.
    """

    max_iter: int = 5
    exact_max_iter: int = 100
    final_max_iter: int = 2000
    tol: float = 1e-4
    check_every: int = 10
    relaxation: float = 1.8

    def __post_init__(self) -> None:
        _store_values(self, max_iter=validate.integer("max_iter", self.max_iter, least=1))
        _store_values(self, exact_max_iter=validate.integer("exact_max_iter", self.exact_max_iter, least=2))
        _store_values(self, final_max_iter=validate.integer("final_max_iter", self.final_max_iter, least=1))
        _store_values(self, tol=validate.real("tol", self.tol, above=0.0))
        _store_values(self, check_every=validate.integer("check_every", self.check_every, least=1))
        _store_values(self, relaxation=validate.real("relaxation", self.relaxation, least=1.0, most=1.99))


@dataclass(frozen=True, kw_only=True)
class AnnealingOptions(Worded):
    """Epsilon falls geometrically from ``factor`` times its target over the first ``n_iter`` outer iterations.

    Only where the loop begins at the product plan (``coarse=None``): a coarse start is annealed before.

    Parameters
    ----------
    factor : start over target, in [1, 10]; 1 means no annealing. A hotter start blurs the orientation away.
    n_iter : outer iterations until the target is reached.
    """

    factor: float = 10.0
    n_iter: int = 20

    def __post_init__(self) -> None:
        _store_values(self, factor=validate.real("factor", self.factor, least=1.0, most=10.0))
        _store_values(self, n_iter=validate.integer("n_iter", self.n_iter, least=0))


@dataclass(frozen=True, kw_only=True)
class StoppingOptions(Worded):
    """When the outer loop ends. With the exact gradient only ``max_iter`` and ``plan_tol`` matter.

    Parameters
    ----------
    max_iter : most outer iterations, of each resolution where a solve streams.
    min_iter : iterations before which nothing stops the sampled loop.
    check_every : iterations between two checks.
    ema_weight : weight of the newest cost in the exponential moving average.
    improvement : relative fall of the average that counts as progress.
    patience : checks without progress that end the loop; ``max(min_iter // 2, 20)`` when None.
    plan_tol : L1 change of the plan per iteration, relative to its mass, under which it counts as settled; with the
        exact gradient, relative change of the objective.
    """

    max_iter: int = 300
    min_iter: int = 40
    check_every: int = 1
    ema_weight: float = 0.2
    improvement: float = 0.005
    patience: int | None = None
    plan_tol: float = 1e-3

    def __post_init__(self) -> None:
        _store_values(self, max_iter=validate.integer("max_iter", self.max_iter, least=1))
        _store_values(self, min_iter=validate.integer("min_iter", self.min_iter, least=0))
        _store_values(self, check_every=validate.integer("check_every", self.check_every, least=1))
        _store_values(self, ema_weight=validate.real("ema_weight", self.ema_weight, above=0.0, most=1.0))
        _store_values(self, improvement=validate.real("improvement", self.improvement, least=0.0))
        if self.patience is not None:
            _store_values(self, patience=validate.integer("patience", self.patience, least=1))
        _store_values(self, plan_tol=validate.real("plan_tol", self.plan_tol, least=0.0))

    @property
    def checks_without_progress(self) -> int:
        """The patience in force."""
        return max(self.min_iter // 2, 20) if self.patience is None else self.patience


@dataclass(frozen=True, kw_only=True)
class CoarseOptions(Worded):
    """The landmark problem that finds the basin.

    Parameters
    ----------
    n_landmarks : landmarks of each space and kind (farthest-point, k-means++, random; along curves the first alone,
        where one of its basins stands out).
    n_starts : starts for each kind, solved as one batch, the product plan included (2 at least); several times as many
        for spaces of fewer points than landmarks; beside each eight a random plan where a marginal may give way.
        Without entropy and up to 40 000 pairs of points all of them are landmarks, of one kind, and there are half as
        many starts, or more where these take as long; beyond, up to 16 million pairs, 128 cells of each space take
        their place where they keep two thirds of the variance of distances.
    n_basins : most basins carried to the full problem and compared there.
    """

    n_landmarks: int = 60
    n_starts: int = 48
    n_basins: int = 6

    def __post_init__(self) -> None:
        _store_values(self, n_landmarks=validate.integer("n_landmarks", self.n_landmarks, least=2))
        _store_values(self, n_starts=validate.integer("n_starts", self.n_starts, least=1))
        _store_values(self, n_basins=validate.integer("n_basins", self.n_basins, least=1))


@dataclass(frozen=True, kw_only=True)
class LadderOptions(Worded):
    """How large problems are climbed in resolution; see `torchgw.strategies.multilevel`.

    Parameters
    ----------
    marginal_tol : L1 marginal error, at full size and before rounding, that ends it; lower as ``SinkhornOptions.tol``.
    n_cells : cells of either space on the first rung, where the search takes place; 16 at least.
    omitted_mass : share of the mass by which the returned plan may differ from that of its potentials on all pairs of
        points, by a strict bound, because tiles without mass are not evaluated and small ones are taken as short sums
        of products; 0 evaluates all pairs. A twentieth of ``marginal_tol`` when None.
    """

    marginal_tol: float = 5e-3
    n_cells: int = 1024
    omitted_mass: float | None = None

    def __post_init__(self) -> None:
        _store_values(self, marginal_tol=validate.real("marginal_tol", self.marginal_tol, above=0.0, most=1.0))
        _store_values(self, n_cells=validate.integer("n_cells", self.n_cells, least=16))
        if self.omitted_mass is not None:
            _store_values(self, omitted_mass=validate.real("omitted_mass", self.omitted_mass, least=0.0, most=0.1))

    @property
    def omitted(self) -> float:
        """The share in force."""
        return self.marginal_tol / 20 if self.omitted_mass is None else self.omitted_mass


@dataclass(frozen=True, kw_only=True)
class LowRankOptions(Worded):
    """Couplings of low rank, T = Q diag(1/g) R^T.

    Parameters
    ----------
    rank : components of the plan, at most the number of points with mass in either space.
    max_iter : most mirror-descent iterations.
    tol : change per iteration at which the factors count as settled: their symmetric Kullback-Leibler divergence over
        the squared largest exponent of the step. 1e-8 takes a third of the iterations and leaves a few per cent.
    step : largest step size times the squared sup norm of the gradient, in units of the largest squared scaled
        distance; the first steps are smaller.
    floor : least entry of g, below 1 / rank. Components that carry no more are unused.
    """

    rank: int = 20
    max_iter: int = 1000
    tol: float = 1e-9
    step: float = 30.0
    floor: float = 1e-10

    def __post_init__(self) -> None:
        _store_values(self, rank=validate.integer("rank", self.rank, least=1))
        _store_values(self, max_iter=validate.integer("max_iter", self.max_iter, least=1))
        _store_values(self, tol=validate.real("tol", self.tol, least=0.0))
        _store_values(self, step=validate.real("step", self.step, above=0.0))
        _store_values(self, floor=validate.real("floor", self.floor, above=0.0))
        if self.floor * self.rank >= 1:
            raise ValueError(f"floor must be < 1 / rank = {1 / self.rank:g}, got {self.floor!r}")


@dataclass(frozen=True, kw_only=True)
class GWOptions(Worded):
    """All options of `gw_align`.

    Parameters
    ----------
    spaces, sampling, sinkhorn, annealing, stopping : one group each, see there.
    coarse : the landmark problem that finds where to start; None starts at the product plan.
    ladder : how large problems are climbed in resolution: where they stream, or begin between cells.
    low_rank : couplings of low rank (``strategy`` "low-rank").
    strategy : "dense" stores plan and score; "streaming" stores neither and climbs a ladder of resolutions; "low-rank"
        looks for a plan of small rank; "sparse" for one of few entries, between two sparse adjacencies; "auto" takes
        what is fastest within the memory, see `torchgw.estimate`.
    gradient : "exact", "sampled", or "auto": exact from factors, or from matrices within ``max_memory``, led by factors
        where products take long; sampled, with a warning, where distances fit in neither way, cost thousands of graph
        searches, or have no factors and a streaming strategy was named.
    loss : what a pair of distances costs: "square", "kl", or a `SeparableLoss`. Others than the square need the dense
        strategy and the exact gradient.
    mixed_precision : iterate in float32 and return float64; False iterates in float64 as well.
    max_memory : bytes that score and plan of a dense solve may take together, and each distance matrix.
    """

    spaces: SpaceOptions = field(default_factory=SpaceOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    sinkhorn: SinkhornOptions = field(default_factory=SinkhornOptions)
    annealing: AnnealingOptions = field(default_factory=AnnealingOptions)
    stopping: StoppingOptions = field(default_factory=StoppingOptions)
    coarse: CoarseOptions | None = field(default_factory=CoarseOptions)
    ladder: LadderOptions = field(default_factory=LadderOptions)
    low_rank: LowRankOptions = field(default_factory=LowRankOptions)
    strategy: str = "auto"
    gradient: str = "auto"
    loss: str | SeparableLoss = "square"
    mixed_precision: bool = True
    max_memory: int = 4 * 2**30

    def __post_init__(self) -> None:
        validate.instance("spaces", self.spaces, SpaceOptions)
        validate.instance("sampling", self.sampling, SamplingOptions)
        validate.instance("sinkhorn", self.sinkhorn, SinkhornOptions)
        validate.instance("annealing", self.annealing, AnnealingOptions)
        validate.instance("stopping", self.stopping, StoppingOptions)
        if self.coarse is not None:
            validate.instance("coarse", self.coarse, CoarseOptions, " or None")
        validate.instance("ladder", self.ladder, LadderOptions)
        validate.instance("low_rank", self.low_rank, LowRankOptions)
        _store_values(self, strategy=validate.choice("strategy", self.strategy, STRATEGIES))
        _store_values(self, gradient=validate.choice("gradient", self.gradient, GRADIENTS))
        if not isinstance(self.loss, SeparableLoss):
            _store_values(self, loss=validate.choice("loss", self.loss, tuple(LOSSES)))
        _store_values(self, mixed_precision=validate.flag("mixed_precision", self.mixed_precision))
        _store_values(self, max_memory=validate.integer("max_memory", self.max_memory, least=1))


GROUPS: dict[str, Any] = {  # of options, by their names in `GWOptions`
    member.name: member.default_factory for member in fields(GWOptions) if isinstance(member.default_factory, type)
}
for kind in (GWOptions, *GROUPS.values()):
    storable(kind)
