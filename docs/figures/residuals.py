"""Masses that a semi-relaxed plan leaves the points of a curve among outliers."""

from figures.outliers import SAME_SCALE, clouds

import torchgw

X, Y, _, _ = clouds()
relaxed = torchgw.SemiRelaxed(1e-3, "y")
result = torchgw.gw_align(X, Y, marginals=relaxed, distances="euclidean", options=SAME_SCALE, random_state=0)
torchgw.plot.residuals(result)
