"""Runner of ott-jax, see runner.py, in float32. The warm-up is the compilation ahead of time for the real shapes."""

from typing import Any

import jax
import jax.numpy as jnp
from ott.geometry.geometry import Geometry
from ott.solvers import quadratic
from runner import Call, Solve, main


def entropic(DX: Any, DY: Any, **settings: Any) -> Any:
    """Entropic Gromov-Wasserstein between dense geometries."""
    return quadratic.solve(Geometry(cost_matrix=DX), Geometry(cost_matrix=DY), **settings).matrix


def low_rank(DX: Any, DY: Any, cost_rank: int, **settings: Any) -> Any:
    """Low-rank plan between distances that are factored first."""
    spaces = [Geometry(cost_matrix=D).to_LRCGeometry(rank=cost_rank) for D in (DX, DY)]
    found = quadratic.solve(*spaces, **settings)
    return found.q, found.r, found.g


def compiled(solve: Solve, DX: Any, DY: Any) -> Call:
    """Compile for these shapes; neither this nor the copy of the distances into JAX counts."""
    given = jnp.asarray(DX), jnp.asarray(DY)
    run = jax.jit(solve).lower(*given).compile()
    return lambda: jax.block_until_ready(run(*given))


main(entropic, low_rank, prepare=compiled)
