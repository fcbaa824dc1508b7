"""The driver of every outer loop: what a loop leaves behind, how it ends, and that it goes on from any state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.checkpoint_cases import CASES, align, assert_same
from torchgw import GWOptions, Implicit, LadderOptions, Progress, Status, StoppingOptions
from torchgw.diagnostics.status import History
from torchgw.persist.codec import STORABLE, decode, encode
from torchgw.persist.watch import Watch
from torchgw.request import request
from torchgw.solvers.iterate import Check, Loop, State, iterate


@dataclass(frozen=True, kw_only=True)
class Halving(State):
    """x halves at each step."""

    x: float = 1.0


def halve(state: Halving) -> tuple[Halving, Check, Status | None]:
    state = replace(state, n_iter=state.n_iter + 1, x=state.x / 2)
    return state, Check(state.x, 2 * state.x, 0.1), Status.SETTLED if state.x <= 1 / 8 else None


class Kept:
    """A journal in memory, for one loop."""

    def __init__(self, found: Any = None) -> None:
        self.found, self.offered = found, []  # type: ignore[var-annotated]

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        yield

    def stage(self, name: str, compute: Any, keep: Any) -> Any:
        return compute()

    def last_state(self) -> Any:
        return self.found

    def store_state_if_due(self, state: Any, now: bool) -> None:
        self.offered.append((state[0], list(state[1].cost), now))


def test_every_check_is_in_the_history_and_the_callback_hears_it() -> None:
    told: list[Progress] = []
    history = History()
    state, status = iterate(Halving, halve, Halving, Loop(Watch(told.append), history, 10))
    assert (state.x, state.n_iter, status) == (1 / 8, 3, Status.SETTLED)
    assert history.iteration == [1, 2, 3]
    assert history.cost == [1 / 2, 1 / 4, 1 / 8]
    assert history.marginal_error == [1, 1 / 2, 1 / 4]
    assert history.epsilon == [0.1] * 3
    assert history.elapsed == sorted(history.elapsed)
    assert [(each.iteration, each.max_iter, each.cost) for each in told] == [(i, 10, 2**-i) for i in (1, 2, 3)]


def test_a_loop_ends_at_its_limit_and_counts_on_from_earlier_ones() -> None:
    told: list[Progress] = []
    history = History()
    assert iterate(Halving, halve, Halving, Loop(Watch(), history, 2))[1] is Status.MAX_ITER
    state, status = iterate(Halving, halve, lambda: Halving(x=4.0), Loop(Watch(told.append), history, 2))
    assert (state.x, state.n_iter, status) == (1.0, 2, Status.MAX_ITER)
    assert history.iteration == [1, 2, 3, 4]
    assert [each.max_iter for each in told] == [4, 4]
    iterate(Halving, halve, Halving, Loop(Watch(told.append), history, 1), limit=7)
    assert told[-1].max_iter == 7
    iterate(Halving, halve, Halving, Loop(Watch(told.append), history, 3), limit=7)
    assert (told[-1].iteration, told[-1].max_iter) == (8, 8)
    assert iterate(Halving, halve, Halving, Loop(Watch(), History(), 0)) == (Halving(), Status.MAX_ITER)


def test_a_loop_without_a_limit_ends_by_itself() -> None:
    told: list[Progress] = []
    state, status = iterate(Halving, halve, Halving, Loop(Watch(told.append), History(), None))
    assert (state.n_iter, status) == (3, Status.SETTLED)
    assert all(each.iteration <= each.max_iter for each in told)


def test_a_step_between_checks_leaves_no_entry() -> None:
    def now_and_then(state: Halving) -> tuple[Halving, Check | None, Status | None]:
        state, check, _ = halve(state)
        return state, check if state.n_iter % 3 == 0 else None, None

    history = History()
    iterate(Halving, now_and_then, Halving, Loop(Watch(), history, 7))
    assert history.iteration == [3, 6]


def test_a_cancelled_loop_returns_its_last_state_and_stores_it_once() -> None:
    kept = Kept()
    watch = Watch(lambda told: told.iteration == 2, kept)
    state, status = iterate(Halving, halve, Halving, Loop(watch, History(), 10))
    assert (state.n_iter, status) == (2, Status.CANCELLED)
    assert kept.offered == [(Halving(n_iter=1, x=1 / 2), [1 / 2], False), (state, [1 / 2, 1 / 4], True)]


def test_a_loop_that_is_cancelled_before_it_begins_has_something_to_return() -> None:
    watch = Watch()
    watch.stop()
    state, status = iterate(Halving, halve, Halving, Loop(watch, History(), 10))
    assert (state.n_iter, status) == (1, Status.CANCELLED)


def test_a_loop_goes_on_from_what_was_kept_without_beginning_again() -> None:
    def begin() -> Halving:
        raise AssertionError("begun again")

    entries = History([1], [1 / 2], [1.0], [0.1], [5.0])
    history = History()
    state, status = iterate(
        Halving, halve, begin, Loop(Watch(None, Kept((Halving(n_iter=1, x=1 / 2), entries))), history, 10)
    )
    assert (state, status) == (Halving(n_iter=3, x=1 / 8), Status.SETTLED)
    assert history.iteration == [1, 2, 3]
    assert history.elapsed[0] == 5.0
    assert history.elapsed[1] >= 5.0


def test_a_loop_refuses_the_state_of_another_one() -> None:
    watch = Watch(None, Kept((State(n_iter=1), History())))
    with pytest.raises(TypeError, match="a stage has one loop, but a Halving found a State in it"):
        iterate(Halving, halve, Halving, Loop(watch, History(), 10))


FEW = StoppingOptions(max_iter=5)
LOOPS: dict[str, dict[str, Any]] = {
    "exact gradient": {"options": GWOptions(coarse=None, stopping=FEW)},
    "relaxed marginals": CASES["unbalanced"],
    "sampled gradient": CASES["averaged samples of matrices"],
    "fixed point": {"gradient_mode": Implicit(), "options": GWOptions(coarse=None, stopping=FEW)},
    "no entropy": {"epsilon": 0, "options": GWOptions(coarse=None)},
    "streaming": CASES["streaming"] | {"options": GWOptions(strategy="streaming", ladder=LadderOptions(n_cells=32))},
    "low rank": CASES["low rank"],
}


def same(one: Any, other: Any) -> bool:
    """Whether two encoded states agree in every bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_goes_on_to_the_same_bits_from_every_kind_of_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generators: list[torch.Generator] = []
    loops, numbers = 0, dict[int, int]()
    states: dict[type[State], tuple[int, Any, torch.Tensor]] = {}
    make, should_stop_after_storing, restored = (
        request.make_generator,
        Watch.should_stop_after_storing,
        Watch.last_state,
    )

    def making(*given: Any) -> torch.Generator:
        generators.append(make(*given))
        return generators[-1]

    def counting(watch: Watch) -> Any:
        nonlocal loops
        loops += 1
        numbers[id(sys._getframe(1))] = loops  # loops begin others in their steps
        return restored(watch)

    def keeping(watch: Watch, state: Any) -> bool:
        if state[0].n_iter > 0:  # the tensors of a state are written into by the next step
            number = numbers[id(sys._getframe(1))]
            states[type(state[0])] = number, torch.utils._pytree.tree_map(copied, encode(state)), copied(generators[-1])
        return should_stop_after_storing(watch, state)

    monkeypatch.setattr(request, "make_generator", making)
    monkeypatch.setattr(Watch, "last_state", counting)
    monkeypatch.setattr(Watch, "should_stop_after_storing", keeping)
    whole = align(LOOPS[name])
    monkeypatch.setattr(Watch, "should_stop_after_storing", should_stop_after_storing)
    assert states
    for kind, (number, kept, random) in states.items():
        assert STORABLE[f"{kind.__module__}.{kind.__qualname__}"] is kind
        assert same(encode(decode(kept)), kept)
        loops, again = 0, []

        def going_on(watch: Watch, number: int = number, kept: Any = kept, random: Any = random) -> Any:
            nonlocal loops
            loops += 1
            if loops != number:
                return None
            again.append(number)  # noqa: B023 - called within this round
            generators[-1].set_state(random)
            return decode(kept)

        monkeypatch.setattr(Watch, "last_state", going_on)
        assert_same(align(LOOPS[name]), whole)
        assert again == [number]


class Latest:
    """A journal in memory of the last state of each loop, by the names of the stages around it."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.states: dict[str, Any] = {}
        self.found: dict[str, Any] = {}

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        self.stages.append(name)
        yield
        self.stages.pop()

    def stage(self, name: str, compute: Any, keep: Any) -> Any:
        with self.within(name):
            return compute()

    def last_state(self) -> Any:
        found = self.found.get(".".join(self.stages))
        return None if found is None else decode(found)

    def store_state_if_due(self, state: Any, now: bool) -> None:
        self.states[".".join(self.stages)] = torch.utils._pytree.tree_map(copied, encode(state))


FIXED = {"dense": LOOPS["fixed point"], "streaming": LOOPS["streaming"] | {"gradient_mode": Implicit(tol=1e-8)}}


@pytest.mark.parametrize("strategy", FIXED)
def test_a_fixed_point_is_a_stage_with_one_loop(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, told = Latest(), list[Progress]()
    monkeypatch.setattr("torchgw.align.follow_solve", lambda *_: nullcontext(Watch(told.append, journal)))
    whole = align(FIXED[strategy])
    assert any(name.endswith("fixed-point") for name in journal.states)
    assert all(each.iteration <= each.max_iter for each in told)
    journal.found = journal.states
    assert_same(align(FIXED[strategy]), whole)


def copied(entry: Any) -> Any:
    if isinstance(entry, torch.Generator):
        return entry.get_state()
    return entry.clone() if isinstance(entry, torch.Tensor) else entry


def test_every_kind_of_state_is_one_that_files_can_hold() -> None:
    kinds, left = set(), [State]
    while left:
        for kind in left.pop().__subclasses__():
            left.append(kind)
            kinds.add(kind)
    found = {kind.__qualname__ for kind in kinds if kind.__module__.startswith("torchgw.")}
    assert {"EntropicState", "SampledState", "MirrorState", "DescentState", "MultilevelState"} <= found
    assert found <= {name.rpartition(".")[2] for name in STORABLE}
