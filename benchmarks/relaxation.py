"""The last Sinkhorn solve with and without over-relaxation: iterations to an L1 residual of 1e-4, and the value."""

from __future__ import annotations

import warnings
from typing import Any

from benchmarks.common import show, write
from torchgw import GWOptions, SinkhornOptions, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll

SIZES = ((400, 500), (1000, 1200), (2000, 2500))
WEIGHTS = (1.0, 1.5, 1.8, 1.9)


def run() -> None:
    """Measure, print, store. The loop before the last solve is the same in every row of a size."""
    rows: list[dict[str, Any]] = []
    for n, k in SIZES:
        X, Y = make_spiral(n)[0], make_swiss_roll(k, random_state=1)[0]
        for weight in WEIGHTS:
            options = GWOptions(gradient="sampled", coarse=None, sinkhorn=SinkhornOptions(relaxation=weight))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = gw_align(X, Y, distances="landmark", options=options, random_state=0)
            rows.append(
                {
                    "size": f"{n} x {k}",
                    "relaxation": weight,
                    "last-solve iterations": result.n_iter_sinkhorn - options.sinkhorn.max_iter * result.n_iter,
                    "residual": result.marginal_residual,
                    "value": result.value,
                    "solve seconds": result.timings["solve"],
                }
            )
    write("relaxation", rows)
    show(rows)
