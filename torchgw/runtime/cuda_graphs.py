"""Functions of tensors that a GPU takes in one launch when they are called again.

A GPU is told of each operation by the host, which takes longer over it than the GPU over small tensors. A CUDA graph
keeps the launches of a function, and starts them as one. The first call of a function that `as_cuda_graph` marks, with
tensors of some shapes, runs as it is, so that all its kernels are compiled and loaded; the second is captured, and it
and later ones, also those of another solve, are replays: what is given is copied to where the graph reads, and what
it made is copied from where it writes, each in one launch. Graphs that were not used for long are forgotten.

What such a function may do is little. It is a function of its arguments: tensors, records of them, and constants that
can be hashed, each of which has graphs of its own. It reads no number on the host and sends none to the GPU. It changes
no argument but those it is said to. Large arguments are not copied: a graph belongs to where these lie.

On a CPU every call is taken as it is, and so it is where gradients are recorded, within another such function, and on a
GPU where graphs cannot be captured, see `reason_not_to_capture`.

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
import itertools
import logging
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from torchgw.runtime.caller import out_of_memory
from torchgw.runtime.records import Tree, flatten, unflatten
from torchgw.runtime.threads import lock_across_forks

logger = logging.getLogger("torchgw")

SWITCH = "TORCHGW_CUDA_GRAPHS"  # the environment variable that turns graphs off where it is 0
ALLOCATORS = ("native", "cudaMallocAsync")  # those of torch, which keep memory for graphs
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
COPIED = 2**25  # bytes of an argument at most that is copied to where a graph reads
MOST, SHARE = 512, 1 / 128  # of a thread: graphs, and the share of a device's memory that they keep
PLACES = 8  # for large arguments, that a function has graphs for: memory of other places is not seen again
ALIGNED = 16  # bytes, by which libraries choose kernels
WORD = torch.int32
UNIT = ALIGNED // WORD.itemsize

_Key: TypeAlias = tuple[Hashable, tuple[int, ...]]
P = ParamSpec("P")
R = TypeVar("R")

_HERE = threading.local()
_ABANDONED = list[torch.cuda.CUDAGraph]()  # of captures that failed: the allocator may still ask them
_LOCK = lock_across_forks()  # held while a graph is captured: there is one capture at a time in a process


class CapturedGraph(NamedTuple):
    """A graph with the memory that it reads and writes.

    graph : the launches.
    read : where what is copied is read, None for arguments that are read where they are; ``words`` the same as words.
    written : where results are: an argument's number for those, a `PackedResult` of what is packed, or memory.
    packed : words, where the graph puts results one behind the other.
    tree : of the results.
    size : bytes of the memory that it does not share.
    """

    graph: torch.cuda.CUDAGraph
    read: tuple[Tensor | None, ...]
    words: tuple[Tensor | None, ...]
    written: tuple[Tensor | PackedResult | int, ...]
    packed: Tensor
    tree: Tree
    size: int


class BufferSizes(NamedTuple):
    """The bytes of what is copied of the arguments that a graph will ``read``, and of the results it will have
    ``written``, but for large ones."""

    read: int
    written: int


class PackedResult(NamedTuple):
    """A result in packed memory: its ``shape``, ``stride`` and first ``entry`` in memory of its ``dtype``."""

    shape: torch.Size
    stride: tuple[int, ...]
    entry: int
    dtype: torch.dtype


class _Place(NamedTuple):
    """Where a thread captures on a device.

    stream : of all captures.
    pool : the memory of all graphs.
    anchor : a graph that keeps both.
    """

    stream: torch.cuda.Stream
    pool: Any
    anchor: torch.cuda.CUDAGraph


def as_cuda_graph(*changed: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function, see the head of this file, that writes over its arguments of these names, which are tensors."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)
        places = [names.index(name) for name in changed]

        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            if torch.compiler.is_compiling() or not torch.cuda.is_available() or getattr(_HERE, "within", False):
                return function(*given, **named)
            try:
                tensors, tree = flatten((given, named))
            except TypeError:  # objects of other packages, and what cannot be hashed
                return function(*given, **named)
            device = next((each.device for each in tensors if each.is_cuda), None)
            if device is None or not _can_capture(tensors, device):
                return function(*given, **named)
            own = {id(given[place]) if place < len(given) else id(named[names[place]]) for place in places}
            wanted = _Call(function, device, (given, named), tensors, tree, [id(each) in own for each in tensors])
            with torch.cuda.device(device):
                return cast(R, _GraphCache.current(device).call(wanted))

        return call

    return mark


def forget() -> None:
    """Drop this thread's graphs, and the memory that they keep."""
    for name in ("graphs", "places"):
        _HERE.__dict__.pop(name, None)


def refuse_within(what: str) -> None:
    """Refuse within a function that is captured what its graph would not do again."""
    if getattr(_HERE, "within", False):
        raise RuntimeError(f"{what}: not permitted while a graph is captured")


def _can_capture(tensors: list[Tensor], device: torch.device) -> bool:
    """Whether a graph may have these arguments: on one GPU where graphs are captured, nothing that is differentiated,
    nothing sparse."""
    if torch.is_inference_mode_enabled():  # whose tensors no later call may write to
        return False
    recorded = torch.is_grad_enabled()
    for each in tensors:
        if each.device != device or each.layout is not torch.strided or (recorded and each.requires_grad):
            return False
    return reason_not_to_capture(device) is None


class _Call(NamedTuple):
    """A function with its arguments.

    function, device : what is called, and where its tensors are.
    arguments : positional and named ones.
    tensors, tree : of them.
    changed : for each tensor, whether the function writes over it.
    """

    function: Callable[..., Any]
    device: torch.device
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    tensors: list[Tensor]
    tree: Tree
    changed: list[bool]

    @property
    def key(self) -> _Key:
        """What graphs are told apart by: what is called, and where large arguments lie."""
        known = [(each.shape, each.dtype, each.stride(), each.data_ptr() % ALIGNED) for each in self.tensors]
        large = (each.data_ptr() for each, copied in zip(self.tensors, self.copy_flags, strict=True) if not copied)
        return (self.function, self.tree, tuple(known)), tuple(large)

    @property
    def copy_flags(self) -> list[bool]:
        """For each tensor, whether it is copied to where a graph reads it."""
        return [each.nbytes <= COPIED for each in self.tensors]

    def run(self, tensors: list[Tensor] | None = None) -> Any:
        """What the function makes of these tensors, or of its own."""
        given, named = self.arguments if tensors is None else unflatten(self.tree, tensors)
        return self.function(*given, **named)


class _GraphCache:
    """Those of a thread on a device, on one of its streams."""

    def __init__(self, device: torch.device) -> None:
        self.limit = SHARE * torch.cuda.get_device_properties(device).total_memory
        self.kept: OrderedDict[_Key, CapturedGraph | BufferSizes | None] = (
            OrderedDict()
        )  # None for what is never captured
        self.places = Counter[Hashable]()  # of large arguments, by what is called
        self.size, self.arena = 0, torch.empty(0, dtype=torch.uint8, device=device)

    @classmethod
    def current(cls, device: torch.device) -> _GraphCache:
        """The thread's on the current stream."""
        held: dict[Hashable, _GraphCache] = _HERE.__dict__.setdefault("graphs", {})
        place = device, torch.cuda.current_stream(device).cuda_stream
        if place not in held:
            held[place] = cls(device)
        return held[place]

    def call(self, wanted: _Call) -> Any:
        """What the call gives."""
        key = wanted.key
        if key not in self.kept:  # whatever it fails by, it has warmed nothing then
            result = wanted.run()
            if self.places[key[0]] < PLACES:
                self.places[key[0]] += 1
                self.kept[key] = self._room(wanted, flatten(result)[0])
                self._forget()
            return result
        self.kept.move_to_end(key)
        found = self.kept[key]
        if isinstance(found, BufferSizes):
            found = self._capture(wanted, found)
            self.kept[key] = found
            self._forget()
        return wanted.run() if found is None else _replay(found, wanted)

    def _room(self, wanted: _Call, made: list[Tensor]) -> BufferSizes | None:
        """What a graph with these results takes; None where that is too much."""
        own = {id(each) for each in wanted.tensors}
        results = [each for each in made if id(each) not in own]
        room = BufferSizes(
            sum(map(_extent, itertools.compress(wanted.tensors, wanted.copy_flags))),
            sum(_extent(each) + ALIGNED for each in results if each.nbytes <= COPIED),
        )
        loose = sum(each.nbytes for each in results if each.nbytes > COPIED)
        return room if 8 * (sum(room) + loose) <= self.limit else None

    def _capture(self, wanted: _Call, room: BufferSizes) -> CapturedGraph | None:
        """Its graph; None where it cannot be captured."""
        if sum(room) > len(self.arena):  # graphs run one after the other, so they share where they read and write
            # Older graphs keep the arenas before, which together are smaller than the last one.
            self.arena = self.arena.new_empty(max(sum(room), 2 * len(self.arena)))
        ahead, packed = self.arena[: room.read], self.arena[room.read : sum(room)].view(WORD)
        places = itertools.accumulate(
            (_extent(each) for each in itertools.compress(wanted.tensors, wanted.copy_flags)), initial=0
        )
        read = tuple(
            _carve(ahead, next(places), each) if copied else None
            for each, copied in zip(wanted.tensors, wanted.copy_flags, strict=True)
        )
        given = [each if own is None else own for each, own in zip(wanted.tensors, read, strict=True)]
        words = tuple(None if each is None else _words(each) for each in read)
        _fill(zip(read, words, wanted.tensors, strict=True))
        graph, _HERE.within = torch.cuda.CUDAGraph(), True
        try:
            place, current = _place(wanted.device), torch.cuda.current_stream(wanted.device)
            place.stream.wait_stream(current)
            with torch.cuda.stream(place.stream), _capturing(graph, place.pool):
                made, tree = flatten(wanted.run(given))
                numbers = {id(each): number for number, each in enumerate(given)}
                written, packed = _pack([numbers.get(id(each), each) for each in made], packed)
            current.wait_stream(place.stream)
        except Exception as error:  # the call as it is says what is wrong with it
            logger.info("no CUDA graph of %s: %s", wanted.function.__qualname__, error)
            return None
        finally:
            _HERE.within = False
        size = sum(each.nbytes for each in written if isinstance(each, Tensor))
        self.size += size
        return CapturedGraph(graph, read, words, written, packed, tree, size)

    def _forget(self) -> None:
        """The graphs that were not used for longest, where there are too many."""
        while len(self.kept) > MOST or (self.kept and self.size + 2 * len(self.arena) > self.limit):
            (called, _), oldest = self.kept.popitem(last=False)
            self.size -= oldest.size if isinstance(oldest, CapturedGraph) else 0
            self.places[called] -= 1
            if not self.places[called]:
                del self.places[called]


def _replay(kept: CapturedGraph, wanted: _Call) -> Any:
    """What the call gives, by its graph."""
    _fill(zip(kept.read, kept.words, wanted.tensors, strict=True))
    kept.graph.replay()
    fresh, bases = kept.packed.clone(), dict[torch.dtype, Tensor]()
    found, loose = list[Tensor](), list[tuple[Tensor, Tensor]]()
    for each in kept.written:
        if isinstance(each, PackedResult):
            if each.dtype not in bases:
                bases[each.dtype] = fresh.view(each.dtype)
            found.append(bases[each.dtype].as_strided(each.shape, each.stride, each.entry))
        elif isinstance(each, int):
            found.append(wanted.tensors[each])
        else:
            found.append(_like(each))
            loose.append((found[-1], each))
    for each, own, changed in zip(wanted.tensors, kept.read, wanted.changed, strict=True):
        if changed and own is not None:
            loose.append((each, own))
    _fill((into, _words(into), each) for into, each in loose)
    return unflatten(kept.tree, found)


def _pack(made: list[Tensor | int], room: Tensor) -> tuple[tuple[Tensor | PackedResult | int, ...], Tensor]:
    """Where results are, and small ones without gaps one behind the other, in words with room for them."""
    written, pairs, end = list[Tensor | PackedResult | int](), list[tuple[Tensor, int]](), 0
    for each in made:
        words = _words(each) if isinstance(each, Tensor) and each.nbytes <= COPIED and each.numel() else None
        if isinstance(each, int) or words is None:
            written.append(each)
            continue
        wide = each.element_size() // WORD.itemsize
        end += -end % UNIT + each.data_ptr() % ALIGNED // WORD.itemsize
        written.append(PackedResult(each.shape, each.stride(), end // wide, each.dtype))
        pairs.append((words, end))
        end += words.numel()
    packed = room[: end + -end % UNIT]
    into = [packed[start : start + words.numel()].view(words.shape) for words, start in pairs]
    if into:
        torch._foreach_copy_(into, [words for words, _ in pairs])
    return tuple(written), packed


def _extent(tensor: Tensor) -> int:
    """How many bytes a copy of a tensor takes, which begins where libraries choose the same kernels."""
    if tensor.numel() == 0:
        return ALIGNED
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    size = tensor.data_ptr() % ALIGNED + span * tensor.element_size()
    return size + -size % ALIGNED


def _carve(memory: Tensor, start: int, tensor: Tensor) -> Tensor:
    """Such a copy, of anything, from a byte of memory on."""
    part = memory[start : start + _extent(tensor)].view(tensor.dtype)
    return part.as_strided(
        tensor.shape, tensor.stride(), part.storage_offset() + tensor.data_ptr() % ALIGNED // tensor.element_size()
    )


def _like(tensor: Tensor) -> Tensor:
    """Such a copy in memory of its own."""
    return _carve(torch.empty(_extent(tensor), dtype=torch.uint8, device=tensor.device), 0, tensor)


def _words(tensor: Tensor) -> Tensor | None:
    """The tensor as words of four bytes; None where it has gaps, or narrower entries."""
    if tensor.itemsize % WORD.itemsize:
        return None
    if tensor.ndim == 0:
        tensor = tensor[None]
    elif not tensor.is_contiguous():
        if tensor.ndim < 2 or not tensor.mT.is_contiguous():
            return None
        tensor = tensor.mT
    return tensor.view(WORD)


def _fill(triples: Iterable[tuple[Tensor | None, Tensor | None, Tensor]]) -> None:
    """Copy each last tensor to the first, whose words are in between, all of them in one launch; nothing to None."""
    intos, givens = list[Tensor](), list[Tensor]()
    for into, words, given in triples:
        if into is None or not given.numel():
            continue
        if words is not None:
            intos.append(words)
            givens.append(cast(Tensor, _words(given)))
            continue
        for axis, stride in enumerate(given.stride()):
            if not stride:  # the same entry many times, which is written once
                into, given = into.narrow(axis, 0, 1), given.narrow(axis, 0, 1)
        into.copy_(given)
    if intos:
        torch._foreach_copy_(intos, givens)


def reason_not_to_capture(device: torch.device) -> str | None:
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
    """Where this thread captures on a device, for its current stream."""
    places: dict[Hashable, _Place] = _HERE.__dict__.setdefault("places", {})
    here = device, torch.cuda.current_stream(device).cuda_stream
    if here not in places:
        stream, pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]
        anchor, one = torch.cuda.CUDAGraph(), torch.ones(1, 1, device=device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            one @ one  # its library's handle and workspace
            with _capturing(anchor, pool):
                one @ one
        torch.cuda.current_stream(device).wait_stream(stream)
        places[here] = _Place(stream, pool, anchor)
    return places[here]


@contextlib.contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """What is launched within goes into the graph. Not torch.cuda.graph, which collects garbage and empties the cache
    first: that takes longer than a solve."""
    with _LOCK:
        collects = gc.isenabled()
        gc.disable()  # what a collection frees must not come into the graph
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            except BaseException:
                _abandon(graph, pool)
                raise
            graph.capture_end()
        finally:
            if collects:
                gc.enable()


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    """End a capture that failed. Where it is not valid any more torch leaves its pool open, so that nothing else could
    be captured there: later ones have another."""
    try:
        graph.capture_end()
    except RuntimeError:
        _HERE.__dict__.pop("places", None)
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        _ABANDONED.append(graph)
