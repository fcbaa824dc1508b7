"""The sampled Gromov-Wasserstein loop before and after each of its optimisations, one switch for each.

    anchors ~ T -> cost C(T) -> score -C log2(e) / epsilon -> Sinkhorn -> T, again and again

With all switches off this is the loop as one writes it first: double precision, pairs drawn on the host from the whole
plan, a full cost matrix, potentials from zero, every residual from the plan and read at once, a fixed number of
iterations. Each switch replaces one piece by what the library does, by the library's own function where there is one.
The random numbers of the two ways to draw differ, so the same quality is reached by other anchors.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines import plain
from torchgw.couplings.rounding import make_feasible
from torchgw.kernels import LOG2E
from torchgw.kernels.dispatch import Workload
from torchgw.kernels.sampling import draw
from torchgw.kernels.softmin_dense import choose
from torchgw.objective.sampled import Anchors, refresh
from torchgw.options import SinkhornOptions, StoppingOptions
from torchgw.sinkhorn.scaling import Scaler, solve_by_scaling
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.solvers.sampled import Plateau, stopping_status, update_plateau
from torchgw.types import DistanceProvider

N_ANCHORS, STEP = 80, 0.5
INNER_ITER, INNER_TOL = 100, 1e-2
CHECK_EVERY, PATIENCE = 10, 20  # iterations between two readings; iterations without progress


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Which optimisations are in force.

    Parameters
    ----------
    device_draws : rows by `torch.multinomial` from p, columns from their rows; else by NumPy from all of it.
    logsumexp_check : residual of the marginals from the next half-step's logsumexp; else from the sums of a plan.
    balanced : a score without the row and column terms that a balanced plan does not feel; else the whole cost matrix.
    preallocated : the score written into the same memory at every iteration; else made anew, term by term.
    device_copies : distances held on the device in the loop's precision; else converted from the host at each use.
    index_arrays : anchor pairs as index tensors; else as a list of tuples.
    mixed_precision : float32 inside; else float64.
    early_stop : the plateau of an averaged cost ends the loop; else it runs to its limit.
    fewer_syncs : the host reads a number every ten iterations; else at every iteration.
    fused : both half-steps by the library's sweep; else by two calls of `torch.logsumexp`.
    warm_start : potentials of the last cost; else zero.
    """

    device_draws: bool = False
    logsumexp_check: bool = False
    balanced: bool = False
    preallocated: bool = False
    device_copies: bool = False
    index_arrays: bool = False
    mixed_precision: bool = False
    early_stop: bool = False
    fewer_syncs: bool = False
    fused: bool = False
    warm_start: bool = False


ALL_ON = Switches(**{entry.name: True for entry in fields(Switches)})


@dataclass(frozen=True)
class Found:
    """Where a loop ended: the last score and its potentials, all in base 2, and the iterations it took."""

    score: Tensor
    f: Tensor
    g: Tensor
    n_iter: int
    n_iter_sinkhorn: int

    def plan(self) -> Tensor:
        """The feasible plan (N, K) in float64: every loop is followed by the same last solve, to the same tolerance."""
        score, f, g = (side.to(torch.float64) for side in (self.score, self.f, self.g))
        p, q = (torch.full_like(side, 1 / len(side)) for side in (f, g))
        kernel = choose("eager", Workload(score.device, torch.float64, tuple(score.shape))).function
        plan = torch.empty_like(score)
        sides, last = (MarginalConstraint(p.log2()), MarginalConstraint(q.log2())), SinkhornOptions()
        solve_by_scaling(Scaler(kernel.bind(score), *sides, plan), f, g, options=last, max_iter=last.final_max_iter)
        return make_feasible(plan, p, q)


def solve(
    source: DistanceProvider,
    target: DistanceProvider,
    pairs: np.ndarray,
    switches: Switches,
    *,
    epsilon: float,
    max_iter: int,
    seed: int = 0,
    device: str = "cpu",
    backend: str = "eager",
) -> Found:
    """Run the loop with uniform masses, from known ``pairs`` (m, 2), which settle the orientation."""
    n, k = source.size, target.size
    where, dtype = torch.device(device), torch.float32 if switches.mixed_precision else torch.float64
    p, q = torch.full((n,), 1 / n, dtype=dtype, device=where), torch.full((k,), 1 / k, dtype=dtype, device=where)
    log_p, log_q = p.log2(), q.log2()
    generator, rng = torch.Generator(where).manual_seed(seed), np.random.default_rng(seed)
    sides = Columns(source, where, dtype, switches), Columns(target, where, dtype, switches)
    work = Workspace((n, k), where, dtype, switches, backend)
    every = CHECK_EVERY if switches.fewer_syncs else 1
    stopping, plateau = StoppingOptions(max_iter=max_iter, patience=PATIENCE // every), Plateau()
    anchors = Anchors(*(torch.from_numpy(side.copy()).to(where) for side in pairs.T))
    f, g, n_inner, iteration = log_p, log_q, 0, 0
    while True:
        iteration += 1
        U, V = (side.of(index) for side, index in zip(sides, anchors, strict=True))
        score, row, column = work.score(U, V, epsilon)
        if not switches.warm_start:
            f, g = log_p, log_q
        f, g, done = work.sinkhorn(score, f + row, g + column, log_p, log_q)
        n_inner += done
        fresh = work.pairs(score, f, g, p, generator, rng)
        if switches.early_stop and iteration % every == 0:
            seen = (U[fresh.rows] - V[fresh.columns]).square().sum(1).mean()
            plateau = update_plateau(plateau, float(seen), stopping)
            if stopping_status(iteration, plateau, float("inf"), stopping) is not None:
                return Found(score, f, g, iteration, n_inner)
        if iteration == max_iter:
            return Found(score, f, g, iteration, n_inner)
        # The known pairs are few, so the first draw replaces them all.
        anchors = fresh if iteration == 1 else refresh(anchors, fresh, STEP, generator)
        f, g = f - row, g - column  # potentials of the whole cost, which the next one is like


class Columns:
    """Distances to anchors, (N, M) over sqrt(M)."""

    def __init__(self, space: DistanceProvider, device: torch.device, dtype: torch.dtype, switches: Switches) -> None:
        kept = switches.device_copies
        self.space = space.to(device, dtype) if kept else space.to(torch.device("cpu"), torch.float64)
        self.read = self.space.rows if kept else plain.host_rows(self.space, device, dtype)

    def of(self, index: Tensor) -> Tensor:
        """Distances of all points to those of ``index`` (M,)."""
        return self.read(index).T / len(index) ** 0.5


class Workspace:
    """What one problem's iterations share: score, kernel, and the pieces that the switches choose."""

    def __init__(
        self, shape: tuple[int, int], device: torch.device, dtype: torch.dtype, switches: Switches, backend: str
    ) -> None:
        self.switches, self.shape = switches, shape
        self.kernel = choose(backend, Workload(device, dtype, shape)).function
        self.held = torch.empty(shape, device=device, dtype=dtype) if switches.preallocated else None

    def score(self, U: Tensor, V: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
        """-C log2(e) / epsilon (N, K), and the row (N,) and column (K,) terms of it that were left out.

        A balanced plan does not feel those, so where that is known they are not written into the matrix; potentials of
        the whole cost then take them up.
        """
        unit = LOG2E / epsilon
        if self.switches.balanced:
            u, v = U.mean(0), V.mean(0)
            A, B = (U - u) * (2 * unit), V - v
            row = unit * (2 * (U @ v) - U.square().sum(1))
            column = unit * (2 * (V @ u) - V.square().sum(1) - 2 * (u @ v))
            return (torch.mm(A, B.T) if self.held is None else torch.mm(A, B.T, out=self.held)), row, column
        zero = U.new_zeros(())
        a, b = U.square().sum(1)[:, None], V.square().sum(1)
        if self.held is None:
            return (a + b - 2 * U @ V.T) * -unit, zero, zero
        return torch.mm(U, V.T, out=self.held).mul_(-2).add_(a).add_(b).mul_(-unit), zero, zero

    def sinkhorn(self, score: Tensor, f: Tensor, g: Tensor, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor, int]:
        """Iterate until the L1 residual of the column marginal is small."""
        bound = self.kernel.bind(score) if self.switches.fused else plain.TwoReads(score)
        p, q = log_p.exp2(), log_q.exp2()
        every = CHECK_EVERY if self.switches.fewer_syncs else 1
        for iteration in range(1, INNER_ITER + 1):
            f, softmin = bound.sweep(g, log_p, f, 1.0)
            new = log_q - softmin
            if iteration % every == 0:
                if self.switches.logsumexp_check:
                    # The plan (f, g) has exact rows, and column sums 2^(g + softmin).
                    residual = float((q * ((g - new).exp2() - 1)).abs().sum())
                else:
                    residual = plain.residual_of_plan(score, f, g, p, q)
                if residual <= INNER_TOL:
                    break
            g = new
        return f, g, iteration

    def pairs(
        self, score: Tensor, f: Tensor, g: Tensor, p: Tensor, generator: torch.Generator, rng: np.random.Generator
    ) -> Anchors:
        """Anchor pairs from the plan 2^(score + f + g)."""
        if self.switches.device_draws:
            rows = draw(p, N_ANCHORS, generator)
            columns = draw((score[rows] + f[rows, None] + g).exp2_(), 1, generator)[:, 0]
        else:
            rows, columns = plain.host_draws(score, f, g, N_ANCHORS, rng)
        return Anchors(rows, columns) if self.switches.index_arrays else plain.through_tuples(rows, columns)
