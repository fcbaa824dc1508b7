"""What a gradient mode asks of the options of a solve."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from torchgw import validate
from torchgw.gradients.modes import Envelope, GradientMode, Implicit, Unrolled
from torchgw.options import GWOptions

STORED_TOLERANCE = 1e-9
RECORDED_BYTES = 40  # measured: five numbers of float64 for each pair and iteration


def checked_mode(mode: object, options: GWOptions, epsilon: float, alpha: object, checkpoint: object) -> GWOptions:
    """The options for a solve that is differentiated; an error where they cannot be had.

    Raises
    ------
    ValueError, TypeError
        For what is no mode, epsilon = 0, sampled gradients, low-rank plans, recorded iterations that stream, an alpha
        of 0 that is to be differentiated, and a checkpoint.
    """
    if not isinstance(mode, Envelope | Implicit | Unrolled):
        given = f"the class {mode.__name__}, not an object of it" if isinstance(mode, type) else type(mode).__name__
        raise TypeError(f"gradient_mode must be None, Envelope(), Implicit() or Unrolled(), got {given}")
    if epsilon == 0:
        raise ValueError("epsilon must be > 0 with a gradient mode, got 0: plans without entropy jump")
    if options.gradient == "sampled":
        raise ValueError("options.gradient must be 'auto' or 'exact' with a gradient mode, got 'sampled'")
    if options.strategy == "low-rank":
        raise ValueError("options.strategy must be 'dense' or 'streaming' with a gradient mode, got 'low-rank'")
    if checkpoint is not None:
        raise ValueError("checkpoint must be None with a gradient_mode: files do not hold what gradients flow to")
    if isinstance(alpha, Tensor) and alpha.requires_grad and not bool(alpha.detach().any()):
        raise ValueError("alpha must be > 0 to be differentiated, got 0, which has no use for distances; take 1e-6")
    if isinstance(mode, Unrolled):
        if options.strategy == "streaming":
            raise ValueError("options.strategy must be 'dense' with Unrolled(), which stores plans, got 'streaming'")
        options = replace(options, strategy="dense")
    return replace(options, gradient="exact")


def check_recorded(mode: GradientMode, n: int, k: int, options: GWOptions) -> None:
    """Refuse recorded iterations that would take more than ``options.max_memory``."""
    if isinstance(mode, Unrolled):
        count = mode.n_outer * mode.n_inner
        what = f"the record of {mode.n_outer} x {mode.n_inner} iterations ({n} x {k})"
        advice = "use Implicit(), fewer n_outer or n_inner, or a larger GWOptions(max_memory=)"
        validate.memory(what, RECORDED_BYTES * n * k * count, options.max_memory, advice)


def tolerance(mode: GradientMode, strategy: str) -> float | None:
    """What the fixed point is solved to; None leaves it as it is."""
    return STORED_TOLERANCE if mode.tol is None and strategy == "dense" else mode.tol
