"""What every public call shares: other packages' words for its arguments are refused with ours, its surroundings do not
reach it, and memory that cannot be had is a `MemoryError` that says what to do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar, cast

from torchgw import validate
from torchgw.options import GROUPS, GWOptions
from torchgw.runtime.caller import allocating
from torchgw.runtime.keywords import places, refusal
from torchgw.runtime.surroundings import isolate
from torchgw.runtime.threads import own_threads

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
    **dict.fromkeys(("metric", "distance", "cost_fn"), "distances"),
    **dict.fromkeys(("seed", "rng", "random_seed"), "random_state"),
    **dict.fromkeys(("G0", "init_plan", "init_T", "T0"), "init"),
    **dict.fromkeys(("verbose", "progress"), "callback"),
    **dict.fromkeys(
        ("reg_m", "reg_marginals", "rho", "rho_x", "rho_y", "tau_a", "tau_b"), "marginals=Unbalanced(rho_x, rho_y)"
    ),
    "m": "marginals=Partial(mass)",
    "fused_penalty": "alpha",
    "loss_fun": "options=GWOptions(loss=...)",
    **dict.fromkeys(("max_iter", "maxiter", "numItermax", "n_iter", "n_iters", "max_iterations"), ITERATIONS),
    **dict.fromkeys(("tol", "stopThr", "threshold"), TOLERANCE),
    **dict.fromkeys(("k", "n_neighbors"), NEIGHBOURS),
    "rank": "options=GWOptions(strategy='low-rank', low_rank=LowRankOptions(rank=...))",
}
ADVICE = (
    "torchgw.estimate(N, K) says what each strategy takes: pass points or a graph with distances='landmark' instead of "
    "matrices, take GWOptions(strategy='streaming') where the problem allows it, or fewer points"
)
OF_MANY = {
    **{word: ours for word, ours in OURS.items() if ours in ("distances", "random_state", "callback", NEIGHBOURS)},
    **dict.fromkeys(("Cs", "Ds", "Xs", "graphs", "matrices"), "spaces"),
    **dict.fromkeys(("a", "p", "ps", "mu", "weights"), "masses"),
    **dict.fromkeys(("num_processes", "n_workers"), "n_jobs"),
}
ADVICE_ON_MANY = "give fewer or smaller spaces (four N x N matrices are kept of each), or a smaller n_jobs"
PLACES = places(GWOptions, "options=")


def entry(
    words: Mapping[str, str] = OURS, advice: str = ADVICE, passes_to: Callable[..., object] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator that gives a function what public calls share; signature and documentation stay its own.

    Parameters
    ----------
    words : other packages' words for arguments, and ours; those whose answer is an argument of the function are given.
    advice : what to do when memory ends.
    passes_to : the function whose arguments it takes too.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        each = [inspect.signature(given).parameters for given in (function, passes_to) if given]
        positional = [n for n, p in each[0].items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        bound = positional[:1] == ["self"]
        known = {name for one in each for name, parameter in one.items() if parameter.kind is not parameter.VAR_KEYWORD}
        masses = "; masses are p= and q=" if {"p", "q"} <= known else ""
        name = function.__qualname__.removesuffix(".__init__")
        given_here = {word: ours for word, ours in {**PLACES, **words}.items() if ours.partition("=")[0] in known}
        answers = given_here | {word: word for word in known}

        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            for word in filter(lambda word: word not in known, keywords):
                raise TypeError(refusal(name, word, answers))
            if len(arguments) > len(positional):
                taken = f"{name} takes {', '.join(positional[bound:]) or 'nothing'} by position"
                raise TypeError(f"{taken}, got {len(arguments) - bound} arguments; all others go by name{masses}")
            own_threads()  # before another thread's solve sets the number of those that begin
            with allocating(name, advice):
                return function(*arguments, **keywords)

        return isolate(call, refusing=name)

    return decorate


def check_options(options: object) -> GWOptions:
    """`GWOptions`, the defaults for None; one of their groups is answered with the place that it has in them."""
    if options is None:
        return GWOptions()
    example = PLACES[next((name for name, group in GROUPS.items() if isinstance(options, group)), "sampling")]
    validate.instance("options", options, GWOptions, f"; for example {example}")
    return cast(GWOptions, options)
