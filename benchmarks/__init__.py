"""Measurements: every suite prints a table and writes `results/NAME.json` with hardware, versions and commit."""
