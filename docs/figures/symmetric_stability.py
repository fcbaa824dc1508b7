"""Which points of a bow an ambiguity is about."""

from figures.bows import aligned

import torchgw

torchgw.plot.confidence(aligned(), kind="stability")
