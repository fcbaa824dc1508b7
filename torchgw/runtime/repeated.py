"""A step that is taken again and again: on a GPU the whole of it is one launch.

A few iterations on small tensors take the host longer to launch than a GPU to compute. A CUDA graph keeps the launches
of a step and what memory they use, and starts them as one. What a step may do is therefore little: it is a pure
function of its tensors, reads no number on the host, and what else it uses stays where it is and was made before. The
first call for each kind of step and shape of its tensors is taken as it is, so that all its kernels are compiled and
loaded; later ones are captured, of other steps that run the same kernels the first as well. On a CPU every call is
taken as it is, and so it is on a GPU where graphs cannot be captured, see `ungraphed`.

All captures of a thread on a device use one stream and one pool of memory, which a graph that is never destroyed keeps:
workspaces of matrix products belong to a stream, and must not go with the first graph that used them. Nothing in the
pool outlives a replay; states and what is seen lie outside.

Source: PyTorch's notes on CUDA semantics, "CUDA Graphs".
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchgw.runtime.caller import out_of_memory
from torchgw.runtime.threads import lock_across_forks

logger = logging.getLogger("torchgw")

SWITCH = "TORCHGW_CUDA_GRAPHS"  # the environment variable that turns graphs off where it is 0
ALLOCATORS = ("native", "cudaMallocAsync")  # those of torch, which keep memory for graphs
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
PAYS = 2  # calls that are taken as they are before a step that nothing has warmed is captured: few come to more

Look: TypeAlias = "tuple[torch.Size, torch.dtype]"

_WARM: dict[Hashable, Look] = {}  # what has run in this process, and what its steps show
_HERE = threading.local()
_LOCK = lock_across_forks()
_CAPTURING: list[bool] = []  # for each capture that is under way, whether garbage was collected before the first

State: TypeAlias = tuple[Tensor, ...]
Step: TypeAlias = Callable[..., tuple[State, Tensor]]


class Taken(NamedTuple):
    """A step that was taken.

    before : the state that it began from, which the next call leaves as it is.
    after : the state that it came to, in memory that the next call may write over.
    seen : what it says of itself, likewise.
    """

    before: State
    after: State
    seen: Tensor


class _Memory(NamedTuple):
    """What all steps on states of the same shapes share: one begins where another has ended.

    before, state : where a step began and where it has come to.
    """

    before: State
    state: State


class _Place(NamedTuple):
    """Where a thread captures on a device.

    stream : of all captures.
    pool : the memory of all graphs.
    anchor : a graph that keeps both.
    """

    stream: torch.cuda.Stream
    pool: Any
    anchor: torch.cuda.CUDAGraph


class Repeated:
    """``(after, seen) = step(kind, *state)``, for few kinds, which are numbers of the host.

    Parameters
    ----------
    step : see the head of this file; of a method the object is not kept alive.
    same : takes kinds that run the same kernels to the same, so that one of them warms all.
    kernels : names what kernels the step runs, so that steps of that name warm each other; None for this one alone.
    """

    def __init__(
        self, step: Step, same: Callable[[Any], Hashable] = lambda kind: kind, kernels: Hashable = None
    ) -> None:
        self._step: Callable[[], Step | None] = weakref.WeakMethod(step) if inspect.ismethod(step) else lambda: step
        self._same, self._kernels = same, kernels
        self._calls, self._looks = Counter[Hashable](), dict[Hashable, Look]()
        self._memory: dict[Hashable, _Memory] = {}
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, kind: Hashable, *state: Tensor) -> Taken:
        step = self._step()
        assert step is not None
        if not state[0].is_cuda or ungraphed(state[0].device):
            return Taken(state, *step(kind, *state))
        shapes = tuple((each.shape, each.dtype) for each in state)
        warm = self._kernels, threading.get_ident(), state[0].device, self._same(kind), shapes
        look = _WARM.get(warm) if self._calls[warm] < PAYS else self._looks[warm]
        if look is None:
            taken = Taken(state, *step(kind, *state))
            self._calls[warm] += 1
            self._looks[warm] = taken.seen.shape, taken.seen.dtype
            if self._kernels is not None:
                _WARM[warm] = self._looks[warm]
            return taken
        if shapes not in self._memory:
            self._memory[shapes] = _Memory(tuple(map(torch.empty_like, state)), tuple(map(torch.empty_like, state)))
        memory = self._memory[shapes]
        _copy(memory.state, state)
        if (kind, shapes) not in self._graphs:
            seen = torch.empty(look[0], dtype=look[1], device=state[0].device)
            self._graphs[kind, shapes] = _captured(step, kind, memory, seen), seen
        graph, seen = self._graphs[kind, shapes]
        graph.replay()
        return Taken(memory.before, memory.state, seen)


def ungraphed(device: torch.device) -> str | None:
    """Why steps on this GPU are taken as they are, or None where they are captured."""
    return f"{SWITCH}=0 turns them off" if os.environ.get(SWITCH) == "0" else _failure(device)


@cache
def _failure(device: torch.device) -> str | None:
    """Capture the smallest graph on the device; the reason if that fails. Once per process and device.

    What is known to fail is not tried, as a capture that fails may leave torch's allocator unusable.
    """
    allocator, reason = torch.cuda.get_allocator_backend(), None
    if allocator not in ALLOCATORS:
        reason = f"the CUDA allocator in use, {allocator!r}, keeps no memory for them"
    elif UNCACHED in os.environ:
        reason = f"{UNCACHED} leaves no memory for them"
    else:
        try:
            _place(device)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            reason = f"a trial failed: {str(error).strip().partition(chr(10))[0]}"
    if reason:
        logger.info("no CUDA graphs on %s: %s; every step is launched anew, which takes longer", device, reason)
    return reason


def _copy(into: State, given: State) -> None:
    """All tensors that are others, those of a dtype in one launch."""
    apart = [pair for pair in zip(into, given, strict=True) if pair[0] is not pair[1]]
    for dtype in dict.fromkeys(held.dtype for held, _ in apart):
        held, new = zip(*(pair for pair in apart if pair[0].dtype == dtype), strict=True)
        torch._foreach_copy_(held, new)


def own(*seen: Tensor) -> State:
    """The same in memory of their own, where a step may write over what it showed."""
    if not seen[0].is_cuda:
        return seen
    kept = tuple(map(torch.empty_like, seen))
    _copy(kept, seen)
    return kept


def _captured(step: Step, kind: Hashable, memory: _Memory, seen: Tensor) -> torch.cuda.CUDAGraph:
    """The launches of keeping the state, of the step, and of copying its end to the state and what it shows to
    ``seen``; nothing is computed."""
    device, graph = memory.state[0].device, torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        place, current = _place(device), torch.cuda.current_stream(device)
        place.stream.wait_stream(current)
        with torch.cuda.stream(place.stream), _capturing(graph, place.pool):
            _copy(memory.before, memory.state)
            after, shown = step(kind, *memory.state)
            seen.copy_(shown)
            _copy(memory.state, after)
        current.wait_stream(place.stream)
    return graph


def _place(device: torch.device) -> _Place:
    """Where this thread captures on a device."""
    places: dict[torch.device, _Place] = _HERE.__dict__.setdefault("places", {})
    if device not in places:
        stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]
        anchor, one = torch.cuda.CUDAGraph(), torch.ones(1, 1, device=device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            one @ one  # its library's handle and workspace
            with _capturing(anchor, pool):
                one @ one
        torch.cuda.current_stream(device).wait_stream(stream)
        places[device] = _Place(stream, pool, anchor)
    return places[device]


@contextlib.contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """What is launched within goes into the graph. Not torch.cuda.graph, which collects garbage and empties the cache
    first: that takes longer than a solve."""
    with _LOCK:
        _CAPTURING.append(_CAPTURING[0] if _CAPTURING else gc.isenabled())
        gc.disable()  # what a collection frees must not come into the graph
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a capture that is not valid any more
                graph.capture_end()
            raise
        graph.capture_end()
    finally:
        with _LOCK:
            collects = _CAPTURING.pop()
            if collects and not _CAPTURING:
                gc.enable()
