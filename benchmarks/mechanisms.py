"""The mechanisms of the search, the strategies and the solvers, and how each of them is switched off from outside.

A mechanism consists of parts of the library, for the count of its lines, and has switches: a function, a method or a
constant of the library, and what replaces it. A function is replaced wherever the library has bound it; a pair of a
module or a class and a name is that binding alone. What replaces a mechanism is the next best route, so that every
solve still ends: no candidates, the identity of a step, or the simpler of two ways. Nothing in the library knows of it.

What no other route could replace is listed as `CORE`, with the reason.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

import torchgw
from torchgw.batched import annealing, polish
from torchgw.batched import solve as batch
from torchgw.kernels.kernel import relax
from torchgw.objective import exact
from torchgw.objective.linearise import gradient_of
from torchgw.problem import problem
from torchgw.search import (
    anneal,
    automorphisms,
    basins,
    candidate,
    coarsen,
    contest,
    crossing,
    every_point,
    full_starts,
    graph_matching,
    initial_guesses,
    lift,
    signatures,
    sparse_basins,
    subtrees,
    views,
)
from torchgw.sinkhorn import loop, scaling
from torchgw.solvers import (
    assignment,
    branch_and_bound,
    conditional_gradient,
    entropic,
    hessian,
    inner,
    iterate,
    linear_oracle,
    low_rank,
    minimum_cost_flow,
    model_form,
    one_to_one,
    sampled,
    soft_plan,
    solution,
    sparse_descent,
    transport_costs,
    warm_start,
)
from torchgw.spaces import coarsening
from torchgw.spaces import low_rank as low_rank_spaces
from torchgw.strategies import dense, multilevel, sharp, sparse, streaming, surrogate, within_memory
from torchgw.strategies import entropic as entropic_strategy
from torchgw.strategies import low_rank as low_rank_strategy

PACKAGE = Path(torchgw.__file__).parent
PACKAGES = (
    "batched",
    "diagnostics",
    "objective",
    "problem",
    "results",
    "search",
    "sinkhorn",
    "solvers",
    "spaces",
    "strategies",
)
KEEP: Any = object()  # in place of what replaces a function that is only observed
Binding = tuple[Any, str]
Matters = Callable[[tuple[Any, ...], Mapping[str, Any], Any], bool]


def always(given: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Whether a call counts: every one does."""
    return True


def true(given: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Whether a call counts: only one that gave something."""
    return bool(result)


def false(given: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Whether a call counts: only one that gave nothing."""
    return not result


def something(given: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    """Whether a call counts: only one that did not give None."""
    return result is not None


class Switch(NamedTuple):
    """One replacement.

    target : a function or method, or a pair of a module or class and a name; of a dictionary, the dictionary itself.
    off : what replaces it, of a dictionary the keys that go; `KEEP` where calls are only counted.
    matters : by arguments and result, which calls count as the mechanism being consulted; None for none.
    """

    target: Any
    off: Any = KEEP
    matters: Matters | None = always


@dataclass(frozen=True)
class Mechanism:
    """What is switched off at once.

    name : one word, for the command line.
    what : the mechanism in a sentence.
    parts : modules, classes and functions that it consists of.
    switches : what replaces them.
    becomes : the file of the planned house that has it, or would have it.
    merges : whether that house names what it becomes a part of.
    required : the suite whose sizes need it, where the problems of the net are too small to reach it.
    """

    name: str
    what: str
    parts: tuple[Any, ...]
    switches: tuple[Switch, ...]
    becomes: str
    merges: bool = False
    required: str = ""


class Core(NamedTuple):
    """What has no other route.

    name, why : what it is, and the reason.
    parts : modules, classes and functions.
    """

    name: str
    why: str
    parts: tuple[Any, ...]


def never(target: Any) -> Switch:
    """A question that is answered no."""
    return Switch(target, lambda *given, **named: False, true)


def empty(target: Any) -> Switch:
    """What then finds no candidates."""
    return Switch(target, lambda *given, **named: [], true)


def none(target: Any) -> Switch:
    """What then has nothing to offer."""
    return Switch(target, lambda *given, **named: None, something)


def constant(owner: Any, name: str, value: Any) -> Switch:
    """A constant of another value, wherever that module is read."""
    return Switch((owner, name), value, None)


def seen(target: Any, matters: Matters = always) -> Switch:
    """A function whose calls tell that a mechanism with constants was consulted."""
    return Switch(target, KEEP, matters)


def same(place: int) -> Callable[..., Any]:
    """A function that returns one of its arguments as it is."""
    return lambda *given: given[place]


def of_kind(kind: str) -> Matters:
    """Whether landmarks of that kind were chosen, where they are not all points."""
    return lambda given, named, result: given[2] == kind and given[3] < len(given[1])


def landmarks(kind: str, what: str, *parts: Any) -> Mechanism:
    """One kind of landmarks."""
    left = tuple(each for each in anneal.KINDS if each != kind)
    switches = constant(anneal, "KINDS", left), seen((anneal, "choose_landmarks"), of_kind(kind))
    return Mechanism(f"landmarks-{kind}", what, parts, switches, "spaces/coarsening.py", True)


def view(name: str, what: str, keys: Sequence[str], *parts: Any) -> Mechanism:
    """Views of graphs from which plans come."""
    gone = frozenset(key for key in views.VIEWS if key.startswith(tuple(keys)))
    switch = Switch(views.VIEWS, gone, something)
    return Mechanism(f"view-{name}", what, parts, (switch,), "search/graph_starts.py")


# What replaces mechanisms, where that is more than one of the above.

_improve, _solve_transport = crossing.improve_by_offspring, linear_oracle.solve_transport


def _no_random_plans(product: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    return product.new_empty(0, *product.shape, dtype=torch.float32)


def _product_alone(asked: Any) -> list[Any]:
    return [full_starts.make_product_candidate(asked)]


def _without_pairs(
    pool: Any, parents: int, rounds: int, stale: int, fall: float, apart: float, make_offspring: Any
) -> Any:
    unpaired = lambda fresh, lowest: make_offspring([], lowest)  # noqa: E731
    return _improve(pool, parents, rounds, stale, fall, apart, unpaired)


def _all_of_them(asked: Any, candidates: list[Any], chosen: list[Any], nearly: float) -> tuple[list[Any], list[Any]]:
    others = [each for each in candidates if all(each is not one for one in chosen)]
    found = [replace(each, level="full") for each in chosen]
    return [*found, *others], found


def _first_with_plans(asked: Any, candidates: list[Any], plans: Any) -> list[Any]:
    pairs = zip(candidates[: every_point.RACED], plans, strict=False)
    return [replace(each, start=replace(each.start, plan=plan)) for each, plan in pairs]


def _first_step_of_path(asked: Any, first: Any, seconds: float) -> Any:
    return replace(first, path=(entropic_strategy.make_epsilon_step(asked, first, seconds),))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A Sinkhorn iteration without over-relaxation."""

    def call(*given: Any, options: Any, **named: Any) -> Any:
        return function(*given, options=replace(options, relaxation=1.0), **named)

    return call


def _is_relaxed(given: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    return bool(named["options"].relaxation > 1)


def _whole_step(last: Any, solution: torch.Tensor) -> Any:
    return solution.clone(), None, torch.ones(())


def _fixed_point(quadratic: Any, start: Any, model: Any, solver: Any, options: Any, watch: Any, history: Any) -> Any:
    loop = iterate.Loop(watch, history, options.stopping.max_iter)
    return entropic.descend(gradient_of(model, quadratic), start, solver, options, loop)


def _priced(cost: Any, p: Any, q: Any, dual: Any, entries: Any = None, rounds: int = 0, basis: Any = None) -> Any:
    return _solve_transport(cost, p, q, dual, entries, basis=basis)


def _anew(cost: Any, p: Any, q: Any, dual: Any, entries: Any = None, rounds: int = 1, basis: Any = None) -> Any:
    return _solve_transport(cost, p, q, dual, entries, rounds)


def _pairs_at_once(asked: Any, plan: Any, cut: Any) -> tuple[Any, bool]:
    return graph_matching.plan_from_pairs(asked, *graph_matching.find_mutual_pairs(asked.similarity(plan))), True


def _in_order(source: Any, labels: Any, plan: Any, p: Any, q: Any, options: Any, generator: Any) -> Any:
    """Components that are parts of the masses in their order, without what the search has found."""
    sides = []
    for mass in (p, q):
        place = ((mass.cumsum(0) - mass / 2) * options.rank).long().clamp_max(options.rank - 1)
        share = torch.nn.functional.one_hot(place, options.rank).to(mass)
        sides.append(mass[:, None] * ((1 - low_rank.BLUR) * share + low_rank.BLUR / options.rank))
    return low_rank.LowRankFactors(sides[0], sides[1], sides[0].sum(0))


def _effort(each: contest.ContestEffort) -> contest.ContestEffort:
    return each._replace(blurred=0)


def _only_permutations(given: tuple[Any, ...], named: Mapping[str, Any], result: Any) -> bool:
    field = given[0]
    return not result and field.assignment is not None and field.product.numel() <= contest.DIRECT_PAIRS


STARTS, MULTISTART, RECOMBINE = "search/starts.py", "search/multistart.py", "search/recombine.py"
GRAPH_STARTS, ENTROPIC, LEVELS = "search/graph_starts.py", "solvers/entropic.py", "methods/multilevel.py"
ORACLE, GRADIENT, LOCAL = "solvers/linear_oracle.py", "solvers/conditional_gradient.py", "solvers/local_search.py"
FACTORS, EPSILON, COARSENING = "spaces/low_rank.py", "solvers/epsilon.py", "spaces/coarsening.py"

MECHANISMS = (
    # Starts.
    Mechanism(
        "start-distributions",
        "Starts match landmarks by the distributions of their distances.",
        (initial_guesses.compute_profiles,),
        (empty((initial_guesses, "compute_profiles")),),
        STARTS,
    ),
    Mechanism(
        "start-modes",
        "Starts match landmarks by leading modes with every combination of signs.",
        (initial_guesses.sign_combinations, initial_guesses.leading_modes),
        (empty((initial_guesses, "sign_combinations")),),
        STARTS,
    ),
    Mechanism(
        "start-pairs",
        "Starts match landmarks by their distances to a few random points.",
        (initial_guesses._anchor_counts, initial_guesses._draw_uniform, initial_guesses.draw_ahead),
        (empty((initial_guesses, "_anchor_counts")),),
        STARTS,
    ),
    Mechanism(
        "start-random",
        "Random plans between landmarks are starts where a marginal may give way.",
        (initial_guesses.draw_random_plans,),
        (Switch((anneal, "draw_random_plans"), _no_random_plans),),
        STARTS,
    ),
    Mechanism(
        "start-hot",
        "Half of the starts are annealed from a temperature at which only the product plan is optimal.",
        (),
        (constant(anneal, "HOT", anneal.COLD), seen(anneal.begin_searches)),
        STARTS,
    ),
    Mechanism(
        "start-all-distributions",
        "All points are matched by the distributions of their distances.",
        (full_starts.make_distribution_starts, full_starts.make_feature_starts),
        (empty(full_starts.make_distribution_starts),),
        STARTS,
    ),
    Mechanism(
        "start-proximal",
        "Proximal steps lead from the product plan to a start on all points.",
        (full_starts.make_proximal_starts, full_starts._candidate_from_plan, entropic.proximal_plan),
        (Switch(full_starts.make_proximal_starts, _product_alone),),
        ENTROPIC,
        True,
    ),
    # Views of graphs.
    view(
        "statistics",
        "Nodes are matched by degrees, triangles and the means of these over neighbours.",
        ("statistics",),
        views.SpaceGraph.compute_statistics,
        views.match_by_features,
    ),
    view(
        "hop-distributions",
        "Nodes are matched by distributions of hops.",
        ("distributions of hops",),
        views.hop_quantiles,
    ),
    view(
        "heat-distributions",
        "Nodes are matched by distributions of heat.",
        ("distributions of heat",),
        views.heat_quantiles,
    ),
    view("spectra", "Nodes are matched by all eigenvectors of both graphs.", ("spectra",), views.match_by_spectra),
    view("subtrees", "Nodes are matched by the trees around them.", ("subtrees",), views.match_by_subtrees, subtrees),
    view("hops", "Proximal steps on hop distances end in a start.", ("hops",), views.match_by_matrices),
    view("heat", "Proximal steps on heat kernels end in a start.", ("heat",), views.SpaceGraph.diffuse_heat),
    Mechanism(
        "view-cost",
        "Nodes are matched by the linear cost alone.",
        (contest._Contest.match_by_cost,),
        (none(contest._Contest.match_by_cost),),
        GRAPH_STARTS,
    ),
    # Landmarks and levels.
    landmarks("farthest", "Landmarks are farthest points."),
    landmarks("spread", "Landmarks are drawn as k-means++ does."),
    landmarks("random", "Landmarks are random points.", coarsening._draw_distinct),
    Mechanism(
        "every-point",
        "Between few points, all of them are landmarks of a search without entropy.",
        (
            every_point.should_search_every_point,
            every_point.search_every_point,
            every_point._make_candidate,
            basins._search_few_points,
        ),
        (never(every_point.should_search_every_point),),
        MULTISTART,
        True,
    ),
    Mechanism(
        "cells",
        "A search without entropy goes through cells with mean distances.",
        (every_point.search_cells, every_point._make_cell_pair, every_point.make_cells, basins._merge_cell_basins),
        (never(every_point.should_search_cells), seen(every_point.search_cells)),
        COARSENING,
        True,
    ),
    Mechanism(
        "finer-cells",
        "Candidates between cells are compared between finer cells.",
        (every_point._compare_between_finer_cells,),
        (Switch(every_point._compare_between_finer_cells, _first_with_plans),),
        MULTISTART,
        True,
        "kinds",
    ),
    Mechanism(
        "comparison",
        "Candidates are compared by a few iterations on all points.",
        (basins._evaluate_candidate, basins._compare_on_all_points),
        (
            Switch(
                basins._evaluate_candidate,
                lambda asked, candidate, epsilon: (candidate, None),
                lambda given, named, result: result[0] is not given[1],
            ),
        ),
        MULTISTART,
        True,
    ),
    Mechanism(
        "diversity",
        "The candidates that are compared on all points are those that differ most.",
        (basins._select_diverse,),
        (
            Switch(
                basins._select_diverse,
                lambda candidates, most, reference, mass: candidates[:most],
                lambda given, named, result: len(given[0]) > len(result) > 1,
            ),
        ),
        MULTISTART,
        True,
    ),
    Mechanism(
        "cells-of-curves",
        "Entropic solves between curves begin between cells and climb to all points.",
        (multilevel.solve_from_cells, multilevel._begin_on_cells),
        (never(multilevel._should_use_cells),),
        LEVELS,
        True,
    ),
    Mechanism(
        "ladder",
        "A streaming solve climbs by four times as many cells on each level.",
        (multilevel._solve_next_level,),
        (constant(multilevel, "GROWTH", 10**9), seen(multilevel._solve_next_level)),
        LEVELS,
        True,
        "scale",
    ),
    Mechanism(
        "vertex-levels",
        "Vertices of many points are found between cells first.",
        (sparse._make_cells, sparse.expand_cell_pairs),
        (constant(sparse, "MOST_MASSES", 10**9), seen(sparse.descend_by_levels)),
        LEVELS,
        True,
        "vertices",
    ),
    # Contest, crossing, exchanges.
    Mechanism(
        "contest",
        "Plans from several views of two graphs are halved, made sharp and recombined.",
        (contest, views),
        (Switch(contest.run_contest, lambda asked, x, y: full_starts.make_proximal_starts(asked)),),
        MULTISTART,
        True,
    ),
    Mechanism(
        "contest-halving",
        "The higher half of the views' plans is left behind after each round of steps.",
        (contest._Contest.keep_better_half,),
        (Switch(contest._Contest.keep_better_half, same(1)),),
        MULTISTART,
        True,
    ),
    Mechanism(
        "contest-direct",
        "The views' own plans are made sharp, without steps before.",
        (),
        (constant(contest, "DIRECT_PAIRS", 0), seen(contest._Contest.has_agreement, _only_permutations)),
        MULTISTART,
        True,
    ),
    Mechanism(
        "contest-permutations",
        "All permutations of a few points are tried.",
        (assignment.AssignmentProblem.best_order,),
        (constant(contest, "MOST_TRIED", 0), seen(assignment.AssignmentProblem.best_order)),
        LOCAL,
    ),
    Mechanism(
        "contest-means",
        "Means of pairs of ends are descended from in the contest between graphs.",
        (crossing.improve_by_offspring,),
        (Switch((contest, "improve_by_offspring"), _without_pairs),),
        RECOMBINE,
    ),
    Mechanism(
        "contest-blur",
        "Ends are blurred where they cost most, and descended from again.",
        (contest._Contest.blur_costly_rows,),
        (
            constant(contest, "EFFORTS", tuple(map(_effort, contest.EFFORTS))),
            constant(contest, "SPARSE_EFFORT", _effort(contest.SPARSE_EFFORT)),
            constant(contest, "LEAST_EFFORT", _effort(contest.LEAST_EFFORT)),
            seen(contest._Contest.blur_costly_rows),
        ),
        RECOMBINE,
    ),
    Mechanism(
        "exchanges",
        "Two matches are exchanged where no step to first order betters a permutation.",
        (
            assignment.AssignmentProblem.round_and_exchange,
            assignment.AssignmentProblem.improve_by_exchanges,
            assignment._exchange_gains,
            assignment._exchange_gain,
        ),
        (
            Switch(
                assignment.AssignmentProblem.round_and_exchange,
                same(1),
                lambda given, named, result: not torch.equal(given[1], result),
            ),
        ),
        LOCAL,
    ),
    Mechanism(
        "crossing",
        "Means of pairs of basins are annealed again between cells or landmarks.",
        (crossing, basins._cross_landmark_basins),
        (empty(crossing.cross_basins),),
        RECOMBINE,
    ),
    # Which candidates are solved to their end.
    Mechanism(
        "race",
        "After one step on all points, only candidates nearly as low as the lowest go on.",
        (dense._rank_after_one_step,),
        (Switch(dense._rank_after_one_step, _all_of_them, lambda given, named, result: len(given[2]) > 1),),
        MULTISTART,
        True,
    ),
    Mechanism(
        "several-ends",
        "Near ties, and all candidates of small problems without entropy, are solved to their end.",
        (),
        (
            constant(dense, "NEAR_TIE", 0.0),
            constant(dense, "SHARP_TIE", 0.0),
            constant(dense, "SHARP_BASINS_PAIRS", 0),
            constant(dense, "ANNEALED_BASINS_PAIRS", 0),
            seen((dense, "restore_memory")),
        ),
        MULTISTART,
        True,
    ),
    Mechanism(
        "annealed-further",
        "The lowest end without entropy is annealed once more from its potentials.",
        (),
        (Switch((dense, "is_clear_minimum"), lambda energies, share: True, false),),
        EPSILON,
    ),
    # Sharp ends.
    Mechanism(
        "annealing",
        "Epsilon is annealed down in several steps before conditional gradients.",
        (sharp._anneal,),
        (constant(sharp, "FALL", 1.0), seen(sharp._anneal, lambda given, named, result: given[4] > 0)),
        EPSILON,
    ),
    Mechanism(
        "between-factors",
        "Conditional gradients have plans of few entries where distances are factored.",
        (sparse_descent.FactoredProgram, sharp._descend_between_factors),
        (none(sharp._descend_between_factors),),
        GRADIENT,
        True,
        "vertices",
    ),
    Mechanism(
        "few-entries",
        "Gradients of plans with few entries take one product instead of two.",
        (exact.ExactGradient.change, exact.ExactGradient.change_by_rows),
        (none(exact.ExactGradient.change_by_rows),),
        GRADIENT,
        True,
    ),
    Mechanism(
        "cheap-vertices",
        "Steps begin with vertices among a few candidates, which are not priced on all pairs.",
        (),
        (
            Switch(
                linear_oracle.solve_transport,
                _priced,
                lambda given, named, result: named.get("rounds") == 1 and not linear_oracle.equal_masses(*given[1:3]),
            ),
        ),
        ORACLE,
        True,
    ),
    Mechanism(
        "warm-basis",
        "Linear programs go on from the basis of the vertex before.",
        (),
        (Switch(linear_oracle.solve_transport, _anew, lambda given, named, result: named.get("basis") is not None),),
        ORACLE,
        True,
    ),
    Mechanism(
        "blurred-duals",
        "Potentials of a plan with a little entropy begin the first linear program of a model.",
        (transport_costs.DenseCost.estimate_dual,),
        (Switch(transport_costs.DenseCost.estimate_dual, lambda cost, p, q: 0 * q),),
        ORACLE,
        True,
    ),
    Mechanism(
        "assignments",
        "Linear programs between equal masses are assignments.",
        (linear_oracle.solve_assignment,),
        (never((linear_oracle, "equal_masses")),),
        ORACLE,
        True,
    ),
    Mechanism(
        "warm-assignments",
        "Assignments between dense graphs go on from the potentials of the last one.",
        (assignment.AssignmentProblem.vertex,),
        (constant(assignment, "SMOOTHED", 10**9), seen(assignment.AssignmentProblem.vertex)),
        ORACLE,
        True,
    ),
    Mechanism(
        "flows",
        "Linear programs of many points are flows of minimum cost.",
        (minimum_cost_flow,),
        (never(linear_oracle.uses_flows),),
        ORACLE,
        True,
        "vertices",
    ),
    Mechanism(
        "second-lead",
        "Semi-relaxed plans are also searched by a partial model.",
        (model_form.make_search_models,),
        (
            Switch(
                model_form.make_search_models,
                lambda model, found=model_form.make_search_models: found(model)[:1],
                lambda given, named, result: len(result) > 1,
            ),
        ),
        MULTISTART,
        True,
    ),
    Mechanism(
        "sharpening",
        "An entropic solve by default ends without entropy, from its plan.",
        (sharp.sharpen,),
        (Switch(sharp.sharpen, same(1), lambda given, named, result: result is not given[1]),),
        "methods/unregularized.py",
    ),
    # Entropic solves.
    Mechanism(
        "continuation",
        "An epsilon that is left to the solve falls while that sharpens the plan.",
        (entropic_strategy.continue_in_epsilon,),
        (
            Switch(
                entropic_strategy.continue_in_epsilon,
                _first_step_of_path,
                lambda given, named, result: len(result.path) > 1,
            ),
        ),
        EPSILON,
    ),
    Mechanism(
        "damping",
        "Steps between plans are halved where two plans are each other's answer.",
        (entropic.step_between,),
        (Switch(entropic.step_between, _whole_step, lambda given, named, result: bool(result[2] < 1)),),
        ENTROPIC,
        True,
    ),
    Mechanism(
        "over-relaxation",
        "Sinkhorn's half-steps are over-relaxed between checks.",
        (loop.adapt_relaxation, relax),
        (
            Switch(scaling.iterate_scaling, _plain(scaling.iterate_scaling), _is_relaxed),
            Switch(loop.sinkhorn, _plain(loop.sinkhorn), _is_relaxed),
        ),
        "sinkhorn/scaling.py",
    ),
    Mechanism(
        "newton",
        "Newton's method solves the fixed point to a tolerance.",
        (entropic.refine_by_newton, entropic._cost),
        (Switch(entropic.refine_by_newton, _fixed_point),),
        "solvers/entropic.py",
        False,
        "gradients",
    ),
    # Factors near distances.
    Mechanism(
        "surrogate-gradient",
        "Solves begin between factors near stored distances where products of these take long.",
        (surrogate.make_surrogate, dense._leave_surrogate, low_rank_spaces),
        (none((dense, "make_surrogate")),),
        FACTORS,
        True,
    ),
    Mechanism(
        "surrogate-spaces",
        "Spaces without factors stream between factors near their distances.",
        (surrogate,),
        (none(surrogate.approximate_problem),),
        FACTORS,
        True,
        "kinds",
    ),
    # Sparse graphs.
    Mechanism(
        "sparse-hops",
        "Nodes of sparse graphs are also matched by hops to landmarks.",
        (sparse_basins._match_by_hops, sparse_basins.HopDistances),
        # The plan of signatures once more: the likely plans are compared with one other at least.
        (
            Switch(
                sparse_basins._match_by_hops,
                lambda asked, problem, rng: iter((("signatures", graph_matching.find_seeds(problem, rng)),)),
            ),
        ),
        GRAPH_STARTS,
    ),
    Mechanism(
        "sparse-subtrees",
        "Nodes of sparse graphs are also matched by the trees around them.",
        (sparse_basins._match_by_subtrees,),
        (Switch(sparse_basins._match_by_subtrees, lambda *given: iter(())),),
        GRAPH_STARTS,
    ),
    Mechanism(
        "sparse-means",
        "Means of pairs of ends are descended from between sparse graphs.",
        (sparse_basins._cross_matchings,),
        (Switch(sparse_basins._cross_matchings, lambda asked, ends, unit, watch: ends[0]),),
        RECOMBINE,
        True,
    ),
    Mechanism(
        "sparse-annealing",
        "Soft matches of sparse graphs are annealed.",
        (graph_matching.anneal_matching, graph_matching._soften_matching, graph_matching._mean_confidence),
        (Switch(graph_matching.anneal_matching, _pairs_at_once),),
        "methods/sparse_graphs.py",
    ),
    Mechanism(
        "sparse-percolation",
        "Pairs of sparse graphs are replaced by those that agree best with their neighbours'.",
        (graph_matching.percolate_matching,),
        (Switch(graph_matching.percolate_matching, same(1)),),
        "methods/sparse_graphs.py",
    ),
    Mechanism(
        "low-rank-start",
        "A coupling of low rank begins where the search on cells has ended.",
        (low_rank.warm_factors, low_rank.group_cells),
        (Switch(low_rank.warm_factors, _in_order),),
        "methods/low_rank.py",
    ),
)

CORE = (
    Core(
        "entropic iteration",
        "Every entropic solve is this fixed-point loop.",
        (entropic, entropic_strategy, inner, iterate, warm_start),
    ),
    Core("conditional gradients", "Every end without entropy is this loop.", (conditional_gradient, sharp)),
    Core("linear transport", "Every step without entropy solves one of these.", (linear_oracle, transport_costs)),
    Core("objectives of models", "Marginal models without entropy have no other polytope.", (model_form,)),
    Core("landmark search", "The search between landmarks is the first level of all others.", (anneal, basins)),
    Core(
        "first guesses", "A search begins with them; each kind is switched off alone.", (initial_guesses, full_starts)
    ),
    Core("all points as landmarks", "What is left of the file are candidates and plans.", (every_point,)),
    Core("lifting", "Without it nothing leads from landmarks to all points.", (lift,)),
    Core("exact ends of permutations", "The contest between graphs ends in them.", (assignment,)),
    Core("records", "They hold what is asked, found and returned.", (candidate, problem, solution)),
    Core("dense and streaming solves", "They are the two routes that sizes choose.", (dense, streaming, multilevel)),
    Core("route", "It calls the strategy that was chosen.", (within_memory,)),
    Core("cells of streaming", "A streaming solve has no other first level.", (coarsen,)),
    Core("vertices of many points", "Without it, many points have no end without entropy.", (sparse,)),
    Core("sparse graphs", "They are asked for by name.", (sparse_basins, sparse_descent, graph_matching, signatures)),
    Core("low rank", "It is asked for by name.", (low_rank_strategy, low_rank)),
    Core("sampled gradient", "The mission names it, and it is asked for by name.", (sampled,)),
    Core("bounds", "They prove values and change no plan; their suite is `bounds`.", (branch_and_bound,)),
    Core(
        "batches of pairs", "Only `gw_pairwise` enters by them; their suite is `pairwise`.", (batch, annealing, polish)
    ),
    Core("reading of plans", "It changes no plan.", (one_to_one, soft_plan, automorphisms, hessian)),
)


def named(name: str) -> Mechanism:
    """The mechanism of that name."""
    return next(each for each in MECHANISMS if each.name == name)


# Bindings.


def modules() -> list[ModuleType]:
    """The library's modules, with all that have switches imported before anything is replaced."""
    for package in PACKAGES:
        for found in pkgutil.iter_modules([str(PACKAGE / package)]):
            importlib.import_module(f"torchgw.{package}.{found.name}")
    return [each for name, each in sorted(sys.modules.items()) if name.partition(".")[0] == "torchgw"]


def bindings(target: Any, among: Sequence[ModuleType]) -> list[Binding]:
    """Where the library has bound a target; a pair is its own binding, if it exists."""
    if isinstance(target, tuple):
        owner, name = target
        return [(owner, name)] if name in vars(owner) else []
    owners: dict[int, Any] = {}
    for module in among:
        owners[id(module)] = module
        owners |= {id(each): each for each in vars(module).values() if _is_of_library(each)}
    return [(owner, name) for owner in owners.values() for name, value in vars(owner).items() if value is target]


def _is_of_library(each: Any) -> bool:
    return isinstance(each, type) and each.__module__.partition(".")[0] == "torchgw"


@contextmanager
def _bound(changes: Mapping[Binding, Any]) -> Iterator[None]:
    """Other values of some bindings, and in the end those that they had."""
    before = {binding: _value(binding) for binding in changes}
    try:
        for (owner, name), value in changes.items():
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name), value in before.items():
            setattr(owner, name, value)


def _like(raw: Any, call: Callable[..., Any]) -> Any:
    """A function as the class method or property that it replaces."""
    if isinstance(raw, classmethod):
        return classmethod(lambda cls, *given, **named: call(*given, **named))
    return property(call) if isinstance(raw, property) else call


@contextmanager
def switched_off(mechanism: Mechanism) -> Iterator[Counter[str]]:
    """Within it a mechanism is off; counts how often what replaces it was asked."""
    among, counts = modules(), Counter[str]()
    changes: dict[Binding, Any] = {}
    for switch in mechanism.switches:
        found = [] if switch.off is KEEP else bindings(switch.target, among)
        made = {id(raw): _replaced(raw, switch.off, counts, mechanism.name) for raw in map(_value, found)}
        changes |= {binding: made[id(_value(binding))] for binding in found}
    with _bound(changes):
        yield counts


def _value(binding: Binding) -> Any:
    """What is bound, a class method or property as it is."""
    owner, name = binding
    return vars(owner)[name]


def _replaced(raw: Any, off: Any, counts: Counter[str], name: str) -> Any:
    """What replaces something that is bound, its calls counted where it is called."""
    if isinstance(raw, dict):
        return {key: value for key, value in raw.items() if key not in off}
    if not callable(off):
        return off

    def call(*given: Any, **named: Any) -> Any:
        counts[name] += 1
        return off(*given, **named)

    return _like(raw, call)


@contextmanager
def observed(mechanisms: Sequence[Mechanism] = MECHANISMS) -> Iterator[Counter[str]]:
    """Within it nothing is replaced, and calls of all mechanisms are counted that matter to them."""
    among, counts = modules(), Counter[str]()
    watched: dict[Binding, list[tuple[str, Switch]]] = defaultdict(list)
    for mechanism in mechanisms:
        for switch in mechanism.switches:
            if switch.matters is not None:
                for binding in bindings(switch.target, among):
                    watched[binding].append((mechanism.name, switch))
    changes = {binding: _counted(_value(binding), of, counts) for binding, of in watched.items()}
    with _bound(changes):
        yield counts


def _counted(raw: Any, of: list[tuple[str, Switch]], counts: Counter[str]) -> Any:
    """A binding whose calls are counted by the mechanisms that they matter to."""
    if isinstance(raw, dict):
        return {key: _counted(each, [pair for pair in of if key in pair[1].off], counts) for key, each in raw.items()}
    function = raw.__func__ if isinstance(raw, classmethod) else raw.fget if isinstance(raw, property) else raw

    def call(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        for name, switch in of:
            if switch.matters is not None and switch.matters(given, named, result):
                counts[name] += 1
        return result

    if not isinstance(function, functools.partial):
        functools.update_wrapper(call, function)
    if isinstance(raw, classmethod):
        return classmethod(call)
    return property(call) if isinstance(raw, property) else call


# Sizes.


def files(mechanism: Mechanism) -> list[str]:
    """The files that a mechanism lies in, below the package."""
    targets = (switch.target for switch in mechanism.switches)
    owners = [target[0] if isinstance(target, tuple) else target for target in targets]
    found = (Path(inspect.getfile(inspect.unwrap(part))) for part in mechanism.parts or owners)
    return list(dict.fromkeys(str(file.relative_to(PACKAGE)) for file in found))


def lines(mechanism: Mechanism) -> int:
    """How many lines a mechanism has: those of its parts, and one for each constant."""
    constants = sum(switch.matters is None and not callable(switch.off) for switch in mechanism.switches)
    return len(_lines(mechanism.parts)) + constants


def core_rows() -> list[dict[str, Any]]:
    """A line for each of what has no other route, with the lines that belong to no mechanism."""
    taken, found = {line for each in MECHANISMS for line in _lines(each.parts)}, []
    for name, why, parts in CORE:
        own = _lines(parts) - taken
        modules = dict.fromkeys(str(Path(inspect.getfile(part)).relative_to(PACKAGE)) for part in parts)
        found.append({"core": name, "files": ", ".join(modules), "lines": len(own), "why": why})
    return found


def _lines(parts: Sequence[Any]) -> set[tuple[str, int]]:
    """The lines of parts, each once."""
    found: set[tuple[str, int]] = set()
    for part in map(inspect.unwrap, parts):
        source, first = inspect.getsourcelines(part)
        found |= {(inspect.getfile(part), max(first, 1) + place) for place in range(len(source))}
    return found
