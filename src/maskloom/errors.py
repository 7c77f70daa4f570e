"""Errors with messages for the user, and message helpers; separate so that worker processes need not import recipes."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """A recipe or an option is wrong; the message names the key, the value and the rule."""


class UsageError(ConfigError):
    """An option of a command is wrong, regardless of the recipe and the data."""


class DataError(ValueError):
    """Input data or a file on disk is wrong; the message names the value, the rule, the file and the line."""


class RunFailedError(Exception):
    """A run cannot go on; the message says why, so a command ends with it instead of a traceback."""


def not_one_of(value: object, choices: Sequence[str]) -> str:
    """Return an error message for a value that is not among the choices, suggesting the closest one."""
    import difflib  # imported here to keep it out of worker processes

    near = difflib.get_close_matches(str(value)[:80], choices, n=1)
    return f"{value!r:.80} is not one of {', '.join(choices)}{f'; did you mean {near[0]}?' if near else ''}"


def amount(number: int, what: str) -> str:
    """Return a count with its noun, singular for 1: "1 text", "2,000 texts"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
