"""The matching of a spiral with a Swiss roll."""

from figures.spiral import aligned

import torchgw

angle, _, result = aligned()
torchgw.plot.matching(result, colors=angle)
