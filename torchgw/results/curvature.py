"""How firm a plan is: the curvature of the objective around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings.blocks import BlockCoupling, DenseCoupling
from torchgw.couplings.low_rank import LowRankCoupling
from torchgw.couplings.reader import point_indices
from torchgw.couplings.sparse import SparseCoupling
from torchgw.couplings.tiled import TiledCoupling
from torchgw.entry import entry
from torchgw.gradients.spectral import spectral_trace
from torchgw.kernels.sampling import make_generator
from torchgw.linalg.lanczos import lanczos, least_basis_size
from torchgw.linalg.matrix_functions import ScalarFunction
from torchgw.linalg.quadrature import Quadrature, lanczos_quadrature
from torchgw.losses import SQUARE
from torchgw.objective.curvature import FLAT, Hessian
from torchgw.results.result import GWResult
from torchgw.runtime.keywords import hide_constructor
from torchgw.runtime.surroundings import isolate_methods
from torchgw.runtime.threads import threads_for
from torchgw.sinkhorn.implicit import iterate_entries
from torchgw.solvers.hessian import hessian_of
from torchgw.types import Array, RandomState

TOLERANCE, STREAMED, MOST_STEPS = 1e-4, 3e-3, 300
MOST_BYTES = 2**33  # of entries that are stored
ASYMMETRY = 1e-9  # of the largest distance


@hide_constructor
@isolate_methods
@dataclass(frozen=True, kw_only=True)
class PlanMode:
    """A change W of the plan that is an eigenvector of its curvature; either sign of it stands for the same mode.

    What is read of it is computed when it is first asked for, a pass over the entries of the plan.

    Attributes
    ----------
    eigenvalue, error : see `PlanCurvature`.
    vector, hessian : what W is made of, see `torchgw.objective.curvature`.
    mass : of the plan.
    """

    eigenvalue: float
    error: float
    vector: Tensor = field(repr=False, compare=False)
    hessian: Hessian = field(repr=False, compare=False)
    mass: float = field(repr=False)

    @property
    def moved(self) -> Array:
        """(N,), which share of a source point's mass it moves, 1 on average."""
        return self._read[0]

    @property
    def loses(self) -> Array:
        """(N,), the target point from which a source point's mass goes most."""
        return self._read[1]

    @property
    def gains(self) -> Array:
        """(N,), the target point to which it goes most."""
        return self._read[2]

    @property
    def energy(self) -> float:
        """Half the second derivative of the objective along W scaled to move the whole mass, in units of the value: an
        extrapolation, far beyond any value where the plan is nearly sharp and W moves mass through tiny entries."""
        return self.eigenvalue * (self.mass / self._read[3]) ** 2

    def rows(self, points: Any = None) -> Array:
        """W of source points (m, K), of all by default, of which absolute values sum to twice the plan's mass."""
        n, k = self.hessian.respond.plan.shape
        index = torch.arange(n) if points is None else point_indices("points", points, n)
        validate.memory("mode.rows()", 8 * len(index) * k, MOST_BYTES, "ask for fewer points")
        entries = self.hessian.change(self.vector).change.rows(index.to(self.vector.device))
        found: Array = (entries * (self.mass / self._read[3])).cpu().numpy()
        return found

    def carried(self, V: Array) -> Array:
        """sum_j W_ij V_j / p_i (N, d) for values V (K, d) on the target, with W as `rows` scales it: how fast what the
        plan carries to a source point changes along the mode."""
        respond, k = self.hessian.respond, self.hessian.respond.plan.shape[1]
        given = validate.read("V", V).astype(float)
        if given.ndim not in (1, 2) or len(given) != k:
            raise ValueError(f"V must be values of the {k} target points, (K,) or (K, d), got shape {given.shape}")
        values = torch.from_numpy(given.reshape(k, -1)).to(self.vector.device)
        found = values.new_zeros(len(respond.sums[0]), values.shape[1])
        for rows, columns, block in iterate_entries(self.hessian.change(self.vector).change):
            found[rows] = block @ values[columns]
        mass = respond.sums[0][:, None]
        found = torch.where(mass > 0, found / mass, 0.0) * (respond.sums[0].sum() / self._read[3])
        read: Array = found.cpu().numpy()
        return read.reshape(-1, *given.shape[1:])

    @cached_property
    def _read(self) -> tuple[Array, Array, Array, float]:
        """``moved``, ``loses``, ``gains``, and half of sum |W| of the change as it is."""
        n, respond = self.hessian.respond.plan.shape[0], self.hessian.respond
        share = torch.empty(n, dtype=torch.float64, device=self.vector.device)
        gains, loses = (torch.empty_like(share, dtype=torch.int64) for _ in range(2))
        for rows, columns, block in iterate_entries(self.hessian.change(self.vector).change):
            share[rows] = block.abs().sum(1) / 2
            gains[rows], loses[rows] = columns[block.argmax(1)], columns[block.argmin(1)]
        rows, size = respond.sums[0], float(share.sum())
        moved = torch.where(rows > 0, share / rows, 0.0) * (rows.sum() / size)
        return moved.cpu().numpy(), loses.cpu().numpy(), gains.cpu().numpy(), size


@hide_constructor
@isolate_methods
@dataclass(frozen=True, kw_only=True)
class PlanCurvature:
    """The ends of the spectrum of the objective's second derivative around a plan.

    Attributes
    ----------
    smallest, largest : eigenvalues (k,), (l,), ascending, in units of what entropy and divergences alone give: 1 where
        distances say nothing, more where they hold the plan, about 0 along a symmetry, negative at a saddle.
    smallest_error, largest_error : bounds on the distance of each to an eigenvalue. Each value is at least that of its
        place in the spectrum; where a block has fewer vectors than an eigenvalue, some may be passed over.
    modes : the changes that belong to the smallest ones.
    epsilon : of the plan.
    converged : whether all errors are within the tolerance.
    n_products, hessian : products with the Hessian, and itself.
    """

    smallest: Array
    largest: Array
    smallest_error: Array
    largest_error: Array
    modes: tuple[PlanMode, ...] = field(repr=False)
    epsilon: float
    converged: bool
    n_products: int
    hessian: Hessian = field(repr=False, compare=False)

    @property
    def saddle(self) -> bool:
        """Whether the objective surely falls both ways along a mode: no local optimum, beyond what is `flat`."""
        return len(self.smallest) > 0 and bool(self.smallest[0] + self.smallest_error[0] < -FLAT)

    @property
    def flat(self) -> tuple[PlanMode, ...]:
        """The modes along which the plan can slide, next to free of cost."""
        return tuple(mode for mode in self.modes if abs(mode.eigenvalue) <= FLAT and mode.error <= FLAT)

    @property
    def stiffness(self) -> Array:
        """(N,), the least energy at which one of the known modes would move all mass of a source point, in units of the
        value and to second order: 0 where it slides, infinite where none moves it."""
        found = np.full(self.hessian.respond.plan.shape[0], np.inf)
        for mode in self.modes:
            moves = mode.moved > 0
            found[moves] = np.minimum(found[moves], max(mode.energy, 0.0) / mode.moved[moves] ** 2)
        return found

    @property
    def condition(self) -> float:
        """The largest eigenvalue over the smallest, of those that are known and 1; infinite where that is not
        positive."""
        known = [1.0, *self.smallest.tolist(), *self.largest.tolist()]
        return max(known) / min(known) if min(known) > 0 else math.inf

    def density(self, n_probes: int = 8, n_steps: int = 40, random_state: RandomState = None) -> Quadrature:
        """The density of the whole spectrum, by stochastic Lanczos quadrature.

        Parameters
        ----------
        n_probes : random changes of the plan that it is averaged over.
        n_steps : of Lanczos from each.

        Returns
        -------
        `Quadrature`: nodes and weights, traces of functions of the Hessian and shares below a value, each with its
        standard error.

        Raises
        ------
        ValueError
            Where changes are not read entry by entry: curvature(..., whole=True) does, of stored plans.
        """
        n_probes = validate.integer("n_probes", n_probes, least=1)
        n_steps = validate.integer("n_steps", n_steps, least=1)
        if self.hessian.curvature.factors is not None:
            raise ValueError("density needs changes that are read entry by entry: ask for curvature(..., whole=True)")
        if len(self.smallest) == 0:
            raise ValueError("density needs a plan with changes: this one is a matching whose entries leave none")
        generator = make_generator(random_state, self.hessian.device)
        return lanczos_quadrature(self.hessian, self.hessian.isotropic, n_probes, n_steps, generator)

    def trace(
        self,
        f: ScalarFunction,
        D_X: Tensor,
        D_Y: Tensor,
        *,
        coefficients: Sequence[Tensor] = (),
        n_probes: int = 8,
        n_steps: int = 40,
        random_state: RandomState = None,
    ) -> Tensor:
        """tr f(A) of the Hessian A, differentiable in the distances and in the coefficients of f; the plan is held.

        Parameters
        ----------
        f : a function of eigenvalues and its divided differences, `torchgw.linalg.matrix_functions.ScalarFunction`,
            as ``Exponential()`` there, with its ``coefficients``.
        D_X, D_Y : (N, N), (K, K) symmetric distances over `GWResult.scales`, float64 tensors, which may require
            gradients.
        n_probes, n_steps, random_state : as in `density`.

        Raises
        ------
        ValueError
            For plans that are not stored, marginals that give way, losses other than the square, and distances of
            other shapes.

        Notes
        -----
        O(n_probes n_steps) products with each matrix, forward and backward.
        """
        model, (n, k) = self.hessian.curvature.model, self.hessian.respond.plan.shape
        if not (
            isinstance(self.hessian.respond.plan, DenseCoupling) and model.has_hard_marginals and model.loss is SQUARE
        ):
            raise ValueError("trace needs a stored plan with hard marginals and the squared loss")
        for name, D, size in (("D_X", D_X, n), ("D_Y", D_Y, k)):
            validate.instance(name, D, Tensor)
            if tuple(D.shape) != (size, size) or D.dtype != torch.float64:
                raise ValueError(f"{name} must be float64 of shape {(size, size)}, got {D.dtype} {tuple(D.shape)}")
            held = D.detach()
            if float((held - held.T).abs().max()) > ASYMMETRY * float(held.abs().max()):
                raise ValueError(f"{name} must be symmetric: pass (D + D.T) / 2")
        n_probes = validate.integer("n_probes", n_probes, least=1)
        n_steps = validate.integer("n_steps", n_steps, least=1)
        generator = make_generator(random_state, self.hessian.device)
        return spectral_trace(self.hessian, (D_X, D_Y), f, coefficients, n_probes, n_steps, generator)


@entry()
def curvature(
    result: GWResult,
    k: int = 4,
    *,
    largest: int = 1,
    block: int | None = None,
    tol: float | None = None,
    max_steps: int = MOST_STEPS,
    whole: bool = False,
) -> PlanCurvature:
    """How the objective curves around a plan: which matches could slide, whether it is an optimum or a saddle.

    Half the second derivative of the objective, with its entropy, on all changes that the marginal model allows,
    relative to that of entropy and divergences alone; its smallest and largest eigenvalues and their changes.

    Parameters
    ----------
    result : of `torchgw.gw_align`, with an epsilon above zero, in this process: files do not keep distances.
    k : smallest eigenvalues wanted, with modes, > 0; fewer where the plan has fewer changes, and then no largest ones.
    largest : largest ones, >= 0.
    block : vectors at a time, by default 2, for plans that stream 1; an eigenvalue that has more modes than that may
        come out with fewer.
    tol : error of an eigenvalue over the largest, in (0, 1]; by default 1e-4, for plans that stream 3e-3.
    max_steps : most products with a block.
    whole : read changes entry by entry, even where distances have factors; what `density` needs.

    Returns
    -------
    PlanCurvature

    Raises
    ------
    ValueError
        For a plan without entropy, which is a vertex, has no changes within its entries and is judged by its
        ``certificate.stationarity``; for results of files, of alpha=0, and of low rank.

    Notes
    -----
    A product costs one response of the plan to a cost (`torchgw.sinkhorn.implicit`), O(N K) and a solve on the smaller
    side; some tens of products. Memory is that of the plan and, where distances have no factors, of two numbers a pair
    and product. See the page on curvature for the mathematics and its sources.

    Examples
    --------
    >>> import numpy as np, torchgw
    >>> t = np.linspace(0, 2 * np.pi, 50, endpoint=False)
    >>> circle = np.stack((np.cos(t), np.sin(t)), 1)
    >>> found = torchgw.curvature(torchgw.gw_align(circle, circle, epsilon=0.01, distances="euclidean"), k=2)
    >>> len(found.flat), bool(found.smallest[1] > 0.5)
    (1, True)
    """
    validate.instance("result", result, GWResult)
    k = validate.integer("k", k, least=1)
    largest = validate.integer("largest", largest, least=0)
    block = None if block is None else validate.integer("block", block, least=1)
    max_steps = validate.integer("max_steps", max_steps, least=1)
    hessian = _around(result, whole)
    streamed = not isinstance(hessian.respond.plan, DenseCoupling)
    block = block or (1 if streamed else 2)
    stored = 16 * hessian.size * least_basis_size(k, largest, block)
    validate.memory(f"the curvature with {k} + {largest} modes", stored, MOST_BYTES, "ask for fewer modes")
    tol = validate.real("tol", tol, above=0.0, most=1.0) if tol is not None else STREAMED if streamed else TOLERANCE
    mass = float(result.coupling.marginal(1).sum())
    with threads_for(math.prod(result.shape)):
        found = lanczos(hessian, k, largest, block=block, tol=tol, max_steps=max_steps)
    values, errors, few = found.values.cpu().numpy(), found.errors.cpu().numpy(), found.n_smallest
    return PlanCurvature(
        smallest=values[:few],
        largest=values[few:],
        smallest_error=errors[:few],
        largest_error=errors[few:],
        modes=tuple(
            PlanMode(eigenvalue=value, error=error, vector=vector, hessian=hessian, mass=mass)
            for value, error, vector in zip(values[:few].tolist(), errors[:few].tolist(), found.vectors.T, strict=False)
        ),
        epsilon=result.epsilon,
        converged=found.converged,
        n_products=found.n_products,
        hessian=hessian,
    )


def _around(result: GWResult, whole: bool) -> Hessian:
    """The Hessian of a result, or a refusal."""
    if result.epsilon == 0:
        raise ValueError(
            "result must have an epsilon above 0 for its curvature, got a plan without entropy, which is a vertex: its "
            "certificate.stationarity says how far it can be improved; align again with epsilon=result.gain / 100"
        )
    if result.known is None or result.model is None:
        raise ValueError("result must come from gw_align in this process alone: files and ranks do not keep distances")
    if result.alpha == 0:
        raise ValueError("result must have alpha > 0: a linear cost has no curvature")
    plan, model, (x, y) = (
        result.coupling,
        result.model.to(torch.device("cpu")).with_epsilon(result.epsilon),
        result.known,
    )
    if not isinstance(plan, BlockCoupling) or isinstance(plan, LowRankCoupling | SparseCoupling):
        raise ValueError(f"result must be of the dense or the streaming strategy, got {result.strategy!r}")
    plan = plan.times(math.exp(-model.log_mass_scale))  # of mass one
    if isinstance(plan, TiledCoupling) and (whole or model.marginals.free_mass):
        asked = "whole=True" if whole else f"{result.marginals}"
        validate.memory(f"the curvature with {asked}", 8 * math.prod(plan.shape), MOST_BYTES, "align fewer points")
    factored = all(space.space.factors() is not None for space in (x, y))
    if isinstance(plan, TiledCoupling) and not (whole or factored):
        raise ValueError(
            "result must be of spaces with factors where its plan streams, as distances='landmark' has them; or ask "
            "for curvature(..., whole=True)"
        )
    if not isinstance(plan, TiledCoupling) or whole or model.marginals.free_mass:
        plan = DenseCoupling(plan.to_dense().to(model.p))
    return hessian_of(plan, model, (x.space, y.space), whole or model.marginals.free_mass)
