"""The softest mode of a circle, of a noisy circle and of an ellipse."""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import torchgw


def ellipse(n, minor, noise, seed):
    t = 2 * np.pi * np.arange(n) / n
    return np.c_[np.cos(t), minor * np.sin(t)] + noise * np.random.default_rng(seed).normal(size=(n, 2))


figure, axes = plt.subplots(1, 3, figsize=(8.4, 3.0), layout="constrained")
for ax, (minor, noise) in zip(axes, ((1.0, 0.0), (1.0, 0.2), (0.6, 0.0)), strict=True):
    X, Y = ellipse(80, minor, noise, 0), ellipse(100, minor, noise, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = torchgw.gw_align(X, Y, distances="euclidean", epsilon=0.01, random_state=0)
    torchgw.plot.modes(result, ax=ax)
