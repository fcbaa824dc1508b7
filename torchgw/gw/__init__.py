"""The Gromov-Wasserstein loop: anchors, linearised cost, transport, stopping, and the exact objective of the result."""
