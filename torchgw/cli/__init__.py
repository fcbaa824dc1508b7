"""The ``torchgw`` command: see `torchgw.cli.parser` for what it offers.

Exit codes: 0 done; 1 an error of torchgw itself, with a traceback; 2 refused, because of input, options or memory, with
one line on stderr that says what and why; 130 interrupted; 141 nobody reads what is printed. A warning does not change
the exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from torchgw.cli.parser import COMMANDS, build_parser
from torchgw.cli.ranks import is_among_ranks, launch_ranks

UNREAD = 141  # as of a program that SIGPIPE ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
        return UNREAD


def _run(arguments: Sequence[str] | None) -> int:
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.error(f"name a command: {', '.join(COMMANDS)}; torchgw --help says what each does")
    if getattr(options, "nproc", None) is not None and not is_among_ranks():
        return launch_ranks(sys.argv[1:] if arguments is None else arguments, options.nproc)
    from torchgw.cli.run import run  # late: with it comes torch, which takes a second

    code = run(options)
    if code and is_among_ranks():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of a group that an error has left aborted one exit in six
    return code
