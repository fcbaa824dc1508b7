"""``python -m benchmarks SUITE``: run one suite, print its table, write its results."""

import argparse
import importlib
import os
import traceback

from benchmarks.threads import pinned
from benchmarks.verify import require_green

SUITES = {
    "phases": "what each optimisation buys, one at a time and one after the other, at equal quality",
    "peers": "the same work for POT, ott-jax, fugw and the published solver, each in its own environment",
    "overhead": "the library's call against the same tensor code written flat",
    "kernels": "every kernel implementation against its floor, plain torch and other libraries",
    "relaxation": "iterations of the last solve with and without over-relaxation",
    "quality": "the right optimum on every kind of problem, against POT, SCOT's recipe and the published solver",
    "kinds": "the right optimum by default on graphs, clouds, cosines, hops and large matrices, against POT",
    "small": "problems of 30 to 2000 points without entropy against POT's conditional gradient, one start and sixteen",
    "net": "300 problems of all kinds: what a change of the library loses or gains, from one stored run to the next",
    "vertices": "plans without entropy of many points: time, value and proof, to a million",
    "bounds": "lower bounds of all plans: that they hold, how tight they are, how often they prove the value",
    "curvature": "products with the Hessian and its spectrum, and what is firm",
    "verdict": "what results say of their own matchings beside the share that is right, on 800 problems",
    "models": "marginal models and fused costs against POT, and a space of which a part is missing",
    "sizes": "how the time of a default call grows with its size, to a million points, and its limits",
    "pairwise": "all pairs of many small spaces against a loop of POT's, and what lower bounds save",
    "beside": "what a busy program on the same cores costs, with the threads that are chosen and with all",
    "scale": "sizes up to a million points, tile skipping, low rank and unseen points",
    "ablation": "what is lost without each mechanism of the search, the strategies and the solvers, one at a time",
    "sampling": "error of the sampled gradient by how its anchors are used",
    "launches": "what a solve asks of a GPU, counted on a simulated one",
    "lanczos": "gradients of a matrix function: the Lanczos adjoint against back-propagation through the iteration",
    "gradients": "implicit differentiation: time and memory, direct against iterative",
    "ranks": "one solve by several processes: the same result, bytes as modelled, memory of a rank, weak scaling",
    "gpu": "what only a GPU can tell, within ten minutes: tests, whole solves, kernels against their floors",
}
GROUPS = {
    "quality": "speed sharp spiral gauss words shapes hops views tiny candidates",
    "kinds": "matrix sparse graphs directed clouds cosine splits hops",
    "small": "30 60 100 200 400 1000 2000",
    "models": "linear sharp larger missing",
    "net": "graphs directed rewired small assignment parts hops epsilons clouds curves models masses starts strategies",
    "vertices": "distances 4000 20000 100000 million",
    "bounds": "tiny below plane tightness",
    "curvature": "products firm large",
    "sizes": "default hops meshes matrices curve",
    "scale": "20000 prototype 45000 100000 published tiles lowrank unseen million",
    "phases": "alone all_but_it cache preparation starts gradient streaming tiles cumulative",
    "peers": "sizes such as 400x500, which are shown and not stored",
    "ranks": "same bytes weak memory",
    "gpu": "ceilings tests graphs jobs cold warm default kernels prepared million",
}
QUICK = ("phases", "peers", "overhead")
HAVE_QUICK = (*QUICK, "kinds", "ablation")  # `all --quick` leaves out what needs POT or has many solves
ALL = tuple(name for name in SUITES if name != "gpu")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = found.add_subparsers(dest="suite", required=True)
    for name, text in SUITES.items():
        command = commands.add_parser(name, help=text)
        if name in GROUPS:
            command.add_argument("groups", nargs="*", help=f"to run instead of all: {GROUPS[name]}")
        if name == "gpu":
            text = "run every section at toy sizes on a simulated GPU; nothing is stored"
            command.add_argument("--cpu-check", action="store_true", help=text)
            text = "store what another machine measured on this code, from the gpu.json that it wrote to $OUT"
            command.add_argument("--store", metavar="FILE", help=text)
        if name == "ablation":
            text = "to measure anew instead of those that are not stored for this code"
            command.add_argument("mechanisms", nargs="*", help=text)
            command.add_argument("--jobs", type=int, default=2, help="processes of one thread each (default: 2)")
        if name in HAVE_QUICK:
            command.add_argument("--quick", action="store_true", help="small sizes, minutes; stored apart")
    command = commands.add_parser("all", help="run the tests, then every suite that needs no GPU")
    command.add_argument(
        "--quick", action="store_true", help=f"only {', '.join(QUICK)}, at small sizes and without tests"
    )
    command.add_argument("--report", action="store_true", help="write the page and its pictures when done")
    commands.add_parser("verify", help="run the tests: no suite stores results on code whose tests have not passed")
    commands.add_parser("tables", help="write the tables of all documents from the stored results")
    command = commands.add_parser("report", help="write the page and its pictures from the stored results")
    command.add_argument("--quick", action="store_true", help="from those of quick runs, beside them")
    text = "what became slower or worse between two result files; exit code 1 if anything, 2 if they do not compare"
    command = commands.add_parser("compare", help=text, description=text)
    command.add_argument("before", help="a file of benchmarks/results, of an older commit")
    command.add_argument("after", help="a file of the same suite")
    text = "this checkout against another folder's, in alternating rounds; exit code 1 if slower than it may be"
    command = commands.add_parser("sides", help=text, description=text)
    command.add_argument("folder", help="the other checkout")
    command.add_argument("cases", nargs="*", help="words of the names of cases to run instead of all")
    command.add_argument("--factor", type=float, default=1.0, help="times as many rounds")
    command.add_argument("--json", help="a file for the rows")
    return found


def main() -> None:
    """Do what the command line says."""
    given = vars(parser().parse_args())
    suite, report = given.pop("suite"), given.pop("report", False)
    if suite == "all":
        if not given["quick"]:
            _run("verify")
        names = QUICK if given["quick"] else ALL
        broken = [name for name in names if not _tried(name, **({"quick": given["quick"]} if name in QUICK else {}))]
        if not given["quick"] and not broken:
            _run("tables")
        if report:
            _run("report", **({"quick": True} if given["quick"] else {}))
        if broken:
            raise SystemExit(f"these suites broke off: {', '.join(broken)}")
        return
    if "groups" in given:
        given["groups"] = given["groups"] or None
        unknown = set(given["groups"] or ()) - set(GROUPS[suite].split())
        if unknown and suite != "peers":
            raise SystemExit(f"groups must be among {GROUPS[suite]}, got {', '.join(sorted(unknown))}")
    if suite in SUITES and suite != "gpu" and not given.get("quick"):
        require_green()
    _run(suite, **given)


def _tried(name: str, **given: object) -> bool:
    """Whether a suite came to its end: the hours of the others are not to be lost with one."""
    try:
        _run(name, **given)
    except (Exception, SystemExit):
        traceback.print_exc()
        return False
    return True


def _run(name: str, **given: object) -> None:
    importlib.import_module(f"benchmarks.{name}").run(**given)


if __name__ == "__main__":
    os.environ.update(pinned())
    main()
