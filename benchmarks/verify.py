"""No result without green tests: ``python -m benchmarks verify`` runs them and remembers the code they passed on.

What is stored beside the repository's files is a hash of the package, its tests and what measures it. Suites that write
results ask for it before they begin and again when they write, so a figure always belongs to code whose tests have
passed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.threads import pinned

ROOT = Path(__file__).parent.parent
STAMP = ROOT / ".benchmarks-verified"
CODE = ("torchgw/**/*.py", "tests/**/*.py", "benchmarks/**/*.py")
COMMAND = (sys.executable, "-m", "pytest", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "-q")


def fingerprint(root: Path = ROOT) -> str:
    """A hash of all files that a result depends on, with their names; the report only shows what others measured."""
    found = hashlib.sha256()
    paths = (path for pattern in CODE for path in root.glob(pattern))
    for path in sorted(path for path in paths if (root / "benchmarks" / "report") not in path.parents):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def is_green(root: Path = ROOT, stamp: Path = STAMP) -> bool:
    """Whether the tests have passed on exactly this code."""
    return stamp.exists() and json.loads(stamp.read_text())["code"] == fingerprint(root)


def require_green(root: Path = ROOT, stamp: Path = STAMP) -> None:
    """End the program, saying what to do, unless the tests have passed on this code."""
    if not is_green(root, stamp):
        raise SystemExit(
            "no results are stored: the tests have not passed on this code; run `python -m benchmarks verify`"
        )


def run(root: Path = ROOT, stamp: Path = STAMP, command: tuple[str, ...] = COMMAND) -> None:
    """Run the tests unless they have passed on this code before; red ones end the program and withdraw the stamp."""
    if is_green(root, stamp):
        print(f"the tests have passed on this code: {json.loads(stamp.read_text())['said']}")
        return
    code = fingerprint(root)
    stamp.unlink(missing_ok=True)
    environment = os.environ | pinned(1)
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    print("\n".join(lines[-10:]))
    if done.returncode or code != fingerprint(root):
        why = "they are red" if done.returncode else "the code changed while they ran"
        raise SystemExit(f"no results will be stored: the tests do not vouch for this code, {why}")
    said = re.sub(r"=+ ?", "", lines[-1]).strip() if lines else ""
    stamp.write_text(json.dumps({"code": code, "said": said}) + "\n")
