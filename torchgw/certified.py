"""How far the optimum can be from what was found, for spaces where all plans can be bounded."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from itertools import starmap
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor

from torchgw import validate
from torchgw.align import gw_align
from torchgw.couplings.blocks import DenseCoupling
from torchgw.diagnostics.evidence import IssuedWarning
from torchgw.diagnostics.status import Status
from torchgw.entry import entry
from torchgw.options import GWOptions
from torchgw.request.request import Request, build_problem
from torchgw.request.support import Support
from torchgw.results.result import GWResult
from torchgw.runtime.caller import collecting_warnings, warn_caller
from torchgw.solvers.branch_and_bound import CrossCovariance, bound_globally, third_bound
from torchgw.spaces import PrecomputedDistances
from torchgw.spaces.prepare import make_providers
from torchgw.types import Array, Callback, ConvergenceWarning, DistanceProvider, RandomState, is_provider, is_symmetric

logger = logging.getLogger("torchgw")

MOST_POINTS, MOST_DIRECTIONS = 2000, 16
LOWER = 1e-9  # share by which a plan must be lower to be gone on from
ROUNDING = 1e-9  # of the largest squared distance and of the value


@entry()
def gw_certify(
    X: Any,
    Y: Any,
    *,
    gap: float = 0.05,
    seconds: float = 60.0,
    distances: str | tuple[str, str] = "auto",
    p: Array | Tensor | None = None,
    q: Array | Tensor | None = None,
    init: Array | Tensor | GWResult | None = None,
    options: GWOptions | None = None,
    random_state: RandomState = None,
    callback: Callback | None = None,
) -> GWResult:
    """Align two spaces without entropy, and prove how far from the global optimum the value can be.

    The proof goes as far as asked for between squared Euclidean distances in few dimensions,
    `EuclideanDistances(points, squared=True)` or matrices of them, and other distances whose centred matrices have
    small rank and eigenvalues of one sign; and for up to eight points of equal masses with a metric of negative type,
    as Euclidean distances are: there the optimum is a permutation, and all are tried. For others the bound is the
    largest of Memoli's three.

    Parameters
    ----------
    X, Y, distances, p, q, init, options, random_state, callback : as in `gw_align`.
    gap : share of the value that may be left between it and the bound, in (0, 1].
    seconds : after which the bound is left as it is, > 0 and finite; the solve comes before, and does not count.

    Returns
    -------
    GWResult
        That of ``gw_align(..., epsilon=0)``, or where the proof came upon a lower plan, the one that this leads to. Its
        ``certificate`` has the ``lower_bound`` of all plans, the ``gap`` to it, and ``gap_global``, the gap over the
        value.

    Raises
    ------
    ValueError
        For more than 2000 points, other losses than the square, directed distances, and for what `gw_align` refuses.

    Warns
    -----
    ConvergenceWarning
        When more of a gap is left than was asked for, and what would close it.

    Notes
    -----
    Branch and bound over the cross-covariance of the two spaces, where that has up to 16 entries, a linear transport
    problem a step (`torchgw.solvers.branch_and_bound`): 100 to 2000 steps for clouds in the plane; in three dimensions
    thousands for noisy copies, and more than a minute has for unrelated clouds of more than 30 points. Memoli's third
    bound is a linear transport problem between the points' distributions of distances.

    Examples
    --------
    >>> import numpy as np, torchgw
    >>> rng = np.random.default_rng(0)
    >>> X, Y = (torchgw.EuclideanDistances(rng.normal(size=(60, 2)), squared=True) for _ in range(2))
    >>> torchgw.gw_certify(X, Y, random_state=0).certificate.gap_global <= 0.05
    True
    """
    gap = validate.real("gap", gap, above=0.0, most=1.0)
    seconds = validate.real("seconds", seconds, above=0.0)
    if isinstance(options, GWOptions) and options.loss != "square":
        raise ValueError(
            f"options.loss must be 'square' in gw_certify, got {options.loss!r}: squares alone are bounded"
        )
    for name, space in (("X", X), ("Y", Y)):
        size = space.size if is_provider(space) else (*getattr(space, "shape", ()), 0)[0]
        if size > MOST_POINTS:
            raise ValueError(
                f"{name} must have at most {MOST_POINTS} points in gw_certify, got {size}: pass fewer points"
            )
    given: dict[str, Any] = {"distances": distances, "p": p, "q": q, "init": init, "options": options, "epsilon": 0.0}
    request, spaces = prepare_bounds(X, Y, given)
    result = gw_align(X, Y, **given, random_state=random_state, callback=callback)
    if result.status is Status.CANCELLED:
        return result
    p, q = (mass.cpu() for mass in request.model.masses)
    masses, scale = (p / p.sum(), q / q.sum()), float(request.mass) ** 2  # bounds are of plans of mass one
    lower = max(result.certificate.lower_bound, scale * third_bound(*spaces, *masses))
    cross = CrossCovariance(*spaces, *masses)
    few = 0 < cross.weights.size <= MOST_DIRECTIONS or cross.is_enumerable
    bounded = cross.is_concave and few
    if bounded and lower < (1 - gap) * result.value and result.value / scale > cross.negligible:
        bound = bound_globally(cross, result.value / scale, gap, seconds)
        logger.info("global bound %.6g of %.6g", bound.lower, bound.value)
        lower = max(lower, scale * bound.lower)
        if bound.plan is not None and scale * bound.value < (1 - LOWER) * result.value:
            again = given | {"init": _pad_plan(bound.plan, request.support)}
            other = gw_align(X, Y, **again, random_state=random_state, callback=callback)
            if other.value < result.value:  # to which none of the starts of the search led
                counts = replace(other.certificate, starts=result.certificate.starts, agreeing_starts=0)
                result = replace(other, certificate=counts)
    rounding = ROUNDING * (scale * result.unit + result.value)
    if result.value <= lower <= result.value + rounding:  # no bound hides a false one
        lower = result.value
    left = max(result.value - lower, 0.0) if result.value > rounding else 0.0  # values are known no better
    found = replace(result, certificate=replace(result.certificate, lower_bound=lower, gap=left))
    if found.certificate.gap_global > gap:
        more = f"give it more than {seconds:g} seconds, or a larger gap"
        if not bounded:
            more = "beyond Memoli's bounds only EuclideanDistances(points, squared=True) in few dimensions are bounded"
        said = f"the global optimum can be {found.certificate.gap_global:.0%} below the value, {gap:.0%} was asked for"
        with collecting_warnings() as issued:
            warn_caller(f"{said}: {more}", ConvergenceWarning)
        found = replace(found, warnings=(*found.warnings, *starmap(IssuedWarning, issued)))
    return found


def prepare_bounds(X: Any, Y: Any, given: dict[str, Any]) -> tuple[Request, tuple[DistanceProvider, DistanceProvider]]:
    """The request that arguments of `gw_align` make, and its spaces between the points with mass, in float64 on the
    CPU; refused where nothing is bounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the solve says it
        request = build_problem(X, Y, **given)
        source, target = make_providers(request.spaces, request.options.spaces, request.on_device)[0]
    for name, space in (("X", source), ("Y", target)):
        if not is_symmetric(space):
            raise ValueError(f"{name} must be symmetric in gw_certify, got directed distances: pass (A + A.T) / 2")
    return request, (_bring_to_cpu(source), _bring_to_cpu(target))


def _pad_plan(plan: csr_array, support: Support | None) -> Array:
    """A plan of points with mass with zeros for all others, (N, K)."""
    found: Array = plan.toarray()
    if support is not None:
        found = DenseCoupling(torch.from_numpy(found)).zero_pad(*support.sides, support.shape).plan.numpy()
    return found


def _bring_to_cpu(space: DistanceProvider) -> DistanceProvider:
    """A space in float64 on the CPU, with its factors or all its distances."""
    cpu = torch.device("cpu")
    space = space.to(cpu, torch.float64)
    return PrecomputedDistances.of(space, cpu) if space.factors() is None else space
