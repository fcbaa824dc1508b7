"""How points and labels are laid out for whoever looks at a result."""
