"""Is the optimum right for every kind of space, by default? Graphs, clouds, cosines, splits, hops, large matrices.

``python -m benchmarks kinds`` runs everything (about 35 minutes on two cores), ``python -m benchmarks kinds graphs``
only that group, and keeps the other rows that are stored; with ``--quick`` small problems alone, in minutes.

A value counts as lowest known over everything that was tried on a problem: the true matching, our own descent from it,
our default, and POT. POT's conditional gradient runs wherever there are at most 2000 points but for clouds of more than
300, its proximal point steps on graphs, beyond 700 nodes with one epsilon of three; at 5000 points and more neither
ends in minutes, and neither takes sparse matrices.
"""

from benchmarks.kinds.suite import GROUPS, run

__all__ = ["GROUPS", "run"]
