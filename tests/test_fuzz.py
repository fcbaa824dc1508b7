"""Random calls are accepted with a plan that keeps its promises, or refused in words that name the argument.

`python -m tests.fuzz --seed 7 --from 12 --calls 1` runs one of them again.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

import pytest

from tests import fuzz_kinds
from tests.fuzz import Call, drawn, table
from tests.fuzz_judge import Verdict, judge

SEED = 7
FEW, PARTS = 60, 6
MANY, MANY_PARTS = 1000, 10


def judged(indices: Iterable[int]) -> list[tuple[Call, Verdict]]:
    """Calls with their verdicts, none of which found fault."""
    found = [(call, judge(call)) for call in (drawn(SEED, index) for index in indices)]
    wrong = [f"{call.snippet}\n" + "\n".join(verdict.failures) for call, verdict in found if verdict.failures]
    assert not wrong, f"\n{len(wrong)} calls:\n\n" + "\n\n".join(wrong)
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_calls_keep_their_promises(part: int) -> None:
    found = judged(range(part, FEW, PARTS))
    assert sum(verdict.outcome == "accepted" for _, verdict in found) >= len(found) / 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(MANY_PARTS))
def test_many_calls_keep_their_promises(part: int) -> None:
    found = judged(range(FEW + part, FEW + MANY, MANY_PARTS))
    print(table(found))
    assert sum(verdict.outcome == "accepted" for _, verdict in found) >= len(found) / 2


def test_calls_are_those_of_their_seed_and_index_and_all_kinds_are_drawn() -> None:
    calls = [drawn(SEED, index) for index in range(FEW + MANY)]
    assert [drawn(SEED, index).snippet for index in (3, 59)] == [calls[3].snippet, calls[59].snippet]
    counts = collections.Counter(kind for call in calls for kind in call.kinds)
    missing = [f"{name}: {kind}" for name, table in TABLES.items() for kind in table if not counts[f"{name}: {kind}"]]
    for group, members in fuzz_kinds.FIELDS.items():
        for field, texts in members.items():
            usable = texts.partition("||")[0].split("|")
            missing += [
                f"{group}.{field}: {text}"
                for text in usable
                if not counts[f"{group or 'options'}.{field}: {text[:30]}"]
            ]
    assert not missing


TABLES = {
    "strength": fuzz_kinds.STRENGTHS,
    "epsilon": {kind: text for kind, text in fuzz_kinds.EPSILON.items() if kind != "0"},
    "marginals": {kind: text for kind, text in fuzz_kinds.MARGINALS.items() if kind != "balanced"},
    "cost": fuzz_kinds.COSTS,
    "alpha": fuzz_kinds.ALPHA,
    "supervision": fuzz_kinds.RULES,
    "init": fuzz_kinds.INIT,
    "gradient_mode": fuzz_kinds.MODES,
    **{f"{side} {kind}": table for side in "XY" for kind, table in fuzz_kinds.SPACES.items()},
    **dict.fromkeys("pq", fuzz_kinds.MASSES),
    **{name: good for name, (good, _) in fuzz_kinds.OTHERS.items()},
    "surrounding": fuzz_kinds.SURROUNDINGS,
}
