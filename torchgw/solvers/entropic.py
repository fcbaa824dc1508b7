"""Entropic descent: the objective is linearised at a plan, and the next plan solves that problem with an entropy.

    T <- argmin <C(T), S> + epsilon KL(S | R),    over the plans S of the model

R is the product p q^T of the masses for the fixed-point iteration (`descend`), for Newton's method on it
(`refine_by_newton`) and with a sampled gradient (`torchgw.solvers.sampled`): one loop, `iterate_linearizations`, runs
these until they settle. A batch of plans takes a prescribed number of steps, by `take_steps`, with R = p q^T between
landmarks (`torchgw.search.anneal`), or with R = T, which are proximal point steps (`proximal_steps`).

    cost C(T) -> score -C / epsilon -> Sinkhorn scaling from the last potentials -> T, rounded onto its marginals

Rounding before the gradient is what keeps few iterations stable: gradient and objective then belong to a feasible plan,
however far Sinkhorn came. The loop ends when the last potentials already solved the new cost and the objective stopped
falling. From a good start that takes three iterations. Its last step is `finish`: the last problem once more, in
float64 and to full tolerance.

Solving each linearisation to its end is a descent where the quadratic part is concave between plans, as squared losses
of distances are under hard marginals; otherwise two plans can be each other's answer. Then the next cost is taken at
T + s (S - T) instead of S, with s halved whenever two consecutive steps point in opposite directions: the fixed points
are the same.

Newton's method: an outer iteration takes what the cost reads of a plan, y, to that of the plan which solves it, y'.
Near the fixed point y' - y falls by a constant factor only; solving (I + S B / w) d = y' - y instead
(`torchgw.objective.curvature`) and going on from y + d squares the error, at the price of some ten products of the plan
with distances. Where a step does not halve what is left, a plain one follows. A gradient through a plan is that of the
stationary plan: what is left grows by the condition number.

Proximal point steps: log T gathers -C(T) / epsilon of every step, plus potentials, which is mirror descent with the
entropy. They are for what landmarks cannot see, a graph's adjacency above all. Epsilon falls from a tenth to a
thirtieth of the product plan's energy, so steps become longer. As C(T) moves slowly, a step wants nearly the same
potentials as the last one; begun from those, five Sinkhorn iterations are enough. Begun from nothing, marginals would
drift away, and the steps would end far above.

Sources: H. Xu, D. Luo, H. Zha, L. Carin, "Gromov-Wasserstein learning for graph matching and node embedding", 2019;
Y. Xie, X. Wang, R. Wang, H. Zha, "A fast proximal point method for computing exact Wasserstein distance", 2020.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from torchgw import ranges
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.rounding import Rounding
from torchgw.diagnostics.status import History, Status
from torchgw.kernels import small_transport
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.logsumexp import flush_small
from torchgw.kernels.precision import reach, unsafe
from torchgw.kernels.sums import inner as inner_product
from torchgw.losses import SQUARE
from torchgw.objective.curvature import Curvature, level_of
from torchgw.objective.exact import ExactGradient
from torchgw.objective.linearise import Gradient, ModelGradient, evaluate, gradient_of, linearise
from torchgw.objective.model import Model, mean_cost
from torchgw.objective.sampled import restore_memory
from torchgw.options import GWOptions, SinkhornOptions
from torchgw.persist.watch import Watch
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.scratch import own
from torchgw.runtime.transfer import AsyncNumbers
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.implicit import Response
from torchgw.sinkhorn.loop import anneal_epsilon, interpolate_epsilon, rescale
from torchgw.solvers.inner import InnerSolution, InnerSolver, StoredSolver, as_graph_numbers
from torchgw.solvers.iterate import Check, Loop, iterate
from torchgw.solvers.solution import EntropicState, Solution
from torchgw.solvers.warm_start import WarmStart

StateT = TypeVar("StateT", bound=EntropicState)
BatchScore: TypeAlias = Callable[[Tensor, float], Tensor]
"""-C(T) log2(e) / epsilon (B, N, K) of plans T (B, N, K), up to row and column terms."""

CHANGE_TOLERANCE = 10.0
FLAT = 10
SMALLEST_STEP = 1 / 64
SWAPPED = 0.01  # of the mass: what moves less between two plans where the next cost is taken has settled
SATURATED = 1e-6
LANCZOS_STEPS = 30
MOST_INNER = 2000
LEAST_RELAXATION, MOST_RELAXATION = 1.0, 1.95
INEXACT = 1e-4
MOST_GMRES = 60
HALVED = 0.5
STALLED = 1e-6
SETTLED = 10.0
HOT, COLD, STEPS = 0.1, 0.03, 40  # of proximal steps
ITERATIONS = 5
NOISE = 0.1  # of the logarithms of the first plan, which otherwise has every symmetry of both spaces, and keeps it


def iterate_linearizations(
    kind: type[StateT],
    begin: Callable[[], StateT],
    follow: Callable[[StateT, InnerSolution, float], tuple[dict[str, Any], Check | None, Status | None]],
    gradient: Gradient | None,
    start: WarmStart,
    inner: InnerSolver,
    options: GWOptions,
    loop: Loop,
) -> Solution:
    """The loop from ``start``, in its dtype, to the epsilon of the inner solver's model.

    A start whose potentials belong to no epsilon is annealed from above, any other from its own epsilon, halved at each
    iteration.

    Parameters
    ----------
    kind, begin : of its states, as `iterate` takes them.
    follow : what else changes in a state when a problem was solved at an epsilon, the check, and why the loop ends.
    gradient : the cost at a plan; None where ``follow`` always gives the next one.
    inner : solves the transport problems, and says what memory that takes.
    """
    assert loop.max_iter is not None
    annealing = replace(options.annealing, n_iter=min(options.annealing.n_iter, loop.max_iter - 1))

    def step(state: StateT) -> tuple[StateT, Check | None, Status | None]:
        epsilon = anneal_epsilon(state.n_iter, inner.model.epsilon, start.epsilon, annealing)
        cost, warm = state.next, replace(state.warm_start, epsilon=state.warm_start.epsilon or epsilon)
        if cost is None:
            assert gradient is not None
            assert state.coupling is not None
            restore_memory(gradient, state.sampler)
            cost = gradient(state.coupling, inner.model.masses_in(warm.f.dtype)[0])
        found = inner.solve_linearization(cost, epsilon, warm, state.marginals, gradient)
        more, check, status = follow(state, found, epsilon)
        state = replace(
            state,
            n_iter=state.n_iter + 1,
            n_iter_sinkhorn=state.n_iter_sinkhorn + found.n_iter,
            warm_start=found.warm_start,
            coupling=found.coupling,
            **more,
        )
        return state, check, status

    return Solution.of(*iterate(kind, step, begin, loop, options.stopping.max_iter), loop.history)


def step_between(last: EntropicState, solution: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """The plan at which the next cost is taken, between the last such plan and S (N, K), which is not kept; the
    direction S - T (N, K) of that step, None for the first; and its length s () in (0, 1]. The memory of the last plan
    is written over."""
    if last.origin is None or last.length is None:
        return solution.clone(), None, solution.new_ones(())
    direction, length = solution - last.origin, last.length
    if last.direction is not None:
        turns = inner_product(direction, last.direction) < 0
        length = torch.where(turns, (length / 2).clamp_min(SMALLEST_STEP), length)
    return last.origin.lerp_(solution, length), direction, length


def descend(
    gradient: Gradient,
    start: WarmStart,
    inner: InnerSolver,
    options: GWOptions,
    loop: Loop,
    by_value: bool = False,
    resolved: bool = False,
    metric: bool = True,
) -> Solution:
    """The fixed-point iteration, with the gradient of the inner solver's model; see `iterate_linearizations`.

    ``by_value`` ends it when the objective is still, wherever the potentials are. Between spaces that are not
    ``metric`` two plans may be each other's answer.

    Raises
    ------
    FloatingPointError
        Where potentials must be ``resolved``, when they are no numbers, or too large to make a plan of in the end.
    """
    model, epsilon = inner.model, inner.model.epsilon
    dtype, plan_tol = start.f.dtype, options.stopping.plan_tol
    row, column = model.masses_in(dtype)
    # Between plans with the same marginals the quadratic part of a squared loss is concave, and whole steps descend.
    damps = not (model.has_hard_marginals and model.loss is SQUARE and metric)
    evaluates = damps or isinstance(gradient, ModelGradient)
    nothing = row.new_zeros(())

    def follow(state: EntropicState, found: InnerSolution, now: float) -> tuple[dict[str, Any], Check, Status | None]:
        at, ahead, told = found.coupling, found.next_cost, found.host_numbers
        origin, direction, length, marginals = None, None, None, None
        unread = [each for each in (found.residual, found.warm_residual) if isinstance(each, Tensor)]
        changes = [nothing, nothing, nothing + 1] if evaluates or unread else []
        if damps and isinstance(at, DenseCoupling):
            origin, direction, length = step_between(state, at.plan)
            at = DenseCoupling(origin)
            changes[1:] = nothing if direction is None else direction.abs().sum() / row.sum(), length
        if evaluates:
            ahead, energy = evaluate(gradient, at, row, column)
            told = torch.cat((energy[None], told[1:]))
            if not model.has_hard_marginals:
                marginals = model.marginals_of(at)
                # What warm potentials do not tell of relaxed marginals.
                before = state.marginals or [side + torch.inf for side in marginals]
                changes[0] = torch.stack(
                    [(one - other).abs().sum() for one, other in zip(before, marginals, strict=True)]
                ).max()
        # All that the host is to know of the iteration, in one wait.
        reading = AsyncNumbers(torch.cat((told, torch.stack((*changes, *unread)))) if changes else told)
        if reading.overlaps and ahead is None:  # the next cost, on a GPU while the host waits
            ahead = gradient(at, row)
        value, cancelling, largest, *read = reading.values()
        changed, moved, share = (read.pop(0) for _ in changes) if changes else (0.0, 0.0, 1.0)
        residual, warm_residual = (
            read.pop(0) if isinstance(each, Tensor) else each for each in (found.residual, found.warm_residual)
        )
        if resolved:
            check_potentials(largest, epsilon)
        # Below the rounding of the terms that cancel in it, a change of the value means nothing.
        noise = 4 * torch.finfo(dtype).eps * cancelling
        still, values = plan_tol * abs(value) + noise, (*state.values, value)[-FLAT - 1 :]
        # Plans whose marginals may give way can slide for long at almost the same value, and two can swap at the same.
        flat = evaluates and plan_tol > 0 and len(values) > FLAT and abs(values[0] - value) <= still
        last_change = max(warm_residual, changed)
        same = by_value or (moved <= SWAPPED and last_change <= CHANGE_TOLERANCE * options.sinkhorn.tol * share)
        held = now == epsilon and len(values) > 1 and abs(values[-2] - value) <= still
        more = {
            "next": ahead,
            "origin": origin,
            "direction": direction,
            "length": length,
            "values": values,
            "marginals": marginals,
            "last_change": last_change,
        }
        return more, Check(value, residual, now), Status.SETTLED if held and (same or flat) else None

    begin = partial(EntropicState, warm_start=start, coupling=None if start.cost else start.coupling(), next=start.cost)
    return iterate_linearizations(EntropicState, begin, follow, gradient, start, inner, options, loop)


def refine_by_newton(
    quadratic: ExactGradient,
    start: WarmStart,
    model: Model,
    inner: InnerSolver,
    options: GWOptions,
    watch: Watch,
    history: History,
) -> Solution:
    """The fixed point near float64 potentials of the model's own epsilon, with options from `with_tolerance`."""
    loop = Loop(watch, history, options.stopping.max_iter)
    gradient, tol, whole = gradient_of(model, quadratic), options.sinkhorn.tol, model.marginals.free_mass
    if whole and options.strategy == "streaming":  # its cost is no linear function of a plan that is not stored
        return descend(gradient, start, inner, options, loop)
    value = history.cost[-1] if history.cost else float("nan")

    def follow(state: EntropicState, found: InnerSolution, now: float) -> tuple[dict[str, Any], Check, Status | None]:
        cost, y = found.warm_start.cost, state.origin
        assert cost is not None
        curvature = Curvature(quadratic, model, level_of(cost, model), whole)
        rows, columns = model.marginals_of(found.coupling)
        read = curvature.compress_coupling(found.coupling, rows, columns)
        change = 0.0 if model.alpha == 0 else float("inf")  # then the cost does not depend on the plan
        if y is not None and model.alpha > 0:
            tiny = torch.finfo(read.dtype).tiny
            change = float(torch.linalg.vector_norm(read - y) / torch.linalg.vector_norm(read).clamp_min(tiny))
        halved, following = change <= HALVED * state.last_change, None
        settled = change <= SETTLED * tol or (change <= STALLED and not halved)
        if not settled:
            if y is not None and halved:
                stiffness, total = marginal_stiffness(rows, columns, model)
                respond = Response(found.coupling, stiffness, model.epsilon, total, n_lanczos=LANCZOS_STEPS)
                y = y + curvature.solve(respond, read - y, INEXACT, MOST_GMRES).x
            else:
                y = read.clone()  # what is stored is overwritten by the next solve
            following = _cost(curvature, gradient, y)
        more = {"next": following, "origin": y, "last_change": change}
        return more, Check(value, change, now), Status.SETTLED if settled else None

    begin = partial(EntropicState, warm_start=start, next=start.cost)
    return iterate_linearizations(EntropicState, begin, follow, None, start, inner, options, loop)


def _cost(curvature: Curvature, gradient: Gradient, y: Tensor) -> FactoredCost:
    """The cost of the whole objective from what was read of a plan."""
    model = curvature.model
    if curvature.factors is None:
        plan = y.view(len(model.p), len(model.q))
        return gradient(DenseCoupling(plan.clamp_min(0.0) if model.marginals.free_mass else plan), model.p)
    core, rows, columns, _ = curvature.parts(y)
    p, q = (mass.to(y) for mass in model.masses) if model.has_hard_marginals else (rows, columns)
    raw = curvature.quadratic.cost_from_factored_plan(core, p, q)
    return linearise(model, raw, model.linear(y.dtype))


def with_tolerance(options: GWOptions, tol: float, plan: BlockCoupling, model: Model) -> GWOptions:
    """Options whose every problem is solved to ``tol``, over-relaxed as half-steps converge fastest near this plan; see
    `torchgw.sinkhorn.implicit`."""
    stiffness, total = marginal_stiffness(plan.marginal(1), plan.marginal(0), model)
    relaxation = Response(plan, stiffness, model.epsilon, total, n_lanczos=LANCZOS_STEPS).relaxation
    return replace(
        options,
        sinkhorn=replace(
            options.sinkhorn,
            tol=tol,
            exact_max_iter=MOST_INNER,
            final_max_iter=max(options.sinkhorn.final_max_iter, 5 * MOST_INNER),
            relaxation=min(max(relaxation, LEAST_RELAXATION), MOST_RELAXATION),
        ),
        stopping=replace(options.stopping, plan_tol=0.0),
    )


def marginal_stiffness(
    rows: Tensor, columns: Tensor, model: Model, prices: tuple[Tensor, Tensor] | None = None
) -> tuple[tuple[Tensor, Tensor], bool]:
    """The stiffness of each marginal of a plan (see `torchgw.sinkhorn.implicit`), and whether its total is held.

    Points of a partial plan that give all they have are told by their sums, or by the ``prices`` (N,), (K,) of their
    marginals below that of the total, which say so however well the sums are solved.
    """
    ends = list(zip((rows, columns), model.masses, model.marginals.damping(model.epsilon), strict=True))
    if model.marginals.total is None:
        h, k = (torch.full_like(sums, tau) for sums, _, tau in ends)
        return (h, k), False
    if prices is None:
        h, k = ((sums >= mass.to(sums) * (1 - SATURATED)).to(sums) for sums, mass, _ in ends)
    else:
        h, k = ((f < -SATURATED * model.epsilon).to(sums) for f, sums in zip(prices, (rows, columns), strict=True))
    return (h, k), all(bool((side == 0).any()) for side in (h, k))


def proximal_plan(gradient: Gradient, p: Tensor, q: Tensor, watch: Watch) -> Tensor:
    """Where proximal steps go from near the product plan: a plan (N, K) of mass one, its marginals nearly those of the
    masses p (N,), q (K,) over their sums. O(N K) memory; 40 gradients, and O(N K) work for each."""
    p, q = p / p.sum(), q / q.sum()
    levels = epsilon_levels(float(product_energy(gradient, p, q)))
    noise = torch.randn(1, len(p), len(q), generator=torch.Generator().manual_seed(0), dtype=p.dtype).to(p.device)
    exponents = (p[:, None] * q).log2() + NOISE * noise
    return flush_small(proximal_steps(make_score(gradient, p), exponents, p, q, levels, watch)[0].exp2_())


def epsilon_levels(unit: float, hot: float = HOT, cold: float = COLD, steps: int = STEPS) -> list[float]:
    """Epsilons that fall from ``hot`` to ``cold`` times ``unit``, the product plan's energy."""
    return [unit * interpolate_epsilon(hot, cold, step / (steps - 1)) for step in range(steps)]


def make_score(gradient: Gradient, p: Tensor) -> BatchScore:
    """That of plans (B, N, K) with row sums p (N,), one at a time."""
    return lambda plans, epsilon: torch.stack(
        [gradient(DenseCoupling(plan), p).centre_factors(epsilon)[0].stored_score(epsilon) for plan in plans]
    )


def proximal_steps(
    score: BatchScore, exponents: Tensor, p: Tensor, q: Tensor, epsilons: Iterable[float], watch: Watch
) -> Tensor:
    """The exponents of the plans (B, N, K) that a step at each of ``epsilons`` leads to from plans 2^``exponents``;
    masses p (N,), q (K,) of sum one."""
    # Transposed problems take the last column potentials first.
    sides, turned = (q.log2(), p.log2()), exponents.mT.contiguous()
    solve = small_transport.choose("auto", Workload(p.device, p.dtype, (len(q), len(p)))).function.solve
    take_steps(
        lambda plans, epsilon, *warm: (score(plans.mT, epsilon).mT, *sides, *warm),
        solve,
        (flush_small(exponents.exp2()).mT, torch.zeros_like(turned[:, :, 0]), torch.zeros_like(turned[:, 0]), 1.0),
        itertools.takewhile(lambda epsilon: epsilon > 0 and not watch.should_skip(), epsilons),
        turned,
        1,
        ITERATIONS,
    )
    return turned.mT


def take_steps(
    linearise: Callable[..., tuple[Any, ...]],
    solve: Callable[..., tuple[Tensor, Tensor, Tensor]],
    batch: tuple[Tensor, Tensor, Tensor, Any],
    levels: Iterable[Any],
    reference: tuple[Tensor, Tensor] | Tensor,
    n_outer: int,
    n_inner: int,
) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Plans (B, N, K), their base-2 potentials (B, N), (B, K) and epsilon after ``n_outer`` linearisations at each
    epsilon, () or (B,), each with ``n_inner`` Sinkhorn iterations.

    Parameters
    ----------
    linearise : score, sides and warm potentials of plans, an epsilon and the last potentials.
    solve : plans and potentials of these, in so many iterations.
    batch : what the steps begin from.
    reference : base-2 logarithms of R: those of the masses (N,), (K,) for p q^T, which rescale warm potentials to each
        epsilon; or those of T (B, N, K), which gather scores and potentials, so that the next are like the last.
    """
    plan, f, g, last = batch
    for epsilon in levels:
        if isinstance(reference, tuple):
            f, g = (rescale(side, log, (last / epsilon)[:, None]) for side, log in zip((f, g), reference, strict=True))
        for _ in range(n_outer):
            score, *rest = linearise(plan, epsilon, f, g)
            score = reference.add_(score) if isinstance(reference, Tensor) else score
            plan, f, g = solve(score, *rest, n_inner)
            if isinstance(reference, Tensor):
                reference.add_(f[:, :, None]).add_(g[:, None, :])
        last = epsilon
    return plan, f, g, last


def product_energy(gradient: Gradient, p: Tensor, q: Tensor) -> Tensor:
    """<C(T), T> () for the product plan T of masses of sum one."""
    product = DenseCoupling(p[:, None] * q)
    return mean_cost(gradient(product, p), product, p, q)


def finish(solution: Solution, epsilon: float, model: Model, kernel: Kernel, options: SinkhornOptions) -> Solution:
    """A solution whose last problem is solved in float64: its plan is feasible, and stored even where its coupling is
    by potentials.

    O(N K) memory, 16 bytes for each pair of points.

    Raises
    ------
    FloatingPointError
        When the potentials are so large that float64 cannot add them up to exact marginals.
    """
    start = solution.next_start
    assert start.cost is not None
    cost, wide = start.cost, start.to(torch.float64)
    low_rank = cost.extra is None and cost.U.shape[1] < min(len(model.p), len(model.q)) // 2
    # A product in float64 takes longer than all else where it is one of many factors.
    solved = wide.cost if low_rank and wide.cost is not None else cost
    inner = StoredSolver(kernel, model, replace(options, exact_max_iter=max(options.final_max_iter, 2)))
    found = inner.solve_linearization(solved, epsilon, wide)
    assert found.rounding is not None
    del inner
    numbers = torch.cat((found.host_numbers[2:], found.rounding.marginal_errors))
    at, end = as_graph_numbers(found.rounding.x.device, 1.0, epsilon, model)[1], found.warm_start
    coupling = _round_factors(solved, end.f, end.g, at, found.rounding) if low_rank else None
    largest, *missed = AsyncNumbers(numbers).values()
    check_potentials(largest, epsilon)
    residual = max(missed, default=0.0) if model.has_hard_marginals else max([*missed, float(found.residual)])
    assert isinstance(found.coupling, DenseCoupling)
    plan = own(found.coupling.plan)
    return replace(
        solution,
        coupling=DenseCoupling(plan, end.f, end.g) if coupling is None else coupling,
        stored=DenseCoupling(plan),
        warm_start=replace(end, cost=cost),  # widened when the matrices of this solve are gone
        marginal_residual=residual,
        n_iter_sinkhorn=solution.n_iter_sinkhorn + found.n_iter,
    )


@as_cuda_graph()
def _round_factors(
    cost: FactoredCost, f: Tensor, g: Tensor, epsilon: float | Tensor, rounding: Rounding
) -> PotentialCoupling:
    """The rounded plan of a cost and its potentials, by factors."""
    centred, row, column = cost.centre_factors(epsilon)
    return rounding.apply_to(PotentialCoupling(*centred.balanced_score(epsilon), f + row, g + column))


def start_precision_check(cost: FactoredCost, epsilon: float, options: GWOptions) -> Callable[[], str | None]:
    """What says, once the device has come to it, why float32 could not carry the scores of the loop, or None."""
    if not options.mixed_precision:
        return lambda: None
    reading, rank = AsyncNumbers(_reach(replace(cost, extra=None))), cost.U.shape[1]
    return lambda: unsafe(reading.values()[0] / epsilon, rank)


@as_cuda_graph()
def _reach(cost: FactoredCost) -> Tensor:
    """How far the scores of the factors of a cost reach (1,), times epsilon."""
    A, B = cost.centre_factors(1.0)[0].balanced_score(1.0)
    return reach(A, B)[None]


def check_potentials(largest: float, epsilon: float) -> None:
    """Refuse to return a plan whose potentials float64 cannot add up: its marginals could not be made exact."""
    if largest > ranges.LARGEST_RATIO:
        raise FloatingPointError(
            f"epsilon = {epsilon:g} is too small: cost / epsilon reaches {largest:.1e}, beyond what float64 resolves"
        )
