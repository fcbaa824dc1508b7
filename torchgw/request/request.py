"""What a call of `gw_align` asks for: `build_problem` validates its arguments and resolves every default."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from torchgw.gradients.parameters import DifferentiableInputs
from torchgw.kernels.dispatch import BACKENDS, Selection
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.sampling import make_generator
from torchgw.losses import LOSSES, SeparableLoss
from torchgw.marginals import Balanced, Marginals
from torchgw.objective.features import FeatureCost
from torchgw.objective.gain import ProductPlan, product_plan
from torchgw.objective.model import Model
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.persist.checkpoint import Checkpoint
from torchgw.persist.watch import Watch
from torchgw.problem.problem import AUTO_START, Kernels, Problem, tolerances_for
from torchgw.request.attributes import replace_attributes
from torchgw.request.combinations import Fact, fact_of_epsilon, fact_of_space, facts_of, imply_options, refuse
from torchgw.request.devices import pick_device
from torchgw.request.limits import (
    CURVED_PAIRS,
    DENSE_PAIRS,
    SCATTERED_PAIRS,
    SHARP_SCATTERED_PAIRS,
    SHARPENED_PAIRS,
    UNRESOLVED,
    allows_no_entropy,
    check_flows,
    check_memory,
    check_rank,
    choose_kernels,
    choose_strategy,
    dense_bytes,
    ends_without_entropy,
    find_device_search,
    is_assignment,
    reason_against_exact,
    should_use_sparse,
    use_sparse_adjacencies,
)
from torchgw.request.names import check_names, names_to_save
from torchgw.request.objective import (
    add_rules,
    check_alpha,
    check_cost,
    check_distance_resolution,
    check_resolution,
    compute_least_epsilon,
    explain_unresolved_features,
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
from torchgw.solvers.linear_oracle import has_vertex_solver
from torchgw.spaces.coarsening import SCATTERED, WIDE, measure_coverage
from torchgw.spaces.prepare import InputSpace, OnDevice
from torchgw.spaces.resolution import explain_rounded_coordinates, explain_unresolved_points
from torchgw.spaces.scale import compute_squared_diameter
from torchgw.types import AUTO, Array, Callback, DistanceProvider, Epsilon, RandomState

logger = logging.getLogger("torchgw")

SHARP = "take epsilon=0 for the optimum without entropy"

Cost: TypeAlias = "Array | Tensor | tuple[Any, Any] | FeatureCost | str | list[str]"


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A validated problem of `gw_align`, with every default resolved; made by `build_problem`.

    arguments : those that a checkpoint keeps, with all points: attributes and texts in numbers, all else as given.
    epsilon : weight of the entropy as given; that of the model is a number.
    supervision : rules of all points, or None.
    gradient_mode, callback, checkpoint : as given.
    support : the points that have mass; None if all have. All fields below are of these points alone.
    differentiable_inputs : what gradients flow to. If points have no mass, the cost, providers, and tensors among
        X, Y, p and q lose these points, so that gradients are those of the others.
    requested_options : the options as given.
    options : the options with what other arguments decide.
    strategy : "dense", "streaming", "low-rank" or "sparse": the one that runs.
    spaces : both spaces, validated, with the kinds of their distances.
    model : masses of sum one and all that the objective weighs, on the device that solves; an epsilon that the spaces
        decide is a number from `resolve_epsilon` on.
    mass : the scale of the plan's mass, in units of p and q, which the model divides out.
    cost_scale : what feature costs were divided by.
    init : a plan (N, K) over its largest entry, or matching pairs (m, 2), to start at instead of the search; or None.
    generator : of landmarks, starts and anchors, on the device.
    backend : the implementation that is reported.
    kernels : implementations of every family that the strategy uses.
    against_exact : why the exact gradient cannot or should not run; None where it runs.
    allows_no_entropy : whether the same call with epsilon=0 would be accepted, which remedies then name.
    product : value of the product plan, and what there is to gain over it, where that decides; None before, and beside
        a given epsilon but for models without entropy.
    curves : whether what was given as points lies on curves, as far as that decides anything.
    sharpens : whether an epsilon that is left to the solve ends at zero, from a plan that is solved with one.
    precision_loss : which points rounding does not tell apart, and what to do; nothing where it does, and before that
        is known.
    names : names (N,), (K,) of all points, also of those without mass; None for points without.
    """

    arguments: Mapping[str, Any]
    epsilon: Epsilon
    supervision: Supervision | None
    gradient_mode: GradientMode | None
    callback: Callback | None
    checkpoint: str | PathLike[str] | Checkpoint | None
    support: Support | None
    differentiable_inputs: DifferentiableInputs
    requested_options: GWOptions
    options: GWOptions
    strategy: str
    spaces: tuple[InputSpace, InputSpace]
    model: Model
    mass: float
    cost_scale: float
    init: Tensor | None
    generator: torch.Generator
    backend: Selection[Kernel]
    kernels: Kernels
    against_exact: str | None
    allows_no_entropy: bool
    product: ProductPlan | None = None
    curves: bool = False
    sharpens: bool = False
    precision_loss: str = ""
    names: tuple[NDArray[np.object_] | None, NDArray[np.object_] | None] = (None, None)

    def resolve_epsilon(self, spaces: tuple[DistanceProvider, DistanceProvider]) -> Request:
        """The same request; an epsilon that is left to the solve as the number that it begins with between these
        providers.

        Raises
        ------
        ValueError, FloatingPointError
            For costs, and for distances beside an epsilon, that float64 does not resolve.
        """
        largest, (widest, curves) = compute_squared_diameter(spaces) ** 0.5, self._measure_coverage(spaces)
        factored = all(space.factors() is not None for space in spaces)
        own = replace(self, curves=curves and factored)
        if self.epsilon == AUTO or (self.model.epsilon == 0 and not self.model.is_standard):
            own = replace(own, product=product_plan(self.model, spaces, largest**2))
        if self.epsilon == AUTO:
            surfaces = own.should_stream_first and factored and WIDE < widest <= SCATTERED
            # Costs them least, and linear programs take longest.
            blurred = own.curves and not is_assignment(self.differentiable_inputs.masses)
            if self.model.epsilon > 0 or surfaces or blurred:
                epsilon = max(AUTO_START * own.energy_scale, compute_least_epsilon(self.model, largest))
                options = tolerances_for(self.options, epsilon, self.differentiable_inputs.marginals)
                own = replace(own, model=self.model.with_epsilon(epsilon), options=options)
            check_resolution(own.model, own.spaces, own.options, own.remedy)
            own = own._choose_ending(widest)
            if surfaces:
                own = own.with_strategy("streaming")
        elif own.model.epsilon == 0 and own.uses_streaming_by_choice and widest > SCATTERED:
            own = own.with_strategy("dense")
        elif (
            own.model.epsilon == 0
            and not is_assignment(self.differentiable_inputs.masses)
            and has_vertex_solver(*self.shape)
        ):
            many = math.prod(self.shape) >= DENSE_PAIRS.get(self.device.type, math.inf)
            if own.curves or (many and factored and widest <= SCATTERED):
                own = own.with_strategy("streaming")
        advice = f"{own.remedy}; or divide distances by a larger options.spaces.scale"
        check_distance_resolution(own.model, largest, advice)
        return own

    def describe_precision_loss(
        self, spaces: tuple[DistanceProvider, DistanceProvider], rows: Sequence[Tensor], apart: Sequence[Tensor]
    ) -> str:
        """Which points of spaces and features rounding does not tell apart; of spaces by what
        `torchgw.spaces.resolution.sample_differences` returned, the differences on the host."""
        names, numbers = [side.name for side in self.spaces], None if self.support is None else self.support.sides
        found = explain_unresolved_points(names, spaces, self.model.masses, rows, apart, numbers)
        found += map(
            explain_rounded_coordinates, self.spaces, (self.differentiable_inputs.X, self.differentiable_inputs.Y)
        )
        return "; ".join(filter(None, [*found, explain_unresolved_features(self.differentiable_inputs.cost, numbers)]))

    def _measure_coverage(self, spaces: tuple[DistanceProvider, DistanceProvider]) -> tuple[float, bool]:
        """How well a few landmarks cover the space that they cover worst, and whether what is given as points lies on
        curves; infinite and False where nothing depends on it."""
        many = self.is_dense_between_points and math.prod(self.shape) >= CURVED_PAIRS
        left = self.epsilon == AUTO
        ends = (left and self.ends_in_assignments) or (
            (left or self.model.epsilon == 0) and self.uses_streaming_by_choice
        )
        if not (many or ends):
            return math.inf, False
        widest, along_curves = measure_coverage(spaces, self.model.masses)
        return widest, many and along_curves

    def _choose_ending(self, widest: float) -> Request:
        """The same request; between many points that are no curves, dense where they are scattered, and without
        entropy in the end where its linear programs are assignments. ``widest`` is the worse coverage."""
        ends = self.ends_in_assignments
        if not (ends or self.uses_streaming_by_choice):
            return self
        if widest <= SCATTERED:
            return replace(self, sharpens=ends and widest > WIDE)
        own = self.with_strategy("dense") if self.uses_streaming_by_choice else self
        return replace(own, model=own.model.with_epsilon(0.0)) if ends else own

    @property
    def energy_scale(self) -> float:
        """What there is to gain over the product plan, in units of epsilon; NaN where it is not known."""
        return math.nan if self.product is None else self.product.energy_scale

    @property
    def on_device(self) -> OnDevice | None:
        """What brings graphs to the device, where their shortest paths are searched there; not what is differentiated,
        by paths that the CPU finds."""
        if self.gradient_mode is not None:
            return None
        return find_device_search(self.kernels.backend, self.device, self.options.spaces)

    @property
    def ends_in_assignments(self) -> bool:
        """Whether an epsilon that is left to the solve, and begins above zero, may end there by assignments."""
        few = math.prod(self.shape) <= SHARP_SCATTERED_PAIRS
        free = self.requested_options.strategy != "streaming" and self.model.is_standard
        return (
            free
            and self.model.epsilon > 0
            and self.allows_no_entropy
            and is_assignment(self.differentiable_inputs.masses)
            and few
        )

    @property
    def is_dense_between_points(self) -> bool:
        """Whether both spaces are points with factors, and a search between them is dense by choice."""
        options = self.options
        free = self.strategy == "dense" and options.strategy == "auto" and self.against_exact is None
        searched = options.coarse is not None and self.init is None and self.gradient_mode is None
        given = all(space.is_points and space.kind in ("landmark", "checked") for space in self.spaces)
        return given and free and searched and options.gradient != "sampled" and self.model.is_standard

    @property
    def should_stream_first(self) -> bool:
        """Whether points on surfaces, which end without entropy by assignments, do so faster from a streamed plan."""
        many = math.prod(self.shape) >= SHARPENED_PAIRS
        ends = self.model.epsilon == 0 or self.ends_in_assignments
        return self.is_dense_between_points and many and ends and is_assignment(self.differentiable_inputs.masses)

    @property
    def uses_streaming_by_choice(self) -> bool:
        """Whether it streams to be fast, and all that a dense solve stores would fit."""
        (n, k), left = self.shape, self.options.strategy == "auto" and self.gradient_mode is None
        fits = n * k <= SCATTERED_PAIRS and dense_bytes(n, k, self.model.epsilon) <= self.options.max_memory
        return self.strategy == "streaming" and left and fits

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return len(self.model.p), len(self.model.q)

    @property
    def device(self) -> torch.device:
        """Where it is solved."""
        return self.model.p.device

    @property
    def input_arrays(self) -> tuple[Any, ...]:
        """Spaces and costs as given, whose kind and device a result follows."""
        return self.differentiable_inputs.X, self.differentiable_inputs.Y, *tensors_of(self.differentiable_inputs.cost)

    @property
    def remedy(self) -> str:
        """What to do about an epsilon that is too small."""
        return describe_remedy(self.allows_no_entropy)

    @property
    def remedy_by_weights(self) -> str:
        """What else to do where a solve ended in no numbers, as far as weights of divergences can be the reason.

        Potentials grow with weights beyond 1, the largest squared distance; below it a plan loses its mass.
        """
        marginals = self.differentiable_inputs.marginals
        if any(1 < rho < math.inf for rho in marginals.weights):
            return f"; or change {marginals!r}: lower weights above 1, or math.inf for a hard marginal"
        return f"; or change {marginals!r}: raise weights" if marginals.free_mass else ""

    def checkpoint_arguments(self) -> dict[str, Any]:
        """The arguments that a checkpoint keeps."""
        own, init = self.arguments, self.arguments["init"]
        epsilon = self.epsilon if self.epsilon == AUTO else self.model.epsilon
        weight = self.requested_options.spaces.weight
        graphs = (name for name in "XY" if validate.is_networkx(own[name]))
        matrices = {name: validate.adjacency(name, own[name], weight) for name in graphs}
        decided = {"init": init.plan if isinstance(init, Readable) else init, "epsilon": epsilon, "device": self.device}
        names = dict(zip(("names_x", "names_y"), map(names_to_save, self.names), strict=True))
        return {**own, **matrices, **decided, **names}

    def make_problem(self, spaces: tuple[DistanceProvider, DistanceProvider], watch: Watch) -> Problem:
        """What is to be solved, between these providers."""
        mode = self.gradient_mode
        return Problem(
            spaces=spaces,
            model=self.model.share_factors(ranks_of(spaces[0])),
            exact=self.against_exact is None and self.options.gradient != "sampled",
            unit=compute_squared_diameter(spaces),
            kernels=self.kernels,
            options=self.options,
            generator=self.generator,
            watch=watch,
            init=self.init,
            tol=None if mode is None else mode.tolerance(self.strategy),
            energy_scale=self.energy_scale,
            curves=self.curves,
            auto=self.epsilon == AUTO,
            sharpens=self.sharpens,
        )

    def with_strategy(self, strategy: str) -> Request:
        """The same request, run by a strategy that took over."""
        if strategy == self.strategy:
            return self
        backend, kernels = choose_kernels(strategy, self.kernels.backend, self.device, self.shape, self.options)
        return replace(self, strategy=strategy, backend=backend, kernels=kernels)


def build_problem(
    X: Any,
    Y: Any,
    *,
    distances: str | tuple[str, str] = "auto",
    p: Array | Tensor | None = None,
    q: Array | Tensor | None = None,
    cost: Cost | None = None,
    alpha: float | Tensor | None = None,
    supervision: Supervision | None = None,
    init: Array | Tensor | Readable | None = None,
    epsilon: Epsilon = "auto",
    marginals: Marginals = Balanced(),  # noqa: B008 - frozen, so one instance serves every call
    options: GWOptions | None = None,
    gradient_mode: GradientMode | None = None,
    device: str | torch.device | None = None,
    backend: str = "auto",
    random_state: RandomState = None,
    callback: Callback | None = None,
    checkpoint: str | PathLike[str] | Checkpoint | None = None,
    names_x: Iterable[Any] | None = None,
    names_y: Iterable[Any] | None = None,
) -> Request:
    """The validated problem of a call of `gw_align`, from its arguments, which have the same meanings and defaults.

    Raises
    ------
    ValueError, TypeError, MemoryError, FloatingPointError
        As `gw_align` says, before any distance is computed.
    """
    requested = check_options(options)
    check_arguments(marginals, epsilon, backend, gradient_mode, callback)
    X, Y, cost, supervision = replace_attributes(X, Y, cost, supervision, requested.max_memory)
    arguments = {
        "X": X,
        "Y": Y,
        "distances": distances,
        "p": p,
        "q": q,
        "cost": cost,
        "alpha": alpha,
        "supervision": supervision,
        "init": init,
        "marginals": marginals,
        "options": requested,
        "backend": backend,
    }
    weight = check_alpha(alpha, cost)
    alpha = alpha if isinstance(alpha, Tensor) else weight
    facts = facts_of(
        requested,
        epsilon,
        alpha=alpha,
        cost=cost,
        marginals=marginals,
        supervision=supervision,
        gradient_mode=gradient_mode,
        checkpoint=checkpoint,
    )
    refuse(facts)
    options = imply_options(requested, facts)

    kinds = check_distances(distances)
    spaces = check_spaces(X, Y, kinds, weight, cost, options.spaces)
    n, k = sizes_of(spaces)
    names = check_names("X", names_x, X, n), check_names("Y", names_y, Y, k)
    device = pick_device(device, (X, Y, *tensors_of(cost)), n * k)
    generator = make_generator(random_state, device)
    checked = validate.masses("p", p, n, "N"), validate.masses("q", q, k, "K")
    start = check_init(init, n, k, device)
    support, constraints = Support.of(*checked, spaces), supervision
    if support is not None:
        spaces, (X, Y), (p, q) = support.restrict(spaces, (X, Y), (p, q), kinds, options.spaces.k)
        checked = checked[0][support.rows.numpy()], checked[1][support.columns.numpy()]
        cost, start, constraints = support.cost(cost), support.init(start), support.rules(supervision)
    masses = torch.from_numpy(checked[0]), torch.from_numpy(checked[1])

    warn_of_adjacencies(*spaces, asked=kinds)
    check_loss(spaces, options.loss)
    facts |= {space.name: fact_of_space(space) for space in spaces if not space.symmetric}
    refuse(facts)
    options = imply_options(options, facts)
    spaces = use_sparse_adjacencies(without_searches(spaces, options.max_memory))
    if should_use_sparse(facts, spaces):
        facts |= {"options.strategy": Fact("sparse", "'sparse'")}
        options = replace(options, strategy="sparse")
    initial_epsilon = choose_initial_epsilon(epsilon, facts, spaces, masses, options, requested, device)
    if epsilon != AUTO:
        options = tolerances_for(options, initial_epsilon, marginals)
    elif initial_epsilon == 0:
        facts |= {"epsilon": fact_of_epsilon(initial_epsilon)}
    n, k = sizes_of(spaces)
    linear, cost_scale = check_cost(cost, n, k)
    if gradient_mode is not None:
        ranges.reference((float(checked[0].sum()), float(checked[1].sum())))
    strategy, spaces = choose_strategy_and_spaces(facts, spaces, kinds, initial_epsilon, options, gradient_mode, device)
    if gradient_mode is not None:
        options = replace(options, strategy=strategy)

    loss = options.loss if isinstance(options.loss, SeparableLoss) else LOSSES[options.loss]
    rules = None if constraints is None else constraints.rules(*checked, strategy == "dense")
    if rules is not None and rules.cost.extra is not None:
        options = replace(options, strategy="dense")  # no other strategy can take over what is stored
    model, mass = make_model(masses, marginals, weight, initial_epsilon, linear, loss, device)
    if constraints is not None and rules is not None:
        model = add_rules(model, rules, constraints.strength / mass)
    against = check_memory(strategy, spaces, model, device, options)
    sharp = allows_no_entropy(facts, (n, k), against, requested, all(space.has_factors for space in spaces))
    if epsilon != AUTO:
        check_resolution(model, spaces, options, describe_remedy(sharp))
    with threads_for(n * k if device.type == "cpu" else 0):  # compiled code is for a number of threads
        selection, kernels = choose_kernels(strategy, backend, device, (n, k), options)
    logger.info("backend %s, blocks %s; passed over: %s", selection.name, selection.blocks, selection.passed_over)
    return Request(
        arguments=arguments,
        epsilon=epsilon,
        supervision=supervision,
        gradient_mode=gradient_mode,
        callback=callback,
        checkpoint=checkpoint,
        support=support,
        differentiable_inputs=DifferentiableInputs(X, Y, p, q, cost, alpha, masses, marginals, options.spaces),
        requested_options=requested,
        options=options,
        strategy=strategy,
        spaces=spaces,
        model=model,
        mass=mass,
        cost_scale=cost_scale,
        init=start,
        generator=generator,
        backend=selection,
        kernels=kernels,
        against_exact=against,
        allows_no_entropy=sharp,
        names=names,
    )


def check_arguments(
    marginals: object, epsilon: object, backend: object, gradient_mode: object, callback: object
) -> None:
    """Refuse what can be seen to be wrong in one argument alone, but for options, spaces, masses, costs and rules."""
    validate.instance(
        "marginals", marginals, Marginals, ": Balanced(), SemiRelaxed(), Unbalanced(rho_x, rho_y) or Partial(mass)"
    )
    validate.epsilon("epsilon", epsilon)
    validate.choice("backend", backend, BACKENDS)
    check_mode(gradient_mode)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable or None, got {type(callback).__name__}")


def choose_initial_epsilon(
    epsilon: Epsilon,
    facts: Mapping[str, Fact],
    spaces: tuple[InputSpace, InputSpace],
    masses: tuple[Tensor, Tensor],
    options: GWOptions,
    requested: GWOptions,
    device: torch.device,
) -> float:
    """The number that a solve begins with before distances are known: zero where an epsilon that is left to it ends
    there, with the options as ``requested``."""
    if epsilon != AUTO:
        return float(epsilon)
    metric, against = all(space.metric for space in spaces), reason_against_exact(spaces, device, options)
    few = options.strategy == "sparse"
    return 0.0 if few or ends_without_entropy(facts, masses, against, requested, metric) else UNRESOLVED


def choose_strategy_and_spaces(
    facts: Mapping[str, Fact],
    spaces: tuple[InputSpace, InputSpace],
    kinds: tuple[str, str],
    epsilon: float,
    options: GWOptions,
    gradient_mode: GradientMode | None,
    device: torch.device,
) -> tuple[str, tuple[InputSpace, InputSpace]]:
    """The strategy that runs, and the spaces with the distances that it needs; refused where it cannot."""
    n, k = sizes_of(spaces)
    strategy = choose_strategy(n, k, epsilon, options, device, all(space.has_factors for space in spaces))
    if strategy == "low-rank" or (strategy == "streaming" and (gradient_mode is not None or epsilon == 0)):
        spaces = with_factors(spaces, kinds)
    chosen = {"options.strategy": Fact(strategy, repr(strategy))}
    refuse({**facts, **chosen, **{space.name: fact_of_space(space) for space in spaces}})
    check_flows(strategy, n, k, epsilon)
    check_rank(options, min(n, k))
    return strategy, spaces


def describe_remedy(sharp: bool) -> str:
    """What to do about an epsilon that is too small, where the problem may have none (``allows_no_entropy``) or not."""
    return f"raise epsilon, or {SHARP}" if sharp else "raise epsilon"
