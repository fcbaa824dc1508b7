"""A slow, dense, plain NumPy solver of small entropic (fused, unbalanced, partial) Gromov-Wasserstein problems.

It shares no code with the package, so that the tests can compare the two. It looks for a stationary point of

    F(T) = alpha       * [quad(T) + rx KL2(T1 | p) + ry KL2(T'1 | q) + epsilon KL2(T | p q')]
         + (1 - alpha) * [<M, T>  + rx KL(T1 | p)  + ry KL(T'1 | q)  + epsilon KL(T | p q')] + <P, T>

where quad(T) sums l(D_ik, E_jl) T_ij T_kl over i, j, k, l, KL(x | a) = sum x log(x / a) - x + a, and KL2(x | a) is the
KL of the two product measures, 2 m(x) KL(x | a) + (m(x) - m(a))^2, m being the mass. Everything is float64. Run this
file to check the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import kl_div, rel_entr

LOG_FLOOR = 1e-16
INNER_STEPS = 200  # of a linear problem in one outer step; the next goes on from where it stopped
INNER_TOLERANCE = 1e-14
ROUND = 50  # outer steps of the same length
ROUNDS = 400
OUTER_TOLERANCE = 1e-13


@dataclass(frozen=True)
class Problem:
    """One problem; `rho` is read by the relaxed model only (inf is a hard marginal), `mass` by the partial one only."""

    D: np.ndarray
    E: np.ndarray
    p: np.ndarray
    q: np.ndarray
    epsilon: float
    alpha: float = 1.0
    M: np.ndarray | None = None
    P: np.ndarray | None = None
    model: Literal["balanced", "relaxed", "partial"] = "balanced"
    rho: tuple[float, float] = (np.inf, np.inf)
    mass: float | None = None
    loss: Literal["square", "kl"] = "square"


class Values(NamedTuple):
    """The parts of F: `quad` and `linear` without their weights alpha and 1 - alpha, the others as they enter F."""

    quad: float
    linear: float
    penalty: float
    constraint: float
    entropy: float

    total: float
    value: float


def random_problem(seed: int, n: int = 20, k: int = 25, fused: bool = False, **changes: Any) -> Problem:
    """Distances of a 3-D and a 2-D cloud, divided by their maxima; fused adds a random M and makes alpha 0.5."""
    rng = np.random.default_rng(seed)
    X, Y = rng.gamma(2.0, size=(n, 3)), rng.gamma(2.0, size=(k, 2))
    D, E = cdist(X, X), cdist(Y, Y)
    p, q = rng.uniform(0.5, 1.5, n), rng.uniform(0.5, 1.5, k)
    M = rng.uniform(size=(n, k))
    problem = Problem(D / D.max(), E / E.max(), p / p.sum(), q / q.sum(), epsilon=0.05)
    if fused:
        problem = replace(problem, M=M, alpha=0.5)
    return replace(problem, **changes)


def solve(problem: Problem, start: np.ndarray | None = None) -> np.ndarray:
    """A plan at which F is stationary, found from `start` (the product of the masses when None).

    A plan T is such a point when the linear problem that F gives at T has T as its own solution S. The iteration moves
    from T to T^(1-s) S^s, entry by entry: with s = 1/2 first, then with s = 1, and with half of that whenever a round
    of steps ends going back and forth (s = 1 can end in a cycle of two plans, as partial problems with the KL loss do).
    """
    check(problem)
    rows, columns = np.flatnonzero(problem.p > 0), np.flatnonzero(problem.q > 0)
    block = np.ix_(rows, columns)
    plan = np.zeros((len(problem.p), len(problem.q)))
    plan[block] = solve_positive(restricted(problem, rows, columns), None if start is None else start[block])
    return plan


def objective(problem: Problem, T: np.ndarray) -> Values:
    """F at a plan and its parts; `value` is F without its entropy."""
    return objective_from(problem, T, pair_costs(problem))


def directional_slopes(problem: Problem, T: np.ndarray, rng: np.random.Generator, count: int = 20) -> np.ndarray:
    """Slopes of F at T along random directions of unit L1 norm that keep all hard (or saturated) marginals and masses.

    They come from values of F alone, by finite differences, and all are about zero at a stationary point.
    """
    costs, rules = pair_costs(problem), tight_rules(problem, T)
    targets = np.zeros(len(rules))
    directions = [direction(T, rng.standard_normal(T.shape), rules, targets) for _ in range(count)]
    return np.array([slope(problem, T, towards, costs) for towards in directions])


def leaving_slopes(problem: Problem, T: np.ndarray) -> np.ndarray:
    """Slopes of F along directions that loosen one saturated marginal of a partial plan: none is negative at a minimum.

    The mass must be less than those of p and q, or else no marginal can be loosened alone.
    """
    costs, rules = pair_costs(problem), tight_rules(problem, T)
    targets = -np.eye(len(rules))[:-1]  # the last rule is the total mass
    directions = [direction(T, np.zeros(T.shape), rules, target) for target in targets]
    return np.array([slope(problem, T, towards, costs) for towards in directions])


# The objective


def pair_costs(problem: Problem) -> np.ndarray:
    """l(D_ik, E_jl) as a matrix whose rows are the pairs (i, j) and whose columns are the pairs (k, l)."""
    a, b = problem.D[:, None, :, None], problem.E[None, :, None, :]
    if problem.loss == "square":
        costs = (a - b) ** 2
    else:
        costs = a * (np.log(np.maximum(a, LOG_FLOOR)) - np.log(np.maximum(b, LOG_FLOOR))) - a + b
    size = len(problem.p) * len(problem.q)
    return costs.reshape(size, size)


def objective_from(problem: Problem, T: np.ndarray, costs: np.ndarray) -> Values:
    alpha = problem.alpha
    quad = float(T.ravel() @ costs @ T.ravel())
    linear = 0.0 if problem.M is None else float(np.sum(problem.M * T))
    constraint = 0.0 if problem.P is None else float(np.sum(problem.P * T))
    penalty = 0.0
    for rho, marginal, reference in zip(weights(problem), marginals(T), (problem.p, problem.q), strict=True):
        if np.isfinite(rho):
            penalty += rho * mixed_divergence(marginal, reference, alpha)
    entropy = problem.epsilon * mixed_divergence(T, np.outer(problem.p, problem.q), alpha)
    value = alpha * quad + (1 - alpha) * linear + penalty + constraint
    return Values(quad, linear, penalty, constraint, entropy, value + entropy, value)


def mixed_divergence(x: np.ndarray, reference: np.ndarray, alpha: float) -> float:
    """alpha KL2 + (1 - alpha) KL."""
    single = float(np.sum(kl_div(x, reference)))
    double = 2 * x.sum() * single + (x.sum() - reference.sum()) ** 2
    return float(alpha * double + (1 - alpha) * single)


def marginals(T: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return T.sum(axis=1), T.sum(axis=0)


def weights(problem: Problem) -> tuple[float, float]:
    """The weights of the two marginal divergences, inf where there is none."""
    return problem.rho if problem.model == "relaxed" else (np.inf, np.inf)


def fixed_mass(problem: Problem) -> float | None:
    """The mass that every feasible plan has; None when it is free."""
    if problem.model == "partial":
        return problem.mass
    if np.isinf(weights(problem)[0]):
        return float(problem.p.sum())
    if np.isinf(weights(problem)[1]):
        return float(problem.q.sum())
    return None


# The outer iteration


def check(problem: Problem) -> None:
    p_mass, q_mass = problem.p.sum(), problem.q.sum()
    if problem.model not in ("balanced", "relaxed", "partial") or problem.loss not in ("square", "kl"):
        raise ValueError(f"unknown model or loss: {problem.model}, {problem.loss}")
    if not (np.array_equal(problem.D, problem.D.T) and np.array_equal(problem.E, problem.E.T)):
        raise ValueError("D and E must be symmetric")
    if problem.model == "partial":
        if problem.mass is None or not 0 < problem.mass <= min(p_mass, q_mass):
            raise ValueError("a partial problem needs a mass in (0, min(sum(p), sum(q))]")
    elif np.all(np.isinf(weights(problem))) and not np.isclose(p_mass, q_mass, rtol=1e-12, atol=0):
        raise ValueError("two hard marginals need equal masses")


def restricted(problem: Problem, rows: np.ndarray, columns: np.ndarray) -> Problem:
    """The problem on some of the points."""
    return replace(
        problem,
        D=problem.D[np.ix_(rows, rows)],
        E=problem.E[np.ix_(columns, columns)],
        p=problem.p[rows],
        q=problem.q[columns],
        M=None if problem.M is None else problem.M[np.ix_(rows, columns)],
        P=None if problem.P is None else problem.P[np.ix_(rows, columns)],
    )


def solve_positive(problem: Problem, start: np.ndarray | None) -> np.ndarray:
    costs, mass = pair_costs(problem), fixed_mass(problem)
    T = np.outer(problem.p, problem.q) if start is None else start
    if start is None:
        T = T * ((np.sqrt(T.sum()) if mass is None else mass) / T.sum())
    f, g = np.zeros(len(problem.p)), np.zeros(len(problem.q))
    step, largest = 0.5, 1.0
    move = np.zeros(T.shape)
    for _ in range(ROUNDS):
        for _ in range(ROUND):
            cost = linear_cost(problem, T, costs)
            S, f, g, settled = linear_plan(problem, cost, f, g)
            if mass is None:
                S = S * np.sqrt(T.sum() / S.sum())
            last_move, move = move, S - T
            rounding = 1e-14 * np.abs(cost).max() / problem.epsilon  # of the exponents, after some thousand operations
            if settled and np.abs(move).sum() < OUTER_TOLERANCE + rounding:
                return S
            T = T ** (1 - step) * S**step
        if step == largest and np.sum(move * last_move) < 0:
            largest /= 2
        step = largest
    raise RuntimeError(f"no fixed point was reached: the last L1 change is {np.abs(move).sum():.1e}")


def linear_cost(problem: Problem, T: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """The cost of the linear problem whose solution is the next plan."""
    p, q, alpha = problem.p, problem.q, problem.alpha
    constant = 0.0
    if fixed_mass(problem) is None:  # else no constant changes the plan
        constant = problem.epsilon * np.sum(rel_entr(T, np.outer(p, q)))
        for rho, marginal, reference in zip(weights(problem), marginals(T), (p, q), strict=True):
            constant += rho * np.sum(rel_entr(marginal, reference))
    cost = alpha * ((costs @ T.ravel()).reshape(T.shape) + constant)
    if problem.M is not None:
        cost = cost + (1 - alpha) / 2 * problem.M
    if problem.P is not None:
        cost = cost + problem.P / 2
    return cost / (alpha * T.sum() + (1 - alpha) / 2)


# The linear problem: its plan is S_ij = p_i q_j exp((f_i + g_j + level - cost_ij) / epsilon)


def linear_plan(
    problem: Problem, cost: np.ndarray, f: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """The plan of an entropic linear problem, its potentials, and whether they settled; f and g are where it starts."""
    level, settled = 0.0, False
    for _ in range(INNER_STEPS):
        old_f, old_g = f, g
        if problem.model == "partial":
            f, g, level = partial_step(problem, cost, g)
        else:
            f, g = relaxed_step(problem, cost, g)
        moved = max(np.abs(f - old_f).max(), np.abs(g - old_g).max())
        settled = bool(moved <= INNER_TOLERANCE * max(1.0, np.abs(f).max(), np.abs(g).max()))
        if settled:
            break
    exponent = (f[:, None] + g[None, :] + level - cost) / problem.epsilon
    return np.outer(problem.p, problem.q) * np.exp(exponent), f, g, settled


def relaxed_step(problem: Problem, cost: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sinkhorn: the best f for g, the best g for that f, and the best shift between the two when it is not free."""
    epsilon, (rx, ry) = problem.epsilon, weights(problem)
    p, q = problem.p, problem.q
    if np.isinf(rx) and np.isinf(ry):
        q = q * (p.sum() / q.sum())  # equal to the last bit, or else the potentials drift
    f = -damping(rx, epsilon) * epsilon * log_sum_exp((g[None, :] - cost) / epsilon + np.log(q)[None, :], axis=1)
    g = -damping(ry, epsilon) * epsilon * log_sum_exp((f[:, None] - cost) / epsilon + np.log(p)[:, None], axis=0)
    if min(rx, ry) > 0 and np.isfinite(min(rx, ry)):
        gap = log_sum_exp(np.log(p) - f / rx, axis=0) - log_sum_exp(np.log(q) - g / ry, axis=0)
        shift = gap / (1 / rx + 1 / ry)
        f, g = f + shift, g - shift
    return f, g


def damping(rho: float, epsilon: float) -> float:
    return 1.0 if np.isinf(rho) else rho / (rho + epsilon)


def partial_step(problem: Problem, cost: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Two exact steps of block ascent on the dual: over f <= 0 and the level of the mass, then over g <= 0 and it."""
    p, q, epsilon, mass = problem.p, problem.q, problem.epsilon, problem.mass
    f, _ = capped(p, log_sum_exp((g[None, :] - cost) / epsilon + np.log(q)[None, :], axis=1), mass)
    g, level = capped(q, log_sum_exp((epsilon * f[:, None] - cost) / epsilon + np.log(p)[:, None], axis=0), mass)
    return epsilon * f, epsilon * g, epsilon * level


def capped(caps: np.ndarray, log_ratios: np.ndarray, mass: float) -> tuple[np.ndarray, float]:
    """The (smallest) level at which sum(caps * min(1, exp(level + log_ratios))) is the mass, and the logs of the cuts.

    As the level rises, the entries reach their caps in descending order of their ratios; the level wanted is the first
    that gives the mass before one more entry reaches its cap.
    """
    order = np.argsort(-log_ratios)
    breaks = -log_ratios[order]
    free = np.logaddexp.accumulate((np.log(caps[order]) - breaks)[::-1])[::-1]  # of the entries not capped yet
    rest = mass - np.append(0.0, np.cumsum(caps[order])[:-1])
    trials = np.maximum(np.log(np.maximum(rest, 1e-300)) - free, np.append(-np.inf, breaks[:-1]))
    level = float(np.append(trials, breaks[-1])[np.argmax(np.append(trials <= breaks, True))])
    return np.minimum(0.0, -log_ratios - level), level


def log_sum_exp(x: np.ndarray, axis: int) -> np.ndarray:
    top = x.max(axis=axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis=axis)) + top.squeeze(axis)


# The check of stationarity


def tight_rules(problem: Problem, T: np.ndarray) -> np.ndarray:
    """The linear forms of a plan that a direction must keep, one in each row; the last is the mass if that is fixed."""
    n, k = T.shape
    row_forms = np.repeat(np.eye(n), k, axis=1)
    column_forms = np.tile(np.eye(k), (1, n))
    if problem.model == "partial":
        rows, columns = (T.sum(axis=1) > problem.p * (1 - 1e-9)), (T.sum(axis=0) > problem.q * (1 - 1e-9))
    else:
        rows, columns = np.full(n, np.isinf(weights(problem)[0])), np.full(k, np.isinf(weights(problem)[1]))
    total = np.ones((0 if fixed_mass(problem) is None else 1, n * k))
    return np.vstack([row_forms[rows], column_forms[columns], total])


def direction(T: np.ndarray, noise: np.ndarray, rules: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """T times the noise, corrected so that the rules have the target values on it; its L1 norm is one."""
    if len(rules):
        weighted = rules * T.ravel()
        multipliers = np.linalg.lstsq(weighted @ rules.T, weighted @ noise.ravel() - targets, rcond=None)[0]
        noise = noise - (multipliers @ rules).reshape(T.shape)
    towards = T * noise
    return towards / np.abs(towards).sum()


def slope(problem: Problem, T: np.ndarray, towards: np.ndarray, costs: np.ndarray) -> float:
    """The derivative of F along a direction, by a central difference of fourth order."""
    support = T > 0
    t = 1e-3 / np.abs(towards[support] / T[support]).max()
    far_low, low, high, far_high = (objective_from(problem, T + s * t * towards, costs).total for s in (-2, -1, 1, 2))
    return (8 * (high - low) - (far_high - far_low)) / (12 * t)


def main() -> None:
    """Check the stationarity of F, by finite differences, at the oracle's plans of every model."""
    models: list[dict[str, Any]] = [
        {"model": "balanced"},
        {"model": "relaxed", "rho": (np.inf, 0.3)},
        {"model": "relaxed", "rho": (0.3, np.inf)},
        {"model": "relaxed", "rho": (np.inf, 0.0)},
        {"model": "relaxed", "rho": (0.3, 1.0)},
        {"model": "relaxed", "rho": (0.0, 1.0)},
        {"model": "partial", "mass": 0.6},
    ]
    for changes in models:
        for loss in ("square", "kl"):
            for fused in (False, True):
                problem = random_problem(0, fused=fused, loss=loss, **changes)
                if fused:
                    problem = replace(problem, P=np.random.default_rng(1).uniform(size=problem.M.shape))
                if changes["model"] == "relaxed":
                    problem = replace(problem, q=1.3 * problem.q)
                T = solve(problem)
                slopes = directional_slopes(problem, T, np.random.default_rng(2))
                line = f"{changes} {loss} fused={fused}: mass {T.sum():.4f}, largest slope {np.abs(slopes).max():.1e}"
                if problem.model == "partial":
                    leaving = leaving_slopes(problem, T)
                    line += f", least of {len(leaving)} leaving slopes {leaving.min(initial=np.inf):.1e}"
                print(line)


if __name__ == "__main__":
    main()
