"""
Left and right hemisphere of the cortex
=======================================

The two hemispheres of a brain are close to mirror images, folded alike but not alike in detail. Here the surfaces of
fsaverage5, 10242 vertices each, are aligned by distances along the cortex: first by these alone, then with the depth of
the folds as a feature of every vertex. Gromov-Wasserstein does not see left and right, so no mirror is put in.
How far matches lie from the mirror image in space, and how well the thickness of the cortex is carried across, were
used for neither and judge both.

Needs ``nilearn``, which brings the surfaces.
"""

import matplotlib.pyplot as plt
import numpy as np
from nilearn.datasets import load_fsaverage, load_fsaverage_data
from scipy.sparse import coo_matrix
from scipy.spatial import cKDTree

import torchgw

surface = load_fsaverage("fsaverage5")["pial"].parts
left, right = surface["left"], surface["right"]


def measured(kind):
    """A map over both hemispheres, (10242,) each."""
    parts = load_fsaverage_data("fsaverage5", data_type=kind).data.parts
    return parts["left"].ravel(), parts["right"].ravel()


def edges(mesh):
    """Sparse graph of the mesh's edges with their lengths in millimetres."""
    sides = np.concatenate([mesh.faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])])
    i, j = np.unique(np.sort(sides, 1), axis=0).T
    length = np.linalg.norm(mesh.coordinates[i] - mesh.coordinates[j], axis=1)
    n = len(mesh.coordinates)
    return coo_matrix((np.tile(length, 2), (np.r_[i, j], np.r_[j, i])), (n, n)).tocsr()


# %%
# Alignment
# ---------
# Shortest paths along the mesh are taken from landmarks and kept as factors, so that nothing of the size
# 10242 x 10242 is stored. A marginal error of 2 % before rounding is enough here. The fused problem starts at the
# result of the first.

graphs = edges(left), edges(right)
told = {
    "distances": "landmark",
    "random_state": 0,
    "options": torchgw.GWOptions(ladder=torchgw.LadderOptions(marginal_tol=0.02)),
}
shape = torchgw.gw_align(*graphs, **told)
depth = measured("sulcal")
features = tuple((side - side.mean())[:, None] / side.std() for side in depth)
fused = torchgw.gw_align(*graphs, cost=features, alpha=0.8, init=shape, **told)

# %%
# What was found
# --------------

thickness = measured("thickness")
mirror = cKDTree(right.coordinates).query(left.coordinates * [-1, 1, 1])[1]
best = np.corrcoef(thickness[0], thickness[1][mirror])[0, 1]
scale = np.linalg.norm(right.coordinates[np.random.default_rng(0).permutation(len(mirror))] - right.coordinates, axis=1)
off, carried = {}, {}
for name, result in (("shape alone", shape), ("with depth", fused)):
    off[name] = np.linalg.norm(right.coordinates[result.argmax()] - right.coordinates[mirror], axis=1)
    carried[name] = np.corrcoef(result.push(thickness[0]), thickness[1])[0, 1]
    print(
        f"{name}: matches lie {off[name].mean():.1f} mm from the mirror image; thickness carried: r {carried[name]:.2f}"
    )
print(f"at random {scale.mean():.1f} mm; thickness of mirror images: r {best:.2f}")
print(f"next best optimum of the shape: {shape.rival.energy / shape.basins[0].energy:.2f} times the energy of the best")

# %%

panels = (
    ("left: thickness", left, -1, thickness[0], "viridis", (1.2, 4.2)),
    ("right: carried from the left", right, 1, fused.push(thickness[0]), "viridis", (1.2, 4.2)),
    ("right: its own", right, 1, thickness[1], "viridis", (1.2, 4.2)),
    ("left: matches to mirror image", left, -1, off["with depth"], "magma", (0, 15)),
)
figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), layout="constrained")
for ax, (title, mesh, side, values, cmap, limits) in zip(axes, panels, strict=True):
    depth_of = side * mesh.coordinates[mesh.faces, 0].mean(1)
    seen = mesh.faces[np.argsort(depth_of)]  # from the side, what is nearest drawn last
    x, y = side * mesh.coordinates[:, 1], mesh.coordinates[:, 2]
    dots = ax.tripcolor(x, y, seen, facecolors=values[seen].mean(1), cmap=cmap, vmin=limits[0], vmax=limits[1])
    dots.set(edgecolor="face", rasterized=True)
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.set_title(title, fontsize=10)
    figure.colorbar(dots, ax=ax, label="mm", orientation="horizontal", shrink=0.6)
plt.show()
assert off["shape alone"].mean() < 8
assert off["with depth"].mean() < 5
assert carried["with depth"] > 0.88
