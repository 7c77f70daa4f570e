"""How a file of sentences is laid out: in columns, as JSONL, or as raw text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from maskloom.errors import ConfigError
from maskloom.metrics.entities import is_tag
from maskloom.tasks.catalog import CATALOG, catalog_row
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.tables import read_rows

Layout = Literal["columns", "jsonl", "text"]
DOCUMENT_START = "-DOCSTART-"
SPACES = re.compile("[ \t]+")

_FORMATS: dict[str, Layout] = {"conll": "columns", "jsonl": "jsonl", "text": "text"}
# What stands for a tag that is not known, in files to be tagged.
_PLACEHOLDERS = frozenset({"?", "_", "-", "-1", "*"})
_FEW_LINES = 3
# How many lines are looked at to tell a .txt file in columns from one of raw text.
SNIFFED_LINES = 200


def layout_of_sentences(path: str | Path, options: ReadingOptions | None = None, *, needs_label: bool = True) -> Layout:
    """Return how a file is laid out: as `options.format` says, by suffix, or by a look at a .txt file.

    Without labels a .txt file is raw text, unless its first lines have equal numbers of columns that end in a tag.
    Raises ConfigError for an unknown format and for one of another kind of task.
    """
    path, options = Path(path), options or ReadingOptions()
    if options.format is not None:
        return _FORMATS[options.format] if options.format in _FORMATS else _catalog_layout(options.format)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    if suffixes[-1:] in ([".jsonl"], [".ndjson"]):
        return "jsonl"
    return "text" if suffixes[-1:] == [".txt"] and not needs_label and not _is_in_columns(path) else "columns"


def _catalog_layout(name: str) -> Layout:
    """Return the layout of a data set of the catalog, all of which are in columns."""
    ours = [*_FORMATS, *(row.name for row in CATALOG.values() if row.kind == "tagging")]
    try:
        catalog_row(name, kinds=("tagging",))
    except ConfigError as error:
        raise ConfigError(f"{error}; tagging knows {', '.join(ours)}") from None
    return "columns"


def _is_in_columns(path: Path) -> bool:
    widths, has_blank = set[int](), False
    ends: list[str] = []
    for number, row in enumerate(read_rows(path, "text")):
        fields = SPACES.split(str(next(iter(row.fields))).strip(" \t"))
        if fields[0] == DOCUMENT_START:
            return True
        has_blank |= fields == [""]
        if fields != [""]:
            if len(fields) < 2 or not (is_tag(fields[-1]) or fields[-1] in _PLACEHOLDERS):
                return False
            widths.add(len(fields))
            ends.append(fields[-1])
        if number >= SNIFFED_LINES:
            break
    # questions that end in " ?" are no column, and sentences in columns have blank lines between them
    return len(widths) == 1 and ((has_blank and len(ends) > _FEW_LINES) or all(map(is_tag, ends)))
