"""Where to start: landmarks, guesses, annealing, and the basins that they end in."""
