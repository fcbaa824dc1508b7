"""A solve does not let torch round the inputs of its products, and leaves the process's settings as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.problems import ROLL, SPIRAL
from torchgw import gw_align, gw_pairwise
from torchgw.kernels.products import exact_products

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


def test_solves_are_exact() -> None:
    torch.set_float32_matmul_precision("medium")
    seen: list[bool] = []
    gw_align(SPIRAL, ROLL, distances="euclidean", epsilon=0.05, callback=lambda _: seen.append(exact()), random_state=0)
    gw_pairwise([SPIRAL[::9], ROLL[::9]], callback=lambda _: seen.append(exact()), random_state=0)
    assert len(seen) > 2
    assert all(seen)
    assert torch.get_float32_matmul_precision() == "medium"
