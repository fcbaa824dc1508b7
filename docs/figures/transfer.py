"""Labels of the spiral, carried to the Swiss roll."""

import numpy as np
from figures.spiral import aligned

import torchgw

angle, _, result = aligned()
torchgw.plot.transfer(result, np.array(["inner", "middle", "outer"])[np.digitize(angle, [3, 6])])
