"""The objective: masses, marginals, losses, costs; its gradient, its value, and
bounds on it."""
