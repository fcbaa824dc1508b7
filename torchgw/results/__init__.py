"""What a solve returns, how it is saved, and what it says of points that it has not seen."""
