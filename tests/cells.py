"""Cells of known types, seen through two modalities, and the alignment that tests of AnnData objects read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from torchgw import GWResult
from torchgw import anndata as cells

anndata = pytest.importorskip("anndata")

ENDS = np.array([[1.0, 0.0, 0.0], [-0.3, 0.6, 0.2], [-0.3, -0.4, 0.1]])
SPANS = np.array([(0, 0.0, 0.35), (0, 0.35, 0.7), (0, 0.7, 1.0), (1, 0.0, 0.6), (1, 0.6, 1.0), (2, 0.0, 1.0)])
SHARES = np.array([0.2, 0.2, 0.2, 0.16, 0.12, 0.12])
TYPES = np.array(["progenitor", "erythroid", "platelet", "granulocyte", "macrophage", "lymphoid"])
QUICK: dict[str, Any] = {"epsilon": 5e-3, "random_state": 0}


def tissue(n: int, seed: int, hidden: int, genes: int) -> Any:
    """Cells of six types along three branches of a curve, seen through a random nonlinear map of their own."""
    rng = np.random.default_rng(seed)
    counts = np.diff(np.round(n * np.cumsum([0.0, *SHARES])).astype(int))
    kind = rng.permutation(np.repeat(np.arange(6), counts))
    branch, start, end = SPANS[kind].T
    along = start + (end - start) * rng.beta(1.5, 1.5, size=n)
    place = along[:, None] * ENDS[branch.astype(int)] + 0.02 * rng.normal(size=(n, 3))
    layer = np.tanh(1.2 * place @ rng.normal(size=(3, hidden)) + 0.5 * rng.normal(size=hidden))
    X = layer @ rng.normal(size=(hidden, genes)) / np.sqrt(hidden) + 0.02 * rng.normal(size=(n, genes))
    obs = pd.DataFrame({"cell_type": pd.Categorical(TYPES[kind], categories=TYPES), "time": along})
    obs.index = [f"cell{i}" for i in range(n)]
    return anndata.AnnData(
        sparse.random(n, 40, 0.1, "csr", np.float32, rng),
        obs=obs,
        obsm={"X_pca": X.astype(np.float32), "wide": np.repeat(X, 2, axis=1)},
    )


def accuracy(a: Any, name: str = "cell_type") -> float:
    return float((a.obs[f"torchgw_{name}"].astype(str) == a.obs[name].astype(str)).mean())


def reopened(a: Any, folder: Path) -> Any:
    a.write_h5ad(folder / "written.h5ad")
    return anndata.read_h5ad(folder / "written.h5ad")


def assert_equal(found: Any, wanted: Any) -> None:
    """Equal values, whatever containers a file turns them into."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for key, value in wanted.items():
            assert_equal(found[key], value)
    elif sparse.issparse(wanted):
        np.testing.assert_array_equal(found.toarray(), wanted.toarray())
    else:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def tissues() -> tuple[Any, Any]:
    """A source and a reference; not to be written to where others read it."""
    a, b = tissue(60, 0, 40, 8), tissue(70, 1, 50, 6)
    b.obs["batch"] = np.where(np.arange(70) % 2, "left", "right")
    b.obs["alive"] = np.arange(70) % 3 > 0
    b.obs["count"] = np.arange(70)
    b.obs["dose"] = np.where(np.arange(70) < 60, b.obs["time"], np.nan)
    b.obs["part"] = b.obs["cell_type"].where(b.obs["cell_type"] != "lymphoid").cat.add_categories("unseen")
    b.uns["cell_type_colors"] = ["#111111", "#222222", "#333333", "#444444", "#555555", "#666666"]
    return a, b


def carried(given: tuple[Any, Any]) -> tuple[Any, Any, GWResult]:
    """A copy of the source with all that the reference has for it, the reference, and the result."""
    a, b = given[0].copy(), given[1]
    labels = ["cell_type", "batch", "alive", "count", "dose", "part"]
    return a, b, cells.align(a, b, labels=labels, plan=0.9, **QUICK)
