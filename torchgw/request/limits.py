"""Which strategy and kernels a problem takes, and whether what it stores fits, before anything is built.

A dense solve stores score and plan, 16 bytes for each pair of points (about 60 at the sharp end); where neither
space has factors, it begins between factors near its distances (`torchgw.strategies.surrogate.make_surrogate`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchgw import validate
from torchgw.kernels import neighbour_graphs, shortest_paths, softmin_dense, softmin_stream, softmin_tiles
from torchgw.kernels.dispatch import Selection, Workload
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import loop_dtype
from torchgw.losses import SQUARE
from torchgw.objective.model import Model
from torchgw.options import GWOptions, SpaceOptions
from torchgw.problem.problem import Kernels
from torchgw.request.combinations import Fact, fact_of_space, find_exclusion, is_standard
from torchgw.search.basins import MOST_CONTEST_PAIRS
from torchgw.solvers.linear_oracle import has_vertex_solver
from torchgw.spaces import AdjacencyDistances
from torchgw.spaces.device_graph import DeviceGraph, search_bytes
from torchgw.spaces.device_neighbours import build_bytes, count_neighbours
from torchgw.spaces.neighbours import components
from torchgw.spaces.prepare import InputSpace, OnDevice
from torchgw.strategies.within_memory import DENSE_BYTES
from torchgw.types import is_provider, multiplies

logger = logging.getLogger("torchgw")

SCATTERED_PAIRS = 1e8  # up to which points that cells do not stand for are solved dense, where epsilon is left open
UNRESOLVED = 1e-3  # an epsilon that the spaces decide, as far as sizes depend on it: there is one
SHARP_BYTES = 60
GPU_BYTES = 25  # for each pair of a dense solve with entropy on a GPU: score and plan in float64, the plan again
DENSE_PAIRS = {"cpu": 2.5e7, "cuda": 1e9}
CURVED_PAIRS = 2.5e5  # from which points on curves are solved from cells, at an epsilon that stays
SHARPENED_PAIRS = 1e6  # from which points on surfaces stream before assignments end them without entropy
SMALL_PAIRS = 12_000  # up to which a CPU is as fast as a GPU (measured: 30 x 40 points, 100 x 120)
FULL = 2**28  # bytes that a GPU has free at least, if it is used without being asked for
STORED_PAIRS, FEW = MOST_CONTEST_PAIRS, 0.01  # between sparse matrices; the share of entries up to which they are
SEARCHED_SIZE = 5000
EXPECTED_RANK = 32
# Up to which an optimum without entropy is found in about the time of a blurred one (measured): where its linear
# programs are assignments, between points that no landmark stands for and between others, and elsewhere.
SHARP_SCATTERED_PAIRS, SHARP_ASSIGNED_PAIRS, SHARP_PAIRS = 40_000_000, 16_000_000, 2_250_000
SHARP_CONTEST_PAIRS = 400_000  # between others that are no metric spaces, and have a contest in place of cells


def choose_strategy(
    n: int, k: int, epsilon: float, options: GWOptions, device: torch.device, factored: bool = True
) -> str:
    """The strategy that the options name, else dense where it fits and is fast, else streaming; without entropy that
    only between ``factored`` distances, and where there is what solves its linear programs."""
    if options.strategy != "auto":
        return options.strategy
    if epsilon == 0 and not (factored and has_vertex_solver(n, k)):
        return "dense"
    return "dense" if reason_against_dense(n, k, epsilon, options, device) is None else "streaming"


def check_flows(strategy: str, n: int, k: int, epsilon: float) -> None:
    """Refuse vertices between many points where nothing is installed that finds them.

    Raises
    ------
    ImportError
        Naming it.
    """
    if strategy == "streaming" and epsilon == 0 and not has_vertex_solver(n, k):
        raise ImportError(
            f"epsilon=0 with strategy='streaming' solves flows between {n} and {k} points by OR-tools, which is not "
            "installed: pip install ortools, or use epsilon > 0"
        )


def reason_against_dense(n: int, k: int, epsilon: float, options: GWOptions, device: torch.device) -> str | None:
    """Why the dense strategy cannot or should not run, or None."""
    needed = dense_bytes(n, k, epsilon)
    if needed > options.max_memory:
        limit = options.max_memory / 2**30
        return f"score and plan take {needed / 2**30:.1f} GiB, over options.max_memory = {limit:.1f} GiB"
    if options.strategy == "auto" and n * k >= DENSE_PAIRS.get(device.type, 2.5e7):
        return "streaming is faster"
    free, needed = free_memory(device), dense_bytes(n, k, epsilon, device)
    if options.strategy == "auto" and needed > free:
        return f"score and plan take {needed / 2**30:.1f} GiB, the device has {free / 2**30:.1f} GiB free"
    return None


def free_memory(device: torch.device) -> float:
    """Bytes that tensors on a GPU can have, what torch holds for them included; elsewhere infinite, as
    ``options.max_memory`` is the limit there."""
    if device.type != "cuda" or not torch.cuda.is_available():  # of which an estimate may be asked
        return math.inf
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + held)


def use_sparse_adjacencies(spaces: tuple[InputSpace, InputSpace]) -> tuple[InputSpace, InputSpace]:
    """The spaces; from where a stored plan no longer pays on, adjacencies of few entries as sparse ones, whatever they
    were given as."""
    x, y = spaces
    return (x, y) if x.size * y.size <= STORED_PAIRS else (_to_sparse_adjacency(x), _to_sparse_adjacency(y))


def _to_sparse_adjacency(space: InputSpace) -> InputSpace:
    if not has_few_entries(space) or space.data.leaf is not None:
        return space
    return space._replace(data=space.data.compressed())


def has_few_entries(space: InputSpace) -> bool:
    """Whether a space is a matrix taken as it is, most of whose entries are zero."""
    return isinstance(space.data, AdjacencyDistances) and space.data.density <= FEW


def should_use_sparse(facts: Mapping[str, Fact], spaces: Sequence[InputSpace]) -> bool:
    """Whether the choice of a strategy, where it is free, is that for plans of few entries: between sparse matrices,
    where a stored plan no longer pays, beside arguments of these kinds."""
    n, k = (space.size for space in spaces)
    sparse = {"options.strategy": Fact("sparse", "'sparse'")} | {space.name: fact_of_space(space) for space in spaces}
    free = facts["options.strategy"].kind == "auto" and n * k > STORED_PAIRS
    return free and find_exclusion({**facts, **sparse}) is None and all(map(has_few_entries, spaces))


def dense_bytes(n: int, k: int, epsilon: float, device: torch.device = torch.device("cpu")) -> int:  # noqa: B008
    """Bytes of score and plan of a dense solve."""
    blurred = GPU_BYTES if device.type == "cuda" else DENSE_BYTES
    return (blurred if epsilon > 0 else SHARP_BYTES) * n * k


def choose_kernels(
    strategy: str, backend: str, device: torch.device, shape: tuple[int, int], options: GWOptions
) -> tuple[Selection[Kernel], Kernels]:
    """The implementation to report, and those of every family that the strategy uses."""
    dtype, cells = loop_dtype(options.mixed_precision), min(options.ladder.n_cells, *shape)
    stored = softmin_dense.choose(backend, Workload(device, dtype, shape if strategy == "dense" else (cells, cells)))
    streamed = softmin_stream.choose(backend, Workload(device, dtype, shape, rank=EXPECTED_RANK))
    tiled = softmin_tiles.choose(backend, Workload(device, dtype, shape, rank=EXPECTED_RANK))
    kernels = Kernels(backend, stored.function, streamed.function, tiled.function)
    return stored if strategy == "dense" else streamed, kernels


def find_device_search(backend: str, device: torch.device, options: SpaceOptions) -> OnDevice | None:
    """What brings graphs to a device that searches them, and points to one that builds theirs; None where the CPU does
    both. For what is too large for the device it brings None."""
    workload = Workload(device, torch.float64, (1, 1))
    searches = shortest_paths.choose(backend, workload).function
    graphs = neighbour_graphs.choose(backend, workload).function
    if device.type == "cpu" or searches is None or graphs is None:
        return None

    def bring(data: Any, kind: str) -> DeviceGraph | None:
        n, made = data.shape[0], isinstance(data, np.ndarray)
        parts, label = (1, None) if made else components(data)
        entries = 2 * n * count_neighbours(n) if made else data.nnz
        needed = search_bytes(n, entries, parts, kind, options.n_landmarks)
        needed += build_bytes(n, data.shape[1]) if made else 0
        free = free_memory(device) / 2
        if needed > free or entries >= 2**31:
            gib = needed / 2**30, free / 2**30
            logger.info(
                "a graph of %d points and %d entries is left to the CPU: on the device it takes %.1f GiB of %.1f",
                n, entries, *gib,
            )  # fmt: skip
            return None
        if made:
            return DeviceGraph.from_points(data, graphs, searches, device, backend)
        return DeviceGraph.of(data, searches, device, label)

    return bring


def check_rank(options: GWOptions, most: int) -> None:
    """Refuse a rank above the number of points with mass, where the strategy has one."""
    if options.strategy == "low-rank":
        validate.integer("options.low_rank.rank", options.low_rank.rank, least=1, most=most)


def reason_against_exact(spaces: Sequence[InputSpace], device: torch.device, options: GWOptions) -> str | None:
    """Why the exact gradient cannot or should not run, or None.

    With factors or products of its own on one side at least it always pays. Asked for by name, or for epsilon = 0, only
    memory can stand against it.
    """
    by_itself = [space.kind == "checked" or space.has_factors or _needs_no_matrix(space, options) for space in spaces]
    plain = [space for space, well in zip(spaces, by_itself, strict=True) if not well]
    for space in plain:
        if 8 * space.size**2 > options.max_memory:
            advice = advise_without_matrix(space.kind)
            return f"a dense distance matrix of {space.size} points exceeds options.max_memory; {advice}"
        searched = space.kind == "dijkstra" or (space.kind == "provider" and not space.data.stored)
        if searched and space.size > SEARCHED_SIZE and options.gradient == "auto":
            return f"all pairs of {space.size} points cost as many graph searches"
    return None


def _needs_no_matrix(space: InputSpace, options: GWOptions) -> bool:
    """Whether a space needs no matrix, as others than the square of its entries do."""
    return options.loss == "square" and is_provider(space.data) and multiplies(space.data)


def advise_without_matrix(kind: str) -> str:
    """What to pass instead of a space of this kind, so that no distance matrix of it is stored."""
    return "pass points or a sparse graph instead" if kind in ("matrix", "provider") else "use distances='landmark'"


def check_memory(
    strategy: str, spaces: Sequence[InputSpace], model: Model, device: torch.device, options: GWOptions
) -> str | None:
    """Why the exact gradient cannot run, or None.

    Raises
    ------
    MemoryError
        When something that the solve stores exceeds ``options.max_memory``, or the exact gradient is needed and does.
    """
    n, k = len(model.p), len(model.q)
    epsilon = model.epsilon
    if strategy == "dense":
        sharp = "use epsilon > 0, which streams, or GWOptions(strategy='low-rank')"
        if all(space.has_factors for space in spaces):
            streams = "with OR-tools (pip install ortools) epsilon=0 streams as well"
            sharp = "use GWOptions(strategy='streaming')" if has_vertex_solver(n, k) else f"{sharp}; {streams}"
        streams = "use fewer points" if _needs_dense(spaces, model) else "use GWOptions(strategy='streaming')"
        if epsilon == 0 and not model.is_standard:
            sharp = "use fewer points" if _needs_dense(spaces, model) else "use a small epsilon > 0, which streams"
        advice = sharp if epsilon == 0 else streams
        validate.memory(f"score and plan ({n} x {k})", dense_bytes(n, k, epsilon), options.max_memory, advice)
    for space in spaces:
        stored = 8 * space.size**2 if space.kind in ("precomputed", "matrix") else 0
        validate.memory(
            f"the distance matrix of {space.name}", stored, options.max_memory, advise_without_matrix(space.kind)
        )
    against = reason_against_exact(spaces, device, options)
    if against is not None and (options.gradient == "exact" or epsilon == 0):
        asked = "epsilon=0 needs the exact gradient: " if epsilon == 0 else "options.gradient='exact' cannot run: "
        raise MemoryError(asked + against)
    return against


def allows_no_entropy(
    facts: Mapping[str, Fact], shape: tuple[int, int], against: str | None, asked: GWOptions, factored: bool
) -> bool:
    """Whether `gw_align` would take epsilon=0 beside arguments of these kinds, with the options as the user gave them;
    ``against`` is what stands against the exact gradient, ``factored`` whether both spaces have factors."""
    streams = factored and is_standard(facts) and asked.strategy in ("auto", "streaming") and has_vertex_solver(*shape)
    begins = find_exclusion({**facts, "epsilon": Fact("zero", "0")}) is None and against is None
    return begins and (streams or (asked.strategy != "streaming" and _fits_dense(shape, asked)))


def _fits_dense(shape: tuple[int, int], asked: GWOptions) -> bool:
    """Whether memory is there for a plan without entropy by another strategy than streaming."""
    return asked.strategy == "low-rank" or dense_bytes(*shape, 0.0) <= asked.max_memory


def ends_without_entropy(
    facts: Mapping[str, Fact], masses: tuple[Tensor, Tensor], against: str | None, asked: GWOptions, metric: bool = True
) -> bool:
    """Whether an epsilon that is left to the solve is none at all: where the call would be taken with epsilon=0, its
    plan stored, and the optimum without entropy costs little more than a blurred one. ``metric`` says whether spaces
    are metric."""
    n, k = map(len, masses)
    unequal = min(SHARP_PAIRS, math.inf if metric else SHARP_CONTEST_PAIRS)
    few = n * k <= (SHARP_ASSIGNED_PAIRS if is_assignment(masses) else unequal)
    free = asked.strategy not in ("low-rank", "streaming") and _fits_dense((n, k), asked)
    return few and free and is_standard(facts) and allows_no_entropy(facts, (n, k), against, asked, False)


def is_assignment(masses: tuple[Tensor, Tensor]) -> bool:
    """Whether the linear programs between such masses (N,), (K,) are assignments."""
    p, q = masses
    return len(p) == len(q) and bool((p == p[0]).all()) and bool((q == q[0]).all())


def _needs_dense(spaces: Sequence[InputSpace], model: Model) -> bool:
    """Whether no other strategy than the dense one has the objective that was asked for."""
    stored = any(side is not None and side.extra is not None for side in (model.cost, model.penalty))
    return stored or not all(space.symmetric for space in spaces) or model.loss is not SQUARE
