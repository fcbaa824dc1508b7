"""A small linear program through HiGHS with little around it.

`scipy.optimize.linprog` spends three to five milliseconds on checks and conversions, which is more than HiGHS takes for
the programs of this package. So HiGHS is called through its own Python bindings where they are found: those of the
package highspy, or the copy that SciPy brings. The copy is not part of SciPy's interface; it is used only where a first
program comes out right, and `linprog` otherwise, which solves the same program with the same method.

Source: Q. Huangfu, J. Hall, "Parallelizing the dual revised simplex method", 2018.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csc_array

from torchgw.solvers.frank_wolfe import TransportError
from torchgw.types import Array

logger = logging.getLogger("torchgw")

FEASIBLE = 1e-10  # the least that HiGHS takes
DEVEX, COLUMNWISE, MINIMISE = 1, 1, 1
BINDINGS = ("highspy._core", "scipy.optimize._highspy._core")


def transport_program(cost: Array, row: Array, column: Array, masses: Array) -> tuple[Array, Array]:
    """x (m,) >= 0 of least cost (m,) whose sums over equal ``row`` and over equal ``column`` are ``masses`` (n + k,).

    Returns x and the dual potentials (n + k,). ``column`` counts on from the rows: n <= column < n + k.

    Raises
    ------
    torchgw.solvers.frank_wolfe.TransportError
        When HiGHS gives up.
    """
    ends = np.stack((row, column), 1).ravel().astype(np.int32)
    core = bindings()
    return _by_linprog(cost, ends, masses) if core is None else _directly(core, cost, ends, masses)


@functools.cache
def bindings() -> Any:
    """HiGHS's own bindings, or None where there are none that work as expected."""
    return next((core for core in map(_imported, BINDINGS) if core is not None), None)


def _imported(name: str) -> Any:
    """The module, if it solves a program of two rows and two columns."""
    ends, masses = np.array([0, 2, 0, 3, 1, 2, 1, 3], dtype=np.int32), np.array([1.0, 3.0, 2.0, 2.0])
    try:
        core = import_module(name)
        x, price = _directly(core, np.array([1.0, 3.0, 2.0, 1.0]), ends, masses)
        right = np.allclose(x, [1, 0, 1, 2]) and np.allclose(price[[0, 1, 1]] + price[[2, 2, 3]], [1, 2, 1])
    except Exception as error:  # whatever a private module does in another version
        logger.debug("HiGHS through %s: %r", name, error)
        return None
    return core if right else None


def _directly(core: Any, cost: Array, ends: Array, masses: Array) -> tuple[Array, Array]:
    count = len(cost)
    options = core.HighsOptions()
    options.output_flag, options.presolve, options.solver = False, "off", "simplex"
    options.simplex_dual_edge_weight_strategy = DEVEX
    options.primal_feasibility_tolerance = FEASIBLE
    highs = core._Highs()
    highs.passOptions(options)
    columns = cost, np.zeros(count), np.full(count, np.inf)
    sums = np.arange(0, 2 * count, 2, dtype=np.int32), ends, np.ones(2 * count)
    highs.passModel(
        count,
        len(masses),
        2 * count,
        COLUMNWISE,
        MINIMISE,
        0.0,
        *columns,
        masses,
        masses,
        *sums,
        np.zeros(count, np.int32),
    )
    highs.run()
    if highs.getModelStatus() != core.HighsModelStatus.kOptimal:
        raise TransportError(highs.modelStatusToString(highs.getModelStatus()))
    solution = highs.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual)


def _by_linprog(cost: Array, ends: Array, masses: Array) -> tuple[Array, Array]:
    count = len(cost)
    sums = csc_array((np.ones(2 * count), ends, np.arange(0, 2 * count + 1, 2)), shape=(len(masses), count))
    options = {"presolve": False, "primal_feasibility_tolerance": FEASIBLE}
    found = linprog(cost, A_eq=sums, b_eq=masses, method="highs-ds", options=options)
    if found.status != 0:
        raise TransportError(found.message)
    return found.x, found.eqlin.marginals
