"""The search between two large sparse graphs: likely pairs from several views, each matched, and means of their ends.

    pairs by signatures, by hops to landmarks, by subtrees -> those whose neighbours agree go on -> soft matches of each
        -> between equal masses conditional gradients, and again from means of pairs of ends, while these get lower

Each view takes a few pairs for each node, so that nothing of the size N K is stored but messages between edges, of
which trees up to some thousand nodes have few enough. Signatures see what is around a node, and fail where that looks
alike everywhere, as on grids; there hops say where in the graph it lies.

Sources: those of `torchgw.search.graph_matching`, `torchgw.search.subtrees` and `torchgw.search.contest`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw.diagnostics.status import History
from torchgw.linalg.sparse_entries import find_mutual_pairs, inner, make_csr, scale_to_marginals
from torchgw.objective.exact import SparseObjective
from torchgw.persist.watch import Watch
from torchgw.problem.problem import Problem
from torchgw.search.anneal import LandmarkProblem, find_landmark_basins
from torchgw.search.candidate import is_as_low
from torchgw.search.crossing import CROSSED
from torchgw.search.graph_matching import ITERATIONS, MATCHES, find_seeds, match_nodes, plan_from_pairs
from torchgw.search.lift import lift
from torchgw.search.signatures import off_diagonal_pattern
from torchgw.search.subtrees import compare_subtrees
from torchgw.search.views import EDGES, MOST_MISSING
from torchgw.solvers.iterate import Loop
from torchgw.solvers.linear_oracle import repair_marginals
from torchgw.solvers.sparse_descent import descend_sparsely
from torchgw.spaces.coarsening import choose_landmarks
from torchgw.spaces.scale import ScaledDistances, fill_unreachable, positive_scale
from torchgw.spaces.shortest_paths import estimate_diameter, shortest_paths

LANDMARKS, LANDMARK_STARTS, HOP_BASINS = 256, 48, 4
DEPTH, MOST_MESSAGES, MOST_MESSAGE_WORK = 6, 40_000_000, 200_000_000
SURE = 0.5  # agreement of pairs by signatures with their neighbours, from which no other view is asked
PROMISING = 0.5  # of the largest such agreement
MOST_DESCENDED = 100_000  # entries of both matrices, up to which all starts descend, and means of ends
PARENTS, CROSSINGS, GAIN = 4, 5, 0.01  # ends, rounds, least relative fall in a round
TOLERANCE, PROGRESS, MOST_STEPS = 1e-6, 1e-3, 100  # of descents


@dataclass(frozen=True, eq=False)
class SparseEnd:
    """Where a start ended.

    origin : the view that it came from.
    plan : (N, K), CSR, on the marginals where masses are equal.
    value : of that plan, completed.
    """

    origin: str
    plan: Any
    value: float

    @property
    def matching(self) -> Tensor:
        """Target (N,) of the largest entry of each row, 0 where there is none."""
        return torch.from_numpy(np.asarray(self.plan.argmax(axis=1)).reshape(-1).astype(np.int64))


class HopDistances(ScaledDistances):
    """Numbers of edges between the nodes of a graph, over the largest found; a search for each row."""

    stored = False

    def __init__(self, graph: Any, dtype: torch.dtype) -> None:
        self._graph, self._dtype = graph, dtype
        self.largest = estimate_diameter(graph)[0]
        self.scale = positive_scale(self.largest)

    @property
    def size(self) -> int:
        return int(self._graph.shape[0])

    def to(self, device: torch.device, dtype: torch.dtype) -> HopDistances:
        """The same rows in another dtype, on the CPU, where searches run."""
        return self._with(_dtype=dtype)

    def _rescale_storage(self, ratio: float) -> HopDistances:
        return self._with()  # rows are divided when they are asked for

    def rows(self, index: Tensor) -> Tensor:
        found = fill_unreachable(shortest_paths([(self._graph, index.numpy())])[0], self.largest)
        return torch.from_numpy(found / self.scale).to(self._dtype)


def search_sparse_graphs(asked: Problem, problem: SparseObjective) -> list[SparseEnd]:
    """The ends of all starts, the lowest first; one that a mean of others led to comes before them alone."""
    watch = asked.watch.detach()
    firsts = dict(_find_likely_plans(asked, problem))
    equal = len(problem.p) == len(problem.q) and np.ptp(problem.p) == 0 == np.ptp(problem.q)
    descends = equal and len(firsts) > 1 and problem.X.nnz + problem.Y.nnz <= MOST_DESCENDED
    ends: list[SparseEnd] = []
    for origin, plan in firsts.items():
        if ends and watch.should_skip():
            break
        ends.append(_finish_plan(problem, origin, match_nodes(problem, plan, watch.should_skip), descends, watch))
    ends.sort(key=_value)
    best = _cross_matchings(problem, ends, asked.unit, watch) if descends and len(ends) > 1 else ends[0]
    return ends if best is ends[0] else [best, *ends]


def _find_likely_plans(asked: Problem, problem: SparseObjective) -> Iterator[tuple[str, Any]]:
    """A plan (N, K) of likely pairs from each view that is worth going on from: signatures, and where their pairs agree
    little with their neighbours, the views whose pairs do so about as well as those of the best."""
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=asked.generator, device=asked.generator.device)))
    plan = find_seeds(problem, rng)
    yield "signatures", plan
    if asked.watch.should_skip() or (agreed := _measure_agreement(problem, plan)) >= SURE:
        return
    others = [*_match_by_hops(asked, problem, rng), *_match_by_subtrees(problem)]
    agreement = [_measure_agreement(problem, plan) for _, plan in others]
    least = PROMISING * max([agreed, *agreement])
    yield from (other for other, each in zip(others, agreement, strict=True) if each >= least)


def _measure_agreement(problem: SparseObjective, plan: Any) -> float:
    """How well the pairs that a plan makes of its neighbours agree with theirs."""
    pairs = plan_from_pairs(problem, *find_mutual_pairs(problem.similarity(plan)))
    return inner(problem.similarity(pairs), pairs)


def _match_by_hops(asked: Problem, problem: SparseObjective, rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """From the best basins between landmarks of both graphs by their hops, lifted to all nodes."""
    dtype, generator = torch.float32, torch.Generator().manual_seed(int(rng.integers(2**62)))
    sides = zip((problem.X, problem.Y), (problem.p, problem.q), strict=True)
    x, y = (
        choose_landmarks(
            HopDistances(off_diagonal_pattern(D + D.T), dtype),
            torch.from_numpy(mass).to(dtype),
            "spread",
            LANDMARKS,
            generator,
        )
        for D, mass in sides
    )
    p, q = torch.from_numpy(problem.p), torch.from_numpy(problem.q)
    model = replace(asked.model, p=p, q=q, cost=None, penalty=None)
    between = LandmarkProblem.of(x, y, model)
    found = find_landmark_basins(between, asked.epsilon, LANDMARK_STARTS, HOP_BASINS, generator)
    for rank, basin in enumerate(found, 1):
        start, _ = lift(basin, model, None)
        yield f"hops, basin {rank}", _make_soft_plan(problem, *start.coupling().top_k(min(MATCHES, len(problem.q))))


def _match_by_subtrees(problem: SparseObjective) -> Iterator[tuple[str, Any]]:
    """From what the trees around nodes have in common, of graphs with few edges."""
    if problem.X.nnz * problem.Y.nnz > MOST_MESSAGES:
        return
    X, Y = (torch.from_numpy(side.toarray()).float() for side in (problem.X, problem.Y))
    found = compare_subtrees(X, Y, DEPTH, MOST_MESSAGE_WORK)
    if found is not None:
        common = (found - found.amax(1, keepdim=True)).div_(EDGES).clamp_min_(-MOST_MISSING).exp_()
        yield f"subtrees of depth {DEPTH}", _make_soft_plan(problem, *common.topk(min(MATCHES, common.shape[1]), 1))


def _make_soft_plan(problem: SparseObjective, values: Tensor, index: Tensor) -> Any:
    """The plan (N, K) of the likeliest targets (N, k) of each node."""
    row = np.repeat(np.arange(len(index)), index.shape[1])
    likely = make_csr(row, index.numpy().ravel(), values.double().numpy().ravel(), problem.shape)
    return scale_to_marginals(likely, problem.p, problem.q, ITERATIONS)


def _finish_plan(problem: SparseObjective, origin: str, plan: Any, descends: bool, watch: Watch) -> SparseEnd:
    """The end of conditional gradients from a plan, or the plan itself, with its value."""
    if descends:
        loop = Loop(watch, History(), MOST_STEPS, TOLERANCE, float(np.finfo(float).eps))
        state, _ = descend_sparsely(problem, plan, PROGRESS, loop)
        return SparseEnd(origin, state.plan.matrix, state.value)
    whole = repair_marginals(plan, problem.p, problem.q)
    return SparseEnd(origin, plan, problem.value(problem.cross(whole), whole))


def _cross_matchings(problem: SparseObjective, ends: list[SparseEnd], unit: float, watch: Watch) -> SparseEnd:
    """The lowest of ends and of what means of pairs of the lowest lead to, until that betters none of them; of these
    where two starts agree on it."""
    pool, tried = ends, set[frozenset[SparseEnd]]()
    if is_as_low(ends[1].value, ends[0].value, unit):
        return ends[0]
    for _ in range(CROSSINGS):
        pairs = [pair for pair in itertools.combinations(pool[:PARENTS], 2) if frozenset(pair) not in tried]
        tried |= {frozenset(pair) for pair in pairs}
        found = [
            _finish_plan(problem, CROSSED, csr_array((one.plan + other.plan) / 2), True, watch)
            for one, other in pairs
            if not watch.should_skip()
        ]
        best, pool = pool[0], sorted((*pool, *found), key=_value)
        if pool[0].value > (1 - GAIN) * best.value:
            break
    return pool[0]


def _value(end: SparseEnd) -> float:
    return end.value
