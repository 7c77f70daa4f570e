"""The two errors that a person can cause; apart from the recipes, so that worker processes start without them."""

from __future__ import annotations


class ConfigError(ValueError):
    """A recipe or an option is wrong; the message names the key, the value and the rule."""


class DataError(ValueError):
    """Input data or a file on disk is wrong; the message names the value, the rule, the file and the line."""
