"""Soft plans of sharp ends: one linear entropic problem on the cost C(T) of the plan T that a solve ended with.

    S = argmin <C(T), S> + epsilon KL(S | r c^T)    among the plans with the marginals r, c of T
    S_ij = r_i c_j exp((f_i + g_j - C_ij) / epsilon)

C(T) is the linearised cost of the whole objective (`torchgw.objective.linearise`). A stationary T solves the same
problem without entropy. There the reduced costs C_ij - f_i - g_j are 0 on its entries, and S ranks all other pairs by
theirs. The spread of a point is its mean cost less its cost in T,

    sum_j c_j C_ij - sum_j T_ij C_ij / r_i,

whose mean over the points is the mean reduced cost, whatever the potentials. The default epsilon is 0.004 of the
median spread of all source and target points.

The score is stored where it fits the memory, and else multiplied from its factors. Potentials are found in float32, and
read once in float64: entries of far pairs are too small for float32, and still rank these. Between sparse matrices, a
plan of few entries has the cost a_i + b_j - 2 W_ij of few entries W, see `torchgw.objective.exact`: S is then found on
the entries of W and T alone.

Sources: M. Cuturi, "Sinkhorn distances", 2013; B. Schmitzer, "Stabilized sparse scaling algorithms for entropy
regularized transport problems", 2019 (epsilon scaling).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.potential import PotentialCoupling
from torchgw.couplings.sparse import SparseCoupling
from torchgw.kernels import LOG2E
from torchgw.kernels.kernel import two_softmins
from torchgw.kernels.softmin_dense import reference as dense_kernel
from torchgw.kernels.softmin_stream import reference as stream_kernel
from torchgw.losses import SQUARE
from torchgw.objective.certify import Objective, objective
from torchgw.objective.exact import ExactGradient, Spaces, SparseObjective
from torchgw.objective.linearise import Weights
from torchgw.objective.model import Model, Values, mean_cost
from torchgw.options import SinkhornOptions
from torchgw.runtime.transfer import to_device
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import SinkhornState, rescale, sinkhorn
from torchgw.sinkhorn.scaling import Scaler, solve_by_scaling
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.spaces import AdjacencyDistances

SHARE = 0.004  # of the median spread: ranks embeddings, cells and graphs best (measured: 0.003 to 0.005)
COOLING = 3  # halvings of epsilon
COOLING_OPTIONS, FINAL_OPTIONS = SinkhornOptions(tol=1e-2), SinkhornOptions()
COOLING_ITERATIONS, FINAL_ITERATIONS = 20, 200  # more of them rank no better
BYTES = 16  # of a pair in a stored problem: its score in float64, and that of an epsilon and the plan in float32


class SoftPlan(NamedTuple):
    """A soft plan.

    coupling : S, with the mass of T, on its device.
    epsilon : its entropy, in units of the scaled squared distances.
    residual : L1 marginal residual before rounding, relative to the mass.
    """

    coupling: BlockCoupling
    epsilon: float
    residual: float


def soften(coupling: BlockCoupling, spaces: Spaces, model: Model, epsilon: float | None, max_memory: int) -> SoftPlan:
    """The soft plan of T at an epsilon, or at that of the spread of costs.

    Parameters
    ----------
    coupling : T.
    spaces : distances of all its points, float64 on the CPU.
    model : the objective, on the CPU.
    epsilon : above 0, or None; only a T without entropy has a spread.
    max_memory : bytes that the problem may take.
    """
    device, mass = coupling.device, math.exp(model.log_mass_scale)
    plan = to_cpu_double(coupling).times(1 / mass)
    few = all(isinstance(space, AdjacencyDistances) and space.sparse for space in spaces)
    if few and isinstance(plan, SparseCoupling) and isinstance(coupling, SparseCoupling):
        found = _soften_entries(plan, spaces, epsilon)
    else:
        found = _soften_all_pairs(plan, spaces, model, epsilon, max_memory)
    parts = {name: to_device(part, device) for name, part in found.coupling.times(mass).tensors().items()}
    return found._replace(coupling=found.coupling.with_tensors(parts))


def to_cpu_double(coupling: BlockCoupling) -> BlockCoupling:
    """The plan on the CPU, in float64 where it is stored; one without potentials by its entries."""
    if isinstance(coupling, DenseCoupling):
        plan = coupling.plan.detach().cpu().double()
        stored = DenseCoupling(plan)
        return stored if coupling.potentials else SparseCoupling.of(csr_array(plan.numpy()), plan.device)
    parts = {name: part.detach().cpu() for name, part in coupling.tensors().items()}
    found: BlockCoupling = coupling.with_tensors(parts)
    return found


def value_of(soft: SoftPlan, spaces: Spaces, model: Model, max_memory: int) -> tuple[Values, bool, float]:
    """The parts of the objective of a soft plan, of about mass one; whether it is exact, and its error."""
    plan = to_cpu_double(soft.coupling).times(math.exp(-model.log_mass_scale))
    if model.alpha == 0:
        return model.values(0.0, plan), True, 0.0
    rows, columns = (plan.marginal(axis).to(model.p) for axis in (1, 0))
    if isinstance(plan, SparseCoupling):
        problem = _sparse_objective(plan, spaces)
        value = Objective(max(problem.value(problem.cross(plan.matrix), plan.matrix), 0.0))
    elif model.loss is SQUARE:
        value = objective(plan, spaces, (rows, columns), max_memory, torch.Generator().manual_seed(0))
    else:
        raw = ExactGradient(*spaces, rows, columns, model.loss)(plan, rows)
        value = Objective(max(float(mean_cost(raw, plan, rows, columns)), 0.0))
    return model.with_epsilon(soft.epsilon).values(float(value.value), plan), value.exact, value.error


def cost_of(plan: BlockCoupling, spaces: Spaces, model: Model) -> tuple[FactoredCost, Tensor, Tensor]:
    """The linearised cost at a plan of about mass one, of which marginals that stay are no part; and its row (N,) and
    column (K,) terms where D_X T D_Y is not centred."""
    rows, columns = (plan.marginal(axis).to(model.p) for axis in (1, 0))
    weights, linear = Weights.of(model, float(rows.sum())), model.linear(torch.float64)
    if model.alpha == 0:
        assert linear is not None
        cost = linear.times(weights.linear)
        return cost, cost.a, cost.b
    exact = ExactGradient(*spaces, rows, columns, model.loss)
    raw = exact(plan, rows)
    cost = weights.combine_costs(raw, linear)
    return cost, cost.a + weights.quadratic * (exact.a - raw.a), cost.b + weights.quadratic * (exact.b - raw.b)


def epsilon_of(cost: FactoredCost, plan: BlockCoupling) -> float:
    """The default epsilon of a plan without entropy, from its cost."""
    sums = [torch.linalg.vecdot(side.U, plan.apply(side.V, axis)) for side, axis in ((cost, 1), (cost.T, 0))]
    if cost.extra is not None:
        products = cost.extra.new_empty(plan.shape)
        for where, block in plan.blocks():
            products[where] = block.to(cost.extra) * cost.extra[where]
        sums = [found - products.sum(axis) / 2 for found, axis in zip(sums, (1, 0), strict=True)]

    def multiply(share: Tensor, axis: int) -> Tensor:
        side = cost if axis == 1 else cost.T
        found = side.U @ (share @ side.V)
        return found if side.extra is None else found - side.extra @ share / 2

    return _epsilon_from_products(plan, (cost.a, cost.b), multiply, sums)


def _epsilon_from_products(
    plan: BlockCoupling, terms: tuple[Tensor, Tensor], multiply: Callable[[Tensor, int], Tensor], sums: list[Tensor]
) -> float:
    """The default epsilon for a cost a_i + b_j - 2 W_ij of these ``terms``, from products of W with vectors and the row
    (N,) and column (K,) sums of W T."""
    spreads = []
    for axis, own, other, paid in ((1, *terms, sums[0]), (0, *terms[::-1], sums[1])):
        mass, share = plan.marginal(axis).to(own), plan.marginal(1 - axis).to(own)
        share = share / share.sum()
        means = own + other @ share - 2 * multiply(share, axis)
        paid = own * mass + plan.apply(other, axis) - 2 * paid
        spreads.append((means - paid / mass)[mass > 0])
    every = torch.cat(spreads)
    largest = float(every.abs().max())
    return SHARE * max(float(every.median()), torch.finfo(every.dtype).eps * largest) or SHARE


def _soften_all_pairs(
    plan: BlockCoupling, spaces: Spaces, model: Model, epsilon: float | None, max_memory: int
) -> SoftPlan:
    cost, a, b = cost_of(plan, spaces, replace(model, penalty=None) if epsilon is None else model.with_epsilon(epsilon))
    if epsilon is None:
        epsilon = epsilon_of(cost, plan)
        if model.penalty is not None:
            cost, a, b = cost_of(plan, spaces, model.with_epsilon(epsilon))
    rows, columns = plan.marginal(1).double(), plan.marginal(0).double()
    needed = BYTES * math.prod(plan.shape)
    factored = cost.extra is None and cost.U.shape[1] < min(plan.shape)
    centred, _, _ = cost.centre_factors(epsilon)  # potentials are found in float32
    if needed <= max_memory or not factored:
        validate.memory("the soft plan", needed, max_memory, "align fewer points, or raise GWOptions.max_memory")
        return _soften_stored(centred.stored_score(1.0), rows, columns, epsilon, (centred.a - a, centred.b - b))

    def score_at(epsilon: float) -> Any:
        return stream_kernel.KERNEL.bind(*(factor.float() for factor in centred.balanced_score(epsilon)))

    state, (A, B) = _solve_by_cooling(score_at, rows, columns, epsilon), centred.balanced_score(epsilon)
    f = rows.log2() - stream_kernel.KERNEL.bind(A, B).softmin(state.g, 1)
    return SoftPlan(PotentialCoupling(A, B, f, state.g), epsilon, float(state.residual))


def _soften_stored(
    score: Tensor, rows: Tensor, columns: Tensor, epsilon: float, terms: tuple[Tensor, Tensor]
) -> SoftPlan:
    """The soft plan of a score (N, K) that is given at an epsilon of 1, in its memory; row (N,) and column (K,)
    ``terms`` of the cost are no part of the score. It is not rounded: a correction of all pairs would hide the smallest
    entries, which rank the last candidates."""
    plan, cold = (torch.empty_like(score, dtype=torch.float32) for _ in range(2))
    state = _solve_by_cooling(
        lambda at: dense_kernel.KERNEL.bind(torch.div(score, at, out=cold)), rows, columns, epsilon, plan
    )
    found, unit = score.div_(epsilon).add_(state.g), LOG2E / epsilon
    f = rows.log2() - dense_kernel.softmin(found, torch.zeros_like(state.g), 1)
    found.add_(f[:, None]).exp2_()
    missed = (found.sum(0) - columns).abs().sum() / rows.sum()
    return SoftPlan(DenseCoupling(found, f + unit * terms[0], state.g + unit * terms[1]), epsilon, float(missed))


def _solve_by_cooling(
    score_at: Callable[[float], Any], rows: Tensor, columns: Tensor, epsilon: float, out: Tensor | None = None
) -> SinkhornState:
    """The last of the problems of scores at epsilons that fall to this one, from a blur, whose potentials are quickly
    found; in float64. Scores that are stored are scaled, their plan made in ``out`` (N, K)."""
    total = rows.sum()
    row, column = (MarginalConstraint((side / side.sum()).log2().float()) for side in (rows, columns))
    f, g = row.log_mass, column.log_mass
    for step in range(COOLING, -1, -1):
        options, most = (COOLING_OPTIONS, COOLING_ITERATIONS) if step else (FINAL_OPTIONS, FINAL_ITERATIONS)
        score = score_at(epsilon * 2**step)
        if out is None:
            state = sinkhorn(score, row, column, f, g, options=options, max_iter=most)
        else:
            state = solve_by_scaling(Scaler(score, row, column, out), f, g, options=options, max_iter=most)
        f, g = rescale(state.f, row.log_mass, 2.0), rescale(state.g, column.log_mass, 2.0)
    if not math.isfinite(float(state.largest)):
        raise ValueError(f"epsilon must be larger, got {epsilon:.3g}: costs over it overflow in float32")
    return state._replace(f=state.f.double() + total.log2(), g=state.g.double())


class EntryScore:
    """A score (N, K) on few entries (m,), and of no other pair, as the loop reads it (`torchgw.types.Softmins`)."""

    def __init__(self, row: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        self.places, self.values, self.shape = (row, column), values, shape

    def softmin(self, bias: Tensor, axis: int) -> Tensor:
        """log2 sum 2^(S + bias) over ``axis``."""
        at, size = self.places[1 - axis], self.shape[1 - axis]
        terms = self.values + bias[self.places[axis]]
        top = terms.new_full((size,), -torch.inf).scatter_reduce(0, at, terms, "amax")
        held = torch.where(top.isneginf(), 0.0, top)
        return terms.new_zeros(size).index_add(0, at, (terms - held[at]).exp2()).log2() + held

    def sweep(self, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """The next f, and the softmin over the rows under it."""
        return two_softmins(self.softmin, g, log_p, f, weight)


def _sparse_objective(plan: SparseCoupling, spaces: Spaces) -> SparseObjective:
    """The quadratic part between sparse matrices, for plans of these marginals."""
    x, y = spaces
    assert isinstance(x, AdjacencyDistances)
    assert isinstance(y, AdjacencyDistances)
    p, q = (plan.marginal(axis).numpy() for axis in (1, 0))
    return SparseObjective(x.matrix, y.matrix, p, q, x.symmetric and y.symmetric)


def _soften_entries(plan: SparseCoupling, spaces: Spaces, epsilon: float | None) -> SoftPlan:
    rows, columns, problem = plan.marginal(1), plan.marginal(0), _sparse_objective(plan, spaces)
    T, W = plan.matrix, problem.cross(plan.matrix)
    if epsilon is None:
        terms, products = (torch.from_numpy(problem.a), torch.from_numpy(problem.b)), W.multiply(T)
        sums = [torch.from_numpy(np.asarray(products.sum(axis)).ravel()) for axis in (1, 0)]
        turned = W.T, W
        epsilon = _epsilon_from_products(
            plan, terms, lambda share, axis: torch.from_numpy(turned[axis] @ share.numpy()), sums
        )
    both = SparseCoupling.of((abs(W) + abs(T)).tocsr(), rows.device)
    row, column = both.row, both.column
    values = torch.from_numpy(np.array(W[row.numpy().copy(), column.numpy().copy()])) * (2 * LOG2E)

    state = _solve_by_cooling(
        lambda at: EntryScore(row, column, (values / at).float(), plan.shape), rows, columns, epsilon
    )
    found = (values / epsilon + state.f[row] + state.g[column]).exp2()
    return SoftPlan(SparseCoupling(found, column, both.first, both.width), epsilon, float(state.residual))
