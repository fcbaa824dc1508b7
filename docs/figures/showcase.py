"""The picture of the README: two clouds, what is matched, and the plan.

python docs/figures/showcase.py writes docs/showcase.png
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

import torchgw

X, angle_x = torchgw.datasets.make_spiral(1000)
Y, angle_y = torchgw.datasets.make_swiss_roll(1200, random_state=1)
result = torchgw.gw_align(X, Y, random_state=0)

figure = plt.figure(figsize=(10, 3.4), layout="constrained")
left, right = figure.add_gridspec(1, 2, width_ratios=(2, 1))
torchgw.plot.matching(result, colors=angle_x, n_lines=80, ax=figure.add_subplot(left, projection="3d"))
figure.axes[1].set_xlabel("angle along the spiral (radians)")
plan = torchgw.plot.plan(result, rows=angle_x, columns=angle_y, ax=figure.add_subplot(right))
plan.set_xlabel("target, sorted by its true place")
plan.set_ylabel("source, sorted by its true place")

if __name__ == "__main__" and "__file__" in globals():
    figure.savefig(Path(__file__).parent.parent / "showcase.png", dpi=110)
