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
from typing import Any, NamedTuple, cast

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
from torchgw.linalg.sparse_entries import entry_values
from torchgw.losses import SQUARE
from torchgw.objective.certify import Objective, objective
from torchgw.objective.exact import ExactGradient, Spaces, SparseObjective
from torchgw.objective.linearise import Weights
from torchgw.objective.model import Model, Values, mean_cost
from torchgw.options import SinkhornOptions
from torchgw.runtime.transfer import to_device
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.sinkhorn.loop import rescale, sinkhorn
from torchgw.sinkhorn.scaling import Scaler, solve_by_scaling
from torchgw.sinkhorn.sides import MarginalConstraint
from torchgw.spaces import AdjacencyDistances

SHARE = 0.004  # of the median spread: ranks embeddings, cells and graphs best (measured: 0.003 to 0.005)
COOLING = 3  # halvings of epsilon
COOLING_OPTIONS = SinkhornOptions(tol=1e-2, exact_max_iter=20)
FINAL_OPTIONS = SinkhornOptions(exact_max_iter=200)  # more iterations rank no better
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
    found: BlockCoupling
    if few and isinstance(plan, SparseCoupling) and isinstance(coupling, SparseCoupling):
        found, epsilon = _soften_entries(plan, spaces, epsilon)
    else:
        found, epsilon = _soften_all_pairs(plan, spaces, model, epsilon, max_memory)
    columns = plan.marginal(0)
    missed = (found.marginal(0) - columns).abs().sum() / columns.sum()
    parts = {name: to_device(part, device) for name, part in found.times(mass).tensors().items()}
    return SoftPlan(found.with_tensors(parts), epsilon, float(missed))


def to_cpu_double(coupling: BlockCoupling) -> BlockCoupling:
    """The plan on the CPU, in float64 where it is stored; one without potentials by its entries."""
    if isinstance(coupling, DenseCoupling):
        plan = coupling.plan.detach().cpu().double()
        if coupling.potentials:
            return DenseCoupling(plan)
        return SparseCoupling.of(csr_array(plan.numpy()), plan.device)
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
    """The default epsilon of a plan without entropy, from its cost, whose stored part may be sparse."""
    overlap, spreads = None, []
    if cost.extra is not None:
        T = sparse_tensor(plan, plan.mass) if isinstance(plan, SparseCoupling) else plan.to_dense()
        overlap = cost.extra * T.to(cost.extra.dtype)
    for side, axis in ((cost, 1), (cost.T, 0)):
        # Without the term of the point itself, which is in both costs.
        mass, share = (plan.marginal(each).to(side.b) for each in (axis, 1 - axis))
        share = share / share.sum()
        mean = side.b @ share - 2 * (side.U @ (share @ side.V))
        own = plan.apply(side.b, axis)
        own = own - 2 * torch.linalg.vecdot(side.U, plan.apply(side.V, axis))
        if side.extra is not None and overlap is not None:
            mean = mean + side.extra @ share
            own = own + overlap.sum(axis).to_dense()
        spreads.append((mean - own / mass)[mass > 0])
    every = torch.cat(spreads)
    rounding = torch.finfo(every.dtype).eps * float(every.abs().max())
    return SHARE * max(float(every.median()), rounding) or SHARE


def sparse_tensor(plan: SparseCoupling, values: Tensor) -> Tensor:
    """Values at the entries of a plan, as a sparse tensor (N, K)."""
    places = torch.stack((plan.row, plan.column))
    return torch.sparse_coo_tensor(places, values, plan.shape, check_invariants=False)


def _soften_all_pairs(
    plan: BlockCoupling, spaces: Spaces, model: Model, epsilon: float | None, max_memory: int
) -> tuple[BlockCoupling, float]:
    """The soft plan and its epsilon. It is not rounded: a correction of all pairs would hide the smallest entries,
    which rank the last candidates."""
    begin = replace(model, penalty=None) if epsilon is None else model.with_epsilon(epsilon)
    cost, a, b = cost_of(plan, spaces, begin)
    if epsilon is None:
        epsilon = epsilon_of(cost, plan)
        if model.penalty is not None:
            cost, a, b = cost_of(plan, spaces, model.with_epsilon(epsilon))
    needed = BYTES * math.prod(plan.shape)
    factored = cost.extra is None and cost.U.shape[1] < min(plan.shape)
    centred, _, _ = cost.centre_factors(epsilon)  # potentials are found in float32
    if factored and needed > max_memory:
        factors = centred.balanced_score
        f, g = _solve_by_cooling(
            lambda at, dtype: stream_kernel.KERNEL.bind(*(side.to(dtype) for side in factors(at))), plan, epsilon
        )
        return PotentialCoupling(*factors(epsilon), f, g), epsilon
    validate.memory("the soft plan", needed, max_memory, "align fewer points, or raise GWOptions.max_memory")
    score = centred.stored_score(1.0)
    scaled, cold = (torch.empty_like(score, dtype=torch.float32) for _ in range(2))
    memory = {torch.float32: cold, torch.float64: score}
    f, g = _solve_by_cooling(
        lambda at, dtype: dense_kernel.KERNEL.bind(torch.div(score, at, out=memory[dtype])), plan, epsilon, scaled
    )
    found, unit = score.add_(g).add_(f[:, None]).exp2_(), LOG2E / epsilon
    # Row and column terms of the cost are no part of the score.
    f, g = f + unit * (centred.a - a), g + unit * (centred.b - b)
    return DenseCoupling(found, f, g), epsilon


def _solve_by_cooling(
    score_at: Callable[[float, torch.dtype], Any], plan: BlockCoupling, epsilon: float, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Potentials (N,), (K,) in float64 of the last problem, with the marginals of a plan, of scores at epsilons that
    fall to this one, from a blur, whose potentials are quickly found. Scores that are stored are scaled, their plan
    made in ``out`` (N, K). The last score that is asked for is in float64."""
    rows, columns = (plan.marginal(axis).double() for axis in (1, 0))
    row, column = (MarginalConstraint((side / side.sum()).log2().float()) for side in (rows, columns))
    f, g = row.log_mass, column.log_mass
    for step in range(COOLING, -1, -1):
        options = COOLING_OPTIONS if step else FINAL_OPTIONS
        most, score = options.exact_max_iter, score_at(epsilon * 2**step, torch.float32)
        if out is None:
            state = sinkhorn(score, row, column, f, g, options=options, max_iter=most)
        else:
            scaler = Scaler(score, row, column, out)
            state = solve_by_scaling(scaler, f, g, options=options, max_iter=most)
        f, g = rescale(state.f, row.log_mass, 2.0), rescale(state.g, column.log_mass, 2.0)
    if not math.isfinite(float(state.largest)):
        raise ValueError(f"epsilon must be larger, got {epsilon:.3g}: costs over it overflow in float32")
    g = state.g.double()
    return rows.log2() - score_at(epsilon, torch.float64).softmin(g, 1), g


class EntryScore:
    """A score (N, K) on few entries (m,), and of no other pair, as the loop reads it (`torchgw.types.Softmins`)."""

    def __init__(self, row: Tensor, column: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        self.places, self.values, self.shape = (row, column), values, shape

    def softmin(self, bias: Tensor, axis: int) -> Tensor:
        """log2 sum 2^(S + bias) over ``axis``."""
        at, size = self.places[1 - axis], self.shape[1 - axis]
        terms = self.values + bias[self.places[axis]]
        top = terms.new_full((size,), torch.finfo(terms.dtype).min)
        top.scatter_reduce_(0, at, terms, "amax")
        return terms.new_zeros(size).index_add(0, at, (terms - top[at]).exp2()).log2() + top

    def sweep(self, g: Tensor, log_p: Tensor, f: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """The next f, and the softmin over the rows under it."""
        return two_softmins(self.softmin, g, log_p, f, weight)


def _sparse_objective(plan: SparseCoupling, spaces: Spaces) -> SparseObjective:
    """The quadratic part between sparse matrices, for plans of these marginals."""
    x, y = cast(tuple[AdjacencyDistances, AdjacencyDistances], spaces)
    p, q = (plan.marginal(axis).numpy() for axis in (1, 0))
    return SparseObjective(x.matrix, y.matrix, p, q, x.symmetric and y.symmetric)


def _soften_entries(plan: SparseCoupling, spaces: Spaces, epsilon: float | None) -> tuple[SparseCoupling, float]:
    """The soft plan on the entries of W and T, and its epsilon."""
    problem, T = _sparse_objective(plan, spaces), plan.matrix
    W = problem.cross(T)
    both = SparseCoupling.of((abs(W) + abs(T)).tocsr(), plan.device)
    row, column = both.row, both.column
    # Own arrays, as SciPy refuses those that are not writable.
    values = torch.from_numpy(entry_values(W, row.numpy().copy(), column.numpy().copy()).copy())
    if epsilon is None:
        a, b = torch.from_numpy(problem.a), torch.from_numpy(problem.b)
        none = a.new_zeros(len(a), 0), b.new_zeros(len(b), 0)
        epsilon = epsilon_of(FactoredCost(a, b, *none, sparse_tensor(both, -2 * values)), plan)
    values = values * (2 * LOG2E)
    f, g = _solve_by_cooling(
        lambda at, dtype: EntryScore(row, column, (values / at).to(dtype), plan.shape), plan, epsilon
    )
    mass = (values / epsilon + f[row] + g[column]).exp2()
    return SparseCoupling(mass, column, both.first, both.width), epsilon
