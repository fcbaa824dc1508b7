"""Runner of ott-jax, see runner.py. The warm-up is the ahead-of-time compilation for the real shapes."""

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


def low_rank(A: Any, B: Any, **settings: Any) -> Any:
    """Low-rank plan between geometries given as factors of the distances."""
    found = quadratic.solve(LRCGeometry(*A), LRCGeometry(*B), **settings)
    return found.q, found.r, found.g


def compiled(solve: Solve, DX: Any, DY: Any) -> Call:
    """Compile for these shapes; the copy into JAX does not count, the factorisation of the distances does."""
    rank = solve.keywords.pop("cost_rank", None)
    if rank is None:
        given = jnp.asarray(DX), jnp.asarray(DY)
        run = jax.jit(solve).lower(*given).compile()
        return lambda: jax.block_until_ready(run(*given))

    def factored() -> Any:
        return [tuple(map(jnp.asarray, factors(D, rank))) for D in (DX, DY)]

    run = jax.jit(solve).lower(*factored()).compile()
    return lambda: jax.block_until_ready(run(*factored()))


main(entropic, low_rank, prepare=compiled)
