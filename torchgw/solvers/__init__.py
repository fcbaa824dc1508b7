"""Iterations from a start to an optimum, each for one kind of problem."""
