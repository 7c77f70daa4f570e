"""Tables of named rows, the recipe keys that refer to a row, and names that the commands share."""

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
# Row names that are valid without importing their module, and torch with it.
_USUAL = {
    "model.architecture": ("bert", "gpt", "transformer", "marian", "bart", "t5", "rnn", "lstm", "gru"),
    "training.optimizer": ("adamw", "bert_adam"),
    "training.schedule": ("linear", "google", "cosine", "inverse_sqrt", "constant"),
}
_TABLES: dict[str, Rows[Any]] = {}
_Row = TypeVar("_Row")


def later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls what `module` names `name`, importing the module, and torch with it, only then."""
    return lambda *given: getattr(import_module(module), name)(*given)


class Rows(dict[str, _Row]):
    """A table of rows by name. A recipe may name any row, including rows added later, at the key `key`."""

    _heard: Callable[[Rows[_Row]], object] = len

    def __init__(self, key: str, rows: Mapping[str, _Row]) -> None:
        super().__init__(rows)
        _TABLES[key] = self

    def __setitem__(self, name: str, row: _Row) -> None:
        super().__setitem__(name, row)
        self._heard(self)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._heard(self)

    def on_change(self, listener: Callable[[Rows[_Row]], object]) -> None:
        """Call a function with the table now and whenever a row is added, replaced or removed."""
        self._heard = listener
        listener(self)


def names_of(key: str) -> list[str]:
    """Return the row names that a recipe key accepts, importing the module of the table if necessary."""
    if key not in _TABLES:
        import_module(_MODULES[key])
    return [*_TABLES[key]]


def row_of(key: str) -> AfterValidator:
    """Return a validator for a recipe key that rejects any value that is not a row of its table."""
    from pydantic import AfterValidator  # imported here so that commands can list names without it
    from pydantic_core import PydanticCustomError

    def check(name: str) -> str:
        known = _TABLES[key] if key in _TABLES else _USUAL.get(key, ())
        if name not in known and name not in (names := names_of(key)):
            expected = ", ".join(map(repr, names))
            raise PydanticCustomError("literal_error", "expected {expected}", {"expected": expected})
        return name

    return AfterValidator(check)
