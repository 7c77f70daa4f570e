"""The errors that a person can cause; apart from the recipes, so that worker processes start without them."""

from __future__ import annotations

from collections.abc import Sequence


class ConfigError(ValueError):
    """A recipe or an option is wrong; the message names the key, the value and the rule."""


class UsageError(ConfigError):
    """An option of a command is wrong, whatever the recipe and the data hold."""


class DataError(ValueError):
    """Input data or a file on disk is wrong; the message names the value, the rule, the file and the line."""


def not_one_of(value: object, choices: Sequence[str]) -> str:
    """Return why a value is refused that is none of the choices, and which is nearest."""
    import difflib  # here: worker processes start without it

    near = difflib.get_close_matches(str(value)[:80], choices, n=1)
    return f"{value!r:.80} is not one of {', '.join(choices)}{f'; did you mean {near[0]}?' if near else ''}"
