"""Two bows whose matching is ambiguous; what several figures draw."""

import warnings

import numpy as np

import torchgw


def bow(n, dimension, seed):
    """Points (n, dimension) along a bow that has a mirror symmetry."""
    rng = np.random.default_rng(seed)
    s = np.linspace(0, 1, n)
    frame = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0][:, :2]
    return np.c_[s, 1.5 * s * (1 - s)] @ frame.T + 0.01 * rng.normal(size=(n, dimension))


def aligned():
    """The result of matching two bows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchgw.AmbiguityWarning)
        return torchgw.gw_align(bow(100, 2, 0), bow(120, 3, 1), random_state=0)
