"""The solves that people call: `gw_align`, from two spaces to a plan with exact marginals and an honest value;
`gw_loss`, the same as one differentiable number; `resume`, the same from a checkpoint."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import starmap
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
from torch import Tensor

from torchgw import ranges, validate
from torchgw.diagnostics.evidence import IssuedWarning
from torchgw.diagnostics.status import Status
from torchgw.entry import entry
from torchgw.gradients.differentiable import differentiable
from torchgw.gradients.modes import Envelope, GradientMode
from torchgw.marginals import Balanced, Marginals
from torchgw.objective.supervision import Supervision
from torchgw.options import GWOptions
from torchgw.persist.checkpoint import Checkpoint, ResumedCheckpoint, fingerprint, follow_solve, reopen
from torchgw.persist.watch import Watch, stopped_by_interrupt
from torchgw.planner import forecast
from torchgw.request.request import Cost, Request, build_problem
from torchgw.results.all_points import of_all_points
from torchgw.results.result import GWResult, SolveReport, result_of
from torchgw.results.warnings import warn
from torchgw.runtime.caller import collect_warnings, collected_warnings, collecting_warnings, is_theirs
from torchgw.runtime.ranks import ALONE, Ranks
from torchgw.runtime.threads import threads_for
from torchgw.spaces.prepare import GraphReports, ProviderPair, make_providers
from torchgw.strategies.within_memory import run_strategy
from torchgw.types import Array, Callback, Epsilon, RandomState, is_provider

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

logger = logging.getLogger("torchgw")


@entry()
def gw_align(
    X: Any,
    Y: Any,
    *,
    distances: str | tuple[str, str] = "auto",
    p: Array | Tensor | None = None,
    q: Array | Tensor | None = None,
    cost: Cost | None = None,
    alpha: float | Tensor | None = None,
    supervision: Supervision | None = None,
    init: Array | Tensor | GWResult | None = None,
    epsilon: Epsilon = "auto",
    marginals: Marginals = Balanced(),  # noqa: B008 - frozen, so one instance serves every call
    options: GWOptions | None = None,
    gradient_mode: GradientMode | None = None,
    device: str | torch.device | None = None,
    backend: str = "auto",
    random_state: RandomState = None,
    callback: Callback | None = None,
    checkpoint: str | PathLike[str] | Checkpoint | None = None,
    names_x: Iterable[Any] | None = None,
    names_y: Iterable[Any] | None = None,
) -> GWResult:
    """Align two metric-measure spaces by Gromov-Wasserstein transport.

    Minimises alpha sum (D_X[i,i'] - D_Y[j,j'])^2 T_ij T_i'j' + (1 - alpha) <M, T>, with entropy, over the plans T with
    marginals p and q, or near them. Each space's distances are divided by its own largest one. A search from many
    starts chooses the lowest optimum that it finds. No search of a non-convex problem can promise the global one:
    ``result.certificate`` and ``result.basins`` say what is known.

    Parameters
    ----------
    X, Y : points (N, D) and (K, E); or square distance matrices; or graphs: SciPy sparse matrices of edge lengths,
        adjacencies, networkx graphs; or distance providers. Arrays, tensors, data frames and nested lists are taken.
    distances : how distances come from a space, one for both or a pair. "auto", "landmark" (factored shortest paths
        between neighbours), "dijkstra" (exact ones on demand), "precomputed" (all pairs, or the matrix given),
        "euclidean", or "adjacency" (the entries of a matrix as they are); see `docs/distances.md`.
    p, q : masses (N,), (K,), non-negative; None makes them uniform, with sum 1. Points without mass are no part of a
        space.
    cost : linear cost M (fused Gromov-Wasserstein): a matrix (N, K); or a pair of feature arrays (N, d), (K, d), which
        may be texts; or names of node attributes or of columns; or a `FeatureCost`.
    alpha : weight of the distances, in [0, 1]; by default 1 without a cost and 0.5 with one. At 0, X and Y may be None.
    supervision : known and forbidden pairs, labels and masks, see `Supervision`.
    init : where to start instead of the search: a plan (N, K), a result, pairs (m, 2) of indices, or an index into Y
        for each point of X.
    epsilon : weight of the entropy, >= 0, in units of the scaled squared distances. "auto" ends without entropy where
        that costs no more, see `docs/epsilon.md`; 0 asks for a matching-like plan.
    marginals : `Balanced`, `SemiRelaxed`, `Unbalanced` or `Partial`.
    options : everything else, see `GWOptions`.
    gradient_mode : `Envelope` or `Implicit`, to differentiate ``result.loss`` and, with `Implicit`, the plan in
        tensors among X, Y, p, q, cost and alpha.
    device : "cpu", "cuda", ...; by default that of the first tensor given, else a GPU if one can be used and there are
        more than 12 000 pairs of points, else the CPU.
    backend : "auto", "triton", "compile" or "eager".
    random_state : int, torch.Generator or numpy.random.Generator. The same seed on the same machine, with as many
        threads, gives the same bits. Global random state is neither read nor changed.
    callback : called with a `Progress` at every check of the loop; returning True ends the solve with the best so far.
    checkpoint : a folder to be made, or a `Checkpoint`, with which `torchgw.resume` goes on.
    names_x, names_y : names (N,), (K,) of the points, unique. By default the index of a data frame and the nodes of a
        networkx graph.

    Returns
    -------
    GWResult

    Raises
    ------
    ValueError, TypeError
        For input that cannot be used, naming the argument, before any work.
    MemoryError
        When a matrix would exceed ``options.max_memory``, before any work; or when memory ends.
    OSError
        When the folder of a checkpoint cannot be made, before any work.
    FloatingPointError
        When cost / epsilon exceeds what float64 resolves, or a plan has less mass than kernels resolve.

    Warns
    -----
    TorchGWWarning
        Its kinds are explained in `docs/troubleshooting.md`.

    Notes
    -----
    Up to about 5000 x 5000 points: O(N K) memory, 16 bytes for each pair of points (about 60 with epsilon = 0), and
    O(N K (r + inner iterations)) work per outer iteration, with r the rank of the distances' factors (without any,
    N + K). Beyond: O((N + K) r) memory, see `torchgw.estimate`.

    Exchanging X and Y, or the order of points, changes the starts that are searched from.

    References
    ----------
    - Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011.
    - Peyre, Cuturi, Solomon, "Gromov-Wasserstein averaging of kernel and distance matrices", 2016.
    - Kerdoncuff, Emonet, Sebban, "Sampled Gromov Wasserstein", 2021.

    Examples
    --------
    >>> import torchgw
    >>> X, _ = torchgw.datasets.make_spiral(300)
    >>> Y, _ = torchgw.datasets.make_swiss_roll(350)
    >>> result = torchgw.gw_align(X, Y, epsilon=5e-3, random_state=0)
    >>> result.argmax().shape
    (300,)
    """
    with collecting_warnings():
        request = build_problem(
            X,
            Y,
            distances=distances,
            p=p,
            q=q,
            cost=cost,
            alpha=alpha,
            supervision=supervision,
            init=init,
            epsilon=epsilon,
            marginals=marginals,
            options=options,
            gradient_mode=gradient_mode,
            device=device,
            backend=backend,
            random_state=random_state,
            callback=callback,
            checkpoint=checkpoint,
            names_x=names_x,
            names_y=names_y,
        )
        return align_request(request)


def follow_request(request: Request) -> AbstractContextManager[Watch]:
    """What follows the solve of a request."""
    return follow_solve(request.callback, request.checkpoint, request.checkpoint_arguments, request.generator)


def prepare_spaces(request: Request) -> tuple[ProviderPair, GraphReports]:
    """The providers of both spaces of a request, and how their neighbour graphs were made."""
    return make_providers(request.spaces, request.options.spaces, request.on_device)


def align_request(
    request: Request,
    ranks: Ranks = ALONE,
    follow: Callable[[Request], AbstractContextManager[Watch]] = follow_request,
    prepare: Callable[[Request], tuple[ProviderPair, GraphReports]] = prepare_spaces,
) -> GWResult:
    """The result of a request, solved by this process or by ranks that share it and ``prepare`` its spaces."""
    (n, k), marginals = request.shape, request.differentiable_inputs.marginals
    for name, count in zip("XY", (n, k), strict=True):
        if count < ranks.count:
            raise ValueError(f"{name} must have a point for each rank, got {count} for {ranks.count}")
    threads = threads_for(n * k if request.on_device is None else 0)  # on a GPU one thread has nothing to share
    with follow(request) as watch, threads:
        began = time.perf_counter()
        # A stage unless files cannot hold it.
        given, make = (
            any(is_provider(space.data) for space in request.spaces),
            partial(record_warnings, prepare, request),
        )
        (spaces, graphs), warned = make() if given else watch.stage("prepare", make)
        collect_warnings(*warned)
        request = request.resolve_epsilon(spaces)
        expected = forecast(request.strategy, n, k, request.model.epsilon, request.options, request.device)
        logger.info("strategy %s%s", expected, "; in the end dense, without entropy" if request.sharpens else "")
        prepared = time.perf_counter() - began
        logger.info("prepared %s and %s in %.2f s", *(type(space).__name__ for space in spaces), prepared)
        with stopped_by_interrupt(watch), _advise_on_breakdown(request):
            strategy, solution = run_strategy(request.make_problem(spaces, watch), request.strategy)
        if marginals.free_mass:
            mass = float(solution.marginals[0].sum())
            ranges.remaining_mass(mass, solution.values.total, request.mass, n * k, marginals)
        derived = None
        if request.gradient_mode is not None:
            derived = differentiable(
                solution, request.model, spaces, request.differentiable_inputs, request.gradient_mode
            )
    request = request.with_strategy(strategy)
    told = SolveReport.of(solution, request, spaces)
    result = result_of(solution, request, told, spaces, graphs, prepared, derived)
    warn(result, solution, replace(request, precision_loss=told.precision_loss), shown=ranks.rank == 0)
    result = replace(result, warnings=tuple(starmap(IssuedWarning, collected_warnings())))
    return result if request.support is None else of_all_points(result, request.support)


def record_warnings(
    prepare: Callable[[Request], tuple[ProviderPair, GraphReports]], request: Request
) -> tuple[tuple[ProviderPair, GraphReports], tuple[tuple[str, str], ...]]:
    """What is prepared, with the warnings of it, which a solve that is resumed does not give again."""
    with collecting_warnings() as given:
        found = prepare(request)
    return found, tuple(given)


@contextmanager
def _advise_on_breakdown(request: Request) -> Iterator[None]:
    """Numbers that end in none are answered with what to change; errors of the callback pass through."""
    try:
        yield
    except FloatingPointError as error:
        if is_theirs(error):
            raise
        raise FloatingPointError(f"{error}; {request.remedy}{request.remedy_by_weights}") from error


class Arguments(TypedDict, total=False):
    """The parameters of `gw_align` by name but ``gradient_mode``, of the same types and meanings."""

    distances: str | tuple[str, str]
    p: Array | Tensor | None
    q: Array | Tensor | None
    cost: Cost | None
    alpha: float | Tensor | None
    supervision: Supervision | None
    init: Array | Tensor | GWResult | None
    epsilon: Epsilon
    marginals: Marginals
    options: GWOptions | None
    device: str | torch.device | None
    backend: str
    random_state: RandomState
    callback: Callback | None
    checkpoint: str | PathLike[str] | Checkpoint | None
    names_x: Iterable[Any] | None
    names_y: Iterable[Any] | None


@overload
def gw_loss(
    X: Any,
    Y: Any,
    *,
    gradient_mode: GradientMode = ...,
    return_result: Literal[False] = ...,
    **arguments: Unpack[Arguments],
) -> Tensor: ...
@overload
def gw_loss(
    X: Any, Y: Any, *, gradient_mode: GradientMode = ..., return_result: Literal[True], **arguments: Unpack[Arguments]
) -> tuple[Tensor, GWResult]: ...
@entry(passes_to=gw_align)
def gw_loss(
    X: Any,
    Y: Any,
    *,
    gradient_mode: GradientMode = Envelope(),  # noqa: B008 - frozen, so one instance serves every call
    return_result: bool = False,
    **arguments: Unpack[Arguments],
) -> Tensor | tuple[Tensor, GWResult]:
    """The entropic Gromov-Wasserstein objective of two spaces, differentiable in all that it is made of.

    Parameters
    ----------
    X, Y : points, distance matrices or distance providers as in `gw_align`. Those given as tensors that require
        gradients get them, and so do ``p``, ``q``, ``alpha`` (a tensor ()), and ``cost``: a matrix, features, or a
        `FeatureCost`.
    gradient_mode : `Envelope`, which is exact for the solved plan, or `Implicit`.
    return_result : also return the `GWResult`, from which the next step of a training loop begins: ``init=result``.
    arguments : all others of `gw_align`, by name.

    Returns
    -------
    The regularised objective (), in the precision of the widest tensor that requires a gradient, float64 for none: the
    value with its entropy, in units of the squared scaled distances. Each space is divided by its own largest distance
    unless ``SpaceOptions(scale=)`` says otherwise, and the derivative of that is part of the gradient; a fixed number
    makes sizes count. With ``return_result`` the pair (objective, result); ``result.loss`` is the same number.

    Raises
    ------
    As `gw_align`; ValueError for ``epsilon=0``, sampled gradients and couplings of low rank. A second differentiation
    raises RuntimeError.

    Notes
    -----
    At a stationary plan the gradient of the objective is its partial derivative with plan and dual potentials held
    fixed, so it costs one product of the plan with distances. What the solve leaves counts: the relative error is
    about twice the marginal residual, 1e-9 where the plan is stored and a few 1e-3 where it streams, unless
    ``Envelope(tol=)`` asks for less. Without ``init=`` most of the time goes into the search for the optimum, so let
    each step of a training loop begin at the result of the last one.

    Examples
    --------
    >>> import torch, torchgw
    >>> X = torch.rand(30, 3, dtype=torch.float64, requires_grad=True)
    >>> Y = torch.rand(40, 2, dtype=torch.float64)
    >>> torchgw.gw_loss(X, Y, distances="euclidean", epsilon=1e-2, random_state=0).backward()
    >>> X.grad.shape
    torch.Size([30, 3])
    >>> result = None
    >>> for _ in range(3):
    ...     loss, result = torchgw.gw_loss(X, Y, init=result, return_result=True, distances="euclidean", epsilon=1e-2)
    """
    if gradient_mode is None:
        raise TypeError("gradient_mode must be Envelope() or Implicit(), got None; in gw_align it may be")
    validate.flag("return_result", return_result)
    result = gw_align(X, Y, gradient_mode=gradient_mode, **arguments)
    if return_result:
        return result.loss, result
    if result.status is Status.CANCELLED and arguments.get("callback") is None:
        raise KeyboardInterrupt  # nobody sees the status of a loss
    return result.loss


@entry()
def resume(path: str | PathLike[str], *, X: Any = None, Y: Any = None, callback: Callback | None = None) -> GWResult:
    """Go on with a `gw_align` that was given ``checkpoint=path``, to the result that it would have had.

    On a CPU, on the same machine and with the same number of threads (large solves give some up beside busy programs,
    unless ``OMP_NUM_THREADS`` is 1), it has the same bits, however often and wherever the solve was killed. A
    checkpoint whose solve had ended gives its result once more.

    Parameters
    ----------
    path : the folder of the checkpoint. It stays, and the solve goes on being written there.
    X, Y : spaces that were distance providers, which files do not hold, once more; the others are in the checkpoint.
    callback : called like that of `gw_align`.

    Raises
    ------
    ValueError
        When the folder holds no checkpoint of this version, a file in it is damaged or of another checkpoint, a solve
        is at it, a provider is missing, or the device that it was begun on; before anything is computed, naming the
        file.

    Warns
    -----
    CheckpointWarning
        When it was begun by another version, or with another number of threads, and when it cannot be written.

    Notes
    -----
    Files of a checkpoint hold numbers and names of known classes. Nothing in them is run.
    """
    call, checkpoint = read_continuation(path, X, Y)
    return gw_align(**call, checkpoint=checkpoint, callback=callback)


def read_continuation(
    path: str | PathLike[str], X: Any = None, Y: Any = None, shared: bool = False
) -> tuple[dict[str, Any], ResumedCheckpoint]:
    """The arguments that a checkpoint has, of a solve that ranks ``shared`` or not, and where to go on."""
    call, every, random = reopen(path)
    if not isinstance(call, dict) or not isinstance(again := call.pop("again", None), dict):
        raise ValueError(f"{path} holds no call of gw_align")
    if call.pop("shared", False) is not shared:
        alone = "torchgw.resume, the command without --nproc"
        own = alone if shared else "torchgw.distributed.resume, in one process or several"
        raise ValueError(f"{path} was begun by {'one process' if shared else 'ranks'}; go on with {own}")
    for name, space in (("X", X), ("Y", Y)):
        if space is None and name in again:
            raise ValueError(
                f"{name} of the checkpoint {path} is a distance provider, which files do not hold: give it"
            )
        if space is not None and name not in again:
            raise ValueError(f"{name} of the checkpoint {path} is in it; leave it out")
        if name in again:
            check_fingerprint(name, space, again[name])
            call[name] = space
    return call, ResumedCheckpoint(path, every, random)


def is_solved_by_ranks(path: str | PathLike[str]) -> bool:
    """Whether ranks share the solve of a checkpoint; False for what is none."""
    with warnings.catch_warnings(), suppress(ValueError, OSError):
        warnings.simplefilter("ignore")
        call, *_ = reopen(path)
        return isinstance(call, dict) and bool(call.get("shared"))
    return False


def check_fingerprint(name: str, space: Any, first: tuple[int, float, Tensor]) -> None:
    """Refuse a provider that is another one than the solve began with."""
    size, scale, row = first
    validate.provider(name, space)
    now = fingerprint(space)
    if now[:2] != (size, scale) or not torch.allclose(now[2].double(), row.double()):
        raise ValueError(f"{name} must be the provider that the solve began with: other size, scale or distances")
