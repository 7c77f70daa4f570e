"""Tables of rows by name, the keys of recipes that name a row, and names that commands know as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from pydantic import AfterValidator

SizeName = Literal["tiny", "mini", "small", "medium", "base", "large"]
TaskName = Literal["single", "pair", "regression", "multilabel", "span", "tagging", "choice"]
PoolingMode = Literal["mean", "cls", "max"]

_NAMES = {
    "model.architecture": ["bert", "gpt"],
    "objective": ["masked_lm", "causal_lm"],
    "training.optimizer": ["adamw", "bert_adam"],
    "training.schedule": ["linear", "google", "cosine", "inverse_sqrt", "constant"],
    "task": [*get_args(TaskName)],
}
_TABLES: dict[str, Rows[Any]] = {}
_LISTENERS: dict[str, Callable[[Rows[Any]], None]] = {}
_Row = TypeVar("_Row")


class Rows(dict[str, _Row]):
    """A table of rows by name. A recipe may have the name of any row, also of one added later, at the key `key`."""

    def __init__(self, key: str, rows: Mapping[str, _Row]) -> None:
        super().__init__(rows)
        self._key = key
        _TABLES[key] = self

    def __setitem__(self, name: str, row: _Row) -> None:
        """Add a row, or replace the one of that name."""
        super().__setitem__(name, row)
        self._changed()

    def __delitem__(self, name: str) -> None:
        """Take a row away."""
        super().__delitem__(name)
        self._changed()

    def _changed(self) -> None:
        _NAMES[self._key][:] = self
        _LISTENERS.get(self._key, len)(self)


def on_change(key: str, listener: Callable[[Rows[Any]], None]) -> None:
    """Have a function called with a table whenever rows are added to it or taken away, and now if it is there."""
    _LISTENERS[key] = listener
    if key in _TABLES:
        listener(_TABLES[key])


def row_of(key: str) -> AfterValidator:
    """Have a key of a recipe refuse what no row of its table is called."""
    from pydantic import AfterValidator  # here, so that commands know names without it
    from pydantic_core import PydanticCustomError

    def check(name: str) -> str:
        if name not in _NAMES[key]:
            expected = ", ".join(map(repr, _NAMES[key]))
            raise PydanticCustomError("literal_error", "{expected} is expected", {"expected": expected})
        return name

    return AfterValidator(check)
