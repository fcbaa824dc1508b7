"""Heat-kernel distances of graphs."""
