"""Runner of fugw, see runner.py: no features and marginals that hold, so Gromov-Wasserstein alone."""

import math
from typing import Any

import numpy as np
import torch
from fugw.mappings import FUGW
from runner import main


def dense(DX: Any, DY: Any, eps: float, dtype: str = "float32", **solver_params: Any) -> Any:
    """Block-coordinate descent on two copies of the plan. Its plans are float32 or float64, as the distances are."""
    DX, DY = (torch.from_numpy(D).to(getattr(torch, dtype)) for D in (DX, DY))
    mapping = FUGW(alpha=1.0, rho=math.inf, eps=eps)
    features = [np.zeros((1, len(D)), dtype=dtype) for D in (DX, DY)]
    mapping.fit(*features, DX, DY, solver="sinkhorn", solver_params=solver_params)
    return mapping.pi


main(dense)
