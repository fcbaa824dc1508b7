"""Krylov methods on vectors that stay on their device."""
