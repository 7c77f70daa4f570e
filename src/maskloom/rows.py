"""Tables of rows by name, the keys of recipes that name a row, and names that commands know as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from pydantic import AfterValidator

SizeName = Literal["tiny", "mini", "small", "medium", "base", "large"]
PoolingMode = Literal["mean", "cls", "max"]

_MODULES = {
    "model.architecture": "maskloom.models.architectures",
    "objective": "maskloom.objectives.pretraining",
    "task": "maskloom.tasks.kinds",
    "training.optimizer": "maskloom.training.optimizers",
    "training.schedule": "maskloom.training.optimizers",
}
# Rows whose names are known before their module, and with it torch, is imported.
_USUAL = {
    "model.architecture": ("bert", "gpt", "transformer", "marian", "bart", "t5", "rnn", "lstm", "gru"),
    "training.optimizer": ("adamw", "bert_adam"),
    "training.schedule": ("linear", "google", "cosine", "inverse_sqrt", "constant"),
}
_TABLES: dict[str, Rows[Any]] = {}
_Row = TypeVar("_Row")


class Rows(dict[str, _Row]):
    """A table of rows by name. A recipe may have the name of any row, also of one added later, at the key `key`."""

    _heard: Callable[[Rows[_Row]], object] = len

    def __init__(self, key: str, rows: Mapping[str, _Row]) -> None:
        super().__init__(rows)
        _TABLES[key] = self

    def __setitem__(self, name: str, row: _Row) -> None:
        """Add a row, or replace the one of that name."""
        super().__setitem__(name, row)
        self._heard(self)

    def __delitem__(self, name: str) -> None:
        """Take a row away."""
        super().__delitem__(name)
        self._heard(self)

    def on_change(self, listener: Callable[[Rows[_Row]], object]) -> None:
        """Have a function called with the table now, and whenever rows are added to it or taken away."""
        self._heard = listener
        listener(self)


def names_of(key: str) -> list[str]:
    """Return the names of the rows that a key of a recipe may name; the module of their table is imported for it."""
    if key not in _TABLES:
        import_module(_MODULES[key])
    return [*_TABLES[key]]


def row_of(key: str) -> AfterValidator:
    """Have a key of a recipe refuse what no row of its table is called."""
    from pydantic import AfterValidator  # here, so that commands know names without it
    from pydantic_core import PydanticCustomError

    def check(name: str) -> str:
        known = _TABLES[key] if key in _TABLES else _USUAL.get(key, ())
        if name not in known and name not in (names := names_of(key)):
            expected = ", ".join(map(repr, names))
            raise PydanticCustomError("literal_error", "{expected} is expected", {"expected": expected})
        return name

    return AfterValidator(check)
