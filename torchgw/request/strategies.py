"""What the strategies of a solve need to begin: kernels, factored distances, and another strategy where memory ends."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchgw.kernels import softmin_dense, softmin_stream, softmin_tiles
from torchgw.kernels.dispatch import Request, Selection
from torchgw.kernels.kernel import Kernel
from torchgw.kernels.precision import loop_dtype
from torchgw.options import GWOptions
from torchgw.persist.watch import Watch
from torchgw.runtime.caller import warn_caller
from torchgw.runtime.memory import out_of_memory
from torchgw.solvers.solution import CertifiedSolution
from torchgw.spaces.out_of_sample import Known
from torchgw.spaces.prepare import Graphs, Space
from torchgw.strategies.large_problem import Kernels
from torchgw.types import DistanceProvider, OutOfMemoryWarning, is_graph

EXPECTED_RANK = 32


def choose_kernels(
    strategy: str, backend: str, device: torch.device, shape: tuple[int, int], options: GWOptions
) -> tuple[Selection[Kernel], Kernels]:
    """The implementation to report, and those of every family that the strategy uses."""
    dtype, cells = loop_dtype(options.mixed_precision), min(options.ladder.n_cells, *shape)
    stored = softmin_dense.choose(backend, Request(device, dtype, shape if strategy == "dense" else (cells, cells)))
    streamed = softmin_stream.choose(backend, Request(device, dtype, shape, rank=EXPECTED_RANK))
    tiled = softmin_tiles.choose(backend, Request(device, dtype, shape, rank=EXPECTED_RANK))
    kernels = Kernels(stored.function, streamed.function, tiled.function)
    return stored if strategy == "dense" else streamed, kernels


def solved_where_it_fits(
    strategy: str,
    options: GWOptions,
    generator: torch.Generator,
    watch: Watch,
    solve: Callable[[str], CertifiedSolution],
) -> tuple[str, CertifiedSolution]:
    """The outcome of the strategy; of streaming where the device runs out of memory and the choice was ours.

    The second attempt begins with the generator as the first one found it. What the callback raises passes through.
    """
    state = generator.get_state()
    try:
        with watch.within(strategy):
            return strategy, solve(strategy)
    except (MemoryError, RuntimeError) as error:
        if options.strategy != "auto" or strategy == "streaming" or not out_of_memory(error):
            raise
        message = str(error).partition("\n")[0]
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what torch keeps for itself is missing to everyone else on the device
    warn_caller(
        f"the {strategy} strategy ran out of memory ({message}), so the streaming one runs instead; "
        f"GWOptions(strategy='streaming') takes it at once",
        OutOfMemoryWarning,
    )
    generator.set_state(state)
    with watch.within("streaming"):
        return "streaming", solve("streaming")


def passed_over(strategy: str, options: GWOptions) -> str:
    """Why the gradient was sampled although nothing stood against the exact one."""
    if options.gradient == "sampled":
        return "options.gradient is 'sampled'"
    return f"the {strategy} strategy has exact gradients of factored distances only"


def known_points(
    checked: list[Space], made: tuple[DistanceProvider, DistanceProvider], graphs: Graphs
) -> tuple[Known, Known]:
    """What the result keeps to place points that it has not seen."""
    x, y = (
        Known(
            space.to(torch.device("cpu"), torch.float64),
            None if kind in ("matrix", "provider") or is_graph(given) else given,
            report.k if report else 1,
        )
        for (_, given, kind), space, report in zip(checked, made, graphs, strict=True)
    )
    return x, y
