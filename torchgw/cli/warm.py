"""``torchgw warm``: compile the kernels that solves on a GPU use, so that first calls find them on disk."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from itertools import chain
from typing import Any

import torch

from torchgw import datasets, validate
from torchgw.align import gw_align
from torchgw.kernels import softmin_dense
from torchgw.kernels.compilations import COMPILED, FOLDER
from torchgw.kernels.dispatch import Workload
from torchgw.options import GWOptions

# Of each strategy a size whose rows begin at multiples of 16 numbers, and one whose rows do not; and all points of a
# space as landmarks.
CASES = (
    (400, 512, "dense"),
    (401, 499, "dense"),
    (1000, 1000, "dense"),
    (5000, 6000, "streaming"),
    (5001, 6003, "streaming"),
)


def run_warm(arguments: argparse.Namespace) -> dict[str, Any] | str:
    """Solve these cases side by side; say how many kernels that has compiled, and how long it took."""
    if validate.kind_of_device("device", arguments.device).type != "cuda":
        raise ValueError(f"device must be a GPU, got {arguments.device!r}: nothing is compiled ahead for a CPU")
    if why := validate.no_gpu():
        raise ValueError(f"kernels are compiled on a machine with the GPU that they are for: {why}")
    device = validate.device("device", arguments.device)
    softmin_dense.choose("triton", Workload(device, torch.float32, (8, 8)))  # refused, with the reason, if none can run
    began = time.perf_counter()
    names = dict(chain.from_iterable(each.items() for each in compile_cases(str(device))))
    taken = time.perf_counter() - began
    folder = os.environ.get(FOLDER, "~/.triton/cache")
    if arguments.json:
        return {"device": str(device), "compiled": sorted(names.values()), "seconds": taken, "folder": folder}
    return f"compiled {len(names)} kernels for {device} in {taken:.1f} s; later processes find them in {folder}"


def compile_cases(device: str) -> list[dict[str, str]]:
    """What each case has compiled, in a process of its own."""
    from joblib import Parallel, delayed

    found: list[dict[str, str]] = Parallel(n_jobs=len(CASES))(
        delayed(compile_new_kernels)(*case, device) for case in CASES
    )
    return found


def compile_new_kernels(n: int, k: int, strategy: str, device: str) -> dict[str, str]:
    """The kernels that a solve between so many points has compiled here, by what Triton tells them apart."""
    X, Y = datasets.make_spiral(n)[0], datasets.make_swiss_roll(k, random_state=1)[0]
    before, options = set(COMPILED), GWOptions(strategy=strategy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gw_align(X, Y, epsilon=1e-3, options=options, device=device, backend="triton", random_state=0).argmax()
    return {key: name for key, name in COMPILED.items() if key not in before}
