"""Runner of ott-jax, see runner.py, in float32. The warm-up is the compilation ahead of time for the real shapes."""

from typing import Any

import jax
import jax.numpy as jnp
from ott.geometry.geometry import Geometry
from ott.geometry.low_rank import LRCGeometry
from ott.solvers import quadratic
from runner import Call, Solve, factors, main


def entropic(DX: Any, DY: Any, **settings: Any) -> Any:
    """Entropic Gromov-Wasserstein between dense geometries."""
    return quadratic.solve(Geometry(cost_matrix=DX), Geometry(cost_matrix=DY), **settings).matrix


def low_rank(A: Any, B: Any, cost_rank: int, **settings: Any) -> Any:
    """Low-rank plan between distances that are given as factors of rank ``cost_rank``."""
    found = quadratic.solve(LRCGeometry(*A), LRCGeometry(*B), **settings)
    return found.q, found.r, found.g


def compiled(solve: Solve, DX: Any, DY: Any) -> Call:
    """Compile for the real shapes. The copy of distances into JAX does not count, their factorisation does."""
    rank = solve.keywords.get("cost_rank")
    copies = [jnp.asarray(D) for D in (DX, DY)]

    def given() -> Any:
        return [tuple(map(jnp.asarray, factors(D, rank))) for D in (DX, DY)] if rank else copies

    run = jax.jit(solve).lower(*given()).compile()
    return lambda: jax.block_until_ready(run(*given()))


main(entropic, low_rank, prepare=compiled)
