"""Random calls of `gw_align`, each judged: accepted with a plan that keeps its promises, or refused in clear words.

A call is text, drawn from the tables of `tests.fuzz_kinds` by a seed and an index alone, so that what fails is printed
as it ran. About two thirds are drawn to be accepted, the others have one argument that cannot be used.

    python -m tests.fuzz --calls 1000 --seed 7 [--from 300]
"""

from __future__ import annotations

import argparse
import collections
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from tests import fuzz_kinds as kinds
from tests import fuzz_makers
from tests.fuzz_judge import Verdict, judge

SPOILED = 0.25  # share of calls with an argument that must be refused
SURROUNDED = 0.15  # in surroundings that must not matter
LEFT_OPEN = 0.25  # with the default epsilon, at least
ARGUMENTS = ("X", "Y", "p", "q", "epsilon", "marginals", "cost", "alpha", "supervision", "init", "gradient_mode")
SIZES = ((2, 6), (6, 16), (6, 16), (16, 36), (36, 61))


@dataclass(frozen=True)
class Call:
    """A call as text: spaces and keywords, the kinds that it was drawn from, the argument that cannot be used, and what
    surrounds it, if anything does."""

    spaces: tuple[str, str]
    keywords: dict[str, str]
    kinds: tuple[str, ...]
    spoiled: str | None
    around: str = ""

    @property
    def snippet(self) -> str:
        named = {"X": self.spaces[0], "Y": self.spaces[1], **self.keywords} if self.around else self.keywords
        lines = [*(() if self.around else self.spaces), *(f"{name}={text}" for name, text in named.items())]
        body = "".join(f"    {line},\n" for line in lines)
        call = f"gw_align(\n{body})"
        if self.around:  # what is given is made outside
            call = f"given = dict(\n{body})\nwith {self.around}:\n    gw_align(**given)"
        return f"from tests.fuzz_makers import *\n\n{call}"

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The objects, made afresh."""
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", sparse.SparseEfficiencyWarning)
            spaces = [self._made(text) for text in self.spaces]
            return spaces, {name: self._made(text) for name, text in self.keywords.items()}

    def surroundings(self) -> AbstractContextManager[Any]:
        """What the call is to run in."""
        found: AbstractContextManager[Any] = self._made(self.around or "nullcontext()")
        return found

    def _made(self, text: str) -> Any:
        return eval(text, dict(vars(fuzz_makers)))


class Draw:
    """The call that belongs to a seed and an index."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = np.random.default_rng([seed, index])
        self.kinds: list[str] = []
        self.strategy = self._any(["dense"] * 11 + ["streaming"] * 7 + ["low-rank"] * 2)
        self.spoiled = self._any([*ARGUMENTS, "distances", "options", *kinds.OTHERS]) if self.some(SPOILED) else None
        self.plain = self.strategy == "low-rank" or self.some(0.06)  # epsilon=0 and low rank have no other objective
        self.sizes = self._sizes()
        self.sharp = self.plain and self.strategy == "dense"
        self.differentiated = not self.plain and self.some(0.15)

    @cached_property
    def call(self) -> Call:
        """Drawn in one order; what must fit together is drawn together."""
        keywords: dict[str, str] = {}
        spaces, keywords["distances"] = self.spaces()
        sums = self.masses(keywords)
        keywords["epsilon"] = self.epsilon()
        self.objective(keywords, min(sums))
        if spaces_free := keywords.get("alpha") == "0" and self.some(0.3):
            spaces = ["None", "None"]
        if self.spoiled == "init" or self.some(0.2):
            x, y = spaces
            able = not spaces_free and self.spoiled not in ("X", "Y")
            keywords["init"] = self.entry("init", kinds.INIT, kinds.BAD_INIT, x=x if able else "3", y=y)
        if self.differentiated or self.spoiled == "gradient_mode":
            keywords["gradient_mode"] = self.entry("gradient_mode", kinds.MODES, kinds.BAD_MODES)
        keywords["options"] = self.options()
        keywords["random_state"] = "0"
        for name, (good, bad) in kinds.OTHERS.items():
            if self.spoiled == name or self.some(0.2):
                keywords[name] = self.entry(name, good, bad, usual=0.0)
        around = self.pick("surrounding", kinds.SURROUNDINGS) if self.some(SURROUNDED) else ""
        return Call((spaces[0], spaces[1]), keywords, tuple(self.kinds), self.spoiled, around)

    def spaces(self) -> tuple[list[str], str]:
        """Both spaces and what is made of them."""
        spaces, words = [], []
        for side, n in zip("XY", self.sizes, strict=True):
            kind = self._any(["points"] * 9 + ["matrix"] * 5 + ["graph"] * 3 + ["provider"] * 3)
            factored = self.strategy != "dense" and self.some(0.9 if self.strategy == "low-rank" else 0.7)
            kind = "points" if factored and kind == "matrix" else kind
            good, bad, forms = {
                "points": (kinds.POINTS, kinds.BAD_POINTS, kinds.DRESSED),
                "matrix": (kinds.MATRICES, kinds.BAD_MATRICES, kinds.DRESSED),
                "graph": (kinds.GRAPHS, kinds.BAD_GRAPHS, kinds.FORMATS),
                "provider": (kinds.PROVIDERS, kinds.BAD_PROVIDERS, None),
            }[kind]
            if factored and kind == "provider":
                good = {name: good[name] for name in kinds.FACTORED}
            d = int(self._any([1, 2, 2, 3, 5, 30]))
            text = self.entry(f"{side} {kind}", good, bad, name=side, usual=0.4, n=n, d=d + (d == n))
            if forms is not None and self.spoiled != side:
                learned = self.differentiated and self.some(0.6) and kind in ("points", "matrix")
                dressed = "learned({x})" if learned else self.pick(f"{side} form", forms, 0.4)
                text = dressed.replace("{x}", text)
            able = {"points": 5, "graph": 4, "matrix": 1, "provider": 1}[kind]
            word = self._any([*kinds.WORDS, "euclidean"][:able] + ["auto"] * 2)
            word = self._any(["auto", "landmark"]) if factored and kind in ("points", "graph") else word
            word = "precomputed" if kind == "matrix" and self.some(0.2) else word
            spaces.append(text)
            words.append(word)
        self.kinds += [f"distances: {word}" for word in words]
        if self.spoiled == "distances":
            return spaces, self.pick("distances", kinds.BAD_WORDS)
        one = words[0] == words[1] and self.some(0.8)
        return spaces, repr(words[0]) if one else repr(tuple(words))

    def masses(self, keywords: dict[str, str]) -> tuple[float, float]:
        """p and q, their kind of marginals with them, and what they sum to."""
        good = kinds.MARGINALS
        marginals = "balanced" if self.plain else self._any(["balanced"] * len(good) + list(good))
        sums = [self.pick("sum of masses", kinds.SUMS, 0.85)] * 2
        if marginals != "balanced" and self.some(0.4):
            sums[1] = self.pick("sum of masses", kinds.SUMS, 0.6)
        given = sums[0] != "{x}" or sums[1] != "{x}"
        for name, total, n in zip("pq", sums, self.sizes, strict=True):
            if given or self.spoiled == name or self.some(0.5):
                text = self.entry(name, kinds.MASSES, kinds.BAD_MASSES, usual=0.4, n=n)
                if self.spoiled != name:
                    form = (
                        "learned({x})"
                        if self.differentiated and self.some(0.3)
                        else self.pick("p form", kinds.MASS_FORMS)
                    )
                    text = form.replace("{x}", total.replace("{x}", text))
                keywords[name] = text
        found = (
            float(sums[0].replace("* {x}", "").replace("{x}", "1")),
            float(sums[1].replace("* {x}", "").replace("{x}", "1")),
        )
        if marginals != "balanced" or self.spoiled == "marginals":
            table = {marginals: good[marginals]}
            keywords["marginals"] = self.entry("marginals", table, kinds.BAD_MARGINALS, least=min(found))
        return found

    def epsilon(self) -> str:
        if self.spoiled != "epsilon" and (self.sharp or self.some(LEFT_OPEN)):
            names = ("auto", "0") if self.sharp else ("auto",)
            return self.pick("epsilon", {name: kinds.EPSILON[name] for name in names})
        table = {kind: text for kind, text in kinds.EPSILON.items() if kind != "0"}
        return self.entry("epsilon", table, kinds.BAD_EPSILON, usual=0.85, first=7)

    def objective(self, keywords: dict[str, str], least: float) -> None:
        """Linear cost, its weight, supervision."""
        if self.spoiled == "cost" or (not self.plain and self.some(0.3)):
            good = kinds.COSTS
            if self.strategy != "dense":
                good = {kind: good[kind] for kind in kinds.STREAMED_COSTS}
            keywords["cost"] = self.entry("cost", good, kinds.BAD_COSTS, usual=0.2)
        if self.spoiled == "alpha" or "cost" in keywords:
            keywords["alpha"] = self.entry("alpha", kinds.ALPHA, kinds.BAD_ALPHA, usual=0.2)
        if self.spoiled == "supervision" or (not self.plain and self.some(0.15)):
            good = kinds.RULES
            if self.strategy != "dense":
                good = {kind: text for kind, text in good.items() if "mask" not in kind}
            strength = "" if self.spoiled == "supervision" else self.pick("strength", kinds.STRENGTHS, 0.4)
            rules = self.entry("supervision", good, kinds.BAD_RULES)
            keywords["supervision"] = f"Supervision({rules}{strength})"

    def options(self) -> str:
        """A few fields of some groups."""
        fields = [(group, field) for group, members in kinds.FIELDS.items() for field in members]
        chosen = [fields[i] for i in self.rng.permutation(len(fields))[: self._any([0, 1, 2, 2, 3, 5])]]
        bad = chosen[0] if self.spoiled == "options" and chosen else fields[-1] if self.spoiled == "options" else None
        if self.strategy == "low-rank":
            chosen.append(("low_rank", "rank"))
        if bad is not None and bad not in chosen:
            chosen.append(bad)
        texts: dict[str, list[str]] = {}
        for group, field in dict.fromkeys(chosen):
            usable, _, refused = kinds.FIELDS[group][field].partition("||")
            text = str(self._any((refused if (group, field) == bad else usable).split("|")))
            self.kinds.append(f"{group or 'options'}.{field}: {text[:30]}")
            shown = text.replace("{least_n}", str(min(self.sizes))).replace("{most_n}", str(max(self.sizes)))
            texts.setdefault(group, []).append(f"{field}={shown}")
        own = texts.pop("", [])
        if any(text.startswith("coarse=") for text in own):
            texts.pop("coarse", None)
        own += [f"{group}={kinds.GROUPS[group]}({', '.join(members)})" for group, members in texts.items()]
        if self.strategy != "dense" and not any(text.startswith("strategy=") for text in own):
            self.kinds.append(f"options.strategy: {self.strategy!r}")
            own.append(f"strategy={self.strategy!r}")
        return f"GWOptions({', '.join(own)})"

    def entry(
        self,
        title: str,
        good: kinds.Table,
        bad: kinds.Table,
        *,
        name: str = "",
        usual: float = 0.3,
        first: int = 1,
        **parts: Any,
    ) -> str:
        """A filled-in expression of either table."""
        spoiled = self.spoiled == (name or title)
        text = self.pick(
            f"{title}, bad" if spoiled else title, bad if spoiled else good, 0.0 if spoiled else usual, first
        )
        if "{" not in text.replace("{{", ""):
            return text.replace("{{", "{").replace("}}", "}")
        n, k = self.sizes
        return text.format(**{"N": n, "K": k, "s": int(self.rng.integers(100)), **parts})

    def pick(self, title: str, table: kinds.Table, usual: float = 0.0, first: int = 1) -> str:
        """A text of a table: one of the first with probability ``usual``, else any."""
        kind = str(self._any(list(table)[:first] if self.some(usual) else list(table)))
        self.kinds.append(f"{title}: {kind}")
        return table[kind]

    def some(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def _any(self, choices: list[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def _sizes(self) -> tuple[int, int]:
        """N and K; not both are large."""
        first, second = (self.rng.integers(*self._any(ranges)) for ranges in (SIZES, SIZES[:-2]))
        return (int(first), int(second)) if self.some(0.5) else (int(second), int(first))


def drawn(seed: int, index: int) -> Call:
    return Draw(seed, index).call


def table(verdicts: list[tuple[Call, Verdict]]) -> str:
    """How often each kind was accepted, refused and failed."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for call, verdict in verdicts:
        for kind in ["all calls", *dict.fromkeys(call.kinds), *verdict.kinds]:
            counts[kind].update([verdict.outcome, "failed"] if verdict.failures else [verdict.outcome])
    width = max(len(kind) for kind in counts)
    lines = [f"{'':{width}} {'accepted':>9} {'refused':>9} {'failed':>9}"]
    for kind in sorted(counts, key=lambda kind: (kind != "all calls", kind)):
        row = [f"{counts[kind][outcome]:9d}" for outcome in ("accepted", "refused", "failed")]
        lines.append(f"{kind:{width}} {' '.join(row)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0, help="index of the first call")
    asked = parser.parse_args()
    verdicts = []
    for index in range(asked.first, asked.first + asked.calls):
        call = drawn(asked.seed, index)
        verdict = judge(call)
        verdicts.append((call, verdict))
        if verdict.failures:
            print(f"# seed {asked.seed}, index {index}: {verdict.outcome}, {verdict.seconds:.1f} s", flush=True)
            print("".join(f"# {line}\n" for failure in verdict.failures for line in failure.splitlines()), end="")
            print(call.snippet, "\n", flush=True)
    print(table(verdicts))
    print(f"{sum(verdict.seconds for _, verdict in verdicts):.0f} s of processor time")
    raise SystemExit(any(verdict.failures for _, verdict in verdicts))


if __name__ == "__main__":
    main()
