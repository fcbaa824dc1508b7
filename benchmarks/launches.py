"""What a solve asks of a GPU, counted on one that is not there: launches, graphs, waits, and copies between devices.

The solve runs on `tests.simulated_device` with its Triton kernels standing in, so its course is that of a CPU. Every
operation that computes is one launch, and so are the replay of a graph and a Triton kernel. The first solves of a size
launch what they do one by one and put it into graphs; what is counted is a later one. Copies in either direction are
waits, but for numbers that are read, and tensors that are sent, behind other work.
The last column is a forecast, not a measurement: the host's time for launches and waits alone, at the microseconds
below, which a GPU's work can only add to.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from benchmarks.common import show, write
from tests.simulated_device import Simulation, simulated_gpu
from tests.simulated_kernels import triton_stands_in
from torchgw import GWOptions, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll

Row = dict[str, Any]
LAUNCH, WAIT = 50e-3, 20e-3  # ms of the host, as an H100 and an H200 took for all that is around a launch
BEFORE = 2  # solves until all graphs of a size are there
INPUT = ("request/", "spaces/device_neighbours.py", "results/result.py")


class Case(NamedTuple):
    """A spiral and a roll.

    n, k : their points.
    strategy : how they are solved.
    launches, waits : at most.
    """

    n: int
    k: int
    strategy: str
    launches: int
    waits: int


CASES = (Case(400, 500, "dense", 350, 10), Case(4000, 5000, "dense", 500, 10), Case(5000, 6000, "streaming", 900, 30))


def counted(case: Case, before: int = BEFORE) -> Simulation:
    """The counts of one solve at epsilon 1e-3, from points to its result, after others of the same size."""
    X, Y = make_spiral(case.n)[0], make_swiss_roll(case.k, random_state=1)[0]
    with simulated_gpu() as simulation, triton_stands_in(simulation), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = GWOptions(strategy=case.strategy)
        for _ in range(1 + before):
            simulation.reset()
            gw_align(X, Y, epsilon=1e-3, device="cuda", backend="triton", random_state=0, options=options)
    return simulation


def largest_crossing(simulation: Simulation) -> int:
    """The most entries that a copy took from one device to the other, but of what was given: points and their
    masses."""
    return max(most for place, most in simulation.crossings.items() if not place.startswith(INPUT))


def row(case: Case) -> Row:
    """The counts of a case, against what is asked of it."""
    found = counted(case)
    launches, captured, waits = found.n_launches, found.captured.total(), found.n_waits
    return {
        "case": f"{case.n} x {case.k}, {case.strategy}",
        "launches": launches,
        "new in graphs": captured,
        "waits": waits,
        "reads behind work": found.reads.total(),
        "largest copy": largest_crossing(found),
        "required": f"launches <= {case.launches}, waits <= {case.waits}",
        "met": launches <= case.launches and waits <= case.waits,
        "forecast ms": launches * LAUNCH + waits * WAIT,
    }


def run() -> None:
    """Count, print, store."""
    rows = [row(case) for case in CASES]
    show(rows)
    write("launches", rows)
