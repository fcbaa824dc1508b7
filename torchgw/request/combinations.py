"""What goes with what: the one table of combinations that `gw_align` refuses, and of options that others decide.

Each argument is of one of a few kinds, as far as others depend on it (`KINDS`). A row of `EXCLUSIONS` has kinds of an
argument that are not available beside kinds of others, the reason, and what to do instead. Errors are made from it, and
so are the page docs/combinations.md and a test. A row of `IMPLIED_OPTIONS` names an option that is not free there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from torchgw.gradients.modes import GradientMode
from torchgw.losses import SeparableLoss
from torchgw.marginals import Balanced, Marginals
from torchgw.objective.features import FeatureCost
from torchgw.objective.supervision import Supervision
from torchgw.options import AnnealingOptions, GWOptions
from torchgw.spaces.prepare import InputSpace
from torchgw.types import Epsilon

# The kinds of each argument, and how they are called in sentences.
KINDS: dict[str, dict[str, str]] = {
    "options.strategy": {
        "auto": "options.strategy='auto'",
        "dense": "the dense strategy",
        "streaming": "the streaming strategy",
        "low-rank": "the low-rank strategy",
        "sparse": "the sparse strategy",
    },
    "epsilon": {"positive": "epsilon > 0", "zero": "epsilon=0", "auto": "epsilon='auto'"},
    "options.gradient": {name: f"options.gradient='{name}'" for name in ("auto", "exact", "sampled")},
    "marginals": {name: f"{name}()" for name in ("Balanced", "SemiRelaxed", "Unbalanced", "Partial")}
    | {"free": "SemiRelaxed(0.0)"},
    "cost": {"none": "no linear cost", "matrix": "a cost matrix", "features": "a pair of feature arrays as cost"},
    "alpha": {
        "one": "alpha=1",
        "between": "0 < alpha < 1",
        "zero": "alpha=0",
        "tracked zero": "a differentiated alpha=0",
    },
    "options.loss": {"square": "loss='square'", "kl": "loss='kl'", "own": "a SeparableLoss"},
    "supervision": {"none": "no supervision", "rules": "supervision", "mask": "a mask"},
    "gradient_mode": {"none": "no gradient mode"}
    | {name: f"gradient_mode={name}()" for name in ("Envelope", "Implicit")},
    "checkpoint": {"none": "no checkpoint", "folder": "a checkpoint"},
    "X": {
        "factored": "factored distances of X",
        "others": "distances of X without factors",
        "asymmetric": "an asymmetric X",
        "sparse": "a sparse adjacency as X",
        "sparse asymmetric": "a sparse, asymmetric adjacency as X",
    },
    "Y": {
        "factored": "factored distances of Y",
        "others": "distances of Y without factors",
        "asymmetric": "an asymmetric Y",
        "sparse": "a sparse adjacency as Y",
        "sparse asymmetric": "a sparse, asymmetric adjacency as Y",
    },
}
RULES = ("rules", "mask")
RELAXED, HELD = ("SemiRelaxed", "free", "Unbalanced", "Partial"), ("SemiRelaxed", "Unbalanced")
NOT_SQUARE = ("kl", "own")
MODES = ("Envelope", "Implicit")
DIRECTED = ("asymmetric", "sparse asymmetric")
WITHOUT_FACTORS = ("others", "sparse")
BELOW_ONE, ABOVE_ZERO, ZERO = ("between", "zero", "tracked zero"), ("one", "between"), ("zero", "tracked zero")
# What several kinds of an argument have in common.
TOGETHER = {
    NOT_SQUARE: "a loss other than 'square'",
    MODES: "a gradient mode",
    RELAXED: "relaxed or partial marginals",
    HELD: "marginals that divergences hold",
    ABOVE_ZERO: "alpha > 0",
    ZERO: "alpha=0",
    BELOW_ONE: "alpha < 1",
    RULES: "supervision",
}


class Fact(NamedTuple):
    """An argument as others depend on it.

    kind : its kind, a key of `KINDS`.
    text : the argument as a message shows it.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Exclusion:
    """A combination that is not available.

    argument : the argument to change
    kinds : its kinds that are excluded
    beside : {argument: kinds}, the arguments beside which they are
    must : what it must be or have there, with its verb
    why : the reason
    instead : what to do
    error : the class of the exception
    """

    argument: str
    kinds: tuple[str, ...]
    beside: Mapping[str, tuple[str, ...]]
    must: str
    why: str
    instead: str
    error: type[Exception] = ValueError

    def holds(self, kinds: Mapping[str, str]) -> bool:
        """Whether arguments of these kinds are such a combination; those that are not known yet are none."""
        return all(kinds.get(name) in excluded for name, excluded in {self.argument: self.kinds, **self.beside}.items())

    def message(self, facts: Mapping[str, Fact]) -> str:
        """The error, for these arguments; those that others share a name with are called by it."""
        own = {name: kinds if kinds in TOGETHER else (facts[name].kind,) for name, kinds in self.beside.items()}
        beside, got = (
            " and ".join(describe_kinds(name, kinds) for name, kinds in own.items()),
            facts[self.argument].text,
        )
        return f"{self.argument} must {self.must} with {beside}, got {got}: {self.why}; {self.instead}"


@dataclass(frozen=True)
class Implication:
    """An option that other arguments decide.

    given : {argument: kinds} of those that do
    option : the member of `GWOptions`
    value : what it is there
    why : the reason
    """

    given: Mapping[str, tuple[str, ...]]
    option: str
    value: Any
    why: str


STORED = "it is a matrix (N, K), and so is the plan of the dense strategy alone"
BY_SQUARES = "the descent is that of squared distances alone"
ONE_WAY = "factors, landmarks and anchors know one distance for each pair of points"
LANDMARKS = "use distances='landmark', or EuclideanDistances(points, squared=True) as {}"
PLAIN = (  # of what is solved for squared distances alone
    ("marginals", RELAXED, "be Balanced()"),
    ("alpha", BELOW_ONE, "be 1"),
    ("options.loss", NOT_SQUARE, "be 'square'"),
    ("supervision", RULES, "be None"),
)
# fmt: off
EXCLUSIONS = (
    Exclusion("alpha", BELOW_ONE, {"cost": ("none",)}, "be 1", "nothing else is weighed", "give a matrix or features"),
    Exclusion("options.strategy", ("streaming", "low-rank", "sparse"), {"cost": ("matrix",)}, "be 'auto' or 'dense'",
             STORED, "give the cost as a pair of feature arrays"),
    Exclusion("options.strategy", ("streaming", "low-rank"), {"supervision": ("mask",)}, "be 'auto' or 'dense'",
             STORED, "labels, known and forbidden pairs stream"),
    Exclusion("options.strategy", ("streaming",), {"options.loss": NOT_SQUARE, "alpha": ABOVE_ZERO},
             "be 'auto' or 'dense'", "others than the square are evaluated on stored plans", "use loss='square'"),
    Exclusion("marginals", HELD, {"epsilon": ("zero",)}, "be Balanced(), Partial() or SemiRelaxed(0.0)",
             "relaxed marginals need an entropy", "use a small epsilon > 0"),
    *(Exclusion("options.strategy", ("streaming",), {"epsilon": ("zero",), name: kinds}, "be 'auto' or 'dense'",
               "only balanced problems of distances alone stream without entropy", "use strategy='dense'")
      for name, kinds, _ in PLAIN if name != "options.loss"),
    *(Exclusion(name, kinds, {"options.strategy": ("low-rank", "sparse")}, must, BY_SQUARES, "use another strategy")
      for name, kinds, must in PLAIN),
    Exclusion("epsilon", ("positive",), {"options.strategy": ("sparse",)}, "be 0",
             "plans of few entries have no entropy", "use epsilon=0"),
    Exclusion("epsilon", ("zero",), {"options.gradient": ("sampled",)}, "be > 0",
             "the sharp end needs exact gradients", "use gradient='auto'"),
    Exclusion("options.gradient", ("sampled",), {"options.strategy": ("sparse",)}, "be 'auto' or 'exact'",
             "few entries are summed whole", "use gradient='auto'"),
    Exclusion("options.gradient", ("sampled",), {"options.loss": NOT_SQUARE}, "be 'auto' or 'exact'",
             "anchors sample the square", "use loss='square'"),
    Exclusion("epsilon", ("zero",), {"gradient_mode": MODES}, "be > 0",
             "a plan without entropy is not differentiable", "use a small epsilon > 0"),
    Exclusion("options.gradient", ("sampled",), {"gradient_mode": MODES}, "be 'auto' or 'exact'",
             "a plan of sampled costs is no fixed point", "use gradient='auto'"),
    Exclusion("options.strategy", ("low-rank", "sparse"), {"gradient_mode": MODES}, "be 'auto', 'dense' or 'streaming'",
             "it ends at no fixed point of the linearised problem", "use strategy='auto'"),
    Exclusion("checkpoint", ("folder",), {"gradient_mode": MODES}, "be None",
             "files do not hold what gradients flow to", "leave one of them out"),
    Exclusion("alpha", ("tracked zero",), {"gradient_mode": MODES}, "be > 0 to be differentiated",
             "0 has no use for distances", "take 1e-6"),
    Exclusion("options.loss", ("own",), {"checkpoint": ("folder",)}, "be 'square' or 'kl'",
             "files hold no functions", "leave one of them out", TypeError),
    *(Exclusion("options.strategy", ("streaming", "low-rank"), {name: DIRECTED}, "be 'auto' or 'dense'",
               ONE_WAY, "use strategy='dense', or (A + A.T) / 2") for name in "XY"),
    *(Exclusion("options.gradient", ("sampled",), {name: DIRECTED}, "be 'auto' or 'exact'",
               ONE_WAY, "use gradient='auto', or (A + A.T) / 2") for name in "XY"),
    *(Exclusion(name, WITHOUT_FACTORS, {"options.strategy": ("low-rank",)}, "have factored distances",
               "the descent multiplies by factors", LANDMARKS.format(name)) for name in "XY"),
    *(Exclusion(name, WITHOUT_FACTORS, {"options.strategy": ("streaming",), "gradient_mode": MODES},
               "have factored distances", "sampled gradients have no fixed point", LANDMARKS.format(name))
      for name in "XY"),
    *(Exclusion("epsilon", ("zero",), {"options.strategy": ("streaming",), name: WITHOUT_FACTORS}, "be > 0",
               "plans without entropy stream between factored distances alone", "use strategy='dense'")
      for name in "XY"),
    *(Exclusion(name, kinds, {"options.strategy": ("sparse",)}, "be a sparse adjacency",
               "plans have few entries where both matrices have", "use strategy='auto'")
      for kinds in (("asymmetric",), ("factored", "others")) for name in "XY"),
)
# fmt: on
IMPLIED_OPTIONS = (
    Implication({"cost": ("matrix",)}, "strategy", "dense", "it is stored"),
    Implication(
        {"options.loss": NOT_SQUARE, "alpha": ABOVE_ZERO}, "strategy", "dense", "it is evaluated on stored plans"
    ),
    Implication({"supervision": ("mask",)}, "strategy", "dense", "it is stored"),
    *(
        Implication(
            {"epsilon": ("zero",), name: kinds},
            "strategy",
            "dense",
            "only balanced problems of distances alone stream without entropy",
        )
        for name, kinds, _ in PLAIN
    ),
    Implication({"options.loss": NOT_SQUARE}, "gradient", "exact", "anchors sample the square"),
    Implication({"alpha": ZERO}, "gradient", "auto", "there are no distances to sample"),
    Implication({"alpha": ZERO}, "coarse", None, "the problem is convex: there are no basins to search"),
    Implication({"alpha": ZERO}, "annealing", AnnealingOptions(n_iter=0), "the problem is convex"),
    Implication({"gradient_mode": MODES}, "gradient", "exact", "a plan of sampled costs is no fixed point"),
    *(
        row
        for name in "XY"
        for row in (
            Implication({name: DIRECTED, "options.strategy": ("auto",)}, "strategy", "dense", ONE_WAY),
            Implication({name: DIRECTED}, "gradient", "exact", ONE_WAY),
        )
    ),
)


def facts_of(
    options: GWOptions,
    epsilon: Epsilon,
    *,
    alpha: object = 1.0,
    cost: object = None,
    marginals: Marginals = Balanced(),  # noqa: B008 - frozen
    supervision: Supervision | None = None,
    gradient_mode: GradientMode | None = None,
    checkpoint: object = None,
) -> dict[str, Fact]:
    """The kinds of all arguments but the spaces, under their names; ``alpha`` is a number or a tensor ()."""
    weight = float(alpha.detach()) if isinstance(alpha, Tensor) else float(alpha)  # type: ignore[arg-type]
    tracked = isinstance(alpha, Tensor) and alpha.requires_grad
    zero = "tracked zero" if tracked else "zero"
    features = isinstance(cost, tuple | FeatureCost)
    rules = None if supervision is None else "rules" if supervision.mask is None else "mask"
    loss = options.loss
    named = f"SeparableLoss named {loss.name!r}" if isinstance(loss, SeparableLoss) else repr(loss)
    return {
        "options.strategy": Fact(options.strategy, repr(options.strategy)),
        "epsilon": fact_of_epsilon(epsilon),
        "options.gradient": Fact(options.gradient, repr(options.gradient)),
        "marginals": Fact(kind_of_marginals(marginals), repr(marginals)),
        "cost": Fact("none" if cost is None else "features" if features else "matrix", type(cost).__name__),
        "alpha": Fact("one" if weight == 1 else zero if weight == 0 else "between", f"{weight:g}"),
        "options.loss": Fact("own" if isinstance(loss, SeparableLoss) else loss, named),
        "supervision": Fact(rules or "none", type(supervision).__name__),
        "gradient_mode": Fact("none" if gradient_mode is None else type(gradient_mode).__name__, repr(gradient_mode)),
        "checkpoint": Fact("none" if checkpoint is None else "folder", repr(checkpoint)),
    }


def kind_of_marginals(marginals: Marginals) -> str:
    """The model, as others depend on it."""
    if marginals.balanced:
        return "Balanced"
    return "free" if min(marginals.weights) == 0 else type(marginals).__name__


def fact_of_epsilon(epsilon: Epsilon) -> Fact:
    """Whether there is entropy, or whether that is left to the solve."""
    if isinstance(epsilon, str):
        return Fact(epsilon, repr(epsilon))
    return Fact("positive" if epsilon > 0 else "zero", f"{epsilon:g}")


def fact_of_space(space: InputSpace) -> Fact:
    """Whether the distances of a space have factors, two directions, or few entries."""
    kind = type(space.data).__name__ if space.kind == "provider" else space.kind
    if space.sparse:
        return Fact("sparse" if space.symmetric else "sparse asymmetric", repr(kind))
    return Fact("asymmetric" if not space.symmetric else "factored" if space.has_factors else "others", repr(kind))


def is_standard(facts: Mapping[str, Fact]) -> bool:
    """Whether these arguments ask for squared distances alone, between hard marginals."""
    return not any(name in facts and facts[name].kind in kinds for name, kinds, _ in PLAIN)


def find_exclusion(facts: Mapping[str, Fact]) -> Exclusion | None:
    """The first excluded combination among these arguments, None where all go together."""
    kinds = {name: fact.kind for name, fact in facts.items()}
    return next((row for row in EXCLUSIONS if row.holds(kinds)), None)


def refuse(facts: Mapping[str, Fact]) -> None:
    """Raise for the first excluded combination among these arguments.

    Raises
    ------
    ValueError, TypeError
        Naming the argument to change, why, and what to do instead.
    """
    row = find_exclusion(facts)
    if row is not None:
        raise row.error(row.message(facts))


def imply_options(options: GWOptions, facts: Mapping[str, Fact]) -> GWOptions:
    """The options with those that other arguments, as far as they are known, decide; later rows go before earlier."""
    return replace(options, **{row.option: row.value for row in _find_implications(facts)})


def explain_implication(option: str, facts: Mapping[str, Fact]) -> str | None:
    """Why arguments of these kinds decide an option, None where they leave it free."""
    return next((row.why for row in reversed(_find_implications(facts)) if row.option == option), None)


def _find_implications(facts: Mapping[str, Fact]) -> list[Implication]:
    known = {name: fact.kind for name, fact in facts.items()}
    return [row for row in IMPLIED_OPTIONS if all(known.get(name) in kinds for name, kinds in row.given.items())]


def describe_kinds(name: str, kinds: tuple[str, ...]) -> str:
    """Kinds of an argument in a sentence."""
    return TOGETHER.get(kinds) or " or ".join(KINDS[name][kind] for kind in kinds)
