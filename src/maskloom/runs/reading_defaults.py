"""How to read a new file for a model that was fine-tuned on another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maskloom.config import DataError
from maskloom.inference import Ensemble, Predictor
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.reading import iterate_examples
from maskloom.tasks.task import TaskKind

# Rows of 4,096 short texts stay whole; a megabyte of text takes some hundred megabytes while it is cut into tokens.
CHARACTERS_AT_ONCE = 4 << 20


@dataclass(frozen=True)
class FileReading:
    """A file, how it is read for a model, and the account that fills while it is."""

    path: Path
    kind: TaskKind
    options: ReadingOptions
    settings: dict[str, Any]
    report: ReadingReport
    needs_label: bool

    def examples(self) -> Iterator[Any]:
        """Yield the examples of the file."""
        return self.kind.iterate(
            self.path, self.options, self.settings, needs_label=self.needs_label, report=self.report
        )

    def count(self) -> int:
        """Return the number of examples, having read the file once: wrong rows come to light before any work.

        Raises DataError for a row that breaks a rule, and where rows were dropped and none is left.
        """
        first = replace(self, report=ReadingReport(self.path))
        number = sum(1 for _ in first.examples())
        first.report.check_any()
        return number

    def pieces(self, num_examples: int) -> Iterator[list[Any]]:
        """Yield the examples in lists as `pieces_of` does, of as many as the kind holds at once.

        Where sentences see their document, it is not cut unless it makes a list four times as long.
        """
        size = min(num_examples, self.kind.examples_at_once)
        return pieces_of(self.examples(), size, keeps_documents=self.settings.get("context") == "document")


def pieces_of(examples: Iterable[Any], size: int, *, keeps_documents: bool = False) -> Iterator[list[Any]]:
    """Yield examples in lists of at most `size` and of a few megabytes of text, at least one.

    With `keeps_documents` a list takes four times as much to hold a document together.
    """
    piece: list[Any] = []
    num_characters = 0
    for example in examples:
        goes_on = keeps_documents and bool(piece) and example.document == piece[-1].document
        more, times = _num_characters(example.inputs()), 4 if goes_on else 1
        if piece and (len(piece) >= times * size or num_characters + more > times * CHARACTERS_AT_ONCE):
            yield piece
            piece, num_characters = [], 0
        piece.append(example)
        num_characters += more
    if piece:
        yield piece


def _num_characters(inputs: Any) -> int:
    """Return the number of characters of what a model sees of an example: a text, or tuples of texts."""
    if isinstance(inputs, str):
        return len(inputs)
    return sum(map(_num_characters, inputs)) if isinstance(inputs, tuple) else 0


def reading_for(
    predictor: Predictor | Ensemble, path: Path, given: ReadingOptions | None, *, needs_label: bool
) -> FileReading:
    """Return how a file is read for a model: as a person says, else as in fine-tuning, else by the usual names."""
    task, known = predictor.required_task(), predictor.settings
    kind = KINDS[task.kind]
    if task.kind == "single" and _takes_pairs(path, given, known, needs_label=needs_label):
        kind = KINDS["pair"]
    if given is not None and given.format is not None and kind.name in ("span", "choice"):
        catalog_row(given.format, kinds=(kind.name,))  # nothing else would refuse the format of another kind
    options = _options(path, kind, given, known, task.settings, needs_label=needs_label)
    return FileReading(path, kind, options, task.settings, ReadingReport(path), needs_label)


def _options(
    path: Path,
    kind: TaskKind,
    given: ReadingOptions | None,
    known: dict[str, Any],
    settings: dict[str, Any],
    *,
    needs_label: bool,
) -> ReadingOptions:
    """Return the options given, else those of fine-tuning where the first row reads with them, else the usual names."""
    if given is not None and given != ReadingOptions(on_bad_rows=given.on_bad_rows):
        return given
    default = given or ReadingOptions()
    stored = {key: value for key, value in known.get("reading", {}).items() if value is not None}
    stored["on_bad_rows"] = default.on_bad_rows
    if kind.name == "tagging" and not needs_label:
        stored.pop("format", None)  # what is to be tagged is mostly raw text; a file in columns shows that it is
    for options in [ReadingOptions(**stored), ReadingOptions(**{**stored, "label_column": None})]:
        if needs_label and options.label_column != stored.get("label_column"):
            continue
        try:
            next(kind.iterate(path, options, settings, needs_label=needs_label, report=ReadingReport(path)), None)
        except DataError:
            continue
        return options
    return default


def _takes_pairs(path: Path, given: ReadingOptions | None, known: dict[str, Any], *, needs_label: bool) -> bool:
    """Tell whether a classifier reads pairs: one of pairs does, whatever its kind of loss.

    A classifier that others fine-tuned does not say what it takes; it gets pairs where the file holds them.
    """
    takes_pairs = known.get("takes_pairs")
    if takes_pairs is not None:
        return takes_pairs
    options = replace(given or ReadingOptions(), on_bad_rows="skip")
    try:
        return next(iterate_examples(path, "pair", options, needs_label=needs_label), None) is not None
    except DataError:
        return False
