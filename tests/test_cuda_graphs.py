"""Functions that are called again and again: as they are, and from a graph."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.problems import quietly
from tests.simulated_device import Graph, Simulation, simulated_gpu
from torchgw import GWOptions, SeparableLoss, Unbalanced, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll
from torchgw.runtime import cuda_graphs as module
from torchgw.runtime import scratch as scratch_module
from torchgw.runtime.cuda_graphs import as_cuda_graph
from torchgw.runtime.records import flatten, unflatten
from torchgw.runtime.scratch import scratch, scratches
from torchgw.runtime.transfer import to_device
from torchgw.sinkhorn.costs import FactoredCost


class State(NamedTuple):
    """Scalings ``u`` (5,) and ``v`` (6,), and the ``weight`` of the last step."""

    u: Tensor
    v: Tensor
    weight: float = 1.0


@as_cuda_graph("out")
def step(kernel: Tensor, state: State, weight: float, out: Tensor) -> tuple[State, Tensor, Tensor]:
    """Some iterations; what was given comes back as it was, and the sums are added to ``out`` (2,)."""
    u, v, _ = state
    for _ in range(3):
        v = (1 / (u @ kernel)) ** weight
        u = 1 / (kernel @ v)
    out += torch.stack((u.sum(), v.sum()))
    return State(u, v, weight), kernel, out


WEIGHTS = [0.9, 0.9, 0.9, 0.7, 0.7, 0.9, 0.7, 0.7]


def course(kernel: Tensor) -> list[Tensor]:
    """Everything that is seen on the way."""
    found, out = list[Tensor](), kernel.new_zeros(2)
    state = State(kernel.new_ones(kernel.shape[0]), kernel.new_ones(kernel.shape[1]))
    for weight in WEIGHTS:
        before = [each.clone() for each in state[:2]]
        after, same, added = step(kernel, state, weight, out)
        assert same is kernel
        assert added is out
        assert after.weight == weight
        assert all(torch.equal(one, other) for one, other in zip(state[:2], before, strict=True))
        found += [each.cpu().clone() for each in (*after[:2], out)]
        state = after
    return found


def fresh(patch: pytest.MonkeyPatch) -> None:
    """No graphs yet."""
    patch.setattr(module, "_HERE", threading.local())
    module._failure.cache_clear()


def replays(simulation: Simulation) -> int:
    return sum(count for place, count in simulation.launches.items() if place.endswith("graph"))


def test_replays_do_what_the_function_does(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    kernel = torch.rand(5, 6, dtype=torch.float64) + 0.1
    with simulated_gpu() as simulation:
        found = course(kernel.cuda())
        first = replays(simulation)
        again = course(kernel.cuda())  # as another solve does, in memory of its own
    for one, other, third in zip(found, course(kernel), again, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
    assert first == 3  # of the weights before and after, five pairs are new
    assert replays(simulation) == first + len(WEIGHTS)


@pytest.mark.parametrize("copied", [0, 2**23])
def test_what_is_large_is_read_where_it_is(copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    monkeypatch.setattr(module, "COPIED", copied)
    kernel = torch.rand(5, 6, dtype=torch.float64) + 0.1
    with simulated_gpu() as simulation:
        one = kernel.cuda()
        held = State(kernel.new_ones(5).cuda(), kernel.new_ones(6).cuda())
        out = kernel.new_zeros(2).cuda()
        for _ in range(3):
            step(one, held, 0.9, out)
        assert replays(simulation) == 2
        step(one.clone(), held, 0.9, out)
        assert replays(simulation) == (2 if copied == 0 else 3)
        one.mul_(2.0)
        found = step(one, held, 0.9, out)[0].u.cpu()
    expected = step(2 * kernel, State(kernel.new_ones(5), kernel.new_ones(6)), 0.9, kernel.new_zeros(2))[0]
    assert torch.equal(found, expected.u)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.T.contiguous().T,
        lambda x: torch.nn.functional.pad(x, (0, 3))[:, :-3],
        lambda x: x[:1].expand(4, 4),
        lambda x: x.bool(),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: x.half(),
    ],
)
def test_every_kind_of_tensor_comes_through(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh(monkeypatch)

    @as_cuda_graph()
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten() if x.dtype == torch.bool else 2 * x, x

    x = change(torch.rand(4, 4))
    with simulated_gpu() as simulation:
        given = change(torch.rand(4, 4).cuda())
        for _ in range(3):
            given = given.clone(memory_format=torch.preserve_format) if given.stride() != (0, 1) else given
            found, same = twice(given)
            assert same is given
            expected = given.cpu().flatten() if x.dtype == torch.bool else 2 * given.cpu()
            assert torch.equal(found.cpu(), expected)
            assert found.stride() == expected.stride() or found.numel() == 0
        assert replays(simulation) == 2


def test_graphs_are_told_apart_by_all_that_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)

    @as_cuda_graph()
    def times(x: Tensor, factor: object, **more: object) -> Tensor:
        return x * factor if isinstance(factor, float) else x

    with simulated_gpu() as simulation:
        x = torch.ones(3).cuda()
        for factor in (1, 1.0, True, 0.0, -0.0, "1", None, (1,), [1], {"a": 1}, torch.float32, partial(torch.add, x)):
            times(x, factor)
        times(x, float("nan"), by=2)
        assert replays(simulation) == 0
        times(x, float("nan"), by=2)
        assert replays(simulation) == 1
        times(torch.ones(4).cuda(), 1)
        times(x.double(), 1)
        assert replays(simulation) == 1


def test_a_function_within_another_is_part_of_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)

    @as_cuda_graph()
    def inner(x: Tensor) -> Tensor:
        return x + 1

    @as_cuda_graph()
    def outer(x: Tensor) -> Tensor:
        return inner(inner(x)) * 2

    with simulated_gpu() as simulation:
        for _ in range(3):
            before = simulation.n_launches
            found = outer(torch.ones(3).cuda()).cpu()
        assert simulation.n_launches - before <= 4  # what is given, the graph, what it made
    assert torch.equal(found, torch.full((3,), 6.0))


def waits(x: Tensor) -> Tensor:
    return x / float(x.sum())


def sends(x: Tensor) -> Tensor:
    return x + to_device(torch.ones(3), x.device)


@pytest.mark.parametrize("function", [waits, sends])
def test_what_cannot_be_captured_is_taken_as_it_is(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fresh(monkeypatch)
    call = as_cuda_graph()(function)
    with simulated_gpu() as simulation, caplog.at_level("INFO", "torchgw"):
        for scale in (1.0, 2.0, 3.0):
            x = torch.full((3,), scale).cuda()
            assert torch.equal(call(x).cpu(), function(x.cpu()))
        assert replays(simulation) == 0
        assert len([record for record in caplog.records if "not permitted while a graph" in record.getMessage()]) == 1
        other = as_cuda_graph()(lambda x: x.sqrt())  # which can be captured all the same
        for scale in (1.0, 4.0, 9.0):
            assert torch.equal(other(torch.full((3,), scale).cuda()).cpu(), torch.full((3,), scale**0.5))
        assert replays(simulation) == 2


def test_a_function_has_graphs_for_few_places_of_a_large_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    monkeypatch.setattr(module, "COPIED", 40)
    double = as_cuda_graph()(lambda x: 2 * x[:2])
    with simulated_gpu() as simulation:
        held = [torch.full((40,), float(number)).cuda() for number in range(2 * module.PLACES)]
        for number, x in enumerate([*held, *held, *held]):
            assert torch.equal(double(x).cpu(), torch.full((2,), 2.0 * (number % len(held))))
    assert replays(simulation) == 2 * module.PLACES


def test_what_shares_memory_shares_little(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    add = as_cuda_graph()(lambda x: x + 1)
    with simulated_gpu() as simulation:
        before = simulation.memory.now
        for size in [*range(100, 1000, 10)] * 2:
            assert torch.equal(add(torch.ones(size).cuda()).cpu(), torch.full((size,), 2.0))
        assert replays(simulation) == 90
        gc.collect()
        assert simulation.memory.now - before <= 4 * 2 * (990 * 4 + 2 * module.ALIGNED)


def test_inference_leaves_no_memory_that_others_cannot_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    add = as_cuda_graph()(lambda x: x + 1)
    with simulated_gpu() as simulation:
        with torch.inference_mode():
            for _ in range(3):
                add(torch.ones(5).cuda())
        assert replays(simulation) == 0
        for _ in range(3):
            assert torch.equal(add(torch.ones(5).cuda()).cpu(), torch.full((5,), 2.0))
        assert replays(simulation) == 2


def test_a_function_that_fails_fails_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    broken = [True, True, False]

    @as_cuda_graph()
    def fails(x: Tensor) -> Tensor:
        if broken.pop():
            raise MemoryError
        return x + 1

    with simulated_gpu() as simulation:
        x = torch.ones(3).cuda()
        fails(x)
        with pytest.raises(MemoryError):  # when it is captured, and as it is
            fails(x)
        assert replays(simulation) == 0


class Other:
    """An object of which nobody knows what it does."""

    def rows(self, x: Tensor) -> Tensor:
        return x


@dataclass
class Scale:
    """A record of another package, whose attributes are not all fields."""

    offset: float
    power = 1.0

    def rows(self, x: Tensor) -> Tensor:
        return x**self.power + self.offset


FACTOR = {"now": 1.0}


def test_records_and_functions_of_others_are_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    call = as_cuda_graph()(lambda given, x: given.rows(x) if isinstance(given, Scale) else given(x))
    scale = Scale(1.0)
    scale.power = 2.0
    with simulated_gpu() as simulation:
        for factor in (1.0, 1.0, 1.0, 3.0):
            FACTOR["now"] = factor
            assert torch.equal(call(lambda x: FACTOR["now"] * x, torch.ones(3).cuda()).cpu(), torch.full((3,), factor))
            assert torch.equal(call(scale, torch.full((3,), 2.0).cuda()).cpu(), torch.full((3,), 5.0))
    assert replays(simulation) == 0


def test_a_loss_that_reads_what_changes_is_asked_in_each_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 3)), rng.normal(size=(23, 3))

    def power(a: Tensor) -> Tensor:
        return a ** (2 * FACTOR["now"])

    loss = SeparableLoss(power, power, lambda a: a ** FACTOR["now"], lambda b: 2 * b ** FACTOR["now"])
    given = {"epsilon": 2e-2, "options": GWOptions(loss=loss), "marginals": Unbalanced(0.1, 0.1), "random_state": 0}
    with simulated_gpu():
        for factor in (1.0, 1.0, 1.0, 1.5):
            FACTOR["now"] = factor
            found = [quietly(gw_align, X, Y, device=device, **given) for device in ("cpu", "cuda")]
            assert found[0].value == pytest.approx(found[1].value, rel=1e-6)
            assert found[0].gain == pytest.approx(found[1].gain, rel=1e-6)


def test_objects_of_others_and_what_is_differentiated_have_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)

    @as_cuda_graph()
    def rows(space: Other | None, x: Tensor) -> Tensor:
        return x * 2 if space is None else space.rows(x)

    with simulated_gpu() as simulation:
        for _ in range(3):
            rows(Other(), torch.ones(3).cuda())
            rows(None, torch.ones(3).cuda().requires_grad_())
            rows(None, torch.ones(3))
        assert replays(simulation) == 0


def test_graphs_that_were_not_used_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    monkeypatch.setattr(module, "MOST", 4)

    @as_cuda_graph()
    def times(x: Tensor, factor: float) -> Tensor:
        return x * factor

    with simulated_gpu() as simulation:
        x = torch.ones(3).cuda()
        for factor in (1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
            times(x, factor)
        assert replays(simulation) == 1
        times(x, 1.0)
        assert replays(simulation) == 1  # anew
        assert len(module._GraphCache.current(x.device).kept) <= 4


def test_records_come_back_as_they_were() -> None:
    cost = FactoredCost(*(torch.rand(size) for size in (3, 4)), *(torch.rand(size, 2) for size in (3, 4)))
    given = {"cost": cost, "pair": (cost.a, [1, None]), "state": State(cost.a, cost.b)}
    tensors, tree = flatten(given)
    assert len(tensors) == 4
    hash(tree)
    again = unflatten(tree, tensors)
    assert again["cost"] == cost
    assert again["pair"][0] is again["state"].u is cost.a
    assert again["state"].weight == 1.0
    with pytest.raises(TypeError, match="Other is no record"):
        flatten((Other(), cost))


def test_memory_is_lent_again_when_the_last_view_of_it_is_gone() -> None:
    with simulated_gpu():
        device = torch.device("cuda", 0)
        one = scratch(5, 6, dtype=torch.float32, device=device)
        place, view = one.data_ptr(), one.T[1:]
        del one
        assert scratch(5, 6, dtype=torch.float32, device=device).data_ptr() != place
        del view
        assert scratch(60, 50, dtype=torch.float32, device=device).data_ptr() != place
        lent = [scratch(5, 6, dtype=torch.float32, device=device) for _ in range(2)]
        assert place in [each.data_ptr() for each in lent]
        assert len({each.data_ptr() for each in lent}) == 2
    assert scratch(2, dtype=torch.float32, device=torch.device("cpu")).shape == (2,)


def test_two_tensors_of_float32_take_the_memory_of_one_of_float64() -> None:
    with simulated_gpu():
        device = torch.device("cuda", 0)
        wide = scratch(5, 7, dtype=torch.float64, device=device)
        place = wide.data_ptr()
        del wide
        one, other = scratches(2, 5, 7, dtype=torch.float32, device=device)
        assert one.data_ptr() == place
        assert (other.data_ptr() - place) % 16 == 0
        one.fill_(1)
        other.fill_(2)
        assert (one.sum().item(), other.sum().item()) == (35, 70)
        del one
        assert scratch(5, 7, dtype=torch.float64, device=device).data_ptr() != place


def test_more_memory_than_its_share_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_module, "_HERE", threading.local())
    monkeypatch.setattr(scratch_module, "SHARE", 5000 / 2**37)
    with simulated_gpu() as simulation:
        before, device = simulation.memory.now, torch.device("cuda", 0)
        small = scratch(64, dtype=torch.float64, device=device)
        del small
        small = scratch(64, dtype=torch.float64, device=device)
        large = [scratch(256, dtype=torch.float64, device=device) for _ in range(3)]
        del large
        assert simulation.memory.now == before + 512 + 2 * 2048
        del small
        gc.collect()
        assert simulation.memory.now == before + 512 + 2 * 2048


@pytest.mark.parametrize("other", ["detach", "view"])
def test_no_later_solve_overwrites_a_plan_that_is_held(other: str) -> None:
    rng = np.random.default_rng(0)
    given = {"epsilon": 1e-2, "device": "cuda", "random_state": 0}
    with simulated_gpu():
        found = quietly(gw_align, *(rng.normal(size=(size, 3)) for size in (20, 23)), **given).coupling.to_dense()
        before = found.cpu().clone()
        held = found.detach() if other == "detach" else found[1:]
        del found
        for _ in range(3):
            quietly(gw_align, *(rng.normal(size=(size, 3)) for size in (20, 23)), **given)
        expected = before if other == "detach" else before[1:]
        assert torch.equal(held.cpu(), expected)


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
def test_where_graphs_cannot_be_captured_functions_are_taken_as_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arrange, reason = SURROUNDINGS[name]
    kernel = torch.rand(5, 6, dtype=torch.float64) + 0.1
    fresh(monkeypatch)
    with simulated_gpu() as simulation, caplog.at_level("INFO", "torchgw"):
        arrange(monkeypatch)
        found = course(kernel.cuda())
        course(kernel.cuda())
        assert module.reason_not_to_capture(torch.device("cuda", 0)) == reason
    module._failure.cache_clear()
    for one, other in zip(found, course(kernel), strict=True):
        assert torch.equal(one, other)
    assert replays(simulation) == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (name != "the switch")  # which its user knows of
    assert all(f"no CUDA graphs on cuda:0: {reason}; every step" in line for line in said)


def test_a_full_device_is_no_reason_against_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    fresh(monkeypatch)
    with simulated_gpu():
        monkeypatch.setattr(Graph, "capture_begin", full)
        with pytest.raises(torch.OutOfMemoryError):
            module.reason_not_to_capture(torch.device("cuda", 0))
        monkeypatch.undo()
    with simulated_gpu():
        assert module.reason_not_to_capture(torch.device("cuda", 0)) is None


def test_one_capture_at_a_time_and_no_garbage_is_collected_within() -> None:
    began, ended = threading.Event(), threading.Event()

    def captures() -> None:
        began.set()
        with module._capturing(torch.cuda.CUDAGraph(), (0, -2)):
            ended.set()

    with simulated_gpu() as simulation, ThreadPoolExecutor() as pool:
        with module._capturing(torch.cuda.CUDAGraph(), (0, -1)):
            assert not gc.isenabled()
            other = pool.submit(captures)
            assert began.wait(60)
            assert not ended.wait(0.05)
            assert simulation.pools == {(0, -1)}
        other.result()
        assert ended.is_set()
        assert gc.isenabled()


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
def test_graphs_of_the_gpu_do_what_the_function_does(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.SWITCH, str(int(graphs)))
    kernel = torch.rand(500, 600, dtype=torch.float64) + 0.1
    for one, other in zip(course(kernel.cuda()), course(kernel), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=0)


def test_what_is_kept_is_given_up_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    monkeypatch.setattr(scratch_module, "_HERE", threading.local())
    with simulated_gpu() as simulation:
        before = simulation.memory.now
        for _ in range(2):
            course(torch.rand(5, 6, dtype=torch.float64).cuda())
        lent = scratch(50, 60, dtype=torch.float32, device=torch.device("cuda", 0))
        del lent
        gc.collect()
        assert simulation.memory.now >= before + 50 * 60 * 4
        module.forget()
        scratch_module.forget()
        gc.collect()
        assert simulation.memory.now == before
