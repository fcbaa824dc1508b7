"""`gw_align`: from two spaces to a plan with exact marginals and an honest value."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchgw import ranges, validate
from torchgw.couplings.rounding import off
from torchgw.diagnostics.status import Status
from torchgw.entry import check_options, entry
from torchgw.gradients.differentiable import differentiable
from torchgw.gradients.modes import GradientMode, check_mode
from torchgw.gradients.parameters import Given
from torchgw.kernels.dispatch import BACKENDS
from torchgw.kernels.sampling import make_generator
from torchgw.losses import LOSSES, SeparableLoss
from torchgw.marginals import Balanced, Marginals
from torchgw.objective.features import FeatureCost
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.persist.checkpoint import Checkpoint
from torchgw.persist.interrupt import stopped_by_interrupt
from torchgw.planner import estimate
from torchgw.request.checkpoint import followed
from torchgw.request.combinations import Fact, fact_of_space, facts_of, refuse, settled, tightened
from torchgw.request.limits import check_memory, check_rank, choose_strategy, sharp_fits
from torchgw.request.objective import (
    as_pair,
    check_alpha,
    check_cost,
    check_distances_resolved,
    check_resolved,
    make_model,
    tensors_of,
)
from torchgw.request.spaces import (
    check_distances,
    check_init,
    check_space,
    pick_device,
    with_factors,
    without_distances,
)
from torchgw.request.strategies import choose_kernels, known_points, passed_over, solved_where_it_fits
from torchgw.results.result import GWResult
from torchgw.results.warnings import against_small_epsilon, against_weights, warn_of
from torchgw.runtime.caller import is_theirs
from torchgw.runtime.threads import threads_for
from torchgw.solvers.solution import CertifiedSolution
from torchgw.spaces.prepare import make_providers
from torchgw.spaces.scale import unit_of
from torchgw.strategies.dense import run
from torchgw.strategies.large_problem import Task
from torchgw.strategies.low_rank import run_low_rank
from torchgw.strategies.streaming import run_large
from torchgw.types import Array, Callback, RandomState, is_provider

logger = logging.getLogger("torchgw")

Cost: TypeAlias = "Array | Tensor | tuple[Array | Tensor, Array | Tensor] | FeatureCost"


@entry()
def gw_align(
    X: Any,
    Y: Any,
    *,
    distances: str | tuple[str, str] = "auto",
    p: Array | Tensor | None = None,
    q: Array | Tensor | None = None,
    cost: Cost | None = None,
    alpha: float | Tensor | None = None,
    supervision: Supervision | None = None,
    init: Array | Tensor | GWResult | None = None,
    epsilon: float = 1e-3,
    marginals: Marginals = Balanced(),  # noqa: B008 - frozen, so one instance serves every call
    options: GWOptions = GWOptions(),  # noqa: B008
    gradient_mode: GradientMode | None = None,
    device: str | torch.device | None = None,
    backend: str = "auto",
    random_state: RandomState = None,
    callback: Callback | None = None,
    checkpoint: str | PathLike[str] | Checkpoint | None = None,
) -> GWResult:
    """Align two metric-measure spaces by Gromov-Wasserstein transport.

    A search on landmarks finds the basin of the global optimum, a descent with the exact gradient (or a sampled one
    where that is out of reach) ends in it, and the result says how good it is: see `GWResult.certificate`.

    Minimises alpha sum (D_X[i,i'] - D_Y[j,j'])^2 T_ij T_i'j' + (1 - alpha) <M, T> with entropy over the plans T with
    marginals p and q, or near them, each space's distances divided by its own largest one. See
    `torchgw.objective.model` for the whole objective.

    Parameters
    ----------
    X, Y : points (N, D) and (K, E), any real dtype; or square distance matrices (N, N), (K, K); or SciPy sparse graphs
        of edge lengths; or distance providers. Numpy arrays, tensors and nested lists are accepted.
    distances : how distances come from points or a graph, one for both spaces or a pair. "landmark": factored
        shortest paths on the k-nearest-neighbour graph. "dijkstra": exact shortest paths on demand. "precomputed": all
        pairs of them, or the matrix given. "euclidean": straight lines. "auto": a symmetric square array is a
        distance matrix; points and graphs get "precomputed" up to 500 points, "landmark" above 2500, and in between
        "landmark" where it is accurate to 3 % on a few rows. `HeatDistances` are given as providers.
    p, q : masses (N,), (K,), non-negative; uniform with sum 1 when None. What they ask of the plan's marginals is said
        by ``marginals``. Under `Balanced` their sums must agree, and scale plan and value and nothing else: epsilon
        belongs to masses of sum 1. Masses below 2^-80 (1e-24) of their sum count as zero.
    cost : linear cost M (fused Gromov-Wasserstein): a non-negative matrix (N, K), taken as it is, which needs the dense
        strategy; or a pair of feature arrays (N, d), (K, d), or a `FeatureCost`, which never become a matrix. A pair
        costs the squared distance of its features over its largest possible value. Pairs are forbidden by
        ``supervision=``, not by a huge cost, which is refused where what is rounded would cost more than all else.
    alpha : weight of the quadratic part, in [0, 1]; 1 without a cost, 0.5 with one. 1 is Gromov-Wasserstein alone, 0
        linear transport of ``cost`` alone, for which X and Y may be None; 0.99 lets the cost break ties and no more.
    supervision : known and forbidden pairs, labels and masks, see `Supervision`.
    init : where to start instead of the search: a plan (N, K), a result, matching pairs (m, 2) of integer indices into
        X, Y, or an index into Y for each point of X, (N,), as ``argmax()`` and basins have it. Without entropy a plan
        between up to 200 x 200 points is never made worse.
    epsilon : entropy, >= 0, in units of the scaled squared distances (each space's largest distance is 1). 0 asks for
        the optimum without entropy, a matching-like plan; it needs the exact gradient and takes a few times longer.
    marginals : `Balanced`, `SemiRelaxed`, `Unbalanced` or `Partial`.
    options : everything else, see `GWOptions`.
    gradient_mode : `Envelope`, `Implicit` or `Unrolled` where ``result.loss``, and with the last two ``result.plan``,
        ``push`` and ``pull``, are to be differentiated in X, Y, p, q, cost or alpha, given as tensors. None takes all
        of them for numbers.
    device : "cpu", "cuda", ...; by default that of the first tensor given, else a GPU if there is one.
    backend : "auto", "triton", "compile" or "eager".
    random_state : of landmarks, starts and anchors: int, torch.Generator or numpy.random.Generator; the same seed on
        the same machine gives the same bits. None takes fresh entropy. Global random state is neither read nor changed.
    callback : called with a `Progress` at every check of the loop. Returning True, or raising StopIteration, asks for
        the best so far, as Ctrl-C does (a second one ends at once); the result's status is then `Status.CANCELLED`.
        What else it raises passes through.
    checkpoint : a folder to be made, or a `Checkpoint`, in which the solve is kept while it runs; `torchgw.resume` goes
        on with it. Not with a gradient mode, whose tensors files cannot hold.

    Returns
    -------
    GWResult

    Raises
    ------
    ValueError, TypeError
        For input that cannot be used, naming the argument, before any work.
    MemoryError
        When a distance matrix, or the score of a dense solve, would exceed ``options.max_memory``, before any work;
        or when memory ends.
    OSError
        When the folder of a checkpoint cannot be made, before any work.
    FloatingPointError
        When epsilon is so small that cost / epsilon exceeds what float64 resolves: before any work below 2.2e-8, where
        distances have a largest of 1. When relaxed marginals leave a plan of less mass than kernels resolve.

    Warns
    -----
    GraphWarning
        When a graph had to be stitched, a given k joins parts that are far apart, or infinite distances were
        replaced.
    PrecisionWarning
        When the scores reach further than float32 carries them; a dense solve ends in float64 all the same.
    OutOfMemoryWarning
        When the device ran out of memory and the streaming strategy ran instead.
    CheckpointWarning
        When what is done could not be written to the checkpoint; the solve goes on.
    ConvergenceWarning
        When the result is not a converged one; its status says what to change.
    AmbiguityWarning
        When another matching is as good as the one returned.
    SupervisionWarning
        When masses leave mass on pairs that supervision forbids.

    Notes
    -----
    Up to about 5000 x 5000 points, or where options.strategy is "dense": O(N K) memory, 16 bytes for each pair of
    points (about 60 with epsilon = 0), O(N K (r + inner iterations)) work per outer iteration, with r the rank of the
    distances' factors (without any, N + K) or the number of anchors. Beyond: O((N + K) r) memory, see
    `torchgw.estimate` and `torchgw.strategies.ladder`.

    Exchanging X and Y, or the order of points, changes the starts that are searched from: between unrelated spaces
    values can differ by some per cent. Solve both ways, or with several seeds, and keep the lowest, where that matters.

    References
    ----------
    - Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011.
    - Peyre, Cuturi, Solomon, "Gromov-Wasserstein averaging of kernel and distance matrices", 2016.
    - Kerdoncuff, Emonet, Sebban, "Sampled Gromov Wasserstein", 2021.

    Examples
    --------
    >>> import torchgw
    >>> X, _ = torchgw.datasets.make_spiral(300)
    >>> Y, _ = torchgw.datasets.make_swiss_roll(350)
    >>> result = torchgw.gw_align(X, Y, epsilon=5e-3, random_state=0)
    >>> result.argmax().shape
    (300,)
    """
    check_options(options)
    validate.instance("marginals", marginals, Marginals, ": Balanced(), SemiRelaxed(), Unbalanced() or Partial()")
    validate.real("epsilon", epsilon, least=0.0, most=ranges.LARGEST_EPSILON)
    validate.choice("backend", backend, BACKENDS)
    cost = as_pair(cost)
    weight = check_alpha(alpha, cost)
    told = Given(X, Y, p, q, cost, weight if alpha is None else alpha)
    if supervision is not None:
        validate.instance("supervision", supervision, Supervision, "; for example Supervision(pairs=[(0, 3), (10, 7)])")
    check_mode(gradient_mode)
    weighed = alpha if isinstance(alpha, Tensor) else weight
    facts = facts_of(options, epsilon, weighed, cost, marginals, supervision, gradient_mode, checkpoint)
    refuse(facts)
    asked, options = options, tightened(settled(options, facts), epsilon, marginals)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable or None, got {type(callback).__name__}")
    call = {"X": X, "Y": Y, "distances": distances, "p": p, "q": q, "cost": cost, "alpha": alpha, "init": init}
    given = (X, Y, *tensors_of(cost))
    where = pick_device(device, given)
    generator = make_generator(random_state, where)
    kinds = check_distances(distances)
    if weight == 0:
        X, Y = without_distances(X, Y, cost)
        kinds = "auto", "auto"
    checked = [
        check_space(name, space, kind, options.spaces) for name, space, kind in zip("XY", (X, Y), kinds, strict=True)
    ]
    n, k = (space.size for space in checked)
    p_given, q_given = validate.masses("p", p, n, "N"), validate.masses("q", q, k, "K")
    linear, cost_scale = check_cost(cost, n, k)
    loss = options.loss if isinstance(options.loss, SeparableLoss) else LOSSES[options.loss]
    started = check_init(init, n, k, where)
    strategy = choose_strategy(n, k, epsilon, options, where)
    if gradient_mode is not None:
        ranges.reference((float(p_given.sum()), float(q_given.sum())))
        options = replace(options, strategy=strategy)
    if strategy == "low-rank" or (strategy == "streaming" and gradient_mode is not None):
        checked = with_factors(checked, kinds)
    refuse(facts | {"options.strategy": Fact(strategy, repr(strategy))} | {s.name: fact_of_space(s) for s in checked})
    check_rank(options, min(int((side > 0).sum()) for side in (p_given, q_given)))
    rules = None if supervision is None else supervision.rules(p_given, q_given, strategy == "dense")
    if rules is not None and rules.cost.extra is not None:
        options = replace(options, strategy="dense")  # no other strategy can take over what is stored
    strength = math.inf if supervision is None else supervision.strength
    model, mass = make_model(p_given, q_given, marginals, weight, float(epsilon), linear, rules, strength, loss, where)
    against = check_memory(strategy, checked, model, where, options, gradient_mode)
    sharp = sharp_fits(facts, (n, k), against, asked)
    advice = against_small_epsilon(sharp)
    check_resolved(model, checked, options, advice)
    with threads_for(n * k):  # compiled code is for a number of threads
        chosen, kernels = choose_kernels(strategy, backend, where, (n, k), options)
    logger.info("backend %s, blocks %s; passed over: %s", chosen.name, chosen.blocks, chosen.passed_over)
    if logger.isEnabledFor(logging.INFO):
        logger.info("strategy %s", estimate(n, k, epsilon=epsilon, options=options, device=where))

    call |= {"supervision": supervision, "epsilon": float(epsilon), "marginals": marginals, "options": asked}
    call |= {"device": where, "backend": backend}
    exact = against is None and options.gradient != "sampled"
    tol = None if gradient_mode is None else gradient_mode.tolerance(strategy)
    with followed(callback, checkpoint, call, generator) as watch, threads_for(n * k):
        ready = time.perf_counter()  # a compiler may have been tried
        prepare = partial(make_providers, checked, options.spaces)
        made, graphs = prepare() if is_provider(X) or is_provider(Y) else watch.stage("prepare", prepare)
        prepared = time.perf_counter()
        logger.info("prepared %s and %s in %.2f s", *(type(space).__name__ for space in made), prepared - ready)
        scaled = f"{advice}; or divide distances by a larger options.spaces.scale"
        check_distances_resolved(model, unit_of(made) ** 0.5, scaled)

        def solve(name: str) -> CertifiedSolution:
            task = Task(made, model, float(epsilon), exact, started, kernels, options, generator, watch, tol)
            try:
                return {"dense": run, "streaming": run_large, "low-rank": run_low_rank}[name](task)
            except FloatingPointError as error:
                if is_theirs(error):
                    raise
                raise FloatingPointError(f"{error}; {advice}{against_weights(marginals)}") from error

        with stopped_by_interrupt(watch):
            begun, (strategy, found) = strategy, solved_where_it_fits(strategy, options, generator, watch, solve)
    if strategy != begun:
        chosen, _ = choose_kernels(strategy, backend, where, (n, k), options)
    if marginals.free_mass:
        ranges.kept(float(found.marginals[0].sum()), n * k, marginals)
    sums = [side.cpu() * mass for side in found.marginals]
    wanted = torch.from_numpy(p_given), torch.from_numpy(q_given)
    derived = None
    if gradient_mode is not None:
        with threads_for(n * k):
            derived = differentiable(found, model, made, told, wanted, marginals, options, gradient_mode)
    result = GWResult(
        **found.as_told(mass, weight),
        marginal_error=off(sums[0], sums[1], *wanted, marginals),
        strategy=strategy,
        gradient_passed_over="" if found.gradient == "exact" else against or passed_over(strategy, options),
        status=Status.CANCELLED if watch.stopped else found.status,
        backend=chosen.name,
        backends_passed_over=chosen.passed_over,
        blocks=chosen.blocks,
        scales=(float(made[0].scale), float(made[1].scale)),
        cost_scale=cost_scale,
        unit=unit_of(made) if weight == 1 else max(unit_of(made), 1.0),
        providers=(type(made[0]).__name__, type(made[1]).__name__),
        graphs=graphs,
        timings={"prepare": prepared - ready} | found.seconds,
        epsilon=float(epsilon),
        alpha=weight,
        marginals=marginals,
        supervised=supervision is not None,
        constrained=supervision is not None and strength == math.inf,
        options=options,
        known=known_points(checked, made, graphs),
        numpy_input=not any(isinstance(space, Tensor) for space in given),
        differentiated=derived,
    )
    warn_of(result, found.precision_warning, sharp)
    return result
