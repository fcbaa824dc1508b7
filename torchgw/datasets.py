"""The showcase data: a noisy planar spiral and the Swiss roll that it unrolls from."""

from __future__ import annotations

import numpy as np

from torchgw import validate
from torchgw.types import Array

__all__ = ["make_spiral", "make_swiss_roll"]


def make_spiral(n: int, noise: float = 0.05, random_state: int | np.random.Generator | None = 0) -> tuple[Array, Array]:
    """Noisy spiral in the plane.

    Point i has angle t_i = 9 i / (n - 1) and radius 0.3 + 0.7 i / (n - 1); each coordinate uses the radius
    with normal noise of its own.

    Parameters
    ----------
    n : number of points, at least 2.
    noise : standard deviation of the radius noise, in units of the outer radius.
    random_state : seed or generator; None draws fresh entropy.

    Returns
    -------
    points : (n, 2) float64.
    angle : (n,) float64, increasing; the true position along the curve.

    Raises
    ------
    ValueError, TypeError
        For n below 2, negative noise, or an unusable random_state.
    """
    n = validate.integer("n", n, least=2)
    noise = validate.real("noise", noise, least=0.0)
    rng = _numpy_generator(random_state)
    radius, angle = np.linspace(0.3, 1.0, n), np.linspace(0.0, 9.0, n)
    jitter = noise * rng.normal(size=(2, n))
    points = np.stack(((radius + jitter[0]) * np.cos(angle), (radius + jitter[1]) * np.sin(angle)), axis=1)
    return points, angle


def make_swiss_roll(
    n: int, noise: float = 0.05, random_state: int | np.random.Generator | None = 0
) -> tuple[Array, Array]:
    """The spiral of `make_spiral` drawn out along a uniform height in [0, 1], the middle column.

    Errors and the meaning of ``angle`` are those of `make_spiral`. The planar noise is drawn in the same way, so give
    the two clouds of a comparison different seeds.

    Parameters
    ----------
    n : points, at least 2.
    noise : standard deviation of the radius noise, in units of the outer radius.
    random_state : seed or generator; None draws fresh entropy.

    Returns
    -------
    points : (n, 3) float64.
    angle : (n,) float64, increasing.
    """
    rng = _numpy_generator(random_state)
    flat, angle = make_spiral(n, noise, rng)
    height = rng.uniform(size=len(flat))
    return np.stack((flat[:, 0], height, flat[:, 1]), axis=1), angle


def _numpy_generator(random_state: int | np.random.Generator | None) -> np.random.Generator:
    """A generator from a seed, a generator, or fresh entropy."""
    if random_state is None or isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state)
    return np.random.default_rng(validate.integer("random_state", random_state, least=0))


def __dir__() -> list[str]:
    return sorted(__all__)
