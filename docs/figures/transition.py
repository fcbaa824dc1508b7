"""How many points a plan is spread over, by epsilon, for a curve and for a cloud of many dimensions."""

import matplotlib.pyplot as plt
import numpy as np

import torchgw

rng = np.random.default_rng(0)
cloud, turn = rng.normal(size=(150, 50)), np.linalg.qr(rng.normal(size=(50, 50)))[0]
X, _ = torchgw.datasets.make_spiral(150)
Y, _ = torchgw.datasets.make_swiss_roll(180, random_state=1)
PROBLEMS = {"spiral and Swiss roll": (X, Y, "auto"), "cloud in 50 dimensions": (cloud, cloud @ turn, "euclidean")}
figure, ax = plt.subplots(figsize=(4.6, 2.8), layout="constrained")
for (name, (one, other, distances)), marker in zip(PROBLEMS.items(), "os", strict=True):
    path = torchgw.epsilon_path(one, other, distances=distances, random_state=0)
    ax.loglog(path.epsilons, path.perplexities, marker=marker, markersize=4, label=name)
ax.set(xlabel="epsilon", ylabel="points a point is spread over")
ax.legend(frameon=False)
