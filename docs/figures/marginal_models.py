"""What each marginal model does with outliers: the target, coloured by what arrives, sized by the mass kept."""

import matplotlib.pyplot as plt
import numpy as np
from figures.outliers import SAME_SCALE, N, clouds

import torchgw

X, Y, s, frame = clouds()
MODELS = {
    "Balanced()": {},
    'SemiRelaxed(1e-3, "y")': {"marginals": torchgw.SemiRelaxed(1e-3, "y")},
    "Partial(0.8)": {"marginals": torchgw.Partial(0.8), "p": np.full(N, 0.8 / N)},
    "Unbalanced(0.1, 3e-3)": {"marginals": torchgw.Unbalanced(0.1, 3e-3)},
}
figure, axes = plt.subplots(1, 5, figsize=(7.2, 1.9), layout="constrained")
axes[0].scatter(*X.T, c=s, s=5)
axes[0].set_title("source", fontsize=8)
flat = Y @ frame
for ax, (name, asked) in zip(axes[1:], MODELS.items(), strict=True):
    result = torchgw.gw_align(X, Y, distances="euclidean", options=SAME_SCALE, random_state=0, **asked)
    kept = result.marginal(0) * len(Y)
    ax.scatter(*flat.T, s=5, color="0.85")
    ax.scatter(*flat.T, c=result.push(s), s=5 * kept.clip(0, 1), vmin=0, vmax=1)
    ax.set_title(name, fontsize=7)
for ax in axes:
    ax.set_aspect("equal")
    ax.set_axis_off()
