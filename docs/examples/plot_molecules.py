"""
Families of molecules
=====================

Thirty small molecules, of 3 to 12 atoms, are compared in all pairs by the Gromov-Wasserstein distance of their
atoms' positions. No molecule has to be turned, no atom has to be named, and sizes may differ: what is compared are
the distances between atoms. With ``scale="own"`` each molecule is divided by its largest distance, so that methane
and carbon tetrachloride are one shape. Elements are not looked at, so the families that come out are families of shape.

Needs ``ase`` for the geometries, which are those of the G2 set.
"""

import matplotlib.pyplot as plt
import numpy as np
from ase.build import molecule
from scipy.cluster.hierarchy import dendrogram, fcluster, linkage
from sklearn.metrics import adjusted_rand_score

import torchgw

families = {
    "aromatic rings": ["C6H6", "C5H5N", "C4H4NH", "C4H4O", "C4H4S"],
    "rings of three": ["C3H6_D3h", "CH2OCH2", "CH2NHCH2", "CH2SCH2"],
    "linear": ["C2H2", "CO2", "CS2", "OCS", "N2O", "NCCN"],
    "tetrahedral": ["CH4", "SiH4", "CF4", "CCl4", "SiF4", "SiCl4"],
    "planar with a centre": ["BF3", "BCl3", "AlF3", "AlCl3", "COF2"],
    "bent chains": ["C3H8", "CH3OCH3", "CH3SCH3", "C2H6NH"],
}
names = [name for members in families.values() for name in members]
family = np.repeat(np.arange(len(families)), [len(members) for members in families.values()])
spaces = [molecule(name).get_all_distances() for name in names]  # in Angstrom

# %%
# All 435 pairs
# -------------

found = torchgw.gw_pairwise(spaces, scale="own", random_state=0)
print(found)

# %%
# Three questions: is the most similar molecule of the same family? How similar are families to what Ward's clustering
# cuts the tree into? And would the number of atoms alone do as well?

square = found.square() + np.diag(np.full(len(names), np.inf))
same = float((family[square.argmin(1)] == family).mean())
tree = linkage(found.condensed, "ward", optimal_ordering=True)
cut = fcluster(tree, len(families), "maxclust")
agreement = adjusted_rand_score(family, cut)
sizes = np.array([len(space) for space in spaces])
by_size = np.abs(sizes[:, None] - sizes) + np.diag(np.full(len(names), np.inf))
baseline = float(np.mean([(family[row == row.min()] == own).mean() for row, own in zip(by_size, family, strict=True)]))
print(f"nearest molecule of the same family: {same:.2f}; by the number of atoms alone: {baseline:.2f}")
print(f"adjusted Rand index of {len(families)} clusters: {agreement:.2f}")
for cluster in np.unique(cut):
    print(f"  cluster {cluster}:", *(names[i] for i in np.flatnonzero(cut == cluster)))

# %%

colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#A07000")
figure, axes = plt.subplots(1, 2, figsize=(11.5, 6), layout="constrained", width_ratios=(1, 1.3))
drawn = dendrogram(
    tree, labels=names, orientation="left", ax=axes[0], color_threshold=0, above_threshold_color="0.4", leaf_font_size=8
)
axes[0].spines[["top", "right", "left"]].set_visible(False)
axes[0].set_xlabel("height of Ward's clustering")
order = drawn["leaves"][::-1]
image = axes[1].imshow(found.square()[np.ix_(order, order)], cmap="viridis_r", interpolation="nearest")
axes[1].set_xticks(range(len(order)), [names[i] for i in order], rotation=90, fontsize=7)
axes[1].set_yticks(range(len(order)), [names[i] for i in order], fontsize=7)
figure.colorbar(image, ax=axes[1], label="Gromov-Wasserstein distance", shrink=0.8)
for axis in (axes[0].yaxis, axes[1].yaxis, axes[1].xaxis):
    for text in axis.get_ticklabels():
        text.set_color(colours[family[names.index(text.get_text())]])
handles = [
    plt.Line2D([], [], marker="s", linestyle="", color=c, label=f) for c, f in zip(colours, families, strict=True)
]
figure.legend(handles=handles, frameon=False, loc="outside upper center", ncols=len(handles), fontsize=9)
plt.show()

# %%
# Methane, silane and their halides are one shape, and so are the planar halides of boron and aluminium. The nearest
# neighbour of every molecule is in its family. The tree is less tidy: cut into six, it joins the chains with the
# aromatic rings and divides the linear molecules into those of three and those of four atoms.

assert same > 0.95
assert agreement > 0.7
