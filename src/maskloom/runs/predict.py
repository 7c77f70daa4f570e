"""Predictions for every row of a file, in its order."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from maskloom.config import ConfigError
from maskloom.files import replacing
from maskloom.inference import Ensemble, Predictor, open_models
from maskloom.inference.ensemble import Average
from maskloom.runs.progress import Progress, SilentProgress
from maskloom.runs.reading_defaults import FileReading, reading_for
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.examples import ReadExamples
from maskloom.training.memory import release_free_memory

_WINDOW = 4096


def predict(
    model: str | Path | Sequence[str | Path],
    input: str | Path,
    output: str | Path,
    *,
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    average: Average = "probabilities",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write one prediction a row to `output`, .jsonl, .csv or in a form of the task, and return what was read and cut.

    A row has `index` (from 0), `line` (in the input), the text, the decision, and probabilities by label name. Rows
    are sorted by length only within a window of a few thousand, so memory is bounded. The output takes its name when
    it is complete. Several models answer as an ensemble, whose probabilities or logits are averaged. Raises ConfigError
    for a model without the head of a task, DataError for a wrong file.
    """
    progress, source, target = progress or SilentProgress(), Path(input), Path(output)
    models = [model] if isinstance(model, str | Path) else model
    predictor = open_models(models, average=average, max_length=max_length)
    task = predictor.required_task()
    forms = task.forms
    suffix = check_output(source, target, tuple({".jsonl": 0, ".csv": 0, **forms}))
    reading_of_input = reading_for(predictor, source, reading, needs_label=False)
    progress.begin("predicting", 0)
    before, between, after = task.frames.get(suffix, ("", "", ""))
    with replacing(target, "w") as file:
        write = _csv_writer(file) if suffix == ".csv" else _json_writer(file)
        file.write(before)
        for index, (example, prediction) in enumerate(_predictions(predictor, reading_of_input)):
            if suffix in forms:
                file.write(between if index else "")
                file.writelines(f"{line}\n" for line in forms[suffix](example, prediction))
            else:
                write({"index": index, "line": example.line, **example.as_row(), **prediction})
            if index % _WINDOW == _WINDOW - 1:
                progress.advance(index + 1)
        file.write(after)
    progress.end()
    return {
        "output": str(target),
        "num_predictions": reading_of_input.report.num_kept,
        "num_truncated_examples": predictor.num_truncated,
        "max_length": predictor.max_length,
        "data": reading_of_input.report.as_dict(),
    }


def check_output(source: Path, target: Path, suffixes: tuple[str, ...]) -> str:
    """Return the suffix of an output file; raises ConfigError when it is not one of those, or the input itself."""
    suffix = target.suffix.lower()
    if suffix not in suffixes:
        raise ConfigError(f"{target}: the output's suffix is one of {', '.join(suffixes)}")
    if target.exists() and source.exists() and target.samefile(source):
        raise ConfigError(f"{target}: the output would replace the input")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: the folder {target.parent} does not exist")
    return suffix


def _predictions(predictor: Predictor | Ensemble, reading: FileReading) -> Iterator[tuple[Any, dict[str, Any]]]:
    for window in reading.pieces(_WINDOW):
        yield from zip(window, predictor.predict_examples(ReadExamples(window, reading.report)), strict=True)
        release_free_memory()


def _json_writer(file: IO[str]) -> Callable[[dict[str, Any]], None]:
    return lambda row: print(json.dumps(row, ensure_ascii=False), file=file)


def _csv_writer(file: IO[str]) -> Callable[[dict[str, Any]], None]:
    """Return a writer with one column a label for probabilities; several labels are joined by commas."""
    writer = csv.writer(file, lineterminator="\n")
    header: list[str] = []

    def write(row: dict[str, Any]) -> None:
        flat = {key: value for key, value in row.items() if key != "probabilities"}
        if "labels" in flat:
            flat["labels"] = ",".join(flat["labels"])
        for name, probability in row.get("probabilities", {}).items():
            flat[f"probability_{name}"] = repr(probability)
        nested = [key for key, value in flat.items() if isinstance(value, list | dict)]
        if nested:
            raise ConfigError(f"{nested[0]} has several values a row, which a .csv cannot hold; write .jsonl")
        if not header:
            header.extend(flat)
            writer.writerow(header)
        if list(flat) != header:
            raise ConfigError("rows differ in their columns (choices, say), which a .csv cannot hold; write .jsonl")
        writer.writerow(flat.values())

    return write
