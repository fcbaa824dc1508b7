"""The projection onto the factored couplings, T = Q diag(1/g) R^T with Q 1 = p, R 1 = q, Q^T 1 = R^T 1 = g >= floor.

The point of that set that is nearest to a positive (X, Y, z) in KL(Q | X) + KL(R | Y) + KL(g | z) is

    Q = diag(u) X diag(v),   R = diag(u') Y diag(v'),   g = max(floor, z / (v v')),

with u = p / (X v), u' = q / (Y v'). With u, u' fixed, the best v, v' are in closed form, g = (z s s')^(1/3) for the
column sums s = X^T u, s' = Y^T u', raised to the floor where it is below: alternating the two is Dykstra's algorithm
for these sets, which is exact block ascent in the dual. It slows down as the factors sharpen, so a Newton step on the
dual in log v, log v' alone, 2 r unknowns, follows each sweep, as far as it lowers the dual.

Sources: M. Scetbon, M. Cuturi, G. Peyre, "Low-rank Sinkhorn factorization", 2021 (the sets, Dykstra's algorithm);
C. Brauer, C. Clason, D. Lorenz, B. Wirth, "A Sinkhorn-Newton method for entropic optimal transport", 2017.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchgw.couplings.rounding import make_feasible
from torchgw.persist.codec import storable

LOWEST_EXPONENT = -150.0
LARGEST_STEP = 30.0
LENGTHS = (1.0, 0.3, 0.1, 0.03, 0.0)
RIDGE = 1e-11
SAME_VALUE = 1e-14


@storable
class LowRankFactors(NamedTuple):
    """The coupling Q diag(1/g) R^T.

    Attributes
    ----------
    Q, R : (N, r), (K, r), mass of each point in each component.
    g : (r,), masses of the components.
    """

    Q: Tensor
    R: Tensor
    g: Tensor

    def logarithms(self) -> LowRankFactors:
        """Natural logarithms of the three."""
        return LowRankFactors(self.Q.log(), self.R.log(), self.g.log())


class Projection(NamedTuple):
    """Where the projection ended.

    Attributes
    ----------
    factors : the projected ones.
    residual : L1 error of the column sums of Q and R against g.
    n_iter : sweeps done.
    """

    factors: LowRankFactors
    residual: float
    n_iter: int


def project(
    log_factors: LowRankFactors, p: Tensor, q: Tensor, *, floor: float, tol: float, max_iter: int
) -> Projection:
    """The factors nearest to given ones in the Kullback-Leibler divergence, with exact row sums.

    Parameters
    ----------
    log_factors : natural logarithms of Q (N, r), R (K, r), g (r,). Entries more than 150 below the largest of their
        row count as 150 below, which keeps every product in range.
    p, q : positive masses (N,), (K,) of equal sums.
    floor : least entry of g, below sum(p) / r.
    tol : L1 error of the column sums of Q and R against g that ends it.
    max_iter : most sweeps; O((N + K) r^2) time each, O((N + K) r) memory in all.
    """
    kernels = [
        _Kernel((side - side.amax(1, keepdim=True)).clamp_min_(LOWEST_EXPONENT).exp_(), mass)
        for side, mass in zip(log_factors[:2], (p, q), strict=True)
    ]
    dual = _Dual(kernels, log_factors.g, floor)
    logs = torch.zeros_like(log_factors.g).repeat(2, 1)
    residual, n_iter = float("inf"), 0
    while True:
        n_iter += 1
        logs = dual.sweep(logs)
        columns, g = dual.columns(logs), dual.weights(logs)
        residual = float((columns - g).abs().sum())
        if residual <= tol or n_iter >= max_iter:
            break
        logs = dual.newton(logs, columns, g)
    Q, R = (kernel.scale(log.exp()) for kernel, log in zip(kernels, logs, strict=True))
    return Projection(LowRankFactors(Q, R, g), residual, n_iter)


class _Kernel(NamedTuple):
    """A kernel whose rows are to be scaled.

    X : (N, r), rows with largest entry 1.
    mass : (N,), the sums of its scaled rows.
    """

    X: Tensor
    mass: Tensor

    def scale(self, v: Tensor) -> Tensor:
        """diag(u) X diag(v)."""
        return self.X * (self.mass / (self.X @ v))[:, None] * v

    def sums(self, v: Tensor) -> Tensor:
        """X^T u, (r,)."""
        return (self.mass / (self.X @ v)) @ self.X

    def curvature(self, v: Tensor, columns: Tensor) -> Tensor:
        """Second derivative (r, r) of mass . log(X v) in log v: diag(Q^T 1) - Q^T diag(1 / mass) Q, O(N r^2)."""
        rows = self.X * (self.mass.sqrt() / (self.X @ v))[:, None]
        return torch.diag(columns) - (rows.T @ rows) * v[:, None] * v

    def potential(self, log_v: Tensor) -> Tensor:
        """mass . log(X v) for each column of log_v (r, m), (m,)."""
        return self.mass @ (self.X @ log_v.exp()).log()


class _Dual(NamedTuple):
    """The convex dual in x = log v and y = log v', stacked as (2, r); its slope is (Q^T 1, R^T 1) - g.

    kernels : X (N, r) and Y (K, r).
    log_z : natural logarithm of z (r,).
    floor : the least entry of g.
    """

    kernels: list[_Kernel]
    log_z: Tensor
    floor: float

    def sweep(self, logs: Tensor) -> Tensor:
        """The best v, v' for the row scalings that belong to the last ones."""
        sums = torch.stack([kernel.sums(log.exp()) for kernel, log in zip(self.kernels, logs, strict=True)]).log()
        return ((self.log_z + sums.sum(0)) / 3).clamp_min(math.log(self.floor)) - sums

    def weights(self, logs: Tensor) -> Tensor:
        """g, (r,)."""
        return (self.log_z - logs.sum(0)).exp().clamp_min(self.floor)

    def columns(self, logs: Tensor) -> Tensor:
        """Q^T 1 and R^T 1, (2, r)."""
        sides = zip(self.kernels, logs.exp(), strict=True)
        return torch.stack([kernel.sums(v) * v for kernel, v in sides])

    def values(self, logs: Tensor) -> Tensor:
        """The dual objective of each of ``logs`` (m, 2, r), (m,)."""
        left = self.log_z - logs.sum(1)
        least = math.log(self.floor)
        # Where g is at its floor the exponential goes on as its tangent.
        weights = torch.where(left > least, left.exp(), self.floor * (1 + left - least)).sum(1)
        return weights + sum(kernel.potential(logs[:, i].T) for i, kernel in enumerate(self.kernels))

    def newton(self, logs: Tensor, columns: Tensor, g: Tensor) -> Tensor:
        """The lowest of the points at a few lengths along the Newton direction, ``logs`` itself among them.

        The Hessian is singular along (1, -1), which changes nothing; a ridge takes that. Components may differ in mass
        by many orders, so the system is solved with a unit diagonal.
        """
        r = len(g)
        hessian = torch.diag(torch.where(g > self.floor, g, 0.0)).repeat(2, 2)
        for i, (kernel, log) in enumerate(zip(self.kernels, logs, strict=True)):
            hessian[i * r : (i + 1) * r, i * r : (i + 1) * r] += kernel.curvature(log.exp(), columns[i])
        diagonal = hessian.diagonal().clamp_min(torch.finfo(g.dtype).tiny)
        root = diagonal.rsqrt()
        hessian = hessian * root[:, None] * root
        hessian.diagonal().add_(RIDGE)
        factor, _ = torch.linalg.cholesky_ex(hessian)
        step = (root * torch.cholesky_solve((root * (columns - g).flatten())[:, None], factor)[:, 0]).view(2, r)
        step = torch.nan_to_num(step, nan=0.0, posinf=0.0, neginf=0.0)
        step = step * (LARGEST_STEP / step.abs().amax().clamp_min(LARGEST_STEP))
        tried = logs - logs.new_tensor(LENGTHS)[:, None, None] * step
        values = torch.nan_to_num(self.values(tried), nan=torch.inf)
        # Near the solution values agree up to rounding, and the whole step is the one to take.
        values[0] -= SAME_VALUE * values[-1].abs()
        return tried[values.argmin()]


def round_factors(factors: LowRankFactors, p: Tensor, q: Tensor) -> LowRankFactors:
    """Q and R rounded onto (p, g) and (q, g), so that both marginals of the coupling hold up to rounding errors.

    Each by shrinking and a rank-one correction, see `torchgw.couplings.rounding`; the rank stays.
    """
    g = factors.g * (p.sum() / factors.g.sum())
    return LowRankFactors(make_feasible(factors.Q.clone(), p, g), make_feasible(factors.R.clone(), q, g), g)
