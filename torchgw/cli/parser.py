"""The command line: names of all commands, at once; the options of the one that is called, with the library's defaults,
once it is known. `torchgw.cli.arguments` has these, and takes the second that torch takes to be imported."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from torchgw._version import __version__

COMMANDS = {
    "align": "align two files and write matching, potentials, value and options",
    "resume": "go on with an alignment that was killed or interrupted",
    "apply": "match new points by a result that was saved with its points",
    "pairwise": "Gromov-Wasserstein distances between all pairs of files",
    "score": "scores of a result against a known truth or labels",
    "estimate": "memory and time of an alignment, and how it would be solved",
    "info": "versions, devices and backends, and why each is or is not available",
    "warm": "compile the kernels of a GPU ahead of the first solve",
    "demo": "align a spiral with a Swiss roll and draw the result",
    "completion": "print a script that completes this command in your shell",
}
CODES = "exit codes: 0 done, 2 refused (one line says why), 130 interrupted, 1 an error of torchgw itself"


class Parser(argparse.ArgumentParser):
    """Argument errors as one line and exit code 2; a command's parser has no options until it is asked for them."""

    name = ""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.fill()
        return super().parse_known_args(args, namespace)

    def fill(self) -> None:
        """Add the options of the command, once."""
        name, self.name = self.name, ""
        if name:
            getattr(import_module("torchgw.cli.arguments"), name)(self)


def build_parser() -> Parser:
    """The parser of the whole command."""
    parser = Parser(
        prog="torchgw",
        allow_abbrev=False,
        description="Gromov-Wasserstein alignment of point clouds, graphs and metric spaces.",
        epilog=CODES,
    )
    parser.add_argument("--version", action="version", version=f"torchgw {__version__}")
    commands = parser.add_subparsers(dest="command")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, allow_abbrev=False, help=text, description=text, epilog=CODES)
        command.name = name
        command.add_argument("--json", action="store_true", help="print what was found as JSON")
        command.add_argument("-v", "--verbose", action="store_true", help="say on stderr what happens")
    return parser


def run_completion(arguments: argparse.Namespace) -> str:
    """``torchgw completion``: the script of a shell."""
    try:
        import shtab
    except ImportError as error:
        raise ImportError("shell completion needs shtab; pip install shtab") from error
    parser = build_parser()
    for action in parser._actions:
        for command in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            command.fill()
    script: str = shtab.complete(parser, arguments.shell)
    return script
