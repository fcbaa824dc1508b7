"""A one-line progress bar for terminals, fed by the solver's callback."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from torchgw.types import Progress

BAR = 24


class ProgressBar:
    """Rewrites one line of ``stream`` at every check; writes nothing when it is not a terminal."""

    def __init__(self, label: str = "", stream: TextIO | None = None) -> None:
        self.label = label
        self.stream = sys.stderr if stream is None else stream
        self.active = self.stream.isatty()

    def __call__(self, progress: Progress) -> None:
        if not self.active:
            return
        filled = round(BAR * progress.iteration / progress.max_iter)
        line = (
            f"{self.label} [{'#' * filled}{'.' * (BAR - filled)}] {progress.iteration}/{progress.max_iter}"
            f"  cost {progress.cost:.5f}  marginals {progress.marginal_error:.0e}  eps {progress.epsilon:.1e}"
            f"  {progress.elapsed:.1f} s"
        )
        width = shutil.get_terminal_size().columns - 1
        self.stream.write("\r" + line[:width].ljust(width))
        self.stream.flush()

    def close(self) -> None:
        """Clear the line."""
        if self.active:
            self.stream.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self.stream.flush()
