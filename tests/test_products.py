"""Whole calls, reads and adjoint equations do not let torch round the inputs of their products, and leave the process's
settings as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.problems import ROLL, SPIRAL
from torchgw import EuclideanDistances, GWOptions, GWResult, Implicit, gw_align, gw_loss, gw_neighbours, gw_pairwise
from torchgw.couplings.tiled import TiledCoupling
from torchgw.gradients.adjoint import Adjoint
from torchgw.runtime.surroundings import exact_products

CUDA, CPU, EVERYTHING = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends
NEWER = hasattr(CUDA, "fp32_precision")


def old_words(value: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(value)


def new_words(where: Any, value: str) -> Callable[[], None]:
    return lambda: setattr(where, "fp32_precision", value)


def mixed() -> None:
    CUDA.allow_tf32 = True
    CPU.fp32_precision = "tf32"
    CUDA.fp32_precision = "ieee"


SETTINGS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "high": old_words("high"),
    "medium": old_words("medium"),
    "allow_tf32": lambda: setattr(CUDA, "allow_tf32", True),
}
if NEWER:
    SETTINGS |= {
        "tf32": new_words(CUDA, "tf32"),
        "tf32 of everything": new_words(EVERYTHING, "tf32"),
        "bf16 on CPUs": new_words(CPU, "bf16"),
        "a mixture": mixed,
    }


def said(reader: Callable[[], object]) -> object:
    try:
        return reader()
    except RuntimeError:
        return "refused"


def read() -> list[object]:
    """All that torch says of the settings, or that it refuses to."""
    readers = [torch.get_float32_matmul_precision, lambda: CUDA.allow_tf32]
    if NEWER:
        readers += [lambda where=where: where.fp32_precision for where in (CUDA, CPU, EVERYTHING)]
    return [said(reader) for reader in readers]


def exact() -> bool:
    if NEWER:
        return CUDA.fp32_precision in ("ieee", "none") and CPU.fp32_precision in ("ieee", "none")
    return torch.get_float32_matmul_precision() == "highest"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    if NEWER:
        for where in (EVERYTHING, CUDA, CPU):
            where.fp32_precision = "none"


@pytest.mark.parametrize("name", SETTINGS)
def test_products_are_exact_within_and_the_settings_are_back_after_it_or_an_error(name: str) -> None:
    SETTINGS[name]()
    before = read()
    with exact_products():
        assert exact()
        with exact_products():
            assert exact()
        assert exact()
    assert read() == before
    with pytest.raises(ZeroDivisionError), exact_products():
        raise ZeroDivisionError
    assert read() == before


@pytest.mark.skipif(not NEWER, reason="torch 2.9 and later have parents of settings")
def test_what_followed_its_parent_follows_it_again() -> None:
    EVERYTHING.fp32_precision = "tf32"
    with exact_products():
        pass
    EVERYTHING.fp32_precision = "ieee"
    assert CUDA.fp32_precision == CPU.fp32_precision == "ieee"


def test_the_last_of_several_threads_restores() -> None:
    torch.set_float32_matmul_precision("high")
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with exact_products():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=work)
    with exact_products():
        thread.start()
        assert inside.wait(10)
    assert exact()
    leave.set()
    thread.join()
    assert torch.get_float32_matmul_precision() == "high"


class Products(TorchDispatchMode):
    """Whether each product of float32 matrices was exact."""

    def __init__(self) -> None:
        super().__init__()
        self.exact: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        multiplied = func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv")
        if multiplied and args[-1].dtype == torch.float32:
            self.exact.append(exact())
        return func(*args, **(kwargs or {}))


def products_of(call: Callable[[], object]) -> list[bool]:
    """Whether those of a call are exact where the process allows others."""
    torch.set_float32_matmul_precision("medium")
    with Products() as products:
        call()
    assert torch.get_float32_matmul_precision() == "medium"
    return products.exact


SMALL: dict[str, Any] = {"distances": "euclidean", "epsilon": 0.05, "init": [[0, 0], [9, 9]], "random_state": 0}
SMALL["backend"] = "eager"  # whose products are seen
CLOUDS = SPIRAL[::9], ROLL[::9]
CALLS: dict[str, Callable[[], object]] = {
    "gw_align": lambda: gw_align(*CLOUDS, **SMALL),
    "gw_neighbours": lambda: gw_neighbours([*CLOUDS, SPIRAL[::11]], 1, queries=[0], random_state=0, n_jobs=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_exact_from_beginning_to_end(name: str) -> None:
    found = products_of(CALLS[name])
    assert found
    assert all(found)


@pytest.fixture(scope="module")
def streamed() -> GWResult:
    """A plan with float32 factors, as those of large solves are."""
    options = GWOptions(strategy="streaming", coarse=None)
    found = gw_align(SPIRAL, ROLL, **{**SMALL, "distances": "landmark"}, options=options)
    assert isinstance(found.coupling, TiledCoupling)
    held = found.coupling.tensors()
    return replace(found, coupling=TiledCoupling.of(held | {name: held[name].float() for name in "AB"}))


READS: dict[str, Callable[[GWResult], object]] = {
    "push": lambda result: result.push(SPIRAL),
    "pull": lambda result: result.pull(ROLL),
    "marginal": lambda result: result.marginal(0),
    "sparsify": lambda result: result.sparsify(0.5),
}


@pytest.mark.parametrize("name", READS)
def test_reads_of_a_streamed_plan_are_exact(name: str, streamed: GWResult) -> None:
    found = products_of(lambda: READS[name](streamed))
    assert found
    assert all(found)


def spaces() -> tuple[EuclideanDistances, EuclideanDistances]:
    x, y = (torch.tensor(side, dtype=torch.float32).requires_grad_() for side in CLOUDS)
    return EuclideanDistances(x, squared=True), EuclideanDistances(y, squared=True)


GIVEN: dict[str, Any] = {name: given for name, given in SMALL.items() if name != "distances"}


def test_losses_and_plans_of_float32_are_exact() -> None:
    found = gw_align(*spaces(), **GIVEN, gradient_mode=Implicit())
    assert found.plan.dtype == torch.float32
    assert all(products_of(lambda: gw_loss(*spaces(), **GIVEN, gradient_mode=Implicit())))
    read = products_of(lambda: (found.loss, found.push(SPIRAL[::9])))
    assert read
    assert all(read)


def test_the_equations_of_implicit_gradients_are_solved_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    found, solve, seen = gw_align(*spaces(), **GIVEN, gradient_mode=Implicit()), Adjoint.solve, list[bool]()

    def watched(self: Adjoint, G: Any) -> Any:
        with Products() as products:
            answer = solve(self, G)
        seen.extend(products.exact)
        return answer

    monkeypatch.setattr(Adjoint, "solve", watched)
    torch.set_float32_matmul_precision("medium")
    found.plan[0, 0].backward()
    assert torch.get_float32_matmul_precision() == "medium"
    assert seen
    assert all(seen)


def test_solves_are_exact() -> None:
    torch.set_float32_matmul_precision("medium")
    seen: list[bool] = []
    gw_align(SPIRAL, ROLL, distances="euclidean", epsilon=0.05, callback=lambda _: seen.append(exact()), random_state=0)
    gw_pairwise([SPIRAL[::9], ROLL[::9]], callback=lambda _: seen.append(exact()), random_state=0)
    assert len(seen) > 2
    assert all(seen)
    assert torch.get_float32_matmul_precision() == "medium"
