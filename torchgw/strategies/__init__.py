"""Whole solves: dense, streaming over a ladder of resolutions, and of low rank."""
