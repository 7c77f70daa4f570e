"""Reads sources with their targets: from columns, from JSON objects, or from two line-aligned files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError, DataError, amount
from maskloom.tasks import tables
from maskloom.tasks.examples import Example, ReadingReport, kept_examples
from maskloom.tasks.reading import Form, iterate_examples, label_name
from maskloom.tasks.settings import SUFFIX, Seq2SeqSettings
from maskloom.tasks.tables import TEXTS, BadRowError, ReadingOptions, Row, UsualNames, row_text

_SOURCES = ("source", "src", "text", "input", "document", "article", "dialogue", "prompt", "mr", "triples")
_USUAL = UsualNames(
    pairs=(),
    texts=tuple(dict.fromkeys((*_SOURCES, *TEXTS))),
    labels=("target", "tgt", "summary", "translation", "output", "ref", "texts"),
    noun="target",
)


class Source(Example):
    """A source text, from which a target is generated."""

    def as_row(self) -> dict[str, str]:
        """Return the text under the key `source`, as shown next to the text generated from it."""
        return {"source": self.text}


def iterate_sources(
    path: str | Path, options: ReadingOptions, settings: Seq2SeqSettings, *, needs_label: bool, report: ReadingReport
) -> Iterator[Example]:
    """Yield the sources, with targets as labels, in file order.

    CSV, TSV and JSONL have a column for each, named by the options or by the usual names. In JSONL, a source may be a
    list of sentences, which are joined by spaces, or of triples ("a | b | c; d | e | f"), and several targets form a
    list. Consecutive rows with the same source are one example with several targets, unless `needs_label` is False. Any
    other file has one source per line, and its targets in the file next to it with the target suffix. Raises DataError,
    with file and line, for a row that breaks a rule (unless `options.on_bad_rows` is "skip", which counts it), and for
    files of different lengths.
    """
    path = Path(path)
    if options.format is not None:
        raise ConfigError(f"--format {options.format}: no format has targets; name their column with --label-column")
    if tables.LAYOUTS.get(tables.suffix_of(path), "text") != "text":
        if options.target_suffix is not None:
            raise ConfigError(f"--target-suffix {options.target_suffix}: {path} has its targets in a column")
        examples = iterate_examples(path, _FORM, options, needs_label=needs_label, report=report)
        yield from _joined(examples, report) if needs_label else examples
        return
    suffix = settings.target_suffix if options.target_suffix is None else options.target_suffix
    if needs_label and suffix is None:
        raise DataError(
            f"{path}: a file of lines has only sources; name the target file by its suffix (for one that ends in .en: "
            "--set seq2seq.target_suffix=en to fine-tune, --target-suffix en to evaluate), or give CSV, TSV or JSONL "
            "with source and target"
        )
    if suffix is not None and not re.fullmatch(SUFFIX, suffix):
        raise ConfigError(f"target suffix {suffix!r:.80}: only letters, digits, _ and - are allowed, without a dot")
    if options.text_column is not None and not needs_label:
        raise ConfigError(f"text column {options.text_column!r:.80}: {path} has one text per line and no columns")
    rows = _lines(path, _beside(path, suffix) if needs_label and suffix is not None else None)
    yield from kept_examples(rows, _example, report, skips=options.on_bad_rows == "skip")


def _joined(examples: Iterable[Example], report: ReadingReport) -> Iterator[Example]:
    """Yield one example, with all targets, for consecutive ones with the same source."""
    for _, rows in groupby(examples, attrgetter("text")):
        first, *more = rows
        if more:
            report.num_kept -= len(more)
            report.num_joined += len(more)
            first = replace(first, label=tuple(target for row in (first, *more) for target in targets_of(row)))
        yield first
    if report.num_joined:
        what = f"{amount(report.num_joined, 'row')} with the source of the row before"
        report.notes.append(f"{what}: their targets are further references of one example")


def targets_of(example: Example) -> tuple[str, ...]:
    """Return the targets of a source, or () if the file has none."""
    label: Any = example.label
    return label if isinstance(label, tuple) else () if label is None else (label,)


def _beside(path: Path, suffix: str) -> Path:
    """Return the file of targets; for compressed sources, a compressed one if it exists."""
    packed = path.suffix.lower() == ".gz"
    plain = (path.with_suffix("") if packed else path).with_suffix(f".{suffix}")
    return also if packed and (also := plain.with_name(f"{plain.name}{path.suffix}")).exists() else plain


def _lines(sources: Path, targets: Path | None) -> Iterator[Row]:
    """Yield rows of a source and, given a file of targets, its target; raises DataError if one file is longer."""
    if targets is None:
        yield from tables.read_rows(sources, "text")
        return
    if targets == sources:
        raise ConfigError(f"target suffix {sources.suffix[1:]!r}: {sources} would be its own target file")
    if not targets.exists():
        raise DataError(
            f"{targets}: no such file; expected the targets of {sources} (seq2seq.target_suffix or --target-suffix)"
        )
    pairs = zip_longest(tables.read_lines(sources), tables.read_lines(targets))
    for number, (source, target) in enumerate(pairs, start=1):
        if source is None or target is None:
            longer, shorter = (targets, sources) if source is None else (sources, targets)
            more = number + sum(1 for _ in pairs)
            raise DataError(
                f"{longer}: line {number} has no counterpart: {amount(more, 'line')}, but {number - 1:,} in {shorter}; "
                "both files need the same number of lines"
            )
        yield Row([source[1], target[1]], number)


def _example(row: Row) -> Source:
    source, *target = (str(part) for part in row.fields)
    for what, text in (("source" if target else "prompt or source", source), *(("target", text) for text in target)):
        row_text(text, f"the {what}", empty=f"empty {what}")
    return Source(text=source, pair=None, label=target[0].strip() if target else None, line=row.line)


def _text(value: Any, what: str) -> str:
    """Return a source: a text, a list of sentences joined by spaces, or one of triples, "a | b | c; d | e | f"."""
    if isinstance(value, list):
        are_triples = all(isinstance(part, list) for part in value)
        parts = value if are_triples else [[part] for part in value]
        texts = [[row_text(one, f"a part of {what}", empty=None).strip() for one in part] for part in parts]
        value = ("; " if are_triples else " ").join(map(" | ".join, texts))
    return row_text(value, what)


def _targets(value: Any) -> str | tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise BadRowError("missing target", "an empty list")
    empty = [number for number, item in enumerate(items, start=1) if item is None or not str(item).strip()]
    if empty and len(items) > 1:
        raise BadRowError("missing target", f"reference {empty[0]} is empty")
    targets = [label_name(item, "target", "text") for item in items]
    return tuple(targets) if len(targets) > 1 else targets[0]


_FORM = Form(_targets, takes_pair=False, example=Source, usual=_USUAL, text=_text)
