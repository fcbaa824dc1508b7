"""The result of a solve, made of its request and its solution: coupling, value, certificate, status, history."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling, as_block_coupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.reader import point_indices
from torchgw.couplings.rounding import residuals
from torchgw.diagnostics.evidence import (
    APART,
    Basin,
    Certificate,
    Confidence,
    EpsilonStep,
    IssuedWarning,
    Rung,
    energy_ratio,
    entropy_and_margin,
    is_near_tie,
)
from torchgw.diagnostics.status import History, Status
from torchgw.diagnostics.verdict import Verdict, judge
from torchgw.kernels import LN2
from torchgw.marginals import Marginals
from torchgw.objective.distance_correlation import distance_correlation, sample_matched_distances
from torchgw.objective.gain import ProductPlan, product_moments, product_plan_from_moments
from torchgw.objective.model import Model
from torchgw.options import GWOptions
from torchgw.persist import guards
from torchgw.persist.files import path_of, place_of
from torchgw.request.names import check_names
from torchgw.request.request import Request
from torchgw.results.out_of_sample import Unseen, extend_coupling
from torchgw.results.parts import is_folder_of_parts, is_part, read_parts
from torchgw.results.soft import SoftPlanMixin
from torchgw.results.storage import check_members, read, write
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.keywords import hide_constructor
from torchgw.runtime.ranks import ranks_of
from torchgw.runtime.surroundings import isolate_methods
from torchgw.runtime.transfer import to_device, to_host
from torchgw.solvers.solution import CertifiedSolution
from torchgw.spaces.graph import GraphReport
from torchgw.spaces.landmark import move_to_storage
from torchgw.spaces.out_of_sample import KnownPoints
from torchgw.spaces.prepare import GraphReports, InputSpace, ProviderPair
from torchgw.spaces.resolution import sample_differences
from torchgw.spaces.scale import compute_squared_diameter
from torchgw.spaces.subspace import name_of
from torchgw.types import Array, Coupling, DifferentiableSolution

N_SUREST = 5  # matches that the table of a result shows
NOT_SAVED = ("known", "model", "sharp", "differentiated")


class SolveReport(NamedTuple):
    """What is told of a solve beside its solution, all of which is read together.

    product : what is known of the product plan.
    correlation : the distance correlation of points and their matches.
    marginal_error : the largest L1 residual of marginals.
    precision_loss : which points rounding does not tell apart, and what to do; nothing where it does.
    numpy_input : whether nothing was given as a tensor.
    basins : those of the search, on the CPU where nothing was.
    """

    product: ProductPlan
    correlation: float
    marginal_error: float
    precision_loss: str
    numpy_input: bool
    basins: tuple[Basin, ...]

    @classmethod
    def of(cls, solution: CertifiedSolution, request: Request, spaces: ProviderPair) -> SolveReport:
        """Of the solution of a request between these providers."""
        rows, columns = (side * request.mass for side in solution.marginals)
        p, q = (to_device(side, rows.device) for side in request.differentiable_inputs.masses)
        sides = move_to_storage(spaces[0], rows.device), move_to_storage(spaces[1], rows.device)
        few, apart = sample_differences(sides, request.model.masses)
        own, basins = request.differentiable_inputs, solution.basins
        leaves = (getattr(space, "leaf", None) for space in (own.X, own.Y))  # of providers, for gradients
        given = (*request.input_arrays, *leaves, own.p, own.q, own.alpha)
        numpy_input = not any(isinstance(each, Tensor) for each in given)
        asked: Sequence[Sequence[Tensor]] = (
            () if request.product else product_moments(request.model, sides),
            sample_matched_distances(solution.coupling, sides, rows, p) if request.model.alpha > 0 else (),
            [residuals(rows, columns, p, q, own.marginals)],
            apart,
            [torch.as_tensor(side) for each in basins for side in (each.matching, each.shift) if numpy_input],
        )
        read = iter(to_host(*(tensor for part in asked for tensor in part)))
        moments, looked, (missed,), apart, arrays = ([next(read) for _ in part] for part in asked)
        if numpy_input:
            basins = with_arrays(basins, zip(arrays[::2], arrays[1::2], strict=True))
        return cls(
            request.product or product_plan_from_moments(request.model, moments, compute_squared_diameter(spaces)),
            distance_correlation(*looked) if looked else math.nan,
            max(missed.tolist(), default=0.0),
            request.describe_precision_loss(spaces, few, apart),
            numpy_input,
            basins,
        )


@hide_constructor
@isolate_methods
@dataclass(frozen=True, kw_only=True, repr=False)
class GWResult(SoftPlanMixin):
    """The result of `torchgw.gw_align`.

    Attributes
    ----------
    coupling : the plan without its N x K entries: products, marginals, samples, largest entries.
    value, value_quad, value_linear, value_penalty : objective of the returned plan on the scaled distances, without its
        entropy, and its parts: value = alpha value_quad + (1 - alpha) value_linear + value_penalty, where the last is
        what relaxed marginals and supervision add. ``value_quad`` is NaN for alpha = 0, which has no distances. What
        rounding added counts: a streaming plan with a residual of 2e-3 has a value about 2e-4 higher for it.
    chance : value of the product plan of the masses that were asked for, which knows nothing, scaled to the mass of a
        plan (of `Partial`, its mass): an estimate from 1000 rows of distances where points are more and have no
        factors, NaN for files of earlier versions.
    distance_correlation : bias-corrected correlation of the ranks of distances between points and between their
        matches, less two standard errors: 1 for copies, about 0 for matchings that know nothing, whatever single points
        far away. NaN for alpha = 0, of fewer than eight points, where all distances are the same, and for files of
        earlier versions.
    violation : mass on pairs that break a rule of ``supervision``, counted for each rule and point that it breaks.
    value_exact : False when ``value`` is an estimate from sampled pairs; ``value_error`` is then its standard error.
    potentials : natural-log potentials f (N,), g (K,), in units of epsilon, masses included. Where ``coupling`` has
        factors A, B, the plan but for its rank-one correction is exp(A B^T ln 2 + f + g); where it is stored, they are
        those of the score 2 D_X T D_Y / epsilon. None at epsilon = 0, and for plans of low rank.
    marginal_error : largest L1 error of the returned plan over the marginals that are to hold exactly (of a partial
        plan, the mass over its bounds, or off the one asked for), against the masses given, as it was read when it was
        rounded; reads of a large plan, in float32 arithmetic, differ by up to about 1e-6 of the mass.
    marginal_residual : the same before rounding, relative to the total mass: what the last Sinkhorn solve left.
    strategy : "dense", "streaming", "low-rank" or "sparse", whichever ran.
    ladder : the resolutions climbed where it streamed or began between cells: cells, residuals, seconds; else empty.
    omitted_mass : a strict bound, relative to the total, on the mass by which the plan differs from that of its
        potentials on all pairs: tiles that were left out, or taken as short sums of products.
    evaluated : share of all pairs of points that lie in tiles which were not left out.
    certificate : what is certain of the plan: stationarity gap, lower bound, distance from the optimum.
    basins : the local optima that the search found: the solved one first, then those of its level, then others, each
        by energy; empty without a search.
    gradient : "exact", "sampled", or "leading factors": the exact one between factors that carry the distances to 1 %,
        in streaming solves. ``gradient_passed_over`` says why it was sampled.
    status, converged : how the solve ended.
    warnings : category and text of each warning that the solve gave, from its arguments on.
    n_iter, n_iter_sinkhorn : outer iterations, and inner ones over all of them.
    history : cost, marginal error, epsilon and time at every check.
    backend : the kernel implementation that ran; ``backends_passed_over`` says why those before it did not, ``blocks``
        names its block sizes.
    scales : what the distances of the two spaces were divided by; ``cost_scale`` what feature costs were. ``unit`` is
        the largest squared distance after that, with a linear cost at least 1: what energies are small or large beside.
    providers : class names of the two distance providers.
    graphs : how the neighbour graphs were made (k, stitching, short cuts left out); None for spaces that needed none.
    timings : seconds spent in "prepare", "search", "solve" and "finish".
    epsilon : of the plan: the one given, or where the solve ended that chose it; ``path`` says how, empty for a given
        one. ``gain`` is what matching can gain over not matching, in units of epsilon: about 0.01 of it finds optima,
        0.003 keeps soft labels and rankings good.
    alpha, marginals, options : what the solve was called with; ``supervised`` and ``constrained`` say that it had
        supervision, and that without a strength.
    numpy_input : whether arrays of the result are NumPy's. They are tensors if a space, a cost, a mass or ``alpha`` was
        given as one, or a provider made from a tensor that requires gradients. ``coupling`` holds tensors in any case.
    names_x, names_y : names (N,), (K,) of the points, as they were given; None for points without. Files keep texts,
        numbers and tuples of these, and the text of other names.
    known, model : the two spaces, for `transform`, and the objective between them, for `soft` and `curvature`. The
        objective is not saved, the spaces where `save` is asked to.
    sharp : the plan without entropy at which `soft` found this one; not saved.
    differentiated : what `loss` and the gradients of plans come from, with a gradient mode; not saved.
    """

    coupling: Coupling
    value: float
    value_quad: float
    value_linear: float
    value_penalty: float
    violation: float
    value_exact: bool
    value_error: float
    marginal_error: float
    marginal_residual: float
    strategy: str
    ladder: tuple[Rung, ...]
    omitted_mass: float
    evaluated: float
    certificate: Certificate
    basins: tuple[Basin, ...]
    gradient: str
    gradient_passed_over: str
    status: Status
    n_iter: int
    n_iter_sinkhorn: int
    history: History
    backend: str
    backends_passed_over: dict[str, str]
    blocks: dict[str, int]
    scales: tuple[float, float]
    cost_scale: float
    providers: tuple[str, str]
    graphs: tuple[GraphReport | None, GraphReport | None]
    timings: dict[str, float]
    epsilon: float
    alpha: float
    marginals: Marginals
    supervised: bool
    constrained: bool
    options: GWOptions
    unit: float = 1.0
    path: tuple[EpsilonStep, ...] = ()
    gain: float = math.nan
    numpy_input: bool = True
    known: tuple[KnownPoints, KnownPoints] | None = None
    model: Model | None = None
    sharp: BlockCoupling | None = None
    differentiated: DifferentiableSolution | None = None
    chance: float = math.nan
    distance_correlation: float = math.nan
    warnings: tuple[IssuedWarning, ...] = ()
    names_x: NDArray[np.object_] | None = None
    names_y: NDArray[np.object_] | None = None

    def __post_init__(self) -> None:
        if self.numpy_input:  # their tensors are on the CPU by now, where they came in one transfer
            arrays = (
                [self._to_user_array(torch.as_tensor(side)) for side in (each.matching, each.shift)]
                for each in self.basins
            )
            object.__setattr__(self, "basins", with_arrays(self.basins, arrays))

    def __repr__(self) -> str:
        n, k = self.shape
        tried = "epsilon" if len(self.path) == 1 else "epsilons"
        chosen = f" ({len(self.path)} {tried} tried)" if self.path else ""
        model = "" if self.marginals.balanced else f"{self.marginals}, "
        return (
            f"GWResult({n} x {k}, {model}value {self._shown_value()}, "
            f"{self.status.name.lower()} after {self.n_iter} iterations at epsilon {self.epsilon:.3g}{chosen}, "
            f"marginal error {self.marginal_error:.1e}, backend {self.backend}; "
            f"{self.verdict.name.lower()})"
        )

    def _shown_value(self) -> str:
        return f"{self.value:.6g}" if self.value_exact else f"{self.value:.6g} +- {self.value_error:.1g}"

    def _repr_html_(self) -> str:
        """A table for notebooks. Where points have names, one pass over the plan finds the matches of largest share."""
        n, k = self.shape
        rows = {
            "shape": f"{n} x {k}",
            "value": self._shown_value(),
            "verdict": f"{self.verdict.name.lower()}. {' '.join(self.reasons)}",
            "status": f"{self.status.name.lower()} after {self.n_iter} iterations",
            "epsilon": f"{self.epsilon:.3g}",
            "marginal error": f"{self.marginal_error:.1e}",
        }
        if self.names_x is not None and self.names_y is not None:
            found = self._surest(N_SUREST)
            rows["surest matches"] = ", ".join(f"{self.names_x[i]} to {self.names_y[j]}" for i, j in found)
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table><caption>{type(self).__name__}</caption>{cells}</table>"

    def _surest(self, count: int) -> list[tuple[int, int]]:
        """Source points that send the largest shares of their mass to one target point, with that point."""
        coupling = as_block_coupling(self.coupling, "the table of a result")
        mass, best = coupling.top_k(1)
        given = coupling.marginal(1)
        share = torch.where(given > 0, mass[:, 0] / given, -1.0)
        order = share.argsort(descending=True, stable=True)[:count]
        order = order[share[order] > 0]
        return list(zip(order.tolist(), best[order, 0].tolist(), strict=True))

    @property
    def verdict(self) -> Verdict:
        """Whether the matching can be trusted: convincing, doubtful, or no better than chance, see `Verdict`."""
        return judge(self)[0]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the verdict, in sentences."""
        return judge(self)[1]

    @property
    def converged(self) -> bool:
        """Whether the loop ended by itself and its last solve reached its tolerance."""
        return self.status.converged

    @property
    def rival(self) -> Basin | None:
        """The basin of lowest energy among those with another matching that were compared on the same points."""
        level = self.basins[0].level if self.basins else ""
        others = [basin for basin in self.basins[1:] if basin.level == level and basin.difference > APART]
        return min(others, key=lambda basin: basin.energy, default=None)

    @property
    def ambiguous(self) -> bool:
        """Whether another basin's energy is within 5 % of the best one's: a choice among equals."""
        return self.rival is not None and is_near_tie(self.basins[0], self.rival, self.unit)

    @property
    def max_memory(self) -> int:
        """Bytes that the dense plan may take."""
        return self.options.max_memory

    @property
    def potentials(self) -> tuple[Array | Tensor, Array | Tensor] | None:
        """Natural-log potentials (f (N,), g (K,)), or None for a plan that has none."""
        found = self.coupling.potentials if isinstance(self.coupling, BlockCoupling) else None
        return None if found is None else (self._to_user_array(found[0] * LN2), self._to_user_array(found[1] * LN2))

    @property
    def loss(self) -> Tensor:
        """The regularised objective () whose gradients are those of what was given; ``value`` and its entropy.

        Loss, plan and what it carries share the graph of the distances: differentiate their sum, or with
        ``retain_graph=True`` all but the last. Points without mass have zero gradients, and so have their masses.

        Raises
        ------
        ValueError
            Without a gradient mode.
        """
        if self.differentiated is None:
            raise ValueError("loss needs gw_align(..., gradient_mode=Envelope()) or Implicit(), got no mode")
        return self.differentiated.loss()

    @property
    def gradient_report(self) -> Any:
        """How far the last gradient through the plan can be trusted, see `GradientReport`; None before a backward pass,
        and for modes other than `Implicit`."""
        return None if self.differentiated is None else self.differentiated.report

    def _dense(self) -> Tensor:
        if self.differentiated is None:
            return super()._dense()
        with torch.enable_grad():  # it is kept, whoever asks for it first
            return self.differentiated.plan()

    def _product(self, V: Tensor, axis: int) -> Tensor:
        return super()._product(V, axis) if self.differentiated is None else self.differentiated.apply(V, axis)

    def transform(self, points: Any, side: str = "source") -> Unseen:
        """Match points that the solve has not seen, by its linearised cost and potentials.

        Parameters
        ----------
        points : (m, D) like X, or (m, E) like Y for ``side="target"``; rows of raw distances to all known points,
            (m, N) or (m, K), where the space was a matrix, a graph or a provider. The index of a data frame names
            them.
        side : "source" or "target", the side that the points belong to.

        Returns
        -------
        `Unseen`, which is read like a result: ``argmax()``, ``top_k(k)`` and ``pull(V)`` for source points,
        ``argmax()`` and ``push(V)`` for target points. It is a plan, not coordinates:
        `torchgw.GromovWasserstein.transform` returns coordinates, those of ``transform(points).pull(Y)``, and gives
        points of the solve their own row of the plan, which this method does not look up.

        Raises
        ------
        ValueError, TypeError
            For points that do not fit, a plan of low rank, a result that was loaded from a file without points, and
            objectives with a linear cost, supervision or another loss.

        Notes
        -----
        O(m K r) work for m source points. A new point is joined to the neighbour graph by its k nearest known points.
        A plan without entropy is mapped by the potentials of its soft plan, see `soft`.
        """
        chosen = ("source", "target").index(validate.choice("side", side, ("source", "target")))
        (coupling, known), epsilon = self._map(), self.epsilon
        if epsilon == 0 and not isinstance(coupling, LowRankCoupling):
            coupling, epsilon, _ = self._soft_plan
        at = as_block_coupling(self.sharp or self.coupling, "transform")
        found = extend_coupling(coupling, at, known, points, chosen, epsilon)
        new = check_names("points", None, points, found.shape[chosen])
        names = (self.names_x, new) if chosen else (new, self.names_y)
        return Unseen(found, chosen, self.numpy_input, self.max_memory, names)

    def _map(self) -> tuple[BlockCoupling, tuple[KnownPoints, KnownPoints]]:
        """What maps new points; refused where nothing can."""
        if self.alpha < 1 or self.supervised or self.options.loss != "square":
            raise ValueError(
                "unseen points are mapped by distances alone, so not where a linear cost, supervision or another loss "
                "than 'square' was part of the objective; take the matches of the nearest known points instead"
            )
        if self.gradient == "sampled" and isinstance(self.coupling, DenseCoupling):
            raise ValueError("unseen points need the factors of a sampled cost, which so few points do not keep")
        if self.known is None or not isinstance(self.coupling, BlockCoupling):
            raise ValueError(
                "unseen points need the points or distances of the solve. A file has them if it was written by "
                "save(path, points=True) or `torchgw align --points`; a result of several ranks never has them: "
                "align again in one process"
            )
        return self.coupling, self.known

    def unseen(self, points: Any, side: str = "source") -> Unseen:
        """The former name of `transform`, which warns and calls it.

        Parameters
        ----------
        points, side : as in `transform`.
        """
        warn_caller("GWResult.unseen is now GWResult.transform", DeprecationWarning)
        return self.transform(points, side)

    def confidence(self, points: Any = None) -> Confidence:
        """How sure the plan is of each source point, see `Confidence`; O(N K) time, in blocks of rows.

        Entropy and margin of a sharp result are those of its soft plan, see `soft`: a matching alone is sure of
        everything. The margin is then that of its match, 0 where the soft plan prefers another. Of a result without
        distances, of a file without points or of several ranks, its own plan is read.

        Parameters
        ----------
        points : (m,) indices of source points to look at alone, in O(m K); None for all.
        """
        coupling = as_block_coupling(self._ranking, "confidence")
        chosen = None if points is None else point_indices("points", points, self.shape[0]).to(coupling.device)
        entropy, margin = entropy_and_margin(coupling, chosen)
        if coupling is not self.coupling and self.shape[1] > 1:
            margin = torch.where(margin.isnan(), torch.nan, self._margin(chosen))
        stability = torch.full_like(entropy, 1.0 if self.basins else torch.nan)
        for basin in self.basins[1:]:
            discount = min(energy_ratio(self.basins[0], basin, self.unit), 1.0)
            shift = torch.as_tensor(basin.shift).to(stability)
            stability = torch.minimum(stability, 1 - discount * (shift if chosen is None else shift[chosen]))
        found = (entropy, margin, stability.clamp_min(0.0))
        return Confidence(*(self._to_user_array(side) for side in found))

    def save(self, path: str | PathLike[str], *, points: bool = False) -> None:
        """Write everything but the dense plan to an .npz file: arrays and one JSON string, no pickles.

        Parameters
        ----------
        path : an .npz file, or one without a suffix; one that is there is replaced.
        points : whether to write what `transform` needs as well: the points, and distances where they are no straight
            lines. These are N^2 + K^2 numbers where the plan is stored, else those from at most 256 points or from all
            landmarks, in float64.

        Raises
        ------
        ValueError, OSError
            Naming the path, when it is no place for such a file, or cannot be written; what was there before stays.
            With ``points``, when the result cannot map new points.
        MemoryError
            With ``points``, where the distances of one space take more than ``options.max_memory``.

        Notes
        -----
        Arrays: ``matching`` (N,), ``f`` and ``g`` (natural-log potentials), ``value``, ``coupling_*``, ``meta`` (JSON),
        and with ``points`` ``known_x_*`` and ``known_y_*``. A checksum is in the archive's comment.
        """
        coupling = as_block_coupling(self.coupling, "save")
        known = self._map()[1] if validate.flag("points", points) else ()
        if known and self.sharp is not None and isinstance(coupling, DenseCoupling):
            raise ValueError(
                "points of a soft plan are mapped by the sharp one, which a file of it lacks: save the sharp result "
                "with points=True, whose transform and soft() are the same"
            )
        write(place_of(path, ".npz"), saved_members(self), coupling, known, self.max_memory)

    def report(self, path: str | PathLike[str], X: Any = None, Y: Any = None, *, labels: Any = None) -> None:
        """Write one interactive HTML page that needs no network: both clouds, linked; what the search found; what is
        certain, and how the solve went. Needs plotly.

        Parameters
        ----------
        path : an .html file, or one without a suffix, written whole or not at all.
        X, Y : what to draw, if not what was aligned; needed for results from files. Points with two or three
            coordinates are drawn as they are, of others two principal components; spaces of distances get a layout, and
            graphs theirs with edges. Graphs and meshes as in `torchgw.plot.matching`.
        labels : (N,) of the source, which colour it and, through the plan, the target. Real numbers are values; others,
            and integers of up to twenty kinds, are labels. By default colours follow two coordinates.

        Raises
        ------
        ImportError
            Without plotly.
        ValueError
            For points or labels that do not fit, a result from a file without points, and a folder that is not there.
        OSError
            Naming the path, when it cannot be written; what was there before is still there then.

        Notes
        -----
        One pass over the plan in blocks of rows, O(N K) time, carries its colours. At most 5000 points of a cloud are
        drawn, a random subset that is always the same; their five best matches are kept, whether drawn or not.
        """
        from torchgw import report

        report.write(self, place_of(path, ".html"), X, Y, labels)

    @classmethod
    def load(cls, path: str | PathLike[str], max_memory: int | None = None) -> GWResult:
        """Read a result that `save` or `torchgw.distributed.save` wrote, onto the CPU.

        Parameters
        ----------
        path : the file, or the folder of parts; a file of a version that wrote no checksum is read without. Nothing in
            it is run.
        max_memory : bytes that one of its arrays may take, by default that of `GWOptions`; all together, twice as much.

        Raises
        ------
        ValueError
            Naming the file and what is wrong, when it is not such a result, is damaged, or declares more.
        OSError
            When there is no such file, or it cannot be opened.
        """
        limit = GWOptions().max_memory if max_memory is None else validate.integer("max_memory", max_memory, least=1)
        file = path_of("path", path, "a file written by GWResult.save")
        if guards.is_regular(file) or not file.exists():
            file.open("rb").close()  # what is not there or not ours to read says so itself
        if is_part(file):
            raise ValueError(f"path must name the whole result, {path} is a part of it; load the folder {file.parent}")
        try:
            found = cls(**(read_parts if is_folder_of_parts(file) else read)(file, limit))
            check_members(found, but=("coupling", *NOT_SAVED))
            return found
        except Exception as error:  # what reads broken files raises errors of every kind
            reason = f" ({guards.one_line(error)})" if isinstance(error, ValueError) else ""
            raise ValueError(f"path must name a file written by GWResult.save, {path} is not one{reason}") from error


def with_arrays(basins: Sequence[Basin], arrays: Iterable[Iterable[NDArray[np.generic] | Tensor]]) -> tuple[Basin, ...]:
    """The basins with other ``matching`` and ``shift``."""
    return tuple(
        replace(each, matching=matching, shift=shift) for each, (matching, shift) in zip(basins, arrays, strict=True)
    )


def result_of(
    solution: CertifiedSolution,
    request: Request,
    told: SolveReport,
    spaces: ProviderPair,
    graphs: GraphReports,
    prepared: float,
    differentiated: DifferentiableSolution | None,
) -> GWResult:
    """The result of a request, in the units of p and q; `torchgw.gw_align` makes it.

    Parameters
    ----------
    solution : of the request's problem, for plans of mass one.
    request : what was asked for, with the strategy that ran.
    told : what else is told of it.
    spaces, graphs : the providers, and how their neighbour graphs were made; ``prepared`` the seconds they took.
    differentiated : what gradients come from, with a gradient mode.
    """
    mass, model, values, supervision = request.mass, request.model, solution.values, request.supervision
    # Of distances that are shared no rank has all.
    unit, alone = compute_squared_diameter(spaces), ranks_of(spaces[0]).count == 1
    estimated = solution.gradient == "sampled"
    return GWResult(
        coupling=solution.coupling.times(mass),
        value=values.total * mass**2,
        value_quad=values.quadratic * mass**2 if model.alpha > 0 else math.nan,
        value_linear=values.linear * mass,
        value_penalty=values.penalty * mass**2,
        violation=values.violation * mass,
        value_exact=solution.value_exact,
        value_error=model.alpha * solution.value_error * mass**2,
        marginal_error=told.marginal_error,
        marginal_residual=solution.marginal_residual,
        strategy=request.strategy,
        ladder=solution.ladder,
        omitted_mass=solution.omitted,
        evaluated=solution.evaluated,
        certificate=solution.certificate.times(mass**2).with_counts(solution.basins),
        basins=tuple(replace(basin, energy=basin.energy * mass**2) for basin in told.basins),
        gradient=solution.gradient,
        gradient_passed_over=request.against_exact or reason_for_sampling(request) if estimated else "",
        status=solution.status,
        n_iter=solution.n_iter,
        n_iter_sinkhorn=solution.n_iter_sinkhorn,
        history=replace(solution.history, cost=[cost * mass**2 for cost in solution.history.cost]),
        backend=request.backend.name,
        backends_passed_over=request.backend.passed_over,
        blocks=request.backend.blocks,
        scales=(float(spaces[0].scale), float(spaces[1].scale)),
        cost_scale=request.cost_scale,
        providers=(name_of(spaces[0]), name_of(spaces[1])),
        graphs=graphs,
        timings={"prepare": prepared} | solution.seconds,
        epsilon=solution.path[-1].epsilon if solution.path else model.epsilon,
        alpha=model.alpha,
        marginals=request.differentiable_inputs.marginals,
        supervised=supervision is not None,
        constrained=supervision is not None and supervision.strength == math.inf,
        options=request.options,
        unit=unit if model.alpha == 1 else max(unit, 1.0),
        path=tuple(replace(step, value=step.value * mass**2) for step in solution.path),
        gain=told.product.energy_scale,
        chance=told.product.chance * mass**2,
        distance_correlation=told.correlation,
        numpy_input=told.numpy_input,
        known=known_points(request.spaces, spaces, graphs) if alone else None,
        model=model if alone else None,
        differentiated=differentiated,
        names_x=request.names[0],
        names_y=request.names[1],
    )


def saved_members(result: GWResult) -> dict[str, Any]:
    """What files keep of a result."""
    return {entry.name: getattr(result, entry.name) for entry in fields(result) if entry.name not in NOT_SAVED}


def reason_for_sampling(request: Request) -> str:
    """Why the gradient was sampled although nothing stood against the exact one."""
    if request.options.gradient == "sampled":
        return "options.gradient is 'sampled'"
    return f"the {request.strategy} strategy has exact gradients of factored distances only"


def known_points(
    given: tuple[InputSpace, InputSpace], made: ProviderPair, graphs: GraphReports
) -> tuple[KnownPoints, KnownPoints]:
    """What the result keeps to place points that it has not seen."""
    x, y = (
        KnownPoints(space, None if not one.is_points else one.data, max(report.k, 1) if report else 1, graph=one.edges)
        for one, space, report in zip(given, made, graphs, strict=True)
    )
    return x, y
