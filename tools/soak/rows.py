"""What a row of the soak is, and where rows are found."""

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
    """One try of a row; `detail` says what went wrong, or what was measured."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Budget:
    """What a row may use: a seed, a folder of its own, and how many seconds it has; None for the full row."""

    seed: int
    work: Path
    seconds: float | None = None

    def draw(self, *names: object) -> random.Random:
        """Return the generator of random numbers of one trial: the same for the same seed and names."""
        return random.Random(repr((self.seed, *names)))


@dataclass(frozen=True)
class Row:
    """One promise: `test` says what is done, `mark` when it is kept, `full` how many trials the whole row has."""

    id: str
    test: str
    mark: str
    full: int
    run: Callable[[Budget], Iterator[Trial]]


def all_rows() -> list[Row]:
    """Return the rows of every module of this package, in the order of their ids; raises ValueError for two of one."""
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
    """Return what sorts R2 before R10, and R before H."""
    letters, number, rest = re.fullmatch(r"(\D*)(\d*)(.*)", row_id).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return {"R": "0", "H": "1"}.get(letters, f"2{letters}"), int(number or 0), rest
