"""
Two languages without a dictionary
==================================

Word vectors of two languages have similar distances, so words can be translated without a dictionary. Vectors of real
languages do not ship with any package; here 400 vectors in 300 dimensions with a power-law spectrum stand in, and the
other language is their copy, turned, shuffled, and with noise. The question is up to which noise distances alone find
the translation, whether the result says when they do not, and how large a dictionary mends it.

Needs nothing else.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import torchgw

n, d = 400, 300
rng = np.random.default_rng(0)
words = rng.normal(size=(n, d)) / np.sqrt(np.arange(1, d + 1))  # coordinate k has standard deviation k^(-1/2)
turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
order = rng.permutation(n)  # word order[j] of the first language is word j of the second
translation = np.argsort(order)
shift = words.std() * rng.normal(size=(n, d))


def cosine_distances(Z):
    """1 - cosine (n, n), with a zero diagonal."""
    Z = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    D = np.clip(1 - (Z @ Z.T + (Z @ Z.T).T) / 2, 0, None)
    np.fill_diagonal(D, 0)
    return D


# %%
# From little noise to much
# -------------------------
# ``epsilon=0``, because in many dimensions distances hardly differ and entropy would blur them away. A dictionary is
# given as ``init``, from which the solve starts instead of searching; precision is that of the other words.


def align(A, B, **told):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchgw.AmbiguityWarning)  # recorded and drawn below
        return torchgw.gw_align(A, B, epsilon=0, random_state=0, **told)


D = cosine_distances(words)
noises, sizes = (0.5, 1.0, 1.25, 1.5, 2.0), (0, 10, 40)
precision = np.empty((len(sizes), len(noises)))
flagged = np.zeros(len(noises), dtype=bool)
for column, noise in enumerate(noises):
    E = cosine_distances(((words + noise * shift) @ turn)[order])
    for row, size in enumerate(sizes):
        known = np.stack((np.arange(size), translation[:size]), 1)
        result = align(D, E, init=known if size else None)
        precision[row, column] = (result.argmax() == translation)[size:].mean()
        if not size:
            flagged[column] = result.ambiguous
            found = result.value
    true = align(D, E, init=translation).value
    print(
        f"noise {noise:4.2f}: precision "
        + ", ".join(f"{p:.3f}" for p in precision[:, column])
        + f" with {sizes} known words; ambiguous {flagged[column]!s:5};"
        f" value found {found:.4f}, from the truth {true:.4f}"
    )

# %%

figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
styles = (("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", ":"))
for row, (size, (colour, marker, line)) in enumerate(zip(sizes, styles, strict=True)):
    ax.plot(
        noises, precision[row], line, marker=marker, color=colour, label=f"{size} known words" if size else "none known"
    )
where = np.flatnonzero(flagged)
ax.scatter(np.array(noises)[where], precision[0, where], s=130, facecolor="none", edgecolor="black", label="ambiguous")
ax.set(xlabel="noise, in units of the spread of the vectors", ylabel="precision at 1", ylim=(-0.03, 1.05))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()

# %%
# Up to a noise as large as the vectors themselves no dictionary is needed. Beyond, ten words are worse than none: the
# solve begins at them instead of searching, and they are too few to begin at. Forty are better than none. At the
# largest noise the value found without a dictionary is above the one from the truth: a better optimum was missed, and
# the flag says that the choice was a close one.

assert (precision[0, :2] == 1).all()
assert flagged[-1]
assert precision[2, 2:].mean() > precision[1, 2:].mean() + 0.3
assert precision[2, -1] > precision[0, -1] + 0.05
