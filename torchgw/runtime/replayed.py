"""Functions of tensors that a GPU takes in one launch when they are called again.

A GPU is told of each operation by the host, which takes longer over it than the GPU over small tensors. A CUDA graph
keeps the launches of a function, and starts them as one. The first call of a `replayed` function with tensors of some
shapes is taken as it is, so that all its kernels are compiled and loaded; the second is captured, and it and later
ones, also those of another solve, are replays: what is given is copied to where the graph reads, and what it made is
copied from where it writes, each in one launch. Graphs that were not used for long are forgotten.

What such a function may do is little. It is a function of its arguments: tensors, records of them, and constants that
can be hashed, each of which has graphs of its own. It reads no number on the host and sends none to the GPU. It changes
no argument but those it is said to. Large arguments are not copied: a graph belongs to where these lie.

On a CPU every call is taken as it is, and so it is where gradients are recorded, within another such function, and on a
GPU where graphs cannot be captured, see `ungraphed`.

All captures of a thread on a device use one stream and one pool of memory, which a graph that is never destroyed keeps:
workspaces of matrix products belong to a stream, and must not go with the first graph that used them. What a graph
computes on the way lies in the pool, where the next graph may write over it.

Source: PyTorch's notes on CUDA semantics, "CUDA Graphs".
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from torchgw.runtime.caller import out_of_memory
from torchgw.runtime.records import Tree, flattened, restored
from torchgw.runtime.threads import lock_across_forks

logger = logging.getLogger("torchgw")

SWITCH = "TORCHGW_CUDA_GRAPHS"  # the environment variable that turns graphs off where it is 0
ALLOCATORS = ("native", "cudaMallocAsync")  # those of torch, which keep memory for graphs
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
COPIED = 2**23  # bytes of an argument at most that is copied to where a graph reads
MOST, SHARE = (
    512,
    1 / 16,
)  # of a thread: graphs, and the share of a device's memory that their arguments and results take
ALIGNED = 16  # bytes, by which libraries choose kernels
WORD = torch.int32

P = ParamSpec("P")
R = TypeVar("R")

_HERE = threading.local()
_LOCK = lock_across_forks()
_CAPTURING: list[bool] = []  # for each capture that is under way, whether garbage was collected before the first


class Kept(NamedTuple):
    """A graph with the memory that it reads and writes.

    graph : the launches.
    read : where what is copied is read, None for arguments that are read where they are.
    written : where results are, an argument's number for what is one of them.
    tree : of the results.
    size : bytes of all this memory.
    """

    graph: torch.cuda.CUDAGraph
    read: tuple[Tensor | None, ...]
    written: tuple[Tensor | int, ...]
    tree: Tree
    size: int


class _Place(NamedTuple):
    """Where a thread captures on a device.

    stream : of all captures.
    pool : the memory of all graphs.
    anchor : a graph that keeps both.
    """

    stream: torch.cuda.Stream
    pool: Any
    anchor: torch.cuda.CUDAGraph


def replayed(*changed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function, see the head of this file, that writes over its arguments of these names, which are tensors."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)
        places = [names.index(name) for name in changed]

        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            if not torch.cuda.is_available() or getattr(_HERE, "within", False):
                return function(*given, **named)
            try:
                tensors, tree = flattened((given, named))
            except TypeError:  # what cannot be hashed
                return function(*given, **named)
            device = next((each.device for each in tensors if each.is_cuda), None)
            if device is None or not _is_taken(tensors, device):
                return function(*given, **named)
            own = {id(given[place]) if place < len(given) else id(named[names[place]]) for place in places}
            wanted = _Call(function, device, tensors, tree, [id(each) in own for each in tensors])
            with torch.cuda.device(device):
                return cast(R, _Graphs.here(device).called(wanted))

        return call

    return mark


def refuse_within(what: str) -> None:
    """Refuse within a function that is captured what its graph would not do again."""
    if getattr(_HERE, "within", False):
        raise RuntimeError(f"{what}: not permitted while a graph is captured")


def _is_taken(tensors: list[Tensor], device: torch.device) -> bool:
    """Whether a graph may have these arguments: on one GPU where graphs are captured, nothing that is differentiated,
    nothing sparse."""
    recorded = torch.is_grad_enabled()
    for each in tensors:
        if each.device != device or each.layout is not torch.strided or (recorded and each.requires_grad):
            return False
    return ungraphed(device) is None


class _Call(NamedTuple):
    """A function with its arguments.

    function, device : what is called, and where its tensors are.
    tensors, tree : of the arguments, positional and named.
    changed : for each tensor, whether the function writes over it.
    """

    function: Callable[..., Any]
    device: torch.device
    tensors: list[Tensor]
    tree: Tree
    changed: list[bool]

    @property
    def key(self) -> Hashable:
        """What graphs are told apart by."""
        known = [
            (each.shape, each.dtype, each.stride(), each.data_ptr() % ALIGNED if copied else each.data_ptr())
            for each, copied in zip(self.tensors, self.copied, strict=True)
        ]
        return self.function, self.tree, tuple(known)

    @property
    def copied(self) -> list[bool]:
        """For each tensor, whether it is copied to where a graph reads it."""
        return [each.nbytes <= COPIED for each in self.tensors]

    def taken(self, tensors: list[Tensor] | None = None) -> Any:
        """What the function makes of these tensors, or of its own."""
        given, named = restored(self.tree, self.tensors if tensors is None else tensors)
        return self.function(*given, **named)


class _Graphs:
    """Those of a thread on a device, on one of its streams."""

    def __init__(self, device: torch.device) -> None:
        self.limit = SHARE * torch.cuda.get_device_properties(device).total_memory
        self.kept: OrderedDict[Hashable, Kept | bool] = OrderedDict()  # False for what is never captured
        self.size = 0

    @classmethod
    def here(cls, device: torch.device) -> _Graphs:
        """The thread's on the current stream."""
        held: dict[Hashable, _Graphs] = _HERE.__dict__.setdefault("graphs", {})
        place = device, torch.cuda.current_stream(device).cuda_stream
        if place not in held:
            held[place] = cls(device)
        return held[place]

    def called(self, wanted: _Call) -> Any:
        """What the call gives."""
        key = wanted.key
        found = self.kept.get(key)
        if found is None:  # whatever it fails by, it has warmed nothing then
            result = wanted.taken()
            self.kept[key] = True
            self._forget()
            return result
        self.kept.move_to_end(key)
        if found is True:
            found = self._captured(wanted)
            self.kept[key] = found
            self._forget()
        return _replayed(found, wanted) if isinstance(found, Kept) else wanted.taken()

    def _captured(self, wanted: _Call) -> Kept | bool:
        """Its graph; False where it cannot be captured, or takes too much memory."""
        read = tuple(
            _like(each) if copied else None for each, copied in zip(wanted.tensors, wanted.copied, strict=True)
        )
        given = [each if own is None else own for each, own in zip(wanted.tensors, read, strict=True)]
        _copy((own, each) for own, each in zip(read, wanted.tensors, strict=True) if own is not None)
        graph, _HERE.within = torch.cuda.CUDAGraph(), True
        try:
            place, current = _place(wanted.device), torch.cuda.current_stream(wanted.device)
            place.stream.wait_stream(current)
            with torch.cuda.stream(place.stream), _capturing(graph, place.pool):
                made, tree = flattened(wanted.taken(given))
            current.wait_stream(place.stream)
        except Exception as error:  # the call as it is says what is wrong with it
            logger.info("no CUDA graph of %s: %s", wanted.function.__qualname__, error)
            return False
        finally:
            _HERE.within = False
        numbers = {id(each): number for number, each in enumerate(given)}
        written = tuple(numbers.get(id(each), each) for each in made)
        size = sum(each.nbytes for each in (*read, *written) if isinstance(each, Tensor))
        if 4 * size > self.limit:
            return False
        self.size += size
        return Kept(graph, read, written, tree, size)

    def _forget(self) -> None:
        """The graphs that were not used for longest, where there are too many."""
        while len(self.kept) > MOST or self.size > self.limit:
            _, oldest = self.kept.popitem(last=False)
            self.size -= oldest.size if isinstance(oldest, Kept) else 0


def _replayed(kept: Kept, wanted: _Call) -> Any:
    """What the call gives, by its graph."""
    _copy((own, each) for own, each in zip(kept.read, wanted.tensors, strict=True) if own is not None)
    kept.graph.replay()
    found = [wanted.tensors[each] if isinstance(each, int) else _like(each) for each in kept.written]
    back = [(new, each) for new, each in zip(found, kept.written, strict=True) if isinstance(each, Tensor)]
    back += [
        (each, own)
        for each, own, changed in zip(wanted.tensors, kept.read, wanted.changed, strict=True)
        if changed and own is not None
    ]
    _copy(back)
    return restored(kept.tree, found)


def _like(tensor: Tensor) -> Tensor:
    """Memory for a tensor of the same strides, which begins where libraries choose the same kernels."""
    if tensor.numel() == 0:
        return torch.empty_like(tensor)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    ahead = tensor.data_ptr() % ALIGNED // tensor.element_size()
    whole = torch.empty(span + ahead, dtype=tensor.dtype, device=tensor.device)
    return whole.as_strided(tensor.shape, tensor.stride(), ahead)


def _copy(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Each second tensor to the first; all that are stored without gaps in one launch, as words of four bytes."""
    words: tuple[list[Tensor], list[Tensor]] = [], []
    for pair in pairs:
        if 0 in pair[1].stride():  # the same entry many times, which is written once
            for axis in [axis for axis, stride in enumerate(pair[1].stride()) if not stride]:
                pair = (pair[0].narrow(axis, 0, 1), pair[1].narrow(axis, 0, 1))
        given = pair[1]
        if not given.is_contiguous() and given.ndim > 1 and given.mT.is_contiguous():
            pair = (pair[0].mT, given.mT)
        if given.numel() == 0:
            continue
        if given.itemsize % WORD.itemsize or not pair[1].is_contiguous():
            pair[0].copy_(pair[1])
            continue
        for held, each in zip(words, pair, strict=True):
            held.append(each.as_strided((each.numel(),), (1,)).view(WORD))  # a single entry may have any strides
    if words[0]:
        torch._foreach_copy_(*words)


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
