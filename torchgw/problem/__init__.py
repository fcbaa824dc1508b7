"""What is solved, at any resolution."""
