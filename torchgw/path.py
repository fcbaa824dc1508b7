"""Results along a falling epsilon, each solve starting from the one before it, and which of them to take.

perplexity(T) = exp(sum_i p_i H_i),    p = T 1 / sum(T),    H_i the entropy of row i of T over its sum, in nats
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.align import gw_align
from torchgw.couplings.blocks import BlockCoupling
from torchgw.diagnostics.evidence import entropy_and_margin
from torchgw.diagnostics.status import Status
from torchgw.entry import OURS, check_options, entry
from torchgw.kernels.sampling import sample_evenly
from torchgw.objective.gain import product_plan
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.request.attributes import replace_attributes
from torchgw.request.request import build_problem
from torchgw.results.result import GWResult
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.keywords import hide_constructor
from torchgw.spaces.prepare import make_providers
from torchgw.spaces.scale import compute_squared_diameter
from torchgw.types import AmbiguityWarning, Array, ConvergenceWarning, RegularizationWarning, is_provider

HIGHEST, LOWEST = 10.0, 1e-5
SOFT, SHARP = 0.3, 0.005  # of what there is to gain, where paths begin and end by themselves
FIRST, TOLERANCE, MOST_SOLVES, STRIDE = 3e-2, 0.02, 8, 2.5  # of perplexities
STABLE, COMPARED, BLOCK_ELEMENTS = 0.01, 1000, 2**24
PAIRS = 300


@hide_constructor
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class EpsilonPath:
    """Results along a falling epsilon, from `epsilon_path`.

    Attributes
    ----------
    results : one for each epsilon, largest epsilon first; ``best`` is the recommended one.
    epsilons, values : theirs. Values fall with epsilon because blur costs; they do not say which epsilon is better.
    perplexities : how many targets a point is spread over: exp of the rows' mean entropy, weighted by their masses.
    shifts : mean distance of a point's match (`GWResult.argmax`) from that at the epsilon before, weighted by mass, in
        units of the target's scale; NaN first. From 1000 points where there are more. With ``alpha=0``, where distances
        do not count, the share of points whose match is another.
    recommended : index, among those that converged, of the largest epsilon from which on every matching lies within
        0.01 of that of the smallest, measured as ``shifts`` are: below it plans get sharper, but matches stay. Against
        the smallest, not step by step, because steps shrink as a path gets finer. The last if none converged.
    reason : why, with the numbers.
    """

    results: tuple[GWResult, ...]
    epsilons: tuple[float, ...]
    perplexities: tuple[float, ...]
    values: tuple[float, ...]
    shifts: tuple[float, ...]
    recommended: int
    reason: str

    @property
    def best(self) -> GWResult:
        """The recommended result."""
        return self.results[self.recommended]

    def __repr__(self) -> str:
        lines = [f"  {'epsilon':>10}  perplexity  {'value':>10}   shift  status"]
        for i, row in enumerate(zip(self.epsilons, self.perplexities, self.values, self.shifts, strict=True)):
            mark, status = "*" if i == self.recommended else " ", self.results[i].status.name.lower()
            lines.append(f"{mark} {row[0]:10.3g}  {row[1]:10.4g}  {row[2]:10.5g} {row[3]:7.4f}  {status}")
        return "\n".join((*lines, self.reason))


@entry({**OURS, **{word: "epsilons" for word, ours in OURS.items() if ours == "epsilon"}}, passes_to=gw_align)
def epsilon_path(
    X: Any,
    Y: Any,
    *,
    epsilons: Sequence[float] | Array | None = None,
    perplexities: Sequence[float] | Array | None = None,
    n_points: int = 8,
    **kwargs: Any,
) -> EpsilonPath:
    """Align two spaces along a falling epsilon, or a falling perplexity, with warm starts.

    Parameters
    ----------
    X, Y : the spaces, as `gw_align` takes them. They are prepared once, for default epsilons twice.
    epsilons : > 0 and different, in any order. By default ``n_points`` from 0.3 to 0.005 of what matching can gain
        (`GWResult.gain`; 3e-2 to 5e-4 for curves), evenly in logarithms: from where a point of a curve is spread over
        half of it to where clouds have become matchings; below, ``epsilon=0`` is faster. With 8 points each is 0.56
        of the one before.
    perplexities : to have instead, in [1, K], in any order and more than 4 % apart. Each is met to 2 %, or as near as 8
        solves in its bracket come, by an epsilon in [1e-5, 10].
    n_points : length of the default path.
    **kwargs : other arguments of `gw_align`, for every solve; ``init`` for the first only. A generator as
        ``random_state`` runs on from solve to solve.

    Returns
    -------
    EpsilonPath

    Raises
    ------
    ValueError, TypeError
        For epsilons or perplexities that cannot be used or reached, naming the reach, and what `gw_align` refuses.

    Warns
    -----
    ConvergenceWarning
        When a perplexity was not met. `gw_align` warns too, also of solves that only narrow a bracket.

    Notes
    -----
    The first solve searches; each later one starts from the plan before (for perplexities, from that of the next larger
    epsilon) and has ``basins == ()``. Where the plan exceeds ``options.max_memory`` or the strategy is "streaming", it
    starts from up to 300 matching pairs of that plan, spread over the mass. The search calls more matchings ambiguous
    at a large epsilon than a smaller one would: ``reason`` says so, and nothing warns. A warm solve costs what
    `gw_align` does without its search; perplexity and shift add O(N K). All results are kept: O(N K) memory for each
    stored plan.

    References
    ----------
    K. Rose, "Deterministic annealing for clustering, compression, classification, regression", 1998.
    L. van der Maaten, G. Hinton, "Visualizing data using t-SNE", 2008 (perplexity).
    M. Vladymyrov, M. Carreira-Perpinan, "Entropic affinities", 2013 (its bandwidth by bracketed root finding).
    """
    if epsilons is not None and perplexities is not None:
        raise ValueError("epsilons and perplexities must not both be given, got both; either gives the other")
    if "epsilon" in kwargs:
        raise TypeError(f"epsilon must be given as epsilons=[...], got epsilon={kwargs['epsilon']!r}")
    if kwargs.get("checkpoint") is not None:
        raise TypeError("checkpoint is of one solve: epsilon_path has none; take one gw_align for each epsilon")
    solver, points = _PathSolver(X, Y, **kwargs), list[_Point]()
    if perplexities is not None:
        size = Y.size if is_provider(Y) else (*validate.shape_of(Y), math.inf)[0]
        for target in _sort_descending("perplexities", perplexities, apart=2 * TOLERANCE, least=1.0, most=size):
            points += _solve_for_perplexity(solver, target, points[-1] if points else None)
            if _should_stop(points):
                break
    else:
        if epsilons is None:
            epsilons = (
                np.geomspace(SOFT, SHARP, validate.integer("n_points", n_points, least=1))
                * solver.compute_energy_scale()
            )
        for epsilon in _sort_descending("epsilons", epsilons):
            points.append(solver(epsilon, points[-1] if points else None))
            if _should_stop(points):
                break
    recommended, reason = _recommend(points)
    first = solver.first
    if first and first.ambiguous and first.rival:
        reason += (
            f"; the search, at epsilon {first.epsilon:.3g}, was ambiguous (energies {first.basins[0].energy:.4g} and "
        )
        reason += f"{first.rival.energy:.4g}, {first.rival.difference:.2g} apart), and the path follows one matching"
    results = tuple(point.result for point in points)
    return EpsilonPath(
        results=results,
        epsilons=tuple(result.epsilon for result in results),
        perplexities=tuple(point.perplexity for point in points),
        values=tuple(result.value for result in results),
        shifts=(math.nan, *(_matching_shift(one, other) for one, other in pairwise(points))),
        recommended=recommended,
        reason=reason,
    )


def _sort_descending(name: str, given: Any, apart: float = 0.0, **bounds: Any) -> list[float]:
    """Positive numbers within bounds, largest first, each above the next by more than the share ``apart``."""
    values = given.tolist() if isinstance(given, np.ndarray | Tensor) else given
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) == 0:
        raise ValueError(f"{name} must be a sequence of numbers, got {given!r}")
    found = sorted((validate.real(name, value, above=0.0, **bounds) for value in values), reverse=True)
    for larger, smaller in pairwise(found):
        if larger <= smaller * (1 + apart):
            raise ValueError(f"{name} must differ by more than {apart:.0%}, got {larger:g} and {smaller:g}")
    return found


@dataclass(frozen=True, eq=False)
class _Point:
    """A point of the path.

    result : the solve at its epsilon.
    perplexity : exp of the mean row entropy of the plan.
    matching : index (N,) of the largest entry of each row, on the CPU.
    mass : row marginal (N,), float64, on the CPU.
    """

    result: GWResult
    perplexity: float
    matching: Tensor
    mass: Tensor


class _PathSolver:
    """`gw_align` at one epsilon after the other, on the providers of its first call.

    X, Y : spaces as given, the providers after the first call.
    arguments : all others of `gw_align` but epsilon.
    first : result of the first call, None before.
    observed : log epsilon and log perplexity of each call.
    """

    def __init__(
        self,
        X: Any,
        Y: Any,
        *,
        cost: Any = None,
        supervision: Supervision | None = None,
        options: GWOptions | None = None,
        **others: Any,
    ) -> None:
        options = check_options(options)
        # Before providers take the place of what has attributes.
        self.X, self.Y, cost, supervision = replace_attributes(X, Y, cost, supervision, options.max_memory)
        self.arguments = others | {"cost": cost, "supervision": supervision, "options": options}
        self.first: GWResult | None = None
        self.observed: list[tuple[float, float]] = []

    def compute_energy_scale(self) -> float:
        """What there is to gain between the spaces, before any solve."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first solve says it
            request = build_problem(self.X, self.Y, **self.arguments)
            spaces, _ = make_providers(request.spaces, request.options.spaces, request.on_device)
        return product_plan(request.model, spaces, compute_squared_diameter(spaces)).energy_scale

    def __call__(self, epsilon: float, before: _Point | None) -> _Point:
        if before is not None:
            self.arguments["init"] = _make_start(before)
        with warnings.catch_warnings():
            # Blur makes matchings look alike that a smaller epsilon tells apart; the path says what the search found.
            warnings.simplefilter("ignore", AmbiguityWarning)
            warnings.simplefilter("ignore", RegularizationWarning)
            result = gw_align(self.X, self.Y, epsilon=epsilon, **self.arguments)
        coupling, known = result.coupling, result.known
        assert isinstance(coupling, BlockCoupling)
        assert known is not None
        if self.first is None:
            self.first, self.X, self.Y = result, known[0].space, known[1].space
            self.arguments |= {"distances": "auto", "device": coupling.device}
        else:  # in terms of what the user gave
            given = self.first
            members = ("known", "graphs", "numpy_input", "names_x", "names_y")
            result = replace(result, **{name: getattr(given, name) for name in members})
        mass, entropy = coupling.marginal(1).cpu().double(), entropy_and_margin(coupling)[0].cpu().double()
        mean = float((mass * entropy)[mass > 0].sum() / mass.sum())
        self.observed.append((math.log(epsilon), mean))
        return _Point(result, math.exp(mean), coupling.argmax(1).cpu(), mass)


def _make_start(before: _Point) -> Tensor:
    """The plan (N, K), or integer pairs (m, 2) of a large one, to begin the next solve from."""
    result = before.result
    if result.strategy != "streaming" and 8 * math.prod(result.shape) <= result.max_memory:
        return result.coupling.to_dense()
    index, _ = sample_evenly(before.mass, PAIRS)
    return torch.stack((index, before.matching[index]), 1)


def _matching_shift(one: _Point, other: _Point) -> float:
    """Mean distance between the matches of two points of a path, see `EpsilonPath.shifts`."""
    index, weight = sample_evenly(torch.minimum(one.mass, other.mass), COMPARED)
    a, b = one.matching[index], other.matching[index]
    apart = (a != b).double()
    assert one.result.known is not None
    if one.result.alpha > 0 and apart.any():
        space = one.result.known[1].space
        for part in torch.split(apart.nonzero()[:, 0], max(1, BLOCK_ELEMENTS // space.size)):
            apart[part] = space.rows(a[part]).cpu().double()[torch.arange(len(part)), b[part]]
    return float(weight @ apart)


def _recommend(points: list[_Point]) -> tuple[int, str]:
    """Which point of a path to take, and why."""
    at = [f"epsilon {point.result.epsilon:.3g}" for point in points]
    settled = [i for i, point in enumerate(points) if point.result.converged]
    if not settled:
        return len(points) - 1, f"none of {len(points)} points converged, so the last is taken, at {at[-1]}"
    last, unit = settled[-1], "of the target's scale" if points[0].result.alpha > 0 else "of the points"
    apart = {i: _matching_shift(points[i], points[last]) for i in settled}
    moving = next((i for i in reversed(settled) if not apart[i] <= STABLE), -1)
    chosen = next(i for i in settled if i > moving)
    moved = f"{apart[moving]:.2g} {unit} away at {at[moving]}" if moving >= 0 else ""
    if chosen < last:
        worst = max(apart[i] for i in settled if i >= chosen)
        reason = f"from {at[chosen]} on the matching stays within {worst:.2g} {unit} of the one at {at[last]}"
        reason += f", and is {moved}" if moved else ", and no larger one was solved"
    elif moved:
        reason = f"the matching still moves: it is {moved}, so the smallest, {at[last]}, is taken; try smaller ones"
    else:
        reason = f"{at[last]} is the only point{' that converged' if len(points) > 1 else ''}"
    missing = len(points) - len(settled)
    reason += f"; {missing} of {len(points)} did not converge and were left out" if missing else ""
    return chosen, f"{reason}; a point is spread over {points[chosen].perplexity:.3g} targets there"


def _solve_for_perplexity(solver: _PathSolver, target: float, above: _Point | None) -> list[_Point]:
    """The point of a perplexity below the epsilon of ``above``, or the nearest one; none if ``above`` is that."""
    goal, gap, stride, tries, seen = math.log(target), math.inf, 0.0, 0, solver.observed
    tried: list[_Point] = []
    ceiling = math.log(above.result.epsilon) if above else math.inf
    jumped = above is not None and above.perplexity <= target
    while tries < MOST_SOLVES and not jumped:
        high = min((s for s in seen if s[0] <= ceiling and s[1] > goal), default=None)
        low = max((s for s in seen if s[0] < (high or (ceiling,))[0] and s[1] <= goal), default=None)
        if high and low:
            tries += 1
            share = 0.5 if tries % 3 == 0 else min(max((goal - low[1]) / (high[1] - low[1]), 0.1), 0.9)
            place = low[0] + share * (high[0] - low[0])
        elif end := high or low:  # up to a decade further, and doubling where that brings little
            bound, way = (math.log(LOWEST), -1) if high else (math.log(HIGHEST), 1)
            if end[0] == bound:
                raise _reach_error(solver, target, tried[-1])
            before, gap = gap, abs(goal - end[1])
            stride = min(STRIDE * gap if gap < before / 2 else 2 * stride, math.log(10))
            place = bound if stride > abs(bound - end[0]) else end[0] + way * stride
        else:
            place = math.log(FIRST)
        point = solver(math.exp(place), above or (tried[-1] if tried else None))
        tried.append(point)
        if abs(point.perplexity / target - 1) <= TOLERANCE or _should_stop([point]):
            return [point]
        above = point if point.perplexity > target else above
    found = [*tried, above] if above else tried
    nearest = min(found, key=lambda point: abs(math.log(point.perplexity) - goal))
    own = nearest in tried
    text = f"perplexity {target:g} was not met: the plan jumps past it, and {nearest.perplexity:.4g} is nearest"
    warn_caller(text if own else f"{text}, that of the point before", ConvergenceWarning)
    return [nearest] if own else []


def _should_stop(points: list[_Point]) -> bool:
    """Whether the last solve was cancelled."""
    return bool(points) and points[-1].result.status is Status.CANCELLED


def _reach_error(solver: _PathSolver, target: float, last: _Point) -> ValueError:
    """The error for a perplexity beyond that of ``last``, at one end of the epsilons."""
    least = f"{last.perplexity:.4g}, at epsilon {LOWEST:g}" if last.perplexity > target else "1"
    most = last.perplexity if last.perplexity < target else solver(HIGHEST, last).perplexity
    return ValueError(f"perplexities must lie from {least} to {most:.4g}, at epsilon {HIGHEST:g}, got {target:g}")
