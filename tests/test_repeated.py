"""Steps that are taken again and again: as they are, and from a graph."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.problems import quietly
from tests.simulated_device import Graph, simulated_gpu
from torchgw import gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.runtime import repeated
from torchgw.runtime.repeated import Repeated

State = tuple[Tensor, Tensor]


def step_on(kernel: Tensor) -> repeated.Step:
    def step(weight: float, u: Tensor, v: Tensor) -> tuple[State, Tensor]:
        for _ in range(3):
            v = (1 / (u @ kernel)) ** weight
            u = 1 / (kernel @ v)
        return (u, v), torch.stack((u.sum(), v.sum()))

    return step


def course(kernel: Tensor, weights: list[float]) -> list[Tensor]:
    """Everything that is seen on the way, and the states before and after each step."""
    taken, found = Repeated(step_on(kernel), kernels=object()), []
    state: State = kernel.new_ones(kernel.shape[0]), kernel.new_ones(kernel.shape[1])
    for weight in weights:
        before = [each.clone() for each in state]
        done = taken(weight, *state)
        assert all(torch.equal(one, other) for one, other in zip(done.before, before, strict=True))
        found += [each.cpu() for each in (*done.after, done.seen)]
        state = done.after
    return found


WEIGHTS = [0.9, 0.9, 0.9, 0.7, 0.7, 0.9, 0.7, 0.7]


def test_replays_do_what_the_step_does() -> None:
    kernel = torch.rand(5, 6, dtype=torch.float64) + 0.1
    with simulated_gpu() as simulation:
        found = course(kernel.cuda(), WEIGHTS)
    for one, other in zip(found, course(kernel, WEIGHTS), strict=True):
        assert torch.equal(one, other)
    assert sum(count for place, count in simulation.launches.items() if place.endswith("graph")) == len(WEIGHTS) - 2


def no_memory(*_: object, **__: object) -> None:
    raise RuntimeError("does not yet support beginAllocateToPool\nException raised from")


# Where graphs cannot be captured, or are not to be: the reason.
SURROUNDINGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "an allocator of another library": (
        lambda patch: patch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable"),
        "the CUDA allocator in use, 'pluggable', keeps no memory for them",
    ),
    "memory that is not kept": (
        lambda patch: patch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        "PYTORCH_NO_CUDA_MEMORY_CACHING leaves no memory for them",
    ),
    "a capture that fails": (
        lambda patch: patch.setattr(Graph, "capture_begin", no_memory),
        "a trial failed: does not yet support beginAllocateToPool",
    ),
    "the switch": (lambda patch: patch.setenv("TORCHGW_CUDA_GRAPHS", "0"), "TORCHGW_CUDA_GRAPHS=0 turns them off"),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_where_graphs_cannot_be_captured_steps_are_launched(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arrange, reason = SURROUNDINGS[name]
    kernel = torch.rand(5, 6, dtype=torch.float64) + 0.1
    monkeypatch.setattr(repeated, "_HERE", threading.local())
    repeated._failure.cache_clear()
    with simulated_gpu() as simulation, caplog.at_level("INFO", "torchgw"):
        arrange(monkeypatch)
        found = course(kernel.cuda(), WEIGHTS)
        course(kernel.cuda(), WEIGHTS)
        assert repeated.ungraphed(torch.device("cuda", 0)) == reason
    repeated._failure.cache_clear()
    for one, other in zip(found, course(kernel, WEIGHTS), strict=True):
        assert torch.equal(one, other)
    assert not any(place.endswith("graph") for place in simulation.launches)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (name != "the switch")  # which its user knows of
    assert all(f"no CUDA graphs on cuda:0: {reason}; every step" in line for line in said)


def test_a_full_device_is_no_reason_against_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(repeated, "_HERE", threading.local())
    repeated._failure.cache_clear()
    with simulated_gpu():
        monkeypatch.setattr(Graph, "capture_begin", full)
        with pytest.raises(torch.OutOfMemoryError):
            repeated.ungraphed(torch.device("cuda", 0))
        monkeypatch.undo()
    with simulated_gpu():
        assert repeated.ungraphed(torch.device("cuda", 0)) is None


def test_no_garbage_is_collected_while_any_thread_captures() -> None:
    with simulated_gpu():
        one, other = (repeated._capturing(torch.cuda.CUDAGraph(), None) for _ in range(2))
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert not gc.isenabled()
        other.__exit__(None, None, None)
        assert gc.isenabled()


def test_a_state_that_was_before_stays_while_the_next_step_is_on_its_way() -> None:
    with simulated_gpu():
        kernel = torch.rand(5, 6).cuda() + 0.1
        taken = Repeated(step_on(kernel), kernels=object())
        state = taken(0.9, torch.ones(5).cuda(), torch.ones(6).cuda()).after
        state = taken(0.9, *state).after
        kept = [each.clone() for each in state]
        ahead = taken(0.9, *state)
        assert all(torch.equal(one, other) for one, other in zip(ahead.before, kept, strict=True))
        again = taken(0.5, *ahead.before).before
        assert all(torch.equal(one, other) for one, other in zip(again, kept, strict=True))


def test_a_step_that_the_host_waits_for_is_refused() -> None:
    def waits(_: object, x: Tensor) -> tuple[tuple[Tensor], Tensor]:
        return (x / float(x.sum()),), x

    with simulated_gpu():
        taken, x = Repeated(waits, kernels=object()), torch.ones(3).cuda()
        taken(None, x)
        with pytest.raises(RuntimeError, match="not permitted while a graph is captured"):
            taken(None, x)


def test_what_nothing_has_warmed_is_captured_where_it_is_taken_often() -> None:
    with simulated_gpu() as simulation:
        taken, kernel = Repeated(step_on(torch.rand(5, 6).cuda() + 0.1)), torch.ones(5).cuda()
        state: State = kernel, torch.ones(6).cuda()
        for _ in range(4):
            state = taken(0.9, *state).after
    assert sum(count for place, count in simulation.launches.items() if place.endswith("graph")) == 4 - repeated.PAYS


def test_a_step_that_fails_has_warmed_nothing() -> None:
    def fails(kind: bool, x: Tensor) -> tuple[tuple[Tensor], Tensor]:
        if kind and broken:
            raise MemoryError
        return (x + 1,), x

    with simulated_gpu() as simulation:
        taken, x, broken = Repeated(fails, kernels=object()), torch.ones(3).cuda(), True
        with pytest.raises(MemoryError):
            taken(True, x)
        broken = False
        taken(True, x)
        assert not any(place.endswith("graph") for place in simulation.launches)


def test_a_method_does_not_keep_its_object() -> None:
    class Owner:
        def __init__(self) -> None:
            self.take = Repeated(self.step)

        def step(self, _: object, x: Tensor) -> tuple[tuple[Tensor], Tensor]:
            return (x + 1,), x

    gc.collect()
    gc.disable()
    try:
        owner = Owner()
        assert torch.equal(owner.take(None, torch.ones(2)).after[0], torch.full((2,), 2.0))
        alive = weakref.ref(owner)
        del owner
        assert alive() is None
    finally:
        gc.enable()


def test_a_solve_leaves_no_tensors_to_the_collector() -> None:
    """Score and plan of a dense solve are large; what counts objects does not see that."""

    def held() -> int:
        return sum(each.numel() for each in gc.get_objects() if type(each) is Tensor and each.numel() > 1000)

    X, Y = make_spiral(60)[0], make_swiss_roll(70, random_state=1)[0]
    quietly(gw_align, X, Y, epsilon=1e-2, random_state=0)  # what is made once
    gc.collect()
    gc.disable()
    try:
        before = held()
        quietly(gw_align, X, Y, epsilon=1e-2, random_state=0)
        assert held() <= before
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [True, False])
def test_graphs_of_the_gpu_do_what_the_step_does(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(repeated.SWITCH, str(int(graphs)))
    kernel = torch.rand(500, 600, dtype=torch.float64) + 0.1
    for one, other in zip(course(kernel.cuda(), WEIGHTS), course(kernel, WEIGHTS), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=0)
