"""How to read a new file for a model that was fine-tuned on another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from maskloom.config import DataError
from maskloom.tasks.catalog.row import Kind
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.reading import iterate_examples


def options_for(
    path: Path, kind: Kind, given: ReadingOptions | None, settings: dict[str, Any], *, needs_label: bool
) -> ReadingOptions:
    """Return the options given, else those of fine-tuning where the first row reads with them, else the usual names."""
    if given is not None and given != ReadingOptions(on_bad_rows=given.on_bad_rows):
        return given
    default = given or ReadingOptions()
    stored = {key: value for key, value in settings.get("reading", {}).items() if value is not None}
    stored["on_bad_rows"] = default.on_bad_rows
    for options in [ReadingOptions(**stored), ReadingOptions(**{**stored, "label_column": None})]:
        if needs_label and options.label_column != stored.get("label_column"):
            continue
        try:
            next(iterate_examples(path, kind, options, needs_label=needs_label), None)
        except DataError:
            continue
        return options
    return default


def reading_kind(
    path: Path, kind: Kind, given: ReadingOptions | None, settings: dict[str, Any], *, needs_label: bool
) -> Kind:
    """Return the kind to read as: a classifier of pairs reads pairs, whatever its kind of loss.

    A classifier that others fine-tuned does not say what it takes; it gets pairs where the file holds them.
    """
    if kind != "single":
        return kind
    takes_pairs = settings.get("takes_pairs")
    if takes_pairs is None:
        options = replace(given or ReadingOptions(), on_bad_rows="skip")
        try:
            takes_pairs = next(iterate_examples(path, "pair", options, needs_label=needs_label), None) is not None
        except DataError:
            takes_pairs = False
    return "pair" if takes_pairs else "single"
