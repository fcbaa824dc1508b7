"""Energies of the basins of an ambiguous matching."""

from figures.bows import aligned

import torchgw

torchgw.plot.basins(aligned())
