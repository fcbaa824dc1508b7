"""The course of a solve that begins at the product plan."""

from figures.spiral import aligned

import torchgw

torchgw.plot.convergence(aligned(options=torchgw.GWOptions(coarse=None))[-1])
