"""Farthest-point searches in a process of their own, beside those that this one makes."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from types import TracebackType
from typing import IO, Any, cast

import numpy as np

from torchgw.spaces import farthest
from torchgw.types import Array

SECONDS_PER_STEP = 2e-8
WORTH_SECONDS = 0.4
# The working directory must not stand in for anybody's modules.
RUN = "import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"


def worthwhile(n: int, k: int, n_landmarks: int) -> bool:
    """Whether the searches of spaces of n and k points, side by side, gain more than a process costs (0.3 s)."""
    fewer = min(n, k)
    seconds = SECONDS_PER_STEP * n_landmarks * fewer * np.log2(fewer)
    return bool(sys.executable) and (os.cpu_count() or 1) > 1 and seconds > WORTH_SECONDS


class SearchAside:
    """A process for one search, started early so that it is ready when the graph is; to be used in a ``with``.

    It runs one file of this package that needs NumPy and SciPy only, and so never imports torch.
    """

    def __init__(self) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        command = [sys.executable, "-c", RUN, farthest.__file__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": path})

    def start(self, graph: Any, n_landmarks: int, dtype: str) -> None:
        """Hand over the arguments of `farthest_points`; it keeps no reference to the graph."""
        self._shape, self._dtype = graph.shape[0], dtype
        to = cast(IO[bytes], self._process.stdin)
        try:
            pickle.dump((graph, n_landmarks, dtype), to, protocol=5)
            to.close()
        except BrokenPipeError:
            self._fail()

    def result(self) -> tuple[Array, Array]:
        """What `farthest_points` returned, once it has."""
        source = cast(IO[bytes], self._process.stdout)
        try:
            index: Array = pickle.load(source)
        except EOFError:
            self._fail()
        columns = np.empty((len(index), self._shape), dtype=self._dtype)
        if source.readinto(columns.data.cast("B")) != columns.nbytes:  # type: ignore[attr-defined]
            self._fail()
        return index, columns.T

    def _fail(self) -> None:
        code = self._process.wait()
        raise RuntimeError(
            f"the process that searched the second graph ended with code {code}; its own message is above. "
            f"Out of memory shows as a negative code"
        )

    def __enter__(self) -> SearchAside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            # A pipe that broke breaks again when what it still holds is flushed.
            with contextlib.suppress(BrokenPipeError):
                cast(IO[bytes], stream).close()
        self._process.wait()
