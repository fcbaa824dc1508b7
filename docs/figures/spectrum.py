"""How many changes of the plans of a circle and of an ellipse are softer than what."""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import torchgw


def ellipse(n, minor):
    t = 2 * np.pi * np.arange(n) / n
    return np.c_[np.cos(t), minor * np.sin(t)]


figure, axes = plt.subplots(1, 2, figsize=(7.6, 2.8), layout="constrained")
for ax, (name, minor) in zip(axes, (("circle", 1.0), ("ellipse", 0.6)), strict=True):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = torchgw.gw_align(
            ellipse(80, minor), ellipse(100, minor), distances="euclidean", epsilon=0.01, random_state=0
        )
    torchgw.plot.spectrum(result, random_state=0, ax=ax)
    ax.set_title(name, fontsize=9)
