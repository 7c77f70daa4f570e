"""Predictions, vectors or continuations for every row of a file, in order; answers to questions about a text."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from maskloom.checkpoints.published.sentence_transformers import PoolingMode
from maskloom.errors import ConfigError, DataError, amount
from maskloom.generation.search import Generation
from maskloom.inference import Ensemble, Predictor, open_models
from maskloom.inference.ensemble import Average
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.first_look import check_place, check_predictions, read_context
from maskloom.runs.reading_defaults import FileReading, reading_for, reading_of_prompts, reading_of_texts
from maskloom.system.devices import describe_device
from maskloom.system.files import output_file
from maskloom.tasks.examples import ReadExamples, ReadingReport
from maskloom.tasks.kinds import KINDS, changed
from maskloom.tasks.settings import SpanSettings
from maskloom.tasks.span.encoding import EncodedQuestions
from maskloom.tasks.span.reading import Question
from maskloom.tasks.tables import ReadingOptions

_WINDOW = 4096
# First characters of cells that spreadsheets evaluate or open as something else.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def predict(
    model: str | Path | Sequence[str | Path],
    source: Path,
    target: Path,
    *,
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    average: Average = "probabilities",
    csv_safe: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write one prediction per row to `target`, .jsonl, .csv or a task's format; return what was read and truncated.

    A row has `index` (from 0), `line` (in the input), the text, the decision, and probabilities by label name. Several
    models predict as an ensemble. Memory is bounded, and the output appears under its name once it is complete; a pipe
    is written to directly. `csv_safe` puts an apostrophe before .csv cells that a spreadsheet would evaluate as a
    formula. Raises ConfigError for a model without a task head, DataError for a wrong file or one without a usable row.
    """
    check_place(source, target)
    predictor = open_models(model, average=average, max_length=max_length)
    progress.say(f"device: {describe_device(predictor.device)}")
    task = predictor.required_task()
    forms, suffix = task.forms, check_predictions(source, target, KINDS[task.kind], csv_safe=csv_safe)
    reading_of_input = reading_for(predictor, source, reading, needs_label=False)
    columns: dict[str, None] = {}  # text columns of all rows: some may have an id, or more choices
    num_examples = reading_of_input.count(lambda example: columns.update(dict.fromkeys(example.as_row())))
    progress.begin("predicting", num_examples)
    before, between, after = task.frames.get(suffix, ("", "", ""))
    with output_file(target, "w") as file:
        csv = _csv_writer(file, csv_safe, columns) if suffix == ".csv" else None
        write = csv or (lambda row: print(json.dumps(row, ensure_ascii=False), file=file))
        file.write(before)
        for index, (example, prediction) in enumerate(_predictions(predictor, reading_of_input, progress)):
            if suffix in forms:
                file.write(between if index else "")
                file.writelines(f"{line}\n" for line in forms[suffix](example, prediction))
            else:
                write({"index": index, "line": example.line, **example.as_row(), **prediction})
        file.write(after)
    return {
        "output": str(target),
        "num_predictions": reading_of_input.report.num_kept,
        **predictor.truncation,
        "data": reading_of_input.report.as_dict(),
    }


def _predictions(
    predictor: Predictor | Ensemble, reading: FileReading, progress: Progress
) -> Iterator[tuple[Any, dict[str, Any]]]:
    for window in reading.shown_pieces(_WINDOW, progress):
        yield from zip(window, predictor.predict_examples(ReadExamples(window, reading.report)), strict=True)


def _csv_writer(file: IO[str], is_safe: bool, columns: Iterable[str]) -> Callable[[dict[str, Any]], None]:
    """Return a writer with one column per label for probabilities; missing values are left empty.

    Several labels are joined by commas as CSV fields: a label with a comma or a quote is put in double quotes. If
    `is_safe`, texts that begin like a formula get a leading apostrophe (OWASP, CSV injection).
    """
    header: list[str] = []

    def write(row: dict[str, Any]) -> None:
        flat = {key: value for key, value in row.items() if key != "probabilities"}
        if "labels" in flat:
            flat["labels"] = _record(flat["labels"])
        for name, probability in row.get("probabilities", {}).items():
            flat[f"probability_{name}"] = repr(probability)
        if not header:
            choices = [f"probability_{name.removeprefix('choice')}" for name in columns if name.startswith("choice")]
            header.extend(dict.fromkeys(["index", "line", *columns, *flat, *choices]))
            print(_record(map(cell, header)), file=file)
        print(_record(cell(flat.get(name)) for name in header), file=file)

    def cell(value: Any) -> Any:
        return f"'{value}" if is_safe and isinstance(value, str) and value.startswith(_FORMULA) else value

    return write


def _record(values: Iterable[Any]) -> str:
    """Return one CSV record without its line end; a value with any part of a line end, even a lone "\\r", is quoted."""
    record = io.StringIO()
    csv.writer(record, lineterminator="\r\n").writerow(values)
    return record.getvalue().removesuffix("\r\n")


def embed(
    predictor: Predictor,
    source: Path,
    target: Path,
    *,
    pooling: PoolingMode | None = None,
    normalize: bool | None = None,
    reading: ReadingOptions | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write one vector per row: .npy holds (rows, hidden) float32, .jsonl one object with `index` and `vector` per row.

    `pooling` and `normalize` are those of `Predictor.encode`. Memory is bounded, and the output appears under its name
    once it is complete. Raises ConfigError or DataError for a wrong option or file.
    """
    suffix = check_place(source, target, ".npy", ".jsonl")
    modules = predictor.modules.changed(pooling, normalize, predictor.model.config)
    texts = reading_of_texts(source, reading)
    num_rows, index = texts.count(), 0
    progress.begin("embedding", num_rows)
    with output_file(target) as file:
        if suffix == ".npy":
            header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, predictor.hidden_size)}
            np.lib.format.write_array_header_1_0(file, header)
        for window in texts.shown_pieces(_WINDOW, progress):
            inputs = [example.text if example.pair is None else (example.text, example.pair) for example in window]
            vectors = predictor.encode(inputs, pooling=pooling, normalize=normalize)
            if suffix == ".npy":
                file.write(vectors.astype("<f4", copy=False).tobytes())
            else:
                for number, vector in enumerate(vectors.tolist(), start=index):
                    file.write(json.dumps({"index": number, "vector": vector}).encode() + b"\n")
            index += len(vectors)
        if index != num_rows:
            raise DataError(f"{source}: had {num_rows:,} rows, then {index:,}: it was changed while it was read")
    return {
        "output": str(target),
        "num_vectors": texts.report.num_kept,
        "hidden_size": predictor.hidden_size,
        "pooling": modules.pooling,
        "normalized": modules.normalizes,
        **predictor.truncation,
        "data": texts.report.as_dict(),
    }


_PROMPTS_AT_ONCE = 256  # among these, prompts of similar length are batched


def generate(
    predictor: Predictor,
    source: Path,
    target: Path,
    given: Mapping[str, Any],
    *,
    fills: Generation | None = None,
    reading: ReadingOptions | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write a .jsonl with one row per text: `index`, `line`, `prompt` or `source`, and the keys of `GeneratedText`.

    `given` holds settings of `Generation` that override the model's own. With `fills` the blanks of the texts are
    filled with these settings, and rows have the keys of `FilledText`. Before the first text is generated, raises
    ConfigError or DataError for a model that cannot do this, a wrong file, and, unless bad rows are skipped, a text,
    named by its line, that is empty, has no blank to fill, or is too long.
    """
    check_place(source, target, ".jsonl")
    settings = fills or predictor.generation().changed(given)
    rows = reading_of_prompts(predictor, source, reading, settings, fills=fills is not None)
    progress.begin("filling" if fills else "generating", rows.count())
    index, num_tokens = 0, 0
    with output_file(target, "w") as file:
        for window in rows.shown_pieces(_PROMPTS_AT_ONCE, progress):
            ids = [one.ids for one in window]
            if fills:
                made = predictor.fill_blanks([one.text for one in window], ids, fills, index)
            else:
                predictor.count_truncated(sum(one.num_truncated for one in window))
                made = [predictor.shown(found, settings) for found in predictor.continuations(ids, settings, index)]
                num_tokens += sum(text["num_tokens"] for text in made)
            for example, found in zip(window, made, strict=True):
                row = {"index": index, "line": example.line, predictor.input_name: example.text, **found}
                print(json.dumps(row, ensure_ascii=False), file=file)
                index += 1
    written = {"output": str(target), "num_texts": index, "data": rows.report.as_dict()}
    cut = {} if fills or predictor.writer is None else predictor.truncation
    return written if fills else {**written, "num_tokens": num_tokens, **cut}


# Logits of a window of 384 tokens take 3 KB.
_WINDOWS_AT_ONCE = 8192


def answer(
    model: str | Path | Sequence[str | Path],
    context: Path,
    questions: Sequence[str],
    *,
    top_k: int = 1,
    max_length: int | None = None,
    null_threshold: float | None = None,
    average: Average = "probabilities",
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Return the answers that a model, or an ensemble of several, finds in a text file ("-" for standard input).

    `answers` holds for each question its `answer` ("" if the model says that there is none), `probability` among the
    candidates, `start` and `end` in characters of the text, and the `top_k` best candidates. `null_threshold` lets a
    model say that there is no answer, or changes when it does. Raises ConfigError for a model of another task or wrong
    settings, DataError for a file that cannot be read.
    """
    text = read_context(context)
    predictor = open_models(model, average=average, max_length=max_length)
    progress.say(f"device: {describe_device(predictor.device)}")
    task = predictor.required_task()
    if not isinstance(task.settings, SpanSettings):
        raise ConfigError(f"this model was fine-tuned for a {task.kind} task; it cannot answer questions")
    if top_k > (most := task.settings.num_best):
        raise ConfigError(f"top_k {top_k}: the model keeps {amount(most, 'candidate')} per question (span.num_best)")
    if null_threshold is not None:
        if math.isnan(null_threshold):
            raise ConfigError(f"null_threshold {null_threshold}: expected a number")
        task = changed(task, has_unanswerable=True, null_threshold=null_threshold)
    asked = [Question(str(number), question, text, None, number) for number, question in enumerate(questions, start=1)]
    encoded = task.encode(ReadExamples(asked, ReadingReport(context)), predictor.tokenizer, predictor.max_length)
    assert isinstance(encoded, EncodedQuestions)
    progress.begin("answering", len(questions))
    rows: list[dict[str, Any]] = []
    for part in encoded.parts(_WINDOWS_AT_ONCE):
        rows += task.decode(part, predictor.outputs(part).rows)
        progress.advance(len(rows))
    progress.end()
    for row in rows:
        row["candidates"] = row["candidates"][:top_k]
    return {
        "context": str(context),
        "num_characters": len(text),
        "num_pieces": len(encoded.contexts[0].pieces),
        "num_windows": len(encoded),
        "num_cut_questions": encoded.num_cut_questions,
        "max_length": predictor.max_length,
        "answers": [{"question": question, **row} for question, row in zip(questions, rows, strict=True)],
    }


def answer_lines(result: dict[str, Any]) -> list[str]:
    """Return readable lines: each question with its answer, then other candidates, with probabilities and positions."""
    lines = []
    for row in result["answers"]:
        lines.append(row["question"])
        others = [candidate for candidate in row["candidates"] if candidate["text"] != row["answer"]]
        for candidate in [{**row, "text": row["answer"]}, *others[: len(row["candidates"]) - 1]]:
            text = " ".join(candidate["text"].split()) or "(no answer)"
            place = "" if candidate["start"] is None else f", characters {candidate['start']} to {candidate['end']}"
            lines.append(f"  {text}  ({candidate['probability']:.3f}{place})")
    windows = f"{amount(result['num_windows'], 'window')} of at most {result['max_length']} tokens"
    num_cut = result["num_cut_questions"]
    cut = f"; {amount(num_cut, 'question')} truncated (span.max_question_length)" if num_cut else ""
    per = f" for {len(result['answers'])} questions" if len(result["answers"]) > 1 else ""
    return [*lines, f"{result['num_characters']:,} characters read in {windows}{per}{cut}"]
