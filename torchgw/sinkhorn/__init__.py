"""Entropic transport in the base-2 log domain: marginal models, the fixed-point loop, annealing and rounding."""
