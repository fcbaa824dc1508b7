"""Memoli's third lower bound: points by the distributions of their distances, transported.

    F(T) >= min over plans S of <Omega, S>,    Omega_ij = W_2(D_X[i, .], D_Y[j, .])^2 = int (quantile_i - quantile_j)^2
         >= min over plans S of sum_ij |mean_i - mean_j|^2 S_ij / parts,

the means of quantile functions over equal parts of [0, 1], by Jensen's inequality. Column potentials of the linear
problem prove the bound, optimal or not.

Source: F. Memoli, "Gromov-Wasserstein distances and the metric approach to object matching", 2011, section 6.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchgw.objective.bounds import c_transform, dual_bound
from torchgw.objective.distributions import PARTS, quantiles
from torchgw.sinkhorn.costs import FactoredCost
from torchgw.solvers.linear_oracle import solve_transport
from torchgw.solvers.minimum_cost_flow import TransportError
from torchgw.solvers.transport_costs import DenseCost
from torchgw.types import DistanceProvider

ROUNDING = 1e-9  # of the largest squared distance


def third_bound(source: DistanceProvider, target: DistanceProvider, p: Tensor, q: Tensor) -> float:
    """No plan with the positive masses p (N,), q (K,), float64 and of sum one, has a lower value; at least zero.
    O(N^2 log N + K^2 log K) work, O(N^2 + K^2) memory, and a linear program."""
    sides = [
        quantiles(space.rows(torch.arange(len(mass))).to(mass), mass, PARTS) / PARTS**0.5
        for space, mass in ((source, p), (target, q))
    ]
    masses = p.numpy(), q.numpy()
    C = FactoredCost.squared_distance(*sides).rows(slice(None))
    try:
        vertex = solve_transport(DenseCost(C.numpy(), *masses), *masses, np.zeros(len(q)))
    except TransportError:
        return 0.0
    b = torch.from_numpy(vertex.duals[1])
    largest = max(float(side.square().mean(1).max()) for side in sides) * PARTS
    return max(float(dual_bound(c_transform(C, b, q), b, p, q)) - ROUNDING * largest, 0.0)
