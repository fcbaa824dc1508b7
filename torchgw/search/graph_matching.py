"""A matching of two large sparse graphs from nothing: likely pairs by signatures, then agreement of their neighbours.

    S = 2 D_X T D_Y / (a 1^T + 1 b^T),    T <- Sinkhorn of exp(beta S) on the largest entries of S,

with beta rising: deterministic annealing of soft matches. It begins with the pairs that are nearest to each other by
their signatures; then any pair counts whose neighbours are matched, so that matches percolate from the right seeds, and
wrong ones are outvoted. In the end pairs that agree best on both sides propose each other, and the others are left out.

`torchgw.solvers.entropic` cannot take these steps: T has few entries, other ones at each step, and beta rises when the
agreement stalls instead of in prescribed steps.

Sources: S. Gold, A. Rangarajan, "A graduated assignment algorithm for graph matching", 1996; L. Yartseva, M.
Grossglauser, "On the performance of percolation graph matching", 2013; L. Yu, J. Xu, X. Lin, "Graph matching with
partially-correct seeds", 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from torchgw.linalg.sparse_entries import (
    entry_rows,
    find_mutual_pairs,
    inner,
    largest_per_row,
    make_csr,
    row_maxima,
    scale_to_marginals,
    select_entries,
)
from torchgw.objective.exact import SparseObjective
from torchgw.search.signatures import compute_signatures, find_nearest
from torchgw.types import Array

NEAREST = 20
SHARPNESS = (10.0, 15.0, 20.0, 30.0, 40.0)
STEPS, PROGRESS = 30, 0.02
ROUNDS = 4
SETTLED = 1e-3  # growth of an agreement
MATCHES = 10  # of each node, while they are soft
REACH = 7.0  # exponents below the best of a node that count
ITERATIONS = 10
LEAST_SHARE = 1e-3
SURE = 0.98  # mean share of the best match, from which soft matches are settled


def find_seeds(problem: SparseObjective, rng: np.random.Generator) -> Any:
    """A plan (N, K) of the pairs, CSR, whose signatures are the nearest to each other."""
    x, y = compute_signatures(problem.X, problem.Y, problem.symmetric, rng)
    distance, index = find_nearest(x, y, NEAREST)
    row = np.repeat(np.arange(len(x)), index.shape[1])
    likely = make_csr(row, index.ravel(), distance.max() + 1 - distance.ravel(), problem.shape)
    return plan_from_pairs(problem, *find_mutual_pairs(likely))


def match_nodes(problem: SparseObjective, plan: Any, cut: Callable[[], bool]) -> Any:
    """A plan (N, K) of pairs, CSR, with row and column sums of at most the masses, from one that has some of them.

    Annealed again from the pairs that were left, while some nodes are unsure and more of the others come to agree.
    Ends early where ``cut`` says so.
    """
    agreed = 0.0
    for _ in range(ROUNDS):
        plan, sure = anneal_matching(problem, plan, cut)
        plan = percolate_matching(problem, plan, cut)
        before, agreed = agreed, inner(problem.similarity(plan), plan)
        if sure or cut() or agreed <= (1 + SETTLED) * before:
            break
    return plan


def anneal_matching(problem: SparseObjective, plan: Any, cut: Callable[[], bool]) -> tuple[Any, bool]:
    """The best pairs of soft matches, and whether these were settled."""
    agreed, levels = 0.0, iter(SHARPNESS)
    beta, sure = next(levels), False
    for _ in range(STEPS):
        S = problem.similarity(plan)
        before, agreed = agreed, inner(S, plan)
        if agreed <= (1 + PROGRESS) * before:
            beta = next(levels, math.inf)
        sure = _mean_confidence(problem, plan) >= SURE
        if beta == math.inf or cut() or sure:
            break
        plan = _soften_matching(problem, S, beta)
    return plan_from_pairs(problem, *find_mutual_pairs(plan)), sure


def percolate_matching(problem: SparseObjective, plan: Any, cut: Callable[[], bool]) -> Any:
    """The pairs that agree best with those of the neighbours, on both sides, until their agreement no longer grows."""
    agreed = 0.0
    while not cut():
        S = problem.similarity(plan)
        pairs = plan_from_pairs(problem, *find_mutual_pairs(S))
        before, agreed = agreed, inner(S, pairs)
        if agreed <= (1 + SETTLED) * before:
            break
        plan = pairs
    return plan


def plan_from_pairs(problem: SparseObjective, row: Array, column: Array) -> Any:
    """The plan of pairs (m,), no two of a row or of a column, with the smaller mass of both each."""
    mass = np.minimum(problem.p[row], problem.q[column])
    return make_csr(row[mass > 0], column[mass > 0], mass[mass > 0], problem.shape)


def _soften_matching(problem: SparseObjective, S: Any, beta: float) -> Any:
    """Soft matches of the largest similarities."""
    depth = beta * (S.data - row_maxima(S)[entry_rows(S)])
    S = select_entries(S, depth > -REACH)
    S = largest_per_row(largest_per_row(S, MATCHES).T.tocsr(), MATCHES).T.tocsr()
    S.data = np.exp(beta * (S.data - row_maxima(S)[entry_rows(S)]))
    found = scale_to_marginals(S, problem.p, problem.q, ITERATIONS)
    return select_entries(found, found.data > LEAST_SHARE * problem.p[entry_rows(found)])


def _mean_confidence(problem: SparseObjective, plan: Any) -> float:
    """Mean share of the largest entry of each row, nodes without neighbours left out."""
    counted = (problem.a > 0) & (problem.p > 0)
    best = row_maxima(plan)[counted] / problem.p[counted]
    return float(best.clip(min=0).mean()) if counted.any() else 1.0
