"""The three views of confidence."""

import matplotlib.pyplot as plt
from figures.spiral import aligned

import torchgw

result = aligned()[-1]
figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.8), layout="constrained")
for ax, kind in zip(axes, ("entropy", "margin", "stability"), strict=True):
    torchgw.plot.confidence(result, kind=kind, ax=ax)
