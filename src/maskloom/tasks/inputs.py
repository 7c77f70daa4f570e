"""Texts that are handed over in Python, checked: what a kind of task makes its examples from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from maskloom.errors import DataError
from maskloom.foreign_files import is_utf8
from maskloom.tasks.examples import Example


def checked_inputs(inputs: Any) -> list[Any]:
    """Return the inputs of any iterable as a list; raises DataError for a string, a mapping and what is no iterable."""
    if isinstance(inputs, str | bytes):
        raise DataError("a list of texts is expected, this is one string; put it in a list")
    if isinstance(inputs, Mapping) or not isinstance(inputs, Iterable):
        raise DataError(f"a list of texts is expected, this is {type(inputs).__name__}")
    return list(inputs)


def checked_text(text: Any, number: int, *, may_be_blank: bool = True) -> str:
    """Return a text as it is; raises DataError, with the place of the input, for what is no text."""
    if not isinstance(text, str):
        raise DataError(f"input {number}: a string is expected, this is {type(text).__name__}")
    if not is_utf8(text):
        raise DataError(f"input {number}: holds half of a surrogate pair, which is not valid Unicode")
    if not (may_be_blank or text.strip()):
        raise DataError(f"input {number}: an empty text where one with words is expected")
    return text


def checked_parts(item: Any, number: int, what: str) -> tuple[Any, Any]:
    """Return the two parts of an input; raises DataError that says `what` is expected."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        got = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
        raise DataError(f"input {number}: {what} is expected, this is {got}")
    return item[0], item[1]


def text_example(item: Any, number: int) -> Example:
    """Return the example of a text or of a tuple of two. Raises DataError for anything else."""
    parts = tuple(item) if isinstance(item, tuple | list) else (item,)
    if len(parts) not in (1, 2):
        raise DataError(f"input {number}: a text or a pair of texts is expected, this has {len(parts)} parts")
    for part in parts:
        checked_text(part, number)
    return Example(text=parts[0], pair=parts[1] if len(parts) == 2 else None, label=None, line=number + 1)
