"""Result files as they are stored: an environment, rows of one suite, and whatever else the suite adds."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One result file: ``rows``, the environment they were measured in, and the other keys of the file."""

    name: str
    environment: Row
    rows: list[Row]
    more: Row

    def part(self, name: str) -> list[Row]:
        """Another table of the file, empty where there is none."""
        found = self.more.get(name)
        return found if is_table(found) else []


def load(path: Path) -> Result:
    """Read one file; a `ValueError` of one line says what is wrong with it."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not {"environment", "rows"} <= content.keys():
        raise ValueError(f"{path} is not a result file: it has no environment or no rows")
    environment, rows = content.pop("environment"), content.pop("rows")
    if not isinstance(environment, dict) or not is_table(rows):
        raise ValueError(f"{path} is not a result file: its rows are not a table")
    return Result(path.stem, environment, rows, content)


def read(folder: Path) -> dict[str, Result]:
    """All results of a folder by name."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def is_table(value: object) -> TypeGuard[list[Row]]:
    """Whether this is a list, not empty, of rows."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def number(value: object) -> float | None:
    """What a cell says as a number; None for text, "-", truth values and what is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def size(row: Row) -> str:
    """N x K of a row, or what it has of that."""
    return " x ".join(grouped(row[column]) for column in ("N", "K") if number(row.get(column)))


def grouped(value: float) -> str:
    """A whole number, with thousands apart where there are six digits or more."""
    return f"{value:,.0f}".replace(",", "\u202f") if abs(value) >= 1e5 else f"{value:.0f}"


def natural(text: str) -> tuple[float, str]:
    """Sorts texts that begin with numbers by these: 2 before 10, and 1a before 1b."""
    leading = re.match(r"\d+", text)
    return (float(leading[0]) if leading else math.inf, text)
