"""Pictures of a result with matplotlib: every function draws into one Axes and returns it."""

from __future__ import annotations

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError("torchgw.plot needs matplotlib; pip install matplotlib") from error

from torchgw.plot.clouds import confidence, matching, modes, transfer
from torchgw.plot.convergence import basins, convergence
from torchgw.plot.heat_map import plan
from torchgw.plot.marginals import residuals
from torchgw.plot.spectrum import spectrum

__all__ = ["basins", "confidence", "convergence", "matching", "modes", "plan", "residuals", "spectrum", "transfer"]


def __dir__() -> list[str]:
    return sorted(__all__)
