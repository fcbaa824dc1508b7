"""Runner of fugw, see runner.py: features that are all zero, so that distances alone count."""

from typing import Any

import numpy as np
from fugw.mappings import FUGW
from runner import main


def dense(DX: Any, DY: Any, alpha: float, rho: float, eps: float, **solver_params: Any) -> Any:
    """Block-coordinate descent on two copies of the plan, in float32, the type of its own weights."""
    DX, DY = (D.astype(np.float32) for D in (DX, DY))
    features = [np.zeros((1, len(D)), dtype=np.float32) for D in (DX, DY)]
    mapping = FUGW(alpha=alpha, rho=rho, eps=eps)
    return mapping.fit(*features, DX, DY, solver="sinkhorn", solver_params=solver_params).pi


main(dense)
