"""Two local optima of one problem: the target coloured by what each carries to it."""

import matplotlib.pyplot as plt

import torchgw

X, angle = torchgw.datasets.make_spiral(200)
Y, _ = torchgw.datasets.make_swiss_roll(250, random_state=1)
result = torchgw.gw_align(X, Y, random_state=0)

figure, (left, *others) = plt.subplots(1, 3, figsize=(7.2, 2.7), layout="constrained")
left.scatter(*X.T, c=angle, s=6)
left.set_title("source")
for ax, basin in zip(others, result.basins, strict=False):
    ax.scatter(Y[:, 0], Y[:, 2], color="0.85", s=6)
    ax.scatter(*Y[basin.matching][:, ::2].T, c=angle, s=6)
    ax.set_title(f"target, energy {basin.energy:.4f}")
for ax in (left, *others):
    ax.set_aspect("equal")
    ax.set_axis_off()
