"""How to read a new file for a model that was fine-tuned on another; without torch, as commands look at files first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskloom.errors import ConfigError, DataError
from maskloom.runs.display import Progress
from maskloom.system.freed_memory import release_free_memory
from maskloom.tasks.examples import Example, ReadingReport, pieces_of
from maskloom.tasks.kinds import KINDS, TaskKind
from maskloom.tasks.settings import ClassificationSettings, KindSettings
from maskloom.tasks.tables import ReadingOptions

if TYPE_CHECKING:
    from maskloom.generation.search import Generation
    from maskloom.inference import Ensemble, Predictor


@dataclass(frozen=True)
class FileReading:
    """A file, how to read it for a model, and the report that is filled in while it is read.

    `read` returns what to yield for an example; it raises DataError for one that the model cannot read, which counts as
    a bad row.
    """

    path: Path
    kind: TaskKind
    options: ReadingOptions
    settings: KindSettings
    report: ReadingReport
    needs_label: bool
    read: Callable[[Any], Any] = lambda example: example

    def examples(self) -> Iterator[Any]:
        """Yield the examples of the file."""
        how = {"needs_label": self.needs_label, "report": self.report}
        for example in self.kind.iterate(self.path, self.options, self.settings, **how):
            try:
                found = self.read(example)
            except DataError:
                if self.options.on_bad_rows != "skip":
                    raise
                self.report.num_kept -= 1
                self.report.drop("does not fit the model", example.line)
            else:
                yield found

    def count(self, see: Callable[[Any], object] = lambda _: None) -> int:
        """Return the number of examples, passing each to `see`; raises DataError for a broken rule or no usable row."""
        first = replace(self, report=ReadingReport(self.path))
        for example in first.examples():
            see(example)
        first.report.check_any()
        return first.report.num_kept

    def shown_pieces(self, num_examples: int, progress: Progress) -> Iterator[list[Any]]:
        """Yield lists as `pieces_of` does, at most as long as the kind reads at once, reporting progress after each."""
        size = min(num_examples, self.kind.examples_at_once)
        keeps = getattr(self.settings, "context", None) == "document"
        for piece in pieces_of(self.examples(), size, keeps_documents=keeps):
            yield piece
            progress.advance(self.report.num_kept)
            release_free_memory()  # batches vary in size, so the C library would retain more and more freed memory
        progress.end()


def reading_of_texts(path: Path, given: ReadingOptions | None) -> FileReading:
    """Return how to read a file of texts: as single texts, or as pairs if a pair column is named."""
    options = given or ReadingOptions()
    kind = KINDS["pair" if options.pair_column else "single"]
    return FileReading(path, kind, options, kind.settings(), ReadingReport(path), needs_label=False)


def reading_of_sources(path: Path, given: ReadingOptions | None, known: Mapping[str, Any]) -> FileReading:
    """Return how to read a file of prompts or sources; what fine-tuning stored counts if it was a seq2seq task."""
    kind, stored = KINDS["seq2seq"], known.get("reading", {})
    if known.get("kind") != kind.name or not isinstance(stored, dict):
        known = {}
    settings = kind.settings()
    options = options_for(path, kind, settings, given, known, needs_label=False)
    return FileReading(path, kind, options, settings, ReadingReport(path), needs_label=False)


@dataclass(frozen=True)
class Prompt(Example):
    """A prompt or source with its token ids; `num_truncated` is 1 if it was truncated, else 0."""

    ids: list[int]
    num_truncated: int


def reading_of_prompts(
    predictor: Predictor, path: Path, given: ReadingOptions | None, settings: Generation, *, fills: bool = False
) -> FileReading:
    """Return how to read a file as prompts for a model that generates, or fills blanks, with `settings`."""

    def read(example: Any) -> Prompt:
        text = [example.text], [f"{path}, line {example.line}"]
        (ids,), cut = (predictor.blank_ids(*text), 0) if fills else predictor.prompt_ids(*text, settings)
        return Prompt(example.text, None, None, example.line, ids, cut)

    return replace(reading_of_sources(path, given, predictor.settings), read=read)


def reading_for(
    predictor: Predictor | Ensemble, path: Path, given: ReadingOptions | None, *, needs_label: bool
) -> FileReading:
    """Return how to read a file for a model: as given, else as in fine-tuning, else by the default names."""
    task, known = predictor.required_task(), predictor.settings
    kind = KINDS[task.kind]
    if kind.with_pairs:
        as_pairs = replace(given or ReadingOptions(), on_bad_rows="skip")
        pairs = FileReading(path, KINDS[kind.with_pairs], as_pairs, task.settings, ReadingReport(path), needs_label)
        kind = pairs.kind if _takes_pairs(pairs, known) else kind
    options = options_for(path, kind, task.settings, given, known, needs_label=needs_label)
    reading = FileReading(path, kind, options, task.settings, ReadingReport(path), needs_label)
    takes_pairs = known.get("takes_pairs")
    if takes_pairs or (takes_pairs is False and isinstance(task.settings, ClassificationSettings)):
        first = next(replace(reading, report=ReadingReport(path)).examples(), None)
        if first is not None and takes_pairs == (first.pair is None):
            two = "titles with their texts" if kind.is_titled else "pairs of texts"
            got, wanted = ("only one text", two) if takes_pairs else ("two texts", "single texts")
            how = "give columns with both" if takes_pairs else "name their column with --text-column"
            raise DataError(f"{path}: line {first.line}: {got}; the model was fine-tuned on {wanted}: {how}")
    return reading


def options_for(
    path: Path,
    kind: TaskKind,
    settings: KindSettings,
    given: ReadingOptions | None,
    known: Mapping[str, Any],
    *,
    needs_label: bool,
) -> ReadingOptions:
    """Return the given options, else those of fine-tuning if a row can be read with them, else the defaults.

    If no row can be read in any way, columns that fine-tuning stored still count if the file has them, so that the
    error is that of the row. `known` is what fine-tuning stored with the model. Raises ConfigError for a target suffix
    where the task has no targets.
    """
    if given and given.target_suffix is not None and "target_suffix" not in kind.settings.model_fields:
        raise ConfigError(f"--target-suffix {given.target_suffix}: a {kind.name} task has no targets")
    if given is not None and given != ReadingOptions(on_bad_rows=given.on_bad_rows):
        return given
    default = given or ReadingOptions()
    stored = {key: value for key, value in known.get("reading", {}).items() if value is not None}
    stored["on_bad_rows"] = default.on_bad_rows
    if kind.predicts_on_text and not needs_label:
        stored.pop("format", None)  # a file in that format is recognised by itself
    ways = [stored] if needs_label else [stored, {**stored, "label_column": None}]
    without_rows: list[ReadingOptions] = []  # every row is skipped, or there is none
    tried = [*(ReadingOptions(**values) for values in ways), default]
    by_name = [options for options in tried if options.text_column and not options.format]
    for options in [*tried, *(replace(options, on_bad_rows="skip") for options in by_name)]:
        try:
            rows = kind.iterate(path, options, settings, needs_label=needs_label, report=ReadingReport(path))
            if next(rows, None) is not None:
                return replace(options, on_bad_rows=default.on_bad_rows)
        except (ConfigError, DataError):
            continue
        without_rows.append(replace(options, on_bad_rows=default.on_bad_rows))
    return (without_rows or [default])[0]


def _takes_pairs(pairs: FileReading, known: dict[str, Any]) -> bool:
    """Return whether a classifier reads pairs: as stored with the model, else if the file contains them."""
    takes_pairs = known.get("takes_pairs")
    if takes_pairs is not None:
        return takes_pairs
    try:
        return any(example.pair for example in pairs.examples())  # a blank line of raw text has none
    except DataError:
        return False
