"""``python -m benchmarks SUITE``: run one suite, print its table, write its results."""

import argparse
import importlib

SUITES = {
    "kernels": "every kernel implementation against its floor, plain torch and other libraries",
    "relaxation": "iterations of the last solve with and without over-relaxation",
    "quality": "the right optimum on every kind of problem, against POT, SCOT's recipe and the published solver",
    "models": "marginal models and fused costs against POT, and a space of which a part is missing",
    "scale": "sizes up to a million points, tile skipping, low rank and unseen points",
    "sampling": "error of the sampled gradient by how its anchors are used",
    "lanczos": "gradients of a matrix function: the Lanczos adjoint against back-propagation through the iteration",
    "gradients": "implicit differentiation against recorded iterations: time and memory, direct against iterative",
    "tables": "write the tables of the README and the log from the stored results",
    "gpu": "everything that needs a GPU, with one short table last",
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="suite", required=True)
    for name, text in SUITES.items():
        command = commands.add_parser(name, help=text)
        if name in ("quality", "scale"):
            command.add_argument("groups", nargs="*", help=f"groups to run instead of all, see benchmarks/{name}.py")
    given = parser.parse_args()
    run = importlib.import_module(f"benchmarks.{given.suite}").run
    run(*([given.groups or None] if given.suite in ("quality", "scale") else []))
