"""The same work for every peer, each in an environment of its own: ``python -m benchmarks peers``."""

from benchmarks.peers.suite import run

__all__ = ["run"]
