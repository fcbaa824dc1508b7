"""What a call of `gw_align` asks for: its arguments as given, and validated with every default resolved."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchgw import ranges, validate
from torchgw.couplings.reader import Readable
from torchgw.entry import check_options
from torchgw.gradients.modes import GradientMode, check_mode
from torchgw.gradients.parameters import Given
from torchgw.kernels.dispatch import BACKENDS, Selection
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.sampling import make_generator
from torchgw.losses import LOSSES, SeparableLoss
from torchgw.marginals import Marginals
from torchgw.objective.features import FeatureCost
from torchgw.objective.gain import ProductPlan, product_plan
from torchgw.objective.model import Model
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.persist.checkpoint import Checkpoint
from torchgw.persist.watch import Watch
from torchgw.request.attributes import coordinates, in_numbers
from torchgw.request.combinations import Fact, fact_of_epsilon, fact_of_space, facts_of, refuse, settled
from torchgw.request.devices import pick_device
from torchgw.request.limits import (
    CURVED_PAIRS,
    DENSE_PAIRS,
    SCATTERED_PAIRS,
    SHARP_SCATTERED_PAIRS,
    SHARPENED_PAIRS,
    UNRESOLVED,
    against_exact,
    assigned,
    by_entries,
    check_flows,
    check_memory,
    check_rank,
    choose_kernels,
    choose_strategy,
    dense_bytes,
    ends_sharp,
    searched_there,
    sharp_fits,
    takes_few_entries,
)
from torchgw.request.names import check_names, stored
from torchgw.request.objective import (
    as_pair,
    check_alpha,
    check_cost,
    check_distances_resolved,
    check_resolved,
    explain_unresolved_features,
    least_resolved,
    make_model,
    tensors_of,
)
from torchgw.request.spaces import (
    check_distances,
    check_init,
    check_loss,
    check_spaces,
    sizes_of,
    warn_of_adjacencies,
    with_factors,
    without_searches,
)
from torchgw.request.support import Support
from torchgw.runtime.ranks import ranks_of
from torchgw.runtime.threads import threads_for
from torchgw.runtime.transfer import fetched
from torchgw.solvers.factored_transport import finds_vertices
from torchgw.solvers.problem import AUTO_START, Kernels, Problem, tolerances_for
from torchgw.spaces.prepare import OnDevice, Space
from torchgw.spaces.quantisation import SCATTERED, WIDE, along_curves, few_landmarks, looked_at
from torchgw.spaces.resolution import explain_rounded_coordinates, explain_sampled
from torchgw.spaces.scale import unit_of
from torchgw.types import AUTO, Array, Callback, DistanceProvider, Epsilon, RandomState

logger = logging.getLogger("torchgw")

SHARP = "take epsilon=0 for the optimum without entropy"

Cost: TypeAlias = "Array | Tensor | tuple[Any, Any] | FeatureCost | str | list[str]"


@dataclass(frozen=True, eq=False)
class Asked:
    """The arguments of `gw_align`, as given, in its order and under its names.

    X, Y : spaces of N and K points; ``distances`` the kinds of their distances.
    p, q : masses (N,), (K,), or None.
    cost, alpha : linear cost (N, K) or features, and the weight of the quadratic part, a number or a tensor ().
    supervision, init : rules of pairs, and a plan (N, K), pairs (m, 2) or a matching (N,) to start from.
    epsilon, marginals : entropy weight, in units of the scaled squared distance, or "auto", and the marginal model.
    options, gradient_mode : how to solve, and how to differentiate.
    device, backend, random_state : where, by which kernels, from which seed.
    callback, checkpoint : progress, and the folder to resume from.
    names_x, names_y : names of the points.
    """

    X: Any
    Y: Any
    distances: str | tuple[str, str]
    p: Array | Tensor | None
    q: Array | Tensor | None
    cost: Cost | None
    alpha: float | Tensor | None
    supervision: Supervision | None
    init: Any
    epsilon: Epsilon
    marginals: Marginals
    options: GWOptions
    gradient_mode: GradientMode | None
    device: str | torch.device | None
    backend: str
    random_state: RandomState
    callback: Callback | None
    checkpoint: str | PathLike[str] | Checkpoint | None
    names_x: Iterable[Any] | None
    names_y: Iterable[Any] | None

    def __post_init__(self) -> None:
        if self.options is None:
            object.__setattr__(self, "options", GWOptions())

    def check(self) -> None:
        """Refuse what can be seen to be wrong in one argument alone, but for spaces, masses and costs."""
        check_options(self.options)
        validate.instance(
            "marginals", self.marginals, Marginals, ": Balanced(), SemiRelaxed(), Unbalanced() or Partial()"
        )
        validate.epsilon("epsilon", self.epsilon)
        validate.choice("backend", self.backend, BACKENDS)
        if self.supervision is not None:
            example = "; for example Supervision(pairs=[(0, 3), (10, 7)])"
            validate.instance("supervision", self.supervision, Supervision, example)
        check_mode(self.gradient_mode)
        if self.callback is not None and not callable(self.callback):
            raise TypeError(f"callback must be callable or None, got {type(self.callback).__name__}")

    def in_numbers(self) -> Asked:
        """The same call without names of attributes, without texts in features and labels, and with two arrays of
        features as a tuple."""
        points, cost = (self.X, self.Y), as_pair(self.cost)
        X, Y = coordinates(points, cost, self.supervision)
        cost, supervision = in_numbers(points, cost, self.supervision, self.options.max_memory)
        return replace(self, X=X, Y=Y, cost=cost, supervision=supervision)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A validated call of `gw_align`, with every default resolved.

    asked : the arguments as the user gave them. If points have no mass, the cost, providers, and tensors among X, Y, p
        and q lose these points, so that gradients are those of the others.
    whole : the arguments as the user gave them, with all points.
    support : the points that have mass; None if all have. All fields below are of these points alone.
    cost : the linear cost as given, a list of two feature arrays as a tuple; or None.
    alpha : weight of the quadratic part, a number or a tensor ().
    masses : p (N,), q (K,) in float64 as they were given, uniform where none were, all above zero.
    options : the options with what other arguments decide.
    strategy : "dense", "streaming", "low-rank" or "sparse": the one that runs.
    spaces : both spaces, validated, with the kinds of their distances.
    model : masses of sum one and all that the objective weighs, on the device that solves; an epsilon that the spaces
        decide is a number from `resolved` on.
    mass : the scale of the plan's mass, in units of p and q, which the model divides out.
    cost_scale : what feature costs were divided by.
    init : a plan (N, K) over its largest entry, or matching pairs (m, 2), to start at instead of the search; or None.
    generator : of landmarks, starts and anchors, on the device.
    backend : the implementation that is reported.
    kernels : implementations of every family that the strategy uses.
    against_exact : why the exact gradient cannot or should not run; None where it runs.
    sharp : whether the same call with epsilon=0 would be accepted, which remedies then name.
    product : value of the product plan, and what there is to gain over it, where that decides; None before, and beside
        a given epsilon but for models without entropy.
    curves : whether what was given as points lies on curves, as far as that decides anything.
    sharpens : whether an epsilon that is left to the solve ends at zero, from a plan that is solved with one.
    precision_loss : which points rounding does not tell apart, and what to do; nothing where it does, and before that
        is known.
    names : names (N,), (K,) of all points, also of those without mass; None for points without.
    """

    asked: Asked
    whole: Asked
    support: Support | None
    cost: Cost | None
    alpha: float | Tensor
    masses: tuple[Tensor, Tensor]
    options: GWOptions
    strategy: str
    spaces: tuple[Space, Space]
    model: Model
    mass: float
    cost_scale: float
    init: Tensor | None
    generator: torch.Generator
    backend: Selection[Kernel]
    kernels: Kernels
    against_exact: str | None
    sharp: bool
    product: ProductPlan | None = None
    curves: bool = False
    sharpens: bool = False
    precision_loss: str = ""
    names: tuple[NDArray[np.object_] | None, NDArray[np.object_] | None] = (None, None)

    @classmethod
    def of(cls, asked: Asked) -> Request:
        """The request of a call.

        Raises
        ------
        ValueError, TypeError, MemoryError, FloatingPointError
            As `gw_align` says, before any distance is computed.
        """
        asked.check()
        asked = asked.in_numbers()
        mode, marginals, supervision = asked.gradient_mode, asked.marginals, asked.supervision
        cost = asked.cost
        weight = check_alpha(asked.alpha, cost)
        alpha = asked.alpha if isinstance(asked.alpha, Tensor) else weight
        facts = facts_of(
            asked.options,
            asked.epsilon,
            alpha=alpha,
            cost=cost,
            marginals=marginals,
            supervision=supervision,
            gradient_mode=mode,
            checkpoint=asked.checkpoint,
        )
        refuse(facts)
        options = settled(asked.options, facts)
        kinds = check_distances(asked.distances)
        spaces, whole = check_spaces(asked.X, asked.Y, kinds, weight, cost, options.spaces), asked
        n, k = sizes_of(spaces)
        names = check_names("X", asked.names_x, asked.X, n), check_names("Y", asked.names_y, asked.Y, k)
        device = pick_device(asked.device, (asked.X, asked.Y, *tensors_of(cost)), math.prod(sizes_of(spaces)))
        generator = make_generator(asked.random_state, device)
        p, q = (validate.masses(*side) for side in zip("pq", (asked.p, asked.q), sizes_of(spaces), "NK", strict=True))
        init = check_init(asked.init, *sizes_of(spaces), device)
        support = Support.of(p, q, spaces)
        if support is not None:
            spaces, asked = support.restricted(spaces, asked, kinds, options.spaces.k)
            p, q, cost = p[support.rows.numpy()], q[support.columns.numpy()], asked.cost
            init, supervision = support.init(init), support.rules(supervision)
        warn_of_adjacencies(*spaces, asked=kinds)
        check_loss(spaces, options.loss)
        facts |= {space.name: fact_of_space(space) for space in spaces if not space.symmetric}
        refuse(facts)
        options = settled(options, facts)
        spaces = by_entries(without_searches(spaces, options.max_memory))
        n, k = sizes_of(spaces)
        masses = torch.from_numpy(p), torch.from_numpy(q)
        auto = asked.epsilon == AUTO
        epsilon = float(UNRESOLVED if auto else asked.epsilon)
        if takes_few_entries(facts, spaces):
            facts |= {"options.strategy": Fact("sparse", "'sparse'")}
            options = replace(options, strategy="sparse")
        few = options.strategy == "sparse"
        metric = all(space.metric for space in spaces)
        against = against_exact(spaces, device, options)
        if auto and (few or ends_sharp(facts, masses, against, asked.options, metric)):
            epsilon, facts = 0.0, facts | {"epsilon": fact_of_epsilon(0.0)}
        options = options if auto else tolerances_for(options, epsilon, marginals)
        linear, cost_scale = check_cost(cost, n, k)
        factored = all(space.factored for space in spaces)
        strategy = choose_strategy(n, k, epsilon, options, device, factored)
        if mode is not None:
            ranges.reference((float(p.sum()), float(q.sum())))
            options = replace(options, strategy=strategy)
        if strategy == "low-rank" or (strategy == "streaming" and (mode is not None or epsilon == 0)):
            spaces = with_factors(spaces, kinds)
        chosen = {"options.strategy": Fact(strategy, repr(strategy))}
        refuse(facts | chosen | {space.name: fact_of_space(space) for space in spaces})
        check_flows(strategy, n, k, epsilon)
        check_rank(options, min(n, k))

        rules = None if supervision is None else supervision.rules(p, q, strategy == "dense")
        if rules is not None and rules.cost.extra is not None:
            options = replace(options, strategy="dense")  # no other strategy can take over what is stored
        strength = math.inf if supervision is None else supervision.strength
        loss = options.loss if isinstance(options.loss, SeparableLoss) else LOSSES[options.loss]
        model, mass = make_model(masses, marginals, weight, epsilon, linear, rules, strength, loss, device)
        against = check_memory(strategy, spaces, model, device, options, mode)
        sharp = sharp_fits(facts, (n, k), against, asked.options, all(space.factored for space in spaces))
        if not auto:
            check_resolved(model, spaces, options, remedy_of(sharp))
        with threads_for(n * k if device.type == "cpu" else 0):  # compiled code is for a number of threads
            backend, kernels = choose_kernels(strategy, asked.backend, device, (n, k), options)
        logger.info("backend %s, blocks %s; passed over: %s", backend.name, backend.blocks, backend.passed_over)
        return cls(
            asked=asked,
            whole=whole,
            support=support,
            cost=cost,
            alpha=alpha,
            masses=masses,
            options=options,
            strategy=strategy,
            spaces=spaces,
            model=model,
            mass=mass,
            cost_scale=cost_scale,
            init=init,
            generator=generator,
            backend=backend,
            kernels=kernels,
            against_exact=against,
            sharp=sharp,
            names=names,
        )

    def resolved(self, spaces: tuple[DistanceProvider, DistanceProvider]) -> Request:
        """The same request; an epsilon that is left to the solve as the number that it begins with between these
        providers.

        Raises
        ------
        ValueError, FloatingPointError
            For costs, and for distances beside an epsilon, that float64 does not resolve.
        """
        largest, (widest, curves) = unit_of(spaces) ** 0.5, self._looked_at(spaces)
        factored = all(space.factors() is not None for space in spaces)
        own = replace(self, curves=curves and factored)
        if self.asked.epsilon == AUTO or (self.model.epsilon == 0 and not self.model.plain):
            own = replace(own, product=product_plan(self.model, spaces, largest**2))
        if self.asked.epsilon == AUTO:
            surfaces = own.streams_first and factored and WIDE < widest <= SCATTERED
            blurred = own.curves and not assigned(self.masses)  # costs them least, and linear programs take longest
            if self.model.epsilon > 0 or surfaces or blurred:
                epsilon = max(AUTO_START * own.gain, least_resolved(self.model, largest))
                options = tolerances_for(self.options, epsilon, self.asked.marginals)
                own = replace(own, model=self.model.at(epsilon), options=options)
            check_resolved(own.model, own.spaces, own.options, own.remedy)
            own = own._ending(widest)
            if surfaces:
                own = own.run_by("streaming")
        elif own.model.epsilon == 0 and own.streams_by_choice and widest > SCATTERED:
            own = own.run_by("dense")
        elif own.model.epsilon == 0 and not assigned(self.masses) and finds_vertices(*self.shape):
            many = math.prod(self.shape) >= DENSE_PAIRS.get(self.device.type, math.inf)
            if own.curves or (many and factored and widest <= SCATTERED):
                own = own.run_by("streaming")
        advice = f"{own.remedy}; or divide distances by a larger options.spaces.scale"
        check_distances_resolved(own.model, largest, advice)
        return own

    def describe_precision_loss(
        self, spaces: tuple[DistanceProvider, DistanceProvider], rows: Sequence[Tensor], apart: Sequence[Tensor]
    ) -> str:
        """Which points of spaces and features rounding does not tell apart; of spaces by what is
        `torchgw.spaces.resolution.sampled` of them, the differences on the host."""
        names, numbers = [side.name for side in self.spaces], None if self.support is None else self.support.sides
        found = explain_sampled(names, spaces, self.model.masses, rows, apart, numbers)
        found += map(explain_rounded_coordinates, self.spaces, (self.asked.X, self.asked.Y))
        return "; ".join(filter(None, [*found, explain_unresolved_features(self.cost, numbers)]))

    def _looked_at(self, spaces: tuple[DistanceProvider, DistanceProvider]) -> tuple[float, bool]:
        """How well a few landmarks cover the space that they cover worst, and whether what is given as points lies on
        curves; infinite and False where nothing depends on it."""
        many = self.from_points and math.prod(self.shape) >= CURVED_PAIRS
        left = self.asked.epsilon == AUTO
        ends = (left and self.ends_assigned) or ((left or self.model.epsilon == 0) and self.streams_by_choice)
        if not (many or ends):
            return math.inf, False
        sides = [(few_landmarks(space, mass), mass) for space, mass in zip(spaces, self.model.masses, strict=True)]
        found = fetched(*looked_at(sides))
        return max(map(float, found[::3])), many and along_curves(self.shape, found)

    def _ending(self, widest: float) -> Request:
        """The same request; between many points that are no curves, dense where they are scattered, and without
        entropy in the end where its linear programs are assignments. ``widest`` is the worse coverage."""
        ends = self.ends_assigned
        if not (ends or self.streams_by_choice):
            return self
        if widest <= SCATTERED:
            return replace(self, sharpens=ends and widest > WIDE)
        own = self.run_by("dense") if self.streams_by_choice else self
        return replace(own, model=own.model.at(0.0)) if ends else own

    @property
    def gain(self) -> float:
        """What there is to gain over the product plan, in units of epsilon; NaN where it is not known."""
        return math.nan if self.product is None else self.product.gain

    @property
    def there(self) -> OnDevice | None:
        """What brings graphs to the device, where their shortest paths are searched there; not what is differentiated,
        by paths that the CPU finds."""
        if self.asked.gradient_mode is not None:
            return None
        return searched_there(self.asked.backend, self.device, self.options.spaces)

    @property
    def ends_assigned(self) -> bool:
        """Whether an epsilon that is left to the solve, and begins above zero, may end there by assignments."""
        few = math.prod(self.shape) <= SHARP_SCATTERED_PAIRS
        free = self.asked.options.strategy != "streaming" and self.model.plain
        return free and self.model.epsilon > 0 and self.sharp and assigned(self.masses) and few

    @property
    def from_points(self) -> bool:
        """Whether both spaces are points with factors, and a search between them is dense by choice."""
        options, asked = self.options, self.asked
        free = self.strategy == "dense" and options.strategy == "auto" and self.against_exact is None
        searched = options.coarse is not None and self.init is None and asked.gradient_mode is None
        given = all(space.points and space.kind in ("landmark", "checked") for space in self.spaces)
        return given and free and searched and options.gradient != "sampled" and self.model.plain

    @property
    def streams_first(self) -> bool:
        """Whether points on surfaces, which end without entropy by assignments, do so faster from a streamed plan."""
        many = math.prod(self.shape) >= SHARPENED_PAIRS
        ends = self.model.epsilon == 0 or self.ends_assigned
        return self.from_points and many and ends and assigned(self.masses)

    @property
    def streams_by_choice(self) -> bool:
        """Whether it streams to be fast, and all that a dense solve stores would fit."""
        (n, k), left = self.shape, self.options.strategy == "auto" and self.asked.gradient_mode is None
        fits = n * k <= SCATTERED_PAIRS and dense_bytes(n, k, self.model.epsilon) <= self.options.max_memory
        return self.strategy == "streaming" and left and fits

    @property
    def given(self) -> Given:
        """The arguments that gradients flow to."""
        own, spaces = self.asked, self.options.spaces
        return Given(own.X, own.Y, own.p, own.q, self.cost, self.alpha, self.masses, own.marginals, spaces)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.model.p), len(self.model.q)

    @property
    def device(self) -> torch.device:
        """Where it is solved."""
        return self.model.p.device

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Spaces and costs as given, whose kind and device a result follows."""
        return self.asked.X, self.asked.Y, *tensors_of(self.cost)

    @property
    def remedy(self) -> str:
        """What to do about an epsilon that is too small."""
        return remedy_of(self.sharp)

    @property
    def remedy_by_weights(self) -> str:
        """What else to do where a solve ended in no numbers, as far as weights of divergences can be the reason.

        Potentials grow with weights beyond 1, the largest squared distance; below it a plan loses its mass.
        """
        marginals = self.asked.marginals
        if any(1 < rho < math.inf for rho in marginals.weights):
            return f"; or change {marginals!r}: lower weights above 1, or math.inf for a hard marginal"
        return f"; or change {marginals!r}: raise weights" if marginals.free_mass else ""

    def call(self) -> dict[str, Any]:
        """The arguments that a checkpoint keeps."""
        left_out = ("gradient_mode", "random_state", "callback", "checkpoint")
        whole = self.whole
        kept = {entry.name: getattr(whole, entry.name) for entry in fields(Asked) if entry.name not in left_out}
        epsilon = whole.epsilon if whole.epsilon == AUTO else self.model.epsilon
        init = whole.init.plan if isinstance(whole.init, Readable) else whole.init
        weight, graphs = whole.options.spaces.weight, (name for name in "XY" if validate.is_networkx(kept[name]))
        matrices = {name: validate.adjacency(name, kept[name], weight) for name in graphs}
        decided = {"init": init, "epsilon": epsilon, "device": self.device}
        names = dict(zip(("names_x", "names_y"), map(stored, self.names), strict=True))
        return kept | matrices | decided | names

    def problem(self, spaces: tuple[DistanceProvider, DistanceProvider], watch: Watch) -> Problem:
        """What is to be solved, between these providers."""
        mode = self.asked.gradient_mode
        return Problem(
            spaces=spaces,
            model=self.model.shared(ranks_of(spaces[0])),
            exact=self.against_exact is None and self.options.gradient != "sampled",
            unit=unit_of(spaces),
            kernels=self.kernels,
            options=self.options,
            generator=self.generator,
            watch=watch,
            init=self.init,
            tol=None if mode is None else mode.tolerance(self.strategy),
            gain=self.gain,
            curves=self.curves,
            auto=self.asked.epsilon == AUTO,
            sharpens=self.sharpens,
        )

    def run_by(self, strategy: str) -> Request:
        """The same request, run by a strategy that took over."""
        if strategy == self.strategy:
            return self
        backend, kernels = choose_kernels(strategy, self.asked.backend, self.device, self.shape, self.options)
        return replace(self, strategy=strategy, backend=backend, kernels=kernels)


def remedy_of(sharp: bool) -> str:
    """What to do about an epsilon that is too small, where the problem may have none (``sharp``) or not."""
    return f"raise epsilon, or {SHARP}" if sharp else "raise epsilon"
