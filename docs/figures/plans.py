"""The plan sorted along both curves, and between labels."""

import matplotlib.pyplot as plt
import numpy as np
from figures.spiral import aligned

import torchgw

*angles, result = aligned()
thirds = [np.array(["inner", "middle", "outer"])[np.digitize(angle, [3, 6])] for angle in angles]
figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), layout="constrained")
for ax, (rows, columns) in zip(axes, (angles, thirds), strict=True):
    torchgw.plot.plan(result, rows=rows, columns=columns, ax=ax)
