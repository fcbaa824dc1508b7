"""
A cloud flows into a handwritten digit
======================================

The Gromov-Wasserstein loss of two clouds has a gradient in their points. A round cloud of 200 points follows it until
its distances are those of a handwritten two. Only distances within each cloud are compared, so nothing says where the
digit should stand, how it is turned, or from which side it is read: those copies have the same loss, and the
cloud becomes whichever is near.

Needs scikit-learn, which torchgw brings.
"""

import itertools
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.spatial import procrustes
from sklearn.datasets import load_digits

import torchgw

n, n_steps, epsilon = 200, 60, 5e-3
rng = np.random.default_rng(0)
digits = load_digits()
image = digits.images[digits.target == 2][9]
image = np.where(image > 7, image, 0)  # the strokes without their faint rims
pixel = rng.choice(64, size=n, p=image.ravel() / image.sum())
target = torch.from_numpy(np.stack((pixel % 8, 7 - pixel // 8), 1) + rng.uniform(-0.5, 0.5, size=(n, 2)))
disc = torch.from_numpy(rng.normal(size=(n, 2)))

# %%
# The flow
# --------
# One fixed scale for both clouds, so that sizes count. Each step starts from the plan of the last. The gradient is
# divided by the masses 1 / n and by the unit of the loss, which leaves a step size that does not depend on the data.

diameter = float(torch.cdist(target, target).max())
options = torchgw.GWOptions(spaces=torchgw.SpaceOptions(scale=diameter))
told = {"distances": "euclidean", "epsilon": epsilon, "options": options, "random_state": 0}
with warnings.catch_warnings():
    warnings.simplefilter("ignore", torchgw.AmbiguityWarning)  # a round cloud fits a digit in many ways; any will do
    plan = torchgw.gw_align(disc, target, **told).plan

X, clouds, losses = disc, [], []
for _ in range(n_steps):
    X.requires_grad_()
    result = torchgw.gw_align(X, target, init=plan, gradient_mode=torchgw.Envelope(tol=1e-6), **told)
    (gradient,) = torch.autograd.grad(result.loss, X)
    clouds.append(X.detach().numpy())
    losses.append(result.loss.item())
    plan = result.plan.detach()
    X = X.detach() - 0.075 * n * diameter**2 * gradient

# %%
# What was found
# --------------
# The loss counts the entropy of the plan, whose blur pulls points together: strokes come out thinner than those of the
# target. Turned onto the target by Procrustes' method, matched points are close to where they should be.

falls = all(after < before for before, after in itertools.pairwise(losses))
match = target.numpy()[result.argmax()]
off = [procrustes(match, cloud)[2] for cloud in (clouds[0], clouds[-1])]
mean_squared = [float(torch.pdist(torch.as_tensor(cloud)).square().mean()) for cloud in (clouds[-1], target)]
u, _, v = np.linalg.svd((clouds[-1] - clouds[-1].mean(0)).T @ (match - match.mean(0)))
turned = [(cloud - cloud.mean(0)) @ u @ v for cloud in clouds]  # of the same loss; mirrored where the digit was
print(f"the flow ended in {'a mirrored' if np.linalg.det(u @ v) < 0 else 'an unmirrored'} digit, drawn turned upright")
print(f"loss {losses[0]:.5f} to {losses[-1]:.5f}, lower at every step: {falls}")
print(
    f"share of the variance that is off after turning, scaling and mirroring: {off[0]:.3f} before, {off[1]:.4f} after"
)
print(f"mean squared distance over the target's: {mean_squared[0] / mean_squared[1]:.2f}")

# %%

stages = (0, 3, 8, 20, n_steps - 1)
figure, axes = plt.subplots(1, 7, figsize=(14, 2.5), layout="constrained", width_ratios=(1,) * 6 + (1.3,))
colours = target.numpy()[result.argmax()][:, 1]
for ax, step in zip(axes, stages, strict=False):
    ax.scatter(*turned[step].T, c=colours, cmap="viridis", s=7, linewidths=0)
    ax.set_title(f"step {step}", fontsize=10)
axes[5].scatter(*(target - target.mean(0)).numpy().T, c=target[:, 1].numpy(), cmap="viridis", s=7, linewidths=0)
axes[5].set_title("the target", fontsize=10)
for ax in axes[:6]:
    ax.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
    ax.set_axis_off()
axes[6].semilogy(np.array(losses[:-1]) - losses[-1], color="#0072B2")
axes[6].set_title("loss above its last", fontsize=10)
axes[6].set_xlabel("step")
axes[6].spines[["top", "right"]].set_visible(False)
plt.show()
assert falls
assert off[1] < 0.1 < off[0]
