"""`gw_align`: from two spaces to a plan with exact marginals and an honest value."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import torch
from torch import Tensor

from torchgw import validate
from torchgw.couplings import PotentialCoupling
from torchgw.gw.gradient import SampledGradient
from torchgw.gw.loop import product_start, solve
from torchgw.gw.objective import objective
from torchgw.gw.prepare import check_distances, check_space, make_generator, make_providers, pick_device
from torchgw.kernels import softmin_dense
from torchgw.kernels.dispatch import BACKENDS, Request
from torchgw.options import GWOptions
from torchgw.result import GWResult, Status
from torchgw.sinkhorn.marginals import Balanced
from torchgw.sinkhorn.rounding import round_to_marginals
from torchgw.types import Array, Callback, ConvergenceWarning, RandomState

logger = logging.getLogger("torchgw")

ROUNDING_SLACK = 2.0
RESOLUTION = 1e-8


def gw_align(
    X: Any,
    Y: Any,
    *,
    distances: str | tuple[str, str] = "auto",
    p: Array | Tensor | None = None,
    q: Array | Tensor | None = None,
    epsilon: float = 1e-3,
    marginals: Balanced = Balanced(),  # noqa: B008 - frozen, so one instance serves every call
    options: GWOptions = GWOptions(),  # noqa: B008
    device: str | torch.device | None = None,
    backend: str = "auto",
    random_state: RandomState = None,
    callback: Callback | None = None,
) -> GWResult:
    """Align two metric-measure spaces by sampled entropic Gromov-Wasserstein transport.

    Minimises sum (D_X[i,i'] - D_Y[j,j'])^2 T_ij T_i'j' with entropy over the plans T with marginals p and q, each
    space's distances divided by its own largest one.

    Parameters
    ----------
    X, Y : points (N, D) and (K, E), any real dtype; or square distance matrices (N, N), (K, K); or SciPy sparse graphs
        of edge lengths; or distance providers. Numpy arrays, tensors and nested lists are accepted.
    distances : how distances come from points or a graph, one for both spaces or a pair. "landmark": factored
        shortest paths on the k-nearest-neighbour graph. "dijkstra": exact shortest paths on demand. "precomputed": all
        pairs of them, or the matrix given. "euclidean": straight lines. "auto": a symmetric square array is a
        distance matrix; points and graphs get "precomputed" up to 500 points and "landmark" above.
    p, q : masses (N,), (K,), non-negative, of equal sum; uniform with sum 1 when None. They are the plan's marginals.
        Their sum scales plan and value and nothing else: epsilon belongs to masses of sum 1.
    epsilon : entropy, > 0, in units of the scaled squared distances (each space's largest distance is 1).
    marginals : the marginal model.
    options : everything else, see `GWOptions`.
    device : "cpu", "cuda", ...; by default that of the first tensor given, else a GPU if there is one.
    backend : "auto", "triton", "compile" or "eager".
    random_state : int, torch.Generator or numpy.random.Generator; the same seed on the same machine gives the same
        bits. None takes fresh entropy. Global random state is neither read nor changed.
    callback : called with a `Progress` at every check of the loop; what it raises ends the solve.

    Returns
    -------
    GWResult

    Raises
    ------
    ValueError, TypeError
        For input that cannot be used, naming the argument, before any work.
    MemoryError
        When the score or a distance matrix would exceed ``options.max_memory``, before any work.
    FloatingPointError
        When epsilon is so small that cost / epsilon exceeds what float64 resolves.

    Warns
    -----
    GraphWarning
        When a graph had to be stitched or infinite distances replaced.
    ConvergenceWarning
        When the result is not a converged one; its status says what to change.

    Notes
    -----
    O(N K) memory, 16 bytes for each pair of points, O(N K (M + inner iterations)) work per outer iteration.

    References
    ----------
    F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011.
    G. Peyre, M. Cuturi, J. Solomon, "Gromov-Wasserstein averaging of kernel and distance matrices", 2016.
    T. Kerdoncuff, R. Emonet, M. Sebban, "Sampled Gromov Wasserstein", 2021.

    Examples
    --------
    >>> import torchgw
    >>> X, _ = torchgw.datasets.make_spiral(300)
    >>> Y, _ = torchgw.datasets.make_swiss_roll(350)
    >>> result = torchgw.gw_align(X, Y, epsilon=5e-3, random_state=0)
    >>> result.argmax().shape
    (300,)
    """
    began = time.perf_counter()
    validate.instance("options", options, GWOptions, "; for example GWOptions(sampling=SamplingOptions(n_anchors=200))")
    validate.instance("marginals", marginals, Balanced)
    validate.real("epsilon", epsilon, above=0.0)
    validate.choice("backend", backend, BACKENDS)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable or None, got {type(callback).__name__}")
    where = pick_device(device, (X, Y))
    generator = make_generator(random_state, where)
    kinds = check_distances(distances)
    checked = [
        (name, *check_space(name, space, kind, options.spaces))
        for name, space, kind in zip("XY", (X, Y), kinds, strict=True)
    ]
    n, k = (space.size if kind == "provider" else len_of(space) for _, space, kind in checked)
    p_given, q_given = validate.masses("p", p, n, "N"), validate.masses("q", q, k, "K")
    validate.same_mass(p_given, q_given)
    loop_dtype = torch.float32 if options.mixed_precision else torch.float64
    needed = 16 * n * k  # score and last plan; float64 score at the end
    validate.memory(f"the score ({n} x {k})", needed, options.max_memory, "align a subset")
    for (name, _, kind), size in zip(checked, (n, k), strict=True):
        stored = 8 * size**2 if kind in ("precomputed", "matrix") else 0
        validate.memory(f"the distance matrix of {name}", stored, options.max_memory, "use distances='landmark'")
    chosen = softmin_dense.choose(backend, Request(where, loop_dtype, (n, k)))

    source, target = make_providers(checked, options.spaces)
    prepared = time.perf_counter()
    logger.info("prepared %s and %s in %.2f s", type(source).__name__, type(target).__name__, prepared - began)

    mass = float(p_given.sum())
    p64, q64 = (torch.from_numpy(m / m.sum()).to(where) for m in (p_given, q_given))
    gradient = SampledGradient(source.to(where, loop_dtype), target.to(where, loop_dtype), options.sampling, generator)
    start = product_start(p64.log2().to(loop_dtype), q64.log2().to(loop_dtype))
    solution = solve(gradient, start, p64, q64, epsilon, chosen.function, marginals, options, callback)
    solved = time.perf_counter()

    require_resolved(solution.coupling, epsilon)
    coupling, residual = round_to_marginals(solution.coupling.to(torch.float64), p64, q64)
    # The plan decides, not the potentials: where they are too large to move, their differences vanish.
    settled = residual <= ROUNDING_SLACK * options.sinkhorn.tol
    status = solution.status if settled else Status.MARGINALS
    exact = [space.to(where, torch.float64) for space in (source, target)]
    found = objective(coupling, p64, q64, exact[0], exact[1], options.max_memory, generator)
    coupling = with_mass(coupling, mass)
    errors = [
        float((coupling.marginal(axis).cpu() - torch.from_numpy(side)).abs().sum())
        for axis, side in ((1, p_given), (0, q_given))
    ]
    finished = time.perf_counter()
    result = GWResult(
        coupling=coupling,
        value=found.value * mass**2,
        value_quad=found.value * mass**2,
        value_linear=0.0,
        value_exact=found.exact,
        value_error=found.error * mass**2,
        marginal_error=max(errors),
        marginal_residual=residual,
        status=status,
        n_iter=solution.n_iter,
        n_iter_sinkhorn=solution.n_iter_sinkhorn,
        history=solution.history,
        backend=chosen.name,
        backends_passed_over=chosen.passed_over,
        scales=(float(source.scale), float(target.scale)),
        providers=(type(source).__name__, type(target).__name__),
        timings={"prepare": prepared - began, "solve": solved - prepared, "finish": finished - solved},
        epsilon=float(epsilon),
        options=options,
        numpy_input=not any(isinstance(space, Tensor) for space in (X, Y)),
    )
    warn_unless_converged(result)
    return result


def len_of(space: Any) -> int:
    """Number of points of validated points, a matrix or a graph."""
    return int(space.shape[0])


def with_mass(coupling: PotentialCoupling, mass: float) -> PotentialCoupling:
    """The coupling times ``mass``."""
    scaled = dict(coupling.tensors())
    scaled["f"] = coupling.f + torch.tensor(mass, dtype=coupling.dtype).log2().to(coupling.device)
    if coupling.x is not None:
        scaled["x"] = coupling.x * mass
    return PotentialCoupling(**scaled)


def require_resolved(coupling: PotentialCoupling, epsilon: float) -> None:
    """Refuse to return a plan whose potentials float64 cannot add up: its marginals could not be made exact."""
    largest = max(
        float(torch.nan_to_num(side, nan=torch.inf, neginf=0.0).abs().max()) for side in (coupling.f, coupling.g)
    )
    if largest * torch.finfo(torch.float64).eps > RESOLUTION:
        raise FloatingPointError(
            f"epsilon = {epsilon:g} is too small: cost / epsilon reaches {largest:.1e}, beyond what float64 resolves; "
            f"raise epsilon"
        )


def warn_unless_converged(result: GWResult) -> None:
    """Say what happened and what to change."""
    if not result.converged:
        warnings.warn(
            f"{result.status.value} "
            f"(marginal residual {result.marginal_residual:.1e} after {result.n_iter} iterations)",
            ConvergenceWarning,
            stacklevel=3,
        )
