"""Double centring of a symmetric matrix under masses m of sum one, and its modes: the core of classical scaling.

    S' = (I - 1 m^T) S (I - m 1^T),    S' m u = v u,    <u_a, u_b>_m = sum_i m_i u_a(i) u_b(i) = [a = b]

Of S = -D^2 / 2 the leading modes, sqrt(v) u, are the principal coordinates of points with distances D, and for squared
distances d2_l from another point to them its own coordinates are -1/2 sum_l m_l u_l (d2_l - mean d2_l) / sqrt(v).

Sources: W. Torgerson, "Multidimensional scaling", 1952; V. de Silva, J. Tenenbaum, "Sparse multidimensional scaling
using landmark points", 2004.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_EIGENVALUE = 1e-3  # of the largest: modes below it are noise


def centred_modes(S: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n,), ascending, and functions u (n, n) in columns, float64; O(n^3)."""
    means = S @ mass
    root = mass.sqrt()
    centred = root[:, None] * (S - means[:, None] - means + mass @ means) * root
    # In float64, as nearly equal eigenvalues are common.
    values, vectors = torch.linalg.eigh(centred.to(torch.float64))
    return values, vectors / root.clamp_min(torch.finfo(mass.dtype).tiny)[:, None]
