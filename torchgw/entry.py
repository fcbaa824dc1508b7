"""What every public call shares: other packages' words for its arguments are refused with ours, and memory that cannot
be had is a `MemoryError` that says what to do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torchgw.allocation import allocating

P = ParamSpec("P")
R = TypeVar("R")

ITERATIONS = "options=GWOptions(stopping=StoppingOptions(max_iter=...))"
TOLERANCE = "options=GWOptions(sinkhorn=SinkhornOptions(tol=...))"
NEIGHBOURS = "options=GWOptions(spaces=SpaceOptions(k=...))"
OURS = {
    **dict.fromkeys(("C1", "D1", "C_X", "D_X", "Cx", "source", "geom_xx"), "X"),
    **dict.fromkeys(("C2", "D2", "C_Y", "D_Y", "Cy", "target", "geom_yy"), "Y"),
    **dict.fromkeys(("a", "mu", "ws"), "p"),
    **dict.fromkeys(("b", "nu", "wt"), "q"),
    **dict.fromkeys(("reg", "eps", "entropy", "entreg"), "epsilon"),
    **dict.fromkeys(("M", "C", "geom_xy", "features"), "cost"),
    **dict.fromkeys(("metric", "distance"), "distances"),
    **dict.fromkeys(("seed", "rng", "random_seed"), "random_state"),
    **dict.fromkeys(("G0", "init_plan", "T0"), "init"),
    **dict.fromkeys(("verbose", "log", "progress"), "callback"),
    **dict.fromkeys(("reg_marginals", "rho", "tau_a", "tau_b"), "marginals=Unbalanced(rho_x, rho_y)"),
    "m": "marginals=Partial(mass)",
    "fused_penalty": "alpha",
    **dict.fromkeys(("loss_fun", "loss"), "options=GWOptions(loss=...)"),
    **dict.fromkeys(("max_iter", "numItermax", "n_iter", "max_iterations"), ITERATIONS),
    **dict.fromkeys(("tol", "stopThr", "threshold"), TOLERANCE),
    **dict.fromkeys(("k", "n_neighbors"), NEIGHBOURS),
    "rank": "options=GWOptions(strategy='low-rank', low_rank=LowRankOptions(rank=...))",
}
ADVICE = (
    "torchgw.estimate(N, K) says what each strategy takes: pass points or a graph with distances='landmark' instead of "
    "matrices, take GWOptions(strategy='streaming') where the problem allows it, or fewer points"
)


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """The function with what public calls share; signature and documentation stay its own."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        for word in keywords:
            ours = OURS.get(word, "")
            if word not in known and ours.partition("=")[0] in known:
                raise TypeError(f"{function.__name__} has no argument {word!r}; here that is {ours}")
        with allocating(function.__name__, ADVICE):
            return function(*arguments, **keywords)

    return call
