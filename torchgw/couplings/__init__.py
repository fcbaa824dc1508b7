"""Transport plans: stored, by potentials, on tiles, of low rank; and what can be read of them."""
