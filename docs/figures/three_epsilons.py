"""The plan of one problem at three entropies."""

import matplotlib.pyplot as plt

import torchgw

X, angle_x = torchgw.datasets.make_spiral(200)
Y, angle_y = torchgw.datasets.make_swiss_roll(250, random_state=1)
figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.6), layout="constrained", sharey=True)
for ax, epsilon in zip(axes, (1e-2, 1e-3, 0), strict=True):
    result = torchgw.gw_align(X, Y, epsilon=epsilon, random_state=0)
    spread = result.confidence().entropy
    plan = result.plan[angle_x.argsort()][:, angle_y.argsort()]
    ax.imshow(plan[::-1], cmap="magma_r", aspect="auto", interpolation="nearest", vmax=plan.max() * 0.6)
    ax.set_title(
        f"epsilon {epsilon:g}: value {result.value:.4f}\nspread over {2.718281828 ** spread.mean():.1f} points"
    )
    ax.set(xticks=[], yticks=[], xlabel="target points, along the roll")
axes[0].set_ylabel("source points, along the spiral")
