"""How gradients are found: at the solution by the envelope theorem, through it by implicit differentiation."""

from __future__ import annotations

from dataclasses import dataclass

from torchgw import validate

STORED_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class GradientMode:
    """Base of the modes, with the ``tol`` that all have."""

    tol: float | None = None

    def __post_init__(self) -> None:
        if self.tol is not None:
            object.__setattr__(self, "tol", validate.real("tol", self.tol, above=0.0))

    def tolerance(self, strategy: str) -> float | None:
        """L1 marginal residual to which the fixed point is solved; None leaves it as the ladder does."""
        return STORED_TOLERANCE if self.tol is None and strategy == "dense" else self.tol


@dataclass(frozen=True, kw_only=True)
class Envelope(GradientMode):
    """Only the loss has a gradient, and the plan is a constant in it.

    At a stationary point the derivative of the regularised objective is its partial derivative with the plan and the
    dual potentials held fixed (J. Danskin, 1967). It costs about one gradient of the solver.

    Parameters
    ----------
    tol : L1 marginal residual to which the fixed point is solved before it is differentiated: gradients are off by
        about the condition number times that. None takes 1e-9 where the plan is stored, and what the ladder
        (``LadderOptions.marginal_tol``) leaves where it streams.
    """


@dataclass(frozen=True, kw_only=True)
class Implicit(GradientMode):
    """The loss as in `Envelope`; plan, ``push`` and ``pull`` by implicit differentiation of the whole fixed point.

    Parameters
    ----------
    tol : L1 marginal residual to which the fixed point is solved, as for `Envelope`.
    max_iter : most GMRES iterations through the outer fixed point, and conjugate-gradient iterations of each linear
        problem within.
    n_lanczos : Lanczos steps that find the slowest directions of the linear problem, its rate and its condition number.
    trusted_error : estimated relative error from which on a gradient is not trusted, and `GradientWarning` says so.

    Notes
    -----
    O(N K) memory where the plan is stored, O((N + K) r) where it streams, whatever the number of iterations. Second
    derivatives are refused.
    """

    max_iter: int = 200
    n_lanczos: int = 40
    trusted_error: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_iter", validate.integer("max_iter", self.max_iter, least=1))
        object.__setattr__(self, "n_lanczos", validate.integer("n_lanczos", self.n_lanczos, least=2))
        object.__setattr__(self, "trusted_error", validate.real("trusted_error", self.trusted_error, above=0.0))


def check_mode(mode: object) -> None:
    """Refuse what is neither one of the modes nor None."""
    if mode is not None and not isinstance(mode, Envelope | Implicit):
        given = f"the class {mode.__name__}, not an object of it" if isinstance(mode, type) else type(mode).__name__
        raise TypeError(f"gradient_mode must be None, Envelope() or Implicit(), got {given}")
