"""Callbacks for people: a tqdm bar in terminals and notebooks, and lines in a log."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torchgw import validate
from torchgw.types import Callback, Progress

logger = logging.getLogger("torchgw")


class ProgressBar:
    """A tqdm bar, in a terminal or a notebook, whichever it is shown in; give it as ``callback=``.

    A deep copy is the bar itself, so that clones of an estimator share it. One restored from a pickle shows nothing:
    the terminal does not go along, as into other processes.

    Parameters
    ----------
    label : what stands before the bar.
    leave : whether the last state stays when the bar is closed.
    tqdm : other keywords of tqdm's, like ``file`` or ``mininterval``.

    Raises
    ------
    ImportError
        When tqdm is not installed.

    Examples
    --------
    >>> import torchgw
    >>> X, _ = torchgw.datasets.make_spiral(100)
    >>> with torchgw.ProgressBar("align", disable=True) as bar:
    ...     result = torchgw.gw_align(X, X, random_state=0, callback=bar)
    """

    def __init__(self, label: str = "", *, leave: bool = True, **tqdm: Any) -> None:
        try:
            from tqdm.auto import tqdm as make
        except ImportError as error:
            raise ImportError("a progress bar needs tqdm; pip install tqdm") from error
        self.bar = make(desc=label or None, leave=leave, **tqdm)

    def __call__(self, progress: Progress) -> None:
        bar = self.bar
        bar.total = progress.max_iter
        bar.set_postfix_str(
            f"cost {progress.cost:.5f}, marginals {progress.marginal_error:.0e}, epsilon {progress.epsilon:.1e}",
            refresh=False,
        )
        bar.update(progress.iteration - bar.n)

    def __deepcopy__(self, _: dict[int, Any]) -> ProgressBar:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), disable=True), ()

    def close(self) -> None:
        """Show the last state, or take the bar away."""
        self.bar.close()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ProgressLog:
    """A line in the log "torchgw" at most every ``every`` seconds; give it as ``callback=``.

    Parameters
    ----------
    every : seconds between two lines.
    level : of the lines, like ``logging.INFO``.
    """

    def __init__(self, every: float = 10.0, level: int = logging.INFO) -> None:
        self.every = validate.real("every", every, least=0.0)
        self.level = validate.integer("level", level, least=0)
        self.last = -float("inf")

    def __call__(self, progress: Progress) -> None:
        if 0 <= progress.elapsed - self.last < self.every:
            return
        self.last = progress.elapsed
        logger.log(
            self.level,
            "iteration %d of at most %d: cost %.6g, marginal error %.1e, epsilon %.2e, %.1f s",
            *(progress.iteration, progress.max_iter, progress.cost, progress.marginal_error, progress.epsilon),
            progress.elapsed,
        )


def bar_on_terminal(label: str) -> AbstractContextManager[Callback | None]:
    """A context with a bar that goes away at its end, if somebody looks and tqdm is installed, else with None."""
    try:
        return ProgressBar(label, leave=False) if sys.stderr.isatty() else nullcontext()
    except ImportError:
        return nullcontext()
