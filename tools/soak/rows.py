"""The definition of a soak row, and the discovery of rows."""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trial:
    """One try of a row; `detail` describes the failure, or the measured figures."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Budget:
    """The resources of a row: a seed, its own folder, and its seconds; None means the full row."""

    seed: int
    work: Path
    seconds: float | None = None

    def draw(self, *names: object) -> random.Random:
        """Return the random generator of one trial, which depends only on the seed and the names."""
        return random.Random(repr((self.seed, *names)))


@dataclass(frozen=True)
class Row:
    """One promise: `test` describes the test, `mark` the criterion, `full` is the number of trials of the full row."""

    id: str
    test: str
    mark: str
    full: int
    run: Callable[[Budget], Iterator[Trial]]


def all_rows() -> list[Row]:
    """Return the rows of every module of this package, sorted by id; raises ValueError for duplicate ids."""
    found: dict[str, Row] = {}
    for module in pkgutil.iter_modules(importlib.import_module("tools.soak").__path__):
        if module.name.startswith("_"):
            continue
        for row in getattr(importlib.import_module(f"tools.soak.{module.name}"), "ROWS", ()):
            if row.id in found:
                raise ValueError(f"tools/soak/{module.name}.py: there is a row {row.id} already")
            found[row.id] = row
    return sorted(found.values(), key=lambda row: sort_key(row.id))


def sort_key(row_id: str) -> tuple[str, int, str]:
    """Return a key that sorts R2 before R10, and R before H."""
    letters, number, rest = re.fullmatch(r"(\D*)(\d*)(.*)", row_id).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return {"R": "0", "H": "1"}.get(letters, f"2{letters}"), int(number or 0), rest
