"""Runner of torchgw 0.4.2 from the registry, see runner.py."""

from typing import Any

import torch
from runner import main

from torchgw import sampled_gw


def from_points(X: Any, Y: Any, **settings: Any) -> Any:
    """Points to a plan."""
    torch.manual_seed(0)
    return sampled_gw(X, Y, **settings)


def from_distances(DX: Any, DY: Any, **settings: Any) -> Any:
    """Distances to a plan."""
    torch.manual_seed(0)
    return sampled_gw(dist_source=DX, dist_target=DY, **settings)


main(from_points, from_distances)
