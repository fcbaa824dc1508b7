"""Numerical kernels: tensors in, tensors out. Scores and potentials are base-2 logarithms here and in `sinkhorn`.

Base 2 because exp2 skips a multiplication, and because processors take many times longer over exponentials that
underflow: the reference clamps them first.
"""

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
