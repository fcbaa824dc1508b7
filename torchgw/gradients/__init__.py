"""Gradients of values and plans with respect to what a problem was made of; see `torchgw.gradients.lagrangian`."""
