"""Tables of rows by name, and the keys of recipes that name a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

_NAMES = {
    "model.architecture": ["bert", "gpt"],
    "objective": ["masked_lm", "causal_lm"],
    "training.optimizer": ["adamw", "bert_adam"],
    "training.schedule": ["linear", "google", "cosine", "inverse_sqrt", "constant"],
    "task": ["single", "pair", "regression", "multilabel", "span", "tagging", "choice"],
}
_Row = TypeVar("_Row")


class Rows(dict[str, _Row]):
    """A table of rows by name. A recipe may have the name of any row, also of one added later, at the key `key`."""

    def __init__(self, key: str, rows: Mapping[str, _Row]) -> None:
        super().__init__(rows)
        self._names = _NAMES[key]

    def __setitem__(self, name: str, row: _Row) -> None:
        """Add a row, or replace the one of that name."""
        super().__setitem__(name, row)
        if name not in self._names:
            self._names.append(name)


def row_of(key: str) -> AfterValidator:
    """Have a key of a recipe refuse what no row of its table is called."""

    def check(name: str) -> str:
        if name not in _NAMES[key]:
            expected = ", ".join(map(repr, _NAMES[key]))
            raise PydanticCustomError("literal_error", "{expected} is expected", {"expected": expected})
        return name

    return AfterValidator(check)
