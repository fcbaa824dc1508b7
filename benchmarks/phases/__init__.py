"""What each optimisation buys: the same work without it and with it, at equal quality.

Three ways to ask. "alone": the plain sampled loop with this one switched on. "all but it": the loop with everything
switched on against the same without this one, which stays affordable at large sizes. "library": phases that the plain
loop does not have, as options of `gw_align`. The cumulative table switches them on one after the other.

Loops begin from a few known pairs, so that all end in the right basin, but where finding it is what is measured.
Times are medians over rounds of both sides in turns, each with a seed of its own; ratios are taken within a round.
Every loop ends with the same last solve, which counts. Quality is the signed Spearman correlation of the matching, and
the value of the returned plan on exact distances. ``python -m benchmarks phases alone tiles`` runs only these groups,
and keeps the other rows that are stored.
"""

from benchmarks.phases.suite import run

__all__ = ["run"]
