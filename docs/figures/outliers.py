"""A curve and a copy of it among outliers; what several figures draw."""

import numpy as np

import torchgw

SAME_SCALE = torchgw.GWOptions(spaces=torchgw.SpaceOptions(scale="common"), coarse=torchgw.CoarseOptions(n_starts=8))
N, OUTLIERS = 80, 20


def clouds():
    """X (80, 2); Y (100, 3), of whose rows the first 80 are those of X and the others are outliers."""
    rng = np.random.default_rng(0)
    s = np.linspace(0, 1, N)
    curve = np.c_[np.cos(4 * s), np.sin(4 * s)] * (0.3 + s)[:, None]
    frame = np.linalg.qr(rng.normal(size=(3, 3)))[0][:, :2]
    X = curve + 0.01 * rng.normal(size=(N, 2))
    Y = np.r_[curve @ frame.T + 0.01 * rng.normal(size=(N, 3)), rng.uniform(-1.3, 1.3, size=(OUTLIERS, 3))]
    return X, Y, s, frame
