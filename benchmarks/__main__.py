"""``python -m benchmarks SUITE``: run one suite, print its table, write its results."""

import argparse
import importlib

SUITES = {
    "published": "points to plan against the published sampled solver 0.4.2, in its own environment",
    "softmin": "row and column logsumexp of a stored score against torch.logsumexp",
    "seeds": "matching quality of the three graph providers over ten seeds",
    "relaxation": "iterations of the last solve with and without over-relaxation",
    "tables": "write the tables of the README and the log from the stored results",
    "gpu": "everything that needs a GPU, with one short table last",
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="suite", required=True)
    for name, text in SUITES.items():
        commands.add_parser(name, help=text)
    importlib.import_module(f"benchmarks.{parser.parse_args().suite}").run()
