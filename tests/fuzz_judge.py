"""What every call of `gw_align` owes: a plan that keeps its promises, or a refusal that says what to change."""

from __future__ import annotations

import contextlib
import linecache
import random
import re
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

import torchgw
from tests import oracle
from torchgw import FeatureCost, GWResult, TorchGWWarning, gw_align
from torchgw.spaces.graph import build_graph
from torchgw.types import is_provider

HOME = str(Path(torchgw.__file__).parent)
REFUSALS = (ValueError, TypeError, MemoryError, FloatingPointError)
REFUSED_WITHIN = 2.0  # seconds of processor time
LONGEST = 120
COMPARED_WITHIN = 2.0  # seconds of processor time in which a call is run again where nothing surrounds it
EXACT, READ = 1e-9, 3e-5  # of stored plans, and of plans that are read in float32
PARTS = {  # words of messages that mean a part of an argument
    "marginals": "marginals mass rho rho_x rho_y side",
    "supervision": "supervision Supervision strength labels pairs forbidden mask",
    "cost": "cost metric scale features",
    "gradient_mode": "gradient_mode tol max_iter n_outer n_inner gradient",
    "X": "X rows k points graph F signs D time scale n_landmarks",
    "Y": "Y rows k points graph F signs D time scale n_landmarks",
}


@dataclass
class Verdict:
    """What became of a call: "accepted" or "refused", what was wrong with that, and how it ended."""

    outcome: str
    failures: list[str]
    kinds: list[str]
    seconds: float


def judge(call: Any) -> Verdict:
    """Run a call and look at everything that it promises."""
    verdict = _run(call)
    if verdict.outcome == "refused" and verdict.seconds > REFUSED_WITHIN:
        verdict = _run(call)  # the first may have compiled or imported something
        if verdict.seconds > REFUSED_WITHIN:
            verdict.failures.append(f"refused after {verdict.seconds:.1f} s")
    return verdict


def _run(call: Any) -> Verdict:
    failures: list[str] = []
    kinds: list[str] = []
    before, began, outcome = global_state(), time.process_time(), "accepted"
    spaces: list[Any] = []
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            with limited(LONGEST):
                spaces, keywords = call.arguments()
                made = len(given)
                began = time.process_time()
                with call.surroundings():
                    result = gw_align(*spaces, **keywords)
                took = time.process_time() - began
                kinds += [f"status: {result.status.name}", f"gradient: {result.gradient}", f"ran: {result.strategy}"]
        except Exception as error:
            took, outcome = time.process_time() - began, "refused"
            kinds.append(f"refusal: {type(error).__name__}")
            failures += refusal(error, call)
        else:
            warned = [warning.category for warning in given[made:]]
            try:
                fresh = call.arguments()
                failures += untouched(fresh, (spaces, keywords))
                failures += promises(result, *fresh, warned)
                failures += gradients(result, spaces, keywords)
                if call.around and took < COMPARED_WITHIN:
                    failures += disturbed(result, gw_align(*fresh[0], **call.arguments()[1]))
            except Exception:
                failures.append(traceback.format_exc())
    foreign = [w for w in given if not issubclass(w.category, TorchGWWarning)]
    failures += [f"{w.category.__name__}: {w.message} ({w.filename}:{w.lineno})" for w in foreign]
    kinds += sorted({w.category.__name__ for w in given})
    if global_state() != before:
        failures.append("global state changed: random numbers, threads, dtype or error handling")
    return Verdict(outcome, failures, kinds, took)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """An error after so many seconds of processor time."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    earlier = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier)


def global_state() -> list[Any]:
    """What no call may change."""
    numbers = np.random.get_state()  # noqa: NPY002
    drawn = [torch.get_rng_state().numpy().tobytes(), numbers[1].tobytes(), numbers[2], random.getstate()]
    torch_state = [torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()]
    return [*drawn, *torch_state, np.geterr(), signal.getsignal(signal.SIGINT)]


# Refusals


def refusal(error: Exception, call: Any) -> list[str]:
    """What is wrong with an error: its type, where it was raised, what it names."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error}"
    where = f"{last.filename}:{last.lineno}: {linecache.getline(last.filename, last.lineno or 0).strip()}"
    if type(error) not in REFUSALS or not last.filename.startswith(HOME):
        return ["not a refusal:\n" + "".join(traceback.format_exception(error))]
    if not linecache.getline(last.filename, last.lineno or 0).strip().startswith("raise"):
        return [f"words that are not the library's: {said}\n{where}"]
    words = set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", str(error)))
    names = {part for name in ("X", "Y", *call.keywords) for part in PARTS.get(name, name).split()}
    names |= set(re.findall(r"(\w+)=", call.keywords["options"]))
    if isinstance(error, FloatingPointError) and resolved(call) and not words & (names - {"X", "Y", "epsilon"}):
        return [f"the reason cannot be epsilon = {call.keywords['epsilon']}: {said}"]
    if not words & names:
        return [f"names none of the arguments: {said}"]
    return []


def resolved(call: Any) -> bool:
    """Whether epsilon is not so small that scores are beyond float64."""
    scaled = any(
        "scale: " in kind or "of size" in kind or "huge" in kind or "own, large" in kind
        for kind in call.kinds
        if "cost" in kind or "scale" in kind or "own, large" in kind
    )
    epsilon = eval(call.keywords["epsilon"], {"np": np})
    return (epsilon == "auto" or not 0 < float(epsilon) <= 3e-8) and not scaled


# Accepted calls


def disturbed(result: GWResult, alone: GWResult) -> list[str]:
    """What surroundings changed of a result."""
    plans = [each.coupling.to_dense() for each in (result, alone)]
    if torch.equal(*plans) and (result.value == alone.value or np.isnan(alone.value)):
        return []
    return [f"the value is {result.value!r}, where nothing surrounds the call {alone.value!r}"]


def untouched(fresh: Any, used: Any) -> list[str]:
    """Arguments that the call wrote to."""
    names = ["X", "Y", *fresh[1]]
    pairs = zip([*fresh[0], *fresh[1].values()], [*used[0], *used[1].values()], names, strict=True)
    return [f"{name} was changed" for one, other, name in pairs if not _same(one, other)]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor | np.ndarray):
        return bool(np.array_equal(as_array(one), as_array(other), equal_nan=True))
    if sparse.issparse(one):
        a, b = one.tocoo(), other.tocoo()
        return all(np.array_equal(getattr(a, part), getattr(b, part)) for part in ("row", "col", "data"))
    return True


def promises(result: GWResult, spaces: list[Any], keywords: dict[str, Any], warned: list[Any]) -> list[str]:
    """Everything that a result says of itself, looked at again."""
    failures: list[str] = []
    n, k = result.shape
    T = result.coupling.to_dense().cpu().double().numpy()
    p, q = masses(keywords, n, k)
    mass = T.sum()
    slack = EXACT if result.strategy == "dense" else READ
    if T.shape != (n, k) or not np.isfinite(T).all() or (T < 0).any() or not mass > 0:
        return [f"the plan has shape {T.shape}, entries from {T.min()} to {T.max()} and a mass of {mass}"]
    with np.errstate(all="ignore"):
        off = marginal_error(T, p, q, result.marginals)
        scale = max(p.sum(), q.sum())
        if not abs(off - result.marginal_error) <= slack * scale:
            failures.append(f"marginal_error is {result.marginal_error:.3e}, and {off:.3e} when it is computed again")
        total = result.marginals.total or min(p.sum(), q.sum())
        apart = abs(p.sum() - q.sum()) if result.marginals.balanced else max(total - min(p.sum(), q.sum()), 0.0)
        if not off <= slack * scale + apart:
            failures.append(f"marginals are off by {off / scale:.3e} of the mass ({result.status.name})")
        failures += values(result, T, p, q, spaces, keywords, slack)
    inner = (
        keywords["options"].sinkhorn.tol if result.strategy == "dense" else 2 * keywords["options"].ladder.marginal_tol
    )
    if result.differentiated is not None:  # a gradient mode says to which residual its plan is solved
        inner = max(inner, getattr(keywords.get("gradient_mode"), "tol", None) or 1e-9)
    inner = max(inner, 1e-12)
    if result.converged and result.strategy != "low-rank" and not result.marginal_residual <= 2 * inner:
        failures.append(f"{result.status.name} with a residual of {result.marginal_residual:.1e}")
    if result.converged == (torchgw.ConvergenceWarning in warned):
        failures.append(f"{result.status.name}, but the warnings were {[kind.__name__ for kind in warned]}")
    return failures + readings(result, T)


def as_array(value: Any) -> np.ndarray:
    """As float64, what a user gave."""
    if isinstance(value, Tensor):
        return np.asarray(value.detach().double().numpy())
    return np.asarray(value).astype(np.float64)


def masses(keywords: dict[str, Any], n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    p, q = (
        np.full(size, 1 / size) if keywords.get(name) is None else as_array(keywords[name])
        for name, size in (("p", n), ("q", k))
    )
    return p, q


def marginal_error(T: np.ndarray, p: np.ndarray, q: np.ndarray, marginals: Any) -> float:
    rows, columns = T.sum(1), T.sum(0)
    if marginals.total is not None:
        over = max(np.maximum(rows - p, 0).sum(), np.maximum(columns - q, 0).sum())
        return float(max(over, abs(rows.sum() - marginals.total)))
    hard = zip((rows, columns), (p, q), marginals.weights, strict=True)
    return float(max((np.abs(sums - mass).sum() for sums, mass, rho in hard if rho == np.inf), default=0.0))


def values(
    result: GWResult,
    T: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    spaces: list[Any],
    keywords: dict[str, Any],
    slack: float,
) -> list[str]:
    """The value and its parts, from the plan and what the user gave, in float64."""
    failures: list[str] = []
    options, alpha, marginals = keywords["options"], result.alpha, result.marginals
    n, k = T.shape
    if alpha > 0:
        given = masses(keywords, n, k)
        D, E = (
            distances(space, side, result, mass) for side, (space, mass) in enumerate(zip(spaces, given, strict=True))
        )
        failures += scales(result, spaces, options, given)
    else:
        D, E = np.zeros((n, n)), np.zeros((k, k))
    if marginals.total is None and max(marginals.weights) == np.inf:  # a relaxed side has the mass of the hard one
        hard = marginals.weights.index(np.inf)
        p, q = (p, q * (p.sum() / q.sum())) if hard == 0 else (p * (q.sum() / p.sum()), q)
    M = linear_cost(keywords.get("cost"), result)
    rules = penalties(keywords.get("supervision"), p, q, masses(keywords, n, k))
    strength = 0.0 if rules is None or np.isinf(keywords["supervision"].strength) else keywords["supervision"].strength
    problem = oracle.Problem(
        D,
        E,
        p,
        q,
        epsilon=0.0,
        alpha=alpha,
        M=M,
        P=None if rules is None else strength * rules,
        model="relaxed" if marginals.total is None else "partial",
        rho=marginals.weights,
        loss="kl" if options.loss == "kl" else "square",
    )
    costs = oracle.pair_costs(problem)
    expected = oracle.objective_from(problem, T, costs)
    m = T.sum()
    largest = max(D.max(), E.max(), 1e-15) ** 2 * m**2  # squares below that are zero in float32
    if options.loss == "kl":
        largest = 40 * (1 + max(D.max(), E.max())) * m**2
    rho = sum(weight for weight in marginals.weights if weight < np.inf)
    rounded = 4 * np.finfo(float).eps * (p.sum() + q.sum()) ** 2 / slack  # float64's, of what a plan of no mass costs
    spans = {
        "value_quad": largest,
        "value_linear": 0.0 if M is None else max(np.abs(M).max(), 1e-30) * m,
        "value_penalty": rho * (alpha * (m * (m + p.sum() + q.sum()) + rounded) + (1 - alpha) * (m + p.sum() + q.sum()))
        + strength * m,
        "violation": m,
    }
    found = {
        "value_quad": expected.quad if alpha > 0 else np.nan,
        "value_linear": expected.linear,
        "value_penalty": expected.penalty + expected.constraint,
        "violation": 0.0 if rules is None else float((rules * T).sum()),
    }
    sampled = 0.0 if result.value_exact else 10 * result.value_error / max(alpha, 1e-300) + 0.02 * largest
    for name, mine in found.items():
        said = getattr(result, name)
        near = abs(said - mine) <= slack * spans[name] + (sampled if name == "value_quad" else 0.0) + 1e-300
        if not (near or (np.isnan(said) and np.isnan(mine))):
            failures.append(f"{name} is {said:.10g}, and {mine:.10g} when it is computed again")
    whole = (
        alpha * (0.0 if alpha == 0 else result.value_quad) + (1 - alpha) * result.value_linear + result.value_penalty
    )
    span = alpha * spans["value_quad"] + (1 - alpha) * spans["value_linear"] + spans["value_penalty"]
    if not abs(result.value - whole) <= 1e-9 * span + 1e-300:
        failures.append(f"value is {result.value:.10g}, and its parts make {whole:.10g}")
    return failures + certificate(result, problem, costs, slack * span + sampled)


def certificate(result: GWResult, problem: oracle.Problem, costs: np.ndarray, slack: float) -> list[str]:
    """The lower bound, below this plan and below that of the products of the masses; the gap."""
    said = result.certificate
    failures = []
    if not 0 <= said.lower_bound <= result.value + slack + 1e-300:
        failures.append(f"lower bound {said.lower_bound:.10g} of a value {result.value:.10g}")
    if result.marginals.balanced:
        product = oracle.objective_from(problem, np.outer(problem.p, problem.q) / problem.p.sum(), costs).value
        if not said.lower_bound <= product + slack + 1e-300:
            failures.append(f"lower bound {said.lower_bound:.10g}, but the product plan has {product:.10g}")
    if not abs(said.gap - max(result.value - said.lower_bound, 0.0)) <= slack + 1e-300:
        failures.append(f"gap {said.gap:.10g} between {said.lower_bound:.10g} and {result.value:.10g}")
    if not (np.isnan(said.stationarity) or said.stationarity >= 0) or not str(said):
        failures.append(f"stationarity {said.stationarity}")
    return failures


# What the user gave, read once more


def with_mass(mass: np.ndarray) -> np.ndarray:
    """The points that are part of a space."""
    return np.flatnonzero(mass >= 2.0**-80 * mass.sum())


def distances(space: Any, side: int, result: GWResult, mass: np.ndarray) -> np.ndarray:
    """Scaled distances of a space, zero from points without mass; those that are approximations as their provider has
    them."""
    kind, scale = result.providers[side], result.scales[side]
    if kind == "LandmarkDistances" or is_provider(space):
        assert result.known is not None
        provider = result.known[side].space
        return np.asarray(provider.rows(torch.arange(provider.size)).double().numpy())
    kept = with_mass(mass)
    raw, unit = raw_distances(space, kind, result, side, kept)
    reached = np.isfinite(raw)
    own = kind == "DijkstraDistances" and result.options.spaces.scale is None  # the largest that it has seen
    largest = scale / unit if own else raw[reached].max()
    found = np.zeros((len(mass), len(mass)))
    found[np.ix_(kept, kept)] = np.where(reached, raw, 1.5 * (largest if largest > 0 else 1.0)) / (scale / unit)
    return found


def raw_distances(space: Any, kind: str, result: GWResult, side: int, kept: np.ndarray) -> tuple[np.ndarray, float]:
    """Distances between the points that are ``kept`` in a unit of their own, infinite where there is no path, and that
    unit."""
    if sparse.issparse(space):
        return paths(space)[np.ix_(kept, kept)], 1.0
    array = as_array(space)
    if kind == "EuclideanDistances":
        array = array[kept]
        centred = array - array.mean(0)
        unit = float(np.abs(centred).max()) or 1.0
        return np.linalg.norm((centred / unit)[:, None] - centred / unit, axis=-1), unit
    report = result.graphs[side]
    if report is None:
        array = array[np.ix_(kept, kept)]
        finite = np.where(np.isfinite(array), array, np.inf)
        return finite / 2 + finite.T / 2, 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torchgw.GraphWarning)
        return paths(build_graph(array[kept], result.options.spaces.k)[0]), 1.0


def paths(graph: Any) -> np.ndarray:
    """Shortest paths by the algorithm of R. Floyd and S. Warshall."""
    edges = graph.tocoo()
    D = np.full(edges.shape, np.inf)
    np.minimum.at(D, (edges.row, edges.col), edges.data.astype(np.float64))
    np.fill_diagonal(D, 0.0)
    for via in range(len(D)):
        D = np.minimum(D, D[:, via, None] + D[via])
    return D


def scales(result: GWResult, spaces: list[Any], options: Any, given: tuple[np.ndarray, np.ndarray]) -> list[str]:
    """What distances were divided by, where that is known."""
    asked = options.spaces.scale
    if asked is not None and asked != "common":
        expected: list[float | None] = list(asked) if isinstance(asked, tuple) else [asked, asked]
    else:
        expected = [_largest(space, side, result, with_mass(given[side])) for side, space in enumerate(spaces)]
        if asked == "common":
            expected = [None, None] if None in expected else [max(expected)] * 2  # type: ignore[type-var]
    found = zip("XY", result.scales, expected, strict=True)
    return [
        f"{name} was divided by {scale:.10g} instead of {wanted:.10g}"
        for name, scale, wanted in found
        if wanted is not None and not np.isclose(scale, wanted, rtol=1e-6, atol=0)
    ]


def _largest(space: Any, side: int, result: GWResult, kept: np.ndarray) -> float | None:
    kind = result.providers[side]
    if is_provider(space) or kind in ("LandmarkDistances", "DijkstraDistances"):
        return None
    raw, unit = raw_distances(space, kind, result, side, kept)
    return float(raw[np.isfinite(raw)].max()) * unit or 1.0


def linear_cost(cost: Any, result: GWResult) -> np.ndarray | None:
    """The linear cost as a matrix."""
    if cost is None:
        return None
    if isinstance(cost, FeatureCost) or (isinstance(cost, tuple | list) and len(cost) == 2 and np.ndim(cost[0]) == 2):
        given = cost if isinstance(cost, FeatureCost) else FeatureCost(*cost)
        x, y = as_array(given.X), as_array(given.Y)
        if given.metric == "cosine":
            x, y = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (x, y))
            return (1 - x @ y.T) / result.cost_scale
        root = result.cost_scale**0.5
        return (((x / root)[:, None] - y / root) ** 2).sum(-1)
    return as_array(cost)


def penalties(rules: Any, p: np.ndarray, q: np.ndarray, given: Any) -> np.ndarray | None:
    """How many rules a pair of points breaks."""
    if rules is None:
        return None
    n, k = len(p), len(q)
    broken = np.zeros((n, k))
    if rules.pairs is not None:
        known = np.zeros((n, k), dtype=bool)
        known[tuple(np.asarray(rules.pairs).T)] = True
        for axis, (mass, others) in enumerate((given, given[::-1])):
            room = (known if axis == 0 else known.T) @ others
            held = (room > 0) & (mass <= room * (1 + 1e-9))
            broken += ~known * (held[:, None] if axis == 0 else held)
    if rules.forbidden is not None:
        forbidden = np.zeros((n, k))
        forbidden[tuple(np.asarray(rules.forbidden).T)] = 1
        broken += forbidden
    if rules.labels is not None:
        x, y = (np.asarray(side) for side in rules.labels)
        broken += (x[:, None] != y) & (x[:, None] >= 0) & (y >= 0)
    if rules.mask is not None:
        mask = rules.mask.toarray() if sparse.issparse(rules.mask) else rules.mask
        broken += np.asarray(mask) == 0
    return broken


# Reading and differentiating


def readings(result: GWResult, T: np.ndarray) -> list[str]:
    """What is read of the plan without storing it, against the plan."""
    failures: list[str] = []
    n, k = T.shape
    near = (1e-9 if result.strategy == "dense" else 1e-4) * T.max()

    def array(found: Any) -> np.ndarray:
        return np.asarray(found.detach().cpu() if isinstance(found, Tensor) else found)

    for axis, size in ((1, k), (0, n)):
        best = array(result.argmax(axis))
        at = np.take_along_axis(T, best[:, None] if axis == 1 else best[None], axis)
        least = T.max(axis) * (1.0 if result.strategy == "dense" else 0.8) - near  # ties are open on tiles
        if not (0 <= best.min() <= best.max() < size) or not (at.ravel() >= least).all():
            failures.append(f"argmax({axis}) is not at the largest entries")
    count = min(3, k)
    # Without entropy the candidates after the match are those of the soft plan.
    read = result if result.epsilon > 0 else result.coupling
    top, index = (array(found) for found in read.top_k(count))
    order = -np.sort(-T, axis=1)[:, :count]
    if not (np.abs(top - order) <= near).all() or not (np.abs(np.take_along_axis(T, index, 1) - top) <= near).all():
        failures.append("top_k does not have the largest entries")
    for axis, name, size, sums in ((0, "push", n, T.sum(0)), (1, "pull", k, T.sum(1))):
        moved = array(getattr(result, name)(np.full((size, 2), 3.0)))
        empty = array(result.marginal(axis)) == 0  # entries that a stored plan rounds to zero still have a mean
        seen, differentiated = sums > near * n * k, result.differentiated is not None
        if not np.allclose(moved[seen], 3.0, rtol=1e-4) or not (differentiated or np.isnan(moved[empty]).all()):
            failures.append(f"{name} does not keep constants: {moved.ravel()[:6]}")
    sums = array(result.marginal(1))
    if not (np.abs(sums - T.sum(1)) <= near * k).all() or not (np.abs(array(result.row(0)) - T[0]) <= near).all():
        failures.append("marginal(1) or row(0) are not those of the plan")
    for drawn, size in zip(result.sample(7, random_state=0), (n, k), strict=True):
        if not 0 <= array(drawn).min() <= array(drawn).max() < size:
            failures.append("sample gives indices that are not there")
    if result.strategy == "dense":
        kept = result.sparsify(0.9)
        if not (kept.toarray().sum(1) >= 0.9 * T.sum(1) - near * k).all():
            failures.append("sparsify(0.9) keeps less than 0.9")
        doubt = result.confidence()
        for entry in fields(doubt):
            seen = array(getattr(doubt, entry.name))[T.sum(1) > 0]
            if entry.name != "stability" and not (np.isfinite(seen) & (seen >= -1e-9)).all():
                failures.append(f"confidence().{entry.name} is {seen}")
    if not repr(result) or np.isnan(result.value):
        failures.append(f"the value is {result.value}")
    return failures


def gradients(result: GWResult, spaces: list[Any], keywords: dict[str, Any]) -> list[str]:
    """Gradients of the loss, and of what is read of the plan, are numbers."""
    mode = keywords.get("gradient_mode")
    if mode is None:
        return []
    given = {"X": spaces[0], "Y": spaces[1], "p": keywords.get("p"), "q": keywords.get("q")}
    leaves = {name: leaf for name, leaf in given.items() if isinstance(leaf, Tensor) and leaf.requires_grad}
    if not leaves:
        return []
    total = result.loss
    if not total.requires_grad:  # alpha = 0 has no use for distances
        return []
    if not isinstance(mode, torchgw.Envelope):
        total = total + torch.nan_to_num(result.pull(torch.linspace(0, 1, result.shape[1]))).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return [
        f"the gradient of {name} is {gradient}"
        for name, gradient in zip(leaves, found, strict=True)
        if gradient is not None and not torch.isfinite(gradient).all()
    ]
