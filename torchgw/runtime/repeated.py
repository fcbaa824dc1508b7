"""A step that is taken again and again: on a GPU the whole of it is one launch.

A few iterations on small tensors take the host longer to launch than a GPU to compute. A CUDA graph keeps the launches
of a step and what memory they use, and starts them as one. What a step may do is therefore little: it is a pure
function of its tensors, reads no number on the host, and what else it uses stays where it is. The first call for each
kind of step and shape of its tensors is taken as it is, so that all its kernels are compiled and loaded; later ones are
captured, of other steps that run the same kernels the first as well. On a CPU every call is taken as it is.

Source: PyTorch's notes on CUDA semantics, "CUDA Graphs".
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

GRAPHS = True  # False takes every step as it is

_WARM = set[Hashable]()  # what has run in this process

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


class Repeated:
    """``(after, seen) = step(kind, *state)``, for few kinds, which are numbers of the host.

    Parameters
    ----------
    step : see the head of this file.
    same : takes kinds that run the same kernels to the same, so that one of them warms all.
    kernels : names what kernels the step runs, so that steps of that name warm each other; None for this one alone.
    """

    def __init__(
        self, step: Step, same: Callable[[Any], Hashable] = lambda kind: kind, kernels: Hashable = None
    ) -> None:
        self._step, self._same, self._kernels = step, same, kernels
        self._warm = set[Hashable]() if kernels is None else _WARM
        self._memory: dict[Hashable, _Memory] = {}
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, kind: Hashable, *state: Tensor) -> Taken:
        if not (GRAPHS and state[0].is_cuda):
            return Taken(state, *self._step(kind, *state))
        shapes = tuple((each.shape, each.dtype) for each in state)
        warm = self._kernels, threading.get_ident(), state[0].device, self._same(kind), shapes
        if warm not in self._warm:
            self._warm.add(warm)
            return Taken(state, *self._step(kind, *state))
        if shapes not in self._memory:
            self._memory[shapes] = _Memory(tuple(map(torch.empty_like, state)), tuple(map(torch.empty_like, state)))
        memory = self._memory[shapes]
        again = all(kept is given for kept, given in zip(memory.before, state, strict=True))
        for held, given in zip(memory.state, () if again else state, strict=not again):
            if held is not given:
                held.copy_(given)
        key = kind, shapes, again
        if key not in self._graphs:
            self._graphs[key] = self._captured(kind, memory, again)
        graph, seen = self._graphs[key]
        graph.replay()
        return Taken(memory.before, memory.state, seen)

    def _captured(self, kind: Hashable, memory: _Memory, again: bool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The launches of keeping the state, or having the one before ``again``, of the step, and of copying its end to
        the state; nothing is computed."""
        graph, device = torch.cuda.CUDAGraph(), memory.state[0].device
        with torch.cuda.device(device):
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            current = torch.cuda.current_stream(device)
            stream.wait_stream(current)
            # Not torch.cuda.graph, which collects garbage and empties the cache of memory: longer than a solve.
            with torch.cuda.stream(stream):
                collects = gc.isenabled()
                gc.disable()  # what a collection frees must not come into the graph
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    for kept, held in zip(memory.before, memory.state, strict=True):
                        held.copy_(kept) if again else kept.copy_(held)
                    after, seen = self._step(kind, *memory.state)
                    for held, new in zip(memory.state, after, strict=True):
                        if new is not held:
                            held.copy_(new)
                finally:
                    graph.capture_end()
                    if collects:
                        gc.enable()
            current.wait_stream(stream)
        return graph, seen
