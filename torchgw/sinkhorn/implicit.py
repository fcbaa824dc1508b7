"""The sensitivity of a solved transport plan to its cost: implicit differentiation of Sinkhorn's fixed point.

The plan T with marginals mu, nu of

    min <C, T> + epsilon KL(T | p q^T) + rho_x KL(T 1 | p) + rho_y KL(T^T 1 | q)

moves by W = T o (R - a 1^T - 1 b^T) / epsilon when C changes by -R, where a and b solve the symmetric system

    [ diag(mu / h)    T           ] [a]   [ (T o R) 1   ]
    [ T^T             diag(nu / k)] [b] = [ (T o R)^T 1 ].

h and k are the stiffness of each marginal: 1 for a hard one, tau = rho / (rho + epsilon) under a divergence, 0 for a
free one (then a or b is zero there). Of a partial plan, points that give all they have are held and others are free,
and one more unknown c keeps the total. The operator from R to W is symmetric, so it serves derivatives in both
directions.

The larger side is eliminated. What is left, in units of the roots of its diagonal, is I - M^T M with the singular
values of M at most 1; 1 itself belongs to the constants of two hard marginals, which are projected out. It is solved
directly where it is small, else by conjugate gradients with two products with the plan an iteration, preconditioned by
the slowest directions (a short Lanczos run): no more of the plan is needed than a streaming one gives. The smallest
eigenvalue 1 - s^2 is also the rate of Sinkhorn's iteration, whose residual falls by s^2 each time, and gives its best
over-relaxation.

Sources: G. Luise et al., "Differential properties of Sinkhorn approximation", 2018; M. Cuturi, O. Teboul,
J. Niles-Weed, J.-P. Vert, "Supervised quantile normalization", 2020; M. Eisenberger et al., "A unified framework for
implicit Sinkhorn differentiation", 2022; A. Thibault, L. Chizat, C. Dossal, N. Papadakis, "Overrelaxed Sinkhorn-Knopp
algorithm for regularized optimal transport", 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.linalg.lanczos import Spectrum, find_slow_eigenpairs, lanczos
from torchgw.linalg.linear_systems import conjugate_gradients
from torchgw.linalg.operators import Matrix
from torchgw.runtime.transfer import to_host
from torchgw.sinkhorn.costs import FactoredCost

DIRECT_SIZE, DIRECT_ONCE = 1000, 500  # measured, for some ten solves and for one: `benchmarks/gradients.py`
UNRESOLVED = 500.0
LINEAR_TOLERANCE = 1e-12
INVERSE_STEPS = 6


class HadamardProduct(BlockCoupling):
    """The entrywise product T o Z / scale of a coupling and a factored matrix, in blocks of rows."""

    def __init__(self, coupling: BlockCoupling, matrix: FactoredCost, scale: float) -> None:
        self.coupling, self.matrix, self.scale = coupling, matrix, scale
        self.shape = coupling.shape

    def rows(self, index: Tensor | slice) -> Tensor:
        return self.matrix.rows(index).mul_(self.coupling.rows(index)).div_(self.scale)

    def tensors(self) -> dict[str, Tensor]:
        return self.coupling.tensors()

    def times(self, mass: float) -> HadamardProduct:
        return HadamardProduct(self.coupling, self.matrix, self.scale / mass)


def iterate_entries(change: BlockCoupling) -> Iterator[tuple[Tensor | slice, Tensor, Tensor]]:
    """The entries of a change: some rows, the columns (k,) where they have entries, and these (n, k)."""
    every = torch.arange(change.shape[1], device=change.device)
    if isinstance(change, HadamardProduct) and isinstance(change.coupling, TiledCoupling):
        for rows, columns, block, _ in change.coupling.row_tiles():
            yield rows, columns, block.mul_(change.matrix.restrict(rows, columns).rows(slice(None))).div_(change.scale)
    else:
        yield from ((rows, every, block) for rows, block in change.blocks())


class PlanSensitivity(NamedTuple):
    """The sensitivity of a plan to its cost, in the direction -R.

    Attributes
    ----------
    change : W (N, K), the derivative of the plan.
    rows, columns : its sums (N,), (K,).
    a, b, c : multipliers (N,), (K,), () of the marginals and of the total mass.
    """

    change: BlockCoupling
    rows: Tensor
    columns: Tensor
    a: Tensor
    b: Tensor
    c: Tensor


def _fill_null_space(system: Tensor, *null: Tensor | None) -> Tensor:
    """A matrix (n, n) with the eigenvalue 1 in place of 0 along directions (n, d)."""
    found = system.clone()
    for vectors in null:
        if vectors is not None:
            found.addmm_(vectors, vectors.T)
    return found


@dataclass
class Response:
    """The operator from -dC to dT of a solved plan.

    Parameters
    ----------
    plan : the solved plan (N, K), read in blocks.
    stiffness : h (N,) and k (K,) of the marginals, see above.
    total : whether the total mass is a constraint beside the marginals.
    epsilon : of the problem.
    n_lanczos, max_iter : steps of the Lanczos run, and most conjugate-gradient iterations of a solve.
    tol : relative residual at which such a solve ends.
    direct_size : the smaller side up to which the system is stored and factored.
    smooth : functions (n, d) on the smaller side (of columns where both are alike) whose span has the slowest
        directions, where these are known; else a Lanczos run finds them.

    Attributes
    ----------
    n_iter : conjugate-gradient iterations so far.
    error : largest relative residual of a solve so far.
    empty : whether the plan has no mass at all, as where both marginals give way for next to nothing.
    """

    plan: BlockCoupling
    stiffness: tuple[Tensor, Tensor]
    epsilon: float
    total: bool = False
    n_lanczos: int = 40
    max_iter: int = 200
    direct_size: int = DIRECT_SIZE
    smooth: Tensor | None = None
    tol: float = LINEAR_TOLERANCE
    n_iter: int = 0
    error: float = 0.0

    def __post_init__(self) -> None:
        self.sums = self.plan.marginal(1), self.plan.marginal(0)
        self.axis = 1 if self.plan.shape[0] >= self.plan.shape[1] else 0  # T v for v on the smaller side
        (mu, nu), (h, k) = self.sums[:: 2 * self.axis - 1], self.stiffness[:: 2 * self.axis - 1]
        self._ratio = torch.where((mu > 0) & (h > 0), h / mu, 0.0)  # of the side that is eliminated
        self._root = torch.where((nu > 0) & (k > 0), (k / nu).sqrt(), 0.0)
        self._mu, self._nu, self._mass = mu, nu, mu.sum()
        hard = (((firm == 1) | ~(mass > 0)).all() for firm, mass in zip(self.stiffness, self.sums, strict=True))
        *self._hard, self.empty = map(bool, to_host(*hard, self._mass == 0))
        closed = all(self._hard)
        self._constant = (nu.sqrt() / self._mass.sqrt())[:, None] if closed and not self.total else None

    def __call__(self, matrix: FactoredCost) -> PlanSensitivity:
        """For R, a factored matrix."""
        if isinstance(self.plan, DenseCoupling):
            product = matrix.rows(slice(None)).mul_(self.plan.plan)
            r, s = product.sum(1), product.sum(0)
        else:
            r, s = self._product_sums(matrix)
        a, b, c = self.solve(r, s)
        (mu, nu), e = self.sums, self.epsilon
        rows, columns = (
            torch.zeros_like(mass)
            if hard
            else (found - mass * own - self.plan.apply(other[:, None], axis)[:, 0] - mass * c) / e
            for found, mass, own, other, axis, hard in (
                (r, mu, a, b, 1, self._hard[0]),
                (s, nu, b, a, 0, self._hard[1]),
            )
        )
        change: BlockCoupling
        if isinstance(self.plan, DenseCoupling):
            product.addcmul_(self.plan.plan, (a + c)[:, None], value=-1.0).addcmul_(self.plan.plan, b, value=-1.0)
            change = DenseCoupling(product.div_(e))
        else:
            projected = FactoredCost(matrix.a - a - c, matrix.b - b, matrix.U, matrix.V, matrix.extra)
            change = HadamardProduct(self.plan, projected, e)
        return PlanSensitivity(change, rows, columns, a, b, c)

    def _product_sums(self, matrix: FactoredCost) -> tuple[Tensor, Tensor]:
        """(T o R) 1 and its transpose from products with the plan."""
        if matrix.extra is not None:
            product = HadamardProduct(self.plan, matrix, 1.0)
            return product.marginal(1), product.marginal(0)
        (mu, nu), plan = self.sums, self.plan
        TV = plan.apply(torch.cat((matrix.b[:, None], matrix.V), 1), 1)
        TtU = plan.apply(torch.cat((matrix.a[:, None], matrix.U), 1), 0)
        r = matrix.a * mu + TV[:, 0] - 2 * (matrix.U * TV[:, 1:]).sum(1)
        s = matrix.b * nu + TtU[:, 0] - 2 * (matrix.V * TtU[:, 1:]).sum(1)
        return r, s

    def solve(self, r: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a (N,), b (K,), c () of the system at the head of the file with these right-hand sides."""
        first, second = (r, s) if self.axis else (s, r)
        reduced = first * self._ratio
        right = self._root * (second - self._apply_transpose(reduced))
        if self.total:
            rest = (first.sum() - self._mu @ reduced) / self._mass.sqrt()
            right = torch.cat((right, rest[None]))
        right = self._project(right)
        x = self._solve_directly(right) if self.factor is not None else self._solve_iteratively(right)
        own, c = self._unpack(x)
        other = reduced - self._ratio * (self._apply_plan(own) + self._mu * c)
        return (other, own, c) if self.axis else (own, other, c)

    def apply_scaled_schur_complement(self, x: Tensor) -> Tensor:
        """The Schur complement in units of the roots of its diagonal, times (n,) or (n, d)."""
        if self.system is not None:
            return self.system @ x
        root, ratio, mu, nu = (side[:, None] for side in (self._root, self._ratio, self._mu, self._nu))
        X = x.view(len(x), -1)
        own = X[: len(root)]
        b = root * own
        c = X[len(root) :] / self._mass.sqrt() if self.total else own.new_zeros(1, own.shape[1])
        reduced = ratio * (self.plan.apply(b, self.axis) + mu * c)
        found = torch.where(root > 0, own, 0.0) + root * (nu * c - self.plan.apply(reduced, 1 - self.axis))
        if self.total:
            last = (nu.T @ b + self._mass * c - mu.T @ reduced) / self._mass.sqrt()
            found = torch.cat((found, last))
        return found.view(x.shape)

    @cached_property
    def spectrum(self) -> Spectrum:
        """Its slow directions, without the constants."""
        if self.smooth is not None:
            return self._spectrum_within(self.smooth)
        firm = torch.cat((self._root > 0, self._root.new_ones(int(self.total)) > 0))
        size = int(firm.sum()) - int(self._constant is not None)  # of the space without the constants
        operator = Matrix(
            self.apply_scaled_schur_complement,
            len(firm),
            firm.device,
            self._root.dtype,
            lambda x: self._remove_constant(torch.where(firm[:, None], x, 0.0)),
        )
        return find_slow_eigenpairs(operator, min(self.n_lanczos, size))

    def _spectrum_within(self, functions: Tensor) -> Spectrum:
        """What of its spectrum the span of functions (n, d) shows."""
        found = torch.where(self._root > 0, 1 / self._root, 0.0)[:, None] * functions
        if self.total:
            found = torch.cat((found, found.new_zeros(1, found.shape[1])))
        if self._constant is not None:
            found = found - self._constant @ (self._constant.T @ found)
        basis, sizes, _ = torch.linalg.svd(found, full_matrices=False)
        basis = basis[:, sizes > UNRESOLVED * torch.finfo(sizes.dtype).eps * sizes[0]]
        values, turn = torch.linalg.eigh(basis.T @ self.apply_scaled_schur_complement(basis))
        return Spectrum(values, basis @ turn, float(values[0]), max(float(values[-1]), 1.0))

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """The smallest eigenvalue: from the inverse where the system is factored, else as far as Lanczos saw it."""
        if self.factor is None:
            return self.spectrum.smallest
        factor = self.factor
        like = factor.shape[0], factor.device, factor.dtype
        inverse = Matrix(lambda x: self._project(torch.cholesky_solve(x, factor)), *like, self._project)
        largest = float(lanczos(inverse, 0, 1, max_steps=INVERSE_STEPS).values.amax())
        return min(self.spectrum.smallest, 1 / largest)

    @property
    def condition(self) -> float:
        """The condition number of the Schur complement: errors grow by up to as much when the system is solved."""
        return self.spectrum.largest / max(
            self.smallest_eigenvalue, torch.finfo(torch.float64).eps * self.spectrum.largest
        )

    @property
    def relaxation(self) -> float:
        """The over-relaxation 2 / (1 + sqrt(1 - s^2)) with which half-steps converge fastest near this plan."""
        return 2 / (1 + math.sqrt(max(min(self.spectrum.smallest, 1.0), 0.0)))

    @cached_property
    def system(self) -> Tensor | None:
        """The matrix of a small system of a stored plan, or None."""
        if not isinstance(self.plan, DenseCoupling) or len(self._root) > self.direct_size:
            return None
        plan = self.plan.plan if self.axis else self.plan.plan.T
        scaled = plan * self._root
        scaled *= self._ratio.sqrt()[:, None]
        system = torch.eye(len(self._root), dtype=plan.dtype, device=plan.device).addmm_(scaled.T, scaled, alpha=-1.0)
        if self.total:
            beside = self._root * (self._nu - self._apply_transpose(self._ratio * self._mu)) / self._mass.sqrt()
            corner = 1 - self._mu @ (self._ratio * self._mu) / self._mass
            above = torch.cat((system, beside[:, None]), 1)
            system = torch.cat((above, torch.cat((beside, corner[None]))[None]))
        return system

    @property
    def factor(self) -> Tensor | None:
        """Its Cholesky factor, null directions filled in; None without one."""
        return self._factorisation[0]

    @property
    def _null_directions(self) -> Tensor | None:
        """Slow directions (n, d) of which arithmetic says nothing: solutions have no part in them."""
        return self._factorisation[1]

    @cached_property
    def _factorisation(self) -> tuple[Tensor | None, Tensor | None]:
        """The factor and those directions. A plan in parts has several, of which Lanczos sees one at most."""
        least = UNRESOLVED * torch.finfo(self._root.dtype).eps
        values, vectors = self.spectrum.values, self.spectrum.vectors
        lost = values <= least
        if self.system is None:
            return None, vectors[:, lost] if bool(lost.any()) else None
        system = _fill_null_space(self.system, self._constant)
        if not bool(lost.any()):
            factor, failed = torch.linalg.cholesky_ex(system)
            if not bool(failed):
                return factor, None
        values, vectors = torch.linalg.eigh(system)
        null = vectors[:, values <= least]
        factor, failed = torch.linalg.cholesky_ex(_fill_null_space(system, null))
        return None if bool(failed) else factor, null

    def _solve_directly(self, right: Tensor) -> Tensor:
        assert self.factor is not None
        return torch.cholesky_solve(right[:, None], self.factor)[:, 0]

    def _solve_iteratively(self, right: Tensor) -> Tensor:
        """By preconditioned conjugate gradients."""
        found = conjugate_gradients(
            lambda x: self._project(self.apply_scaled_schur_complement(x)),
            self._project(right),  # of the rest there is nothing but rounding
            self._precondition,
            tol=max(self.tol, 10 * torch.finfo(right.dtype).eps),
            max_iter=self.max_iter,
        )
        self.n_iter, self.error = self.n_iter + found.n_iter, max(self.error, found.residual)
        return found.x

    def _precondition(self, x: Tensor) -> Tensor:
        """The preconditioner: it maps the resolved smallest eigenvalues to one."""
        slow = self.spectrum.values > UNRESOLVED * torch.finfo(x.dtype).eps
        vectors, values = self.spectrum.vectors[:, slow], self.spectrum.values[slow]
        return self._project(x + vectors @ ((1 / values - 1) * (vectors.T @ x)))

    def _project(self, x: Tensor) -> Tensor:
        found = self._remove_constant(x)
        null = self._null_directions
        return found if null is None else found - null @ (null.T @ found)

    def _remove_constant(self, x: Tensor) -> Tensor:
        null = self._constant
        return x if null is None else x - null @ (null.T @ x)

    def _unpack(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The multipliers of the side that is kept, and of the total."""
        if not self.total:
            return self._root * x, x.new_zeros(())
        return self._root * x[:-1], x[-1] / self._mass.sqrt()

    def _apply_plan(self, v: Tensor) -> Tensor:
        return self.plan.apply(v[:, None], self.axis)[:, 0]

    def _apply_transpose(self, v: Tensor) -> Tensor:
        return self.plan.apply(v[:, None], 1 - self.axis)[:, 0]
