"""
Two measurements of the same tumours
====================================

The thirty features of the breast cancer table are dealt into two sets of fifteen, as if two laboratories had measured
the same 569 tumours with different instruments and lost the names. The rows are matched again by distances alone. For
each row, FOSCTTM is the fraction of samples closer than the true match: 0 is perfect, 0.5 is guessing. The wine table,
with 178 rows and thirteen features, is handed over the same way and is the hard case: a handful of known pairs decides
what distances alone cannot.

Needs scikit-learn, which torchgw brings.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial.distance import cdist
from sklearn.datasets import load_breast_cancer, load_wine

import torchgw


def views(table):
    """Two halves of the standardised features, dealt in the order of their weight in the first component; labels."""
    Z = (table.data - table.data.mean(0)) / table.data.std(0)
    order = np.argsort(-np.abs(np.linalg.svd(Z, full_matrices=False)[2][0]))
    return Z[:, np.sort(order[::2])], Z[:, np.sort(order[1::2])], table.target


def judged(result, B, label):
    """FOSCTTM in both directions, and the share of rows whose match has their label."""
    D = cdist(np.asarray(result.pull(B)), B)
    own = np.diag(D)
    closer = ((own[:, None] > D).mean() + (own[None] > D).mean()) / 2
    return float(closer), float((label[result.argmax()] == label).mean())


def align(A, B, **told):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchgw.AmbiguityWarning)  # the wine table is ambiguous: printed below
        return torchgw.gw_align(A, B, distances="euclidean", epsilon=2.5e-4, random_state=0, **told)


# %%
# The easy table
# --------------

A, B, tumour = views(load_breast_cancer())
result = align(A, B)
closer, right = judged(result, B, tumour)
most_common = max(tumour.mean(), 1 - tumour.mean())
print(f"breast cancer: FOSCTTM {closer:.3f}, labels right {right:.3f}; always the more common label {most_common:.3f}")

# %%
# The hard one
# ------------
# Known pairs are given as constraints: `Supervision` makes them part of the search, too. The known rows themselves
# count in the scores: up to 20 of 178.

A_wine, B_wine, cultivar = views(load_wine())
counts, tries = (0, 2, 5, 20), 3
scores = np.empty((len(counts), tries, 2))
for row, count in enumerate(counts):
    for seed in range(tries if count else 1):
        known = np.random.default_rng(seed).permutation(len(cultivar))[:count]
        rules = torchgw.Supervision(pairs=np.stack((known, known), 1)) if count else None
        scores[row, seed] = judged(align(A_wine, B_wine, supervision=rules), B_wine, cultivar)
    if not count:
        scores[row] = scores[row, 0]
    middle = np.median(scores[row], 0)
    print(f"wine, {count:2d} known pairs: FOSCTTM {middle[0]:.3f}, labels right {middle[1]:.3f} (median of {tries})")

# %%
# Without pairs the search is not to blame: from the true matching the solver ends at a higher value than the optimum
# that was found, so distances alone prefer a wrong one. Nor does the flag tell, which looks at the two best optima only
# and not at the truth.

alone, true = align(A_wine, B_wine), align(A_wine, B_wine, init=np.arange(len(cultivar)))
print(f"wine: value found {alone.value:.5f}, from the true matching {true.value:.5f}; ambiguous: {alone.ambiguous}")

# %%

figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(1.5, 1))
names = np.array(["malignant", "benign"])
torchgw.plot.transfer(result, names[tumour], A, B, ax=axes[0])
axes[0].set_title("breast cancer: labels carried from one set of features to the other", fontsize=10, loc="left")
for column, (name, colour, marker) in enumerate((("FOSCTTM", "#D55E00", "s"), ("labels right", "#0072B2", "o"))):
    axes[1].plot(counts, np.median(scores[..., column], 1), color=colour, label=name)
    for trial in range(tries):
        axes[1].scatter(counts, scores[:, trial, column], color=colour, marker=marker, s=14, alpha=0.6, linewidths=0)
axes[1].set(xlabel="known pairs, of 178", ylim=(0, 1), xticks=counts)
axes[1].set_title("wine: each point is a draw of pairs", fontsize=10, loc="left")
axes[1].spines[["top", "right"]].set_visible(False)
axes[1].legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.72))
plt.show()
assert closer < 0.15
assert right > 0.85
assert np.median(scores[-1, :, 1]) > 0.75
