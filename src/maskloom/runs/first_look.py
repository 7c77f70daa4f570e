"""Checks of the model, data and output that a person names, as far as they are possible without torch.

Importing torch takes longer than reading a typical file, so commands look at the first `_ROWS` of each here. The run
itself finds problems beyond that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from maskloom.config import FinetuneRecipe
from maskloom.errors import ConfigError, DataError, UsageError
from maskloom.recipe_files import validate_recipe
from maskloom.runs.corpus import tokenizer_folder
from maskloom.runs.reading_defaults import FileReading, options_for, reading_of_sources, reading_of_texts
from maskloom.system.files import is_stream
from maskloom.system.foreign_files import check_model_name, check_regular, read_bytes, read_object_inside
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.examples import ReadExamples, ReadingReport
from maskloom.tasks.kinds import KINDS, TaskKind
from maskloom.tasks.labels import UnknownLabelError, with_hint
from maskloom.tasks.tables import ReadingOptions, check_stored

_ROWS = 10_000
_SETTINGS_FILE = "maskloom.json"
_MAX_TEXT_BYTES = 64 << 20


def look_at_training_data(model: Path, files: Sequence[Path], reading: ReadingOptions, recipe: FinetuneRecipe) -> None:
    """Read files of labelled examples, small ones first; raises DataError or ConfigError as reading all of them does.

    Also raises DataError for a missing model, or a missing vocabulary where the recipe creates a new model. Labels are
    compared if both files were read to the end.
    """
    if recipe.model is not None:
        tokenizer_folder(model)
    else:
        check_model_name(model)
    if reading.format is not None:
        try:
            catalog_row(reading.format)
        except ConfigError as error:
            raise UsageError(f"--format: {error}") from None
    recipe = with_task(recipe, reading)
    row = KINDS[recipe.task]
    settings = recipe.task_settings(row.settings).model_copy(update=dict(row.first_settings))
    read = dict[Path, ReadExamples]()
    for path in sorted(files, key=lambda path: path.stat().st_size if path.is_file() else 0):
        try:
            report = ReadingReport(path)
            examples = row.iterate(path, reading, settings, needs_label=True, report=report)
            if row.watch:
                examples = row.watch(examples, path, reading, getattr(recipe, recipe.task))
            read[path] = ReadExamples(list(islice(examples, _ROWS)), report)
        except DataError as error:
            is_table = not {".csv", ".tsv", ".jsonl", ".ndjson"}.isdisjoint(path.suffixes)
            if recipe.task != "single" or reading.format or is_table or not path.is_file():
                raise
            hint = "the task is single by default; --task sets tagging (CoNLL columns), span (SQuAD's .json), seq2seq"
            more = "(sources and targets in separate files: --set seq2seq.target_suffix=en) or another"
            raise DataError(f"{error}; {hint} {more}") from None
    is_whole = all(0 < len(one.examples) < _ROWS for one in read.values())
    if row.label_ids is not None and is_whole and len(files) == 2:
        train, dev = (read[path] for path in files)
        row.check(train, dev)
        try:
            row.label_ids(dev, row.label_names(train, reading, row.settings()))
        except UnknownLabelError as error:
            raise with_hint(error, reading) from None


def with_task(recipe: FinetuneRecipe, reading: ReadingOptions) -> FinetuneRecipe:
    """Return the recipe with the kind of task that a format implies; raises ConfigError for keys that do not fit it."""
    if reading.format is None:
        return recipe
    row = catalog_row(reading.format)
    if "task" in recipe.model_fields_set and recipe.task != row.kind:
        raise ConfigError(f"task = {recipe.task!r}, but the format {row.name} is a {row.kind} task")
    values = {**recipe.model_dump(exclude_unset=True), "task": row.kind}
    return validate_recipe(FinetuneRecipe, values, source=f"recipe with the format {row.name}")


def look_at_input(models: Sequence[Path], path: Path, reading: ReadingOptions, *, needs_label: bool) -> None:
    """Read the first rows of a file for fine-tuned models; raises DataError or ConfigError for a wrong name or row.

    How a model that was fine-tuned elsewhere reads files is known only once it is opened.
    """
    for model in models:
        check_model_name(model)
    known, kind = _settings(models[0]), kind_of(models[0])
    if not (path.is_dir() and (known.get("kind") is None or (kind is not None and kind.reads_folders))):
        check_regular(path)
    stored = known.get("reading", {})
    if kind is None or not isinstance(stored, dict):
        return  # unknown kind or settings: opening the model reports what is wrong
    if kind.with_pairs and known.get("takes_pairs") is True:
        kind = KINDS[kind.with_pairs]
    try:
        settings = validate_recipe(kind.settings, known.get("settings", {}), source=str(models[0]))
    except ConfigError:
        return
    names = known.get("labels")
    own = {"labels": names} if isinstance(names, list) and "labels" in kind.settings.model_fields else {}
    settings = settings.model_copy(update={**kind.first_settings, **own})
    options = options_for(path, kind, settings, reading, known, needs_label=needs_label)
    _look(FileReading(path, kind, options, settings, ReadingReport(path), needs_label))


def kind_of(model: Path) -> TaskKind | None:
    """Return the kind of task that fine-tuning stored with a model, None for a missing or unknown one."""
    name = _settings(model).get("kind")
    return KINDS.get(name) if isinstance(name, str) else None


def look_at_questions(models: Sequence[Path], context: Path, questions: Sequence[str]) -> None:
    """Raise as answering does for a missing model or text, and ConfigError for an empty question."""
    for model in models:
        check_model_name(model)
    for number, question in enumerate(questions, start=1):
        if not question.strip():
            raise ConfigError(f"question {number} is empty")
    if str(context) != "-":
        read_context(context)


def read_context(path: str | Path) -> str:
    """Return a text file's content, line ends unchanged; raises DataError if it is not UTF-8 text, or too large."""
    is_piped = str(path) == "-"
    content = sys.stdin.buffer.read(_MAX_TEXT_BYTES + 1) if is_piped else read_bytes(path, limit=_MAX_TEXT_BYTES)
    if len(content) > _MAX_TEXT_BYTES:  # before decoding: the end may cut a character in two
        raise DataError(f"{path}: larger than {_MAX_TEXT_BYTES:,} bytes, the limit for one search")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        num_before = content.count(b"\n", 0, error.start)
        place = f"line {num_before + 1}: byte {error.start + 1} of the file"
        raise DataError(f"{path}: {place} is not UTF-8; save it as UTF-8") from None
    if "\0" in text:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise DataError(f"{path}: line {line}: contains a NUL character; expected UTF-8 text (is this UTF-16?)")
    if not text.strip():
        raise DataError(f"{path}: the file is empty; it should hold the text to look for answers in")
    return text


def look_at_sources(model: Path, path: Path, reading: ReadingOptions) -> None:
    """Read the first rows of a file of prompts or sources; raises DataError or ConfigError for a wrong name or row."""
    check_model_name(model)
    _look(reading_of_sources(path, reading, _settings(model)))


def look_at_texts(model: Path, path: Path, reading: ReadingOptions) -> None:
    """Read the first rows of a file of texts, or of pairs where the second column is named."""
    check_model_name(model)
    _look(reading_of_texts(path, reading))


def check_place(source: Path, target: Path, *suffixes: str) -> str:
    """Return an output's suffix, one of `suffixes` if any are given; for a pipe without one, .jsonl.

    Raises ConfigError for another suffix, .npy to a pipe, a folder, the input itself, or a path in a missing folder.
    """
    if target.is_dir():
        raise ConfigError(f"{target}: this is a folder; the output must be a file")
    if target.exists() and source.exists() and target.samefile(source):
        raise ConfigError(f"{target}: the output would replace the input")
    folder = (target.resolve() if target.is_symlink() else target).parent
    if not is_stream(target) and not folder.is_dir():
        raise ConfigError(f"{target}: the folder {folder} does not exist")
    suffix = target.suffix.lower()
    if is_stream(target) and suffix not in (*suffixes, ".npy"):
        return ".jsonl"
    if suffixes and (suffix not in suffixes or (suffix == ".npy" and is_stream(target))):
        known = [known for known in suffixes if known != suffix]
        raise ConfigError(f"{target}: the output's suffix must be {'one of ' * (len(known) > 1)}{', '.join(known)}")
    return suffix


def check_predictions(source: Path, target: Path, kind: TaskKind | None, *, csv_safe: bool) -> str:
    """Return the suffix of a file of predictions; raises ConfigError for one that the kind, or none, writes."""
    kinds = KINDS.values() if kind is None else [kind]
    suffix = check_place(source, target, ".jsonl", ".csv", *(form for one in kinds for form in one.output_suffixes))
    if csv_safe and suffix != ".csv":
        raise ConfigError(f"{target}: --csv-safe is for .csv files")
    if suffix == ".csv" and kind is not None and kind.reads_tokens:
        raise ConfigError(
            f"{target}: {kind.name} predictions have several values per row, which a .csv cannot hold; write .jsonl"
        )
    return suffix


def check_page(page: Path, flag: str, source: Path | None = None) -> None:
    """Raise ConfigError for a page that is a folder, not .html, in a missing folder, or its own `source`."""
    if page.is_dir() or page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{page}: {flag} names the page to write, an .html file")
    if not page.parent.is_dir():
        raise ConfigError(f"{page}: the folder {page.parent} does not exist")
    if source is not None:
        check_place(source, page)


def _look(file: FileReading) -> None:
    for _ in islice(file.examples(), _ROWS):
        pass


def _settings(model: Path) -> dict[str, Any]:
    """Return what fine-tuning stored with a model, or {}; only how it reads files is checked."""
    for folder in (model, model / "model"):
        if (folder / "config.json").is_file():
            settings = read_object_inside(folder, _SETTINGS_FILE)
            if isinstance(reading := settings.get("reading"), dict):
                check_stored(reading, folder / _SETTINGS_FILE)
            return settings
    return {}
