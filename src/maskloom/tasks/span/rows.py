"""Rows of JSONL, CSV and TSV as records of questions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from maskloom.config import ConfigError, DataError
from maskloom.tasks.columns import ReadingOptions, is_column_number
from maskloom.tasks.span.squad_json import Record
from maskloom.tasks.tables import Row, layout_of, read_rows

_ANSWERS = ("answers", "answer", "answer_text")
_STARTS = ("answer_start", "answer_starts", "start")
# What tables call a row that holds nothing; it is no error anywhere.
BLANK_LINE = "blank line"
_TRUTHS = {"true": True, "1": True, "false": False, "0": False, "": None}


def row_records(path: Path, options: ReadingOptions, *, needs_label: bool) -> Iterator[Record]:
    """Yield the questions of a .jsonl, .csv or .tsv file in its order.

    Columns: `question` (or --text-column), `context` (or --pair-column), `id` if there is one (else the line),
    `is_impossible` if there is one, and the answers: `answers` as {"text": [...], "answer_start": [...]} or as a list
    of {"text", "answer_start"}, or one in `answer` (or --label-column) with its `answer_start`, or several in lists of
    both. Raises DataError for columns that are not there, ConfigError for columns by number.
    """
    _check_options(options)
    try:
        layout = layout_of(path)
    except DataError as error:
        raise DataError(f"{error}, and not SQuAD's .json") from None
    if layout == "text":
        raise DataError(f"{path}: a .txt file holds no contexts; use SQuAD's .json, or .jsonl, .csv or .tsv rows")
    rows = read_rows(path, layout)
    if layout == "jsonl":
        yield from _json_records(path, rows, options, needs_label=needs_label)
        return
    header = next(rows)
    names = [name.strip() for name in list(header.fields)]
    _check_columns(path, header.line, names, options, needs_label=needs_label)
    for row in rows:
        if row.fields == [""]:
            yield Record(f"line {row.line}", row.line, problem=BLANK_LINE)
        elif len(row.fields) != len(names):
            problem = f"wrong number of fields: {len(row.fields)}, expected {len(names)}"
            yield Record(f"line {row.line}", row.line, problem=problem)
        else:
            fields = dict(zip(names, list(row.fields), strict=True))
            yield _delimited_record(fields, row.line, options, needs_label=needs_label)


def _json_records(path: Path, rows: Iterator[Row], options: ReadingOptions, *, needs_label: bool) -> Iterator[Record]:
    is_checked = False
    for row in rows:
        place = f"line {row.line}"
        if row.problem or not isinstance(row.fields, dict):
            yield Record(place, row.line, problem=row.problem or "a JSON object is expected")
            continue
        if not is_checked:
            _check_columns(path, row.line, list(row.fields), options, needs_label=needs_label)
            is_checked = True
        yield _json_record(row.fields, row.line, options, needs_label=needs_label)


def _json_record(fields: dict[str, Any], line: int, options: ReadingOptions, *, needs_label: bool) -> Record:
    answers = _first(fields, options.label_column, _ANSWERS) if needs_label else None
    starts = _first(fields, None, _STARTS)
    problem, is_impossible = None, fields.get("is_impossible") if needs_label else None
    try:
        answers = _listed(answers, starts)
    except ValueError as error:
        problem = str(error)
    if answers == [] and is_impossible is None:
        is_impossible = True
    return Record(
        place=f"line {line}",
        line=line,
        id=fields.get("id", str(line)),
        question=fields.get(options.text_column or "question"),
        context=fields.get(options.pair_column or "context"),
        answers=answers,
        is_impossible=is_impossible,
        title=fields.get("title") if isinstance(fields.get("title"), str) else None,
        problem=problem,
    )


def _delimited_record(fields: dict[str, str], line: int, options: ReadingOptions, *, needs_label: bool) -> Record:
    """Return the record of a row of text fields: empty means absent, numbers and lists are written as in JSON."""
    if not needs_label:
        known = {name: value for name, value in fields.items() if value != ""}
        return _json_record(known, line, options, needs_label=False)
    place, truth = f"line {line}", fields.get("is_impossible", "").strip().lower()
    if truth not in _TRUTHS:
        return Record(place, line, problem=f"is_impossible is not true or false: {fields['is_impossible']!r:.60}")
    values: dict[str, Any] = {name: value for name, value in fields.items() if value != ""}
    values["is_impossible"] = _TRUTHS[truth]
    answers, starts = _first(values, options.label_column, _ANSWERS), _first(values, None, _STARTS)
    for name in (options.label_column, *_ANSWERS, *_STARTS):
        values.pop(name or "", None)
    try:
        if starts is not None:
            values["answer_start"] = starts = _from_json(starts, "answer_start is not a number or a JSON list")
        if answers is not None and (isinstance(starts, list) or starts is None) and answers[:1] in ("[", "{"):
            answers = _from_json(answers, "the answers are not a JSON list")
    except ValueError as error:
        return Record(place, line, problem=str(error))
    if answers is not None:
        values["answers"] = answers
    return _json_record(values, line, replace(options, label_column=None), needs_label=True)


def _from_json(text: str, problem: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{problem}: {text[:60]!r:.80}") from None


def _listed(answers: Any, starts: Any) -> Any:
    """Return answers in SQuAD's form, whichever of the forms of a row they have; None stays None."""
    if isinstance(answers, dict):
        answers, starts = answers.get("text"), answers.get("answer_start")
    if isinstance(answers, str):
        if isinstance(starts, list) and len(starts) == 1:
            starts = starts[0]
        return [{"text": answers, "answer_start": starts}]
    if isinstance(answers, list) and all(isinstance(answer, str) for answer in answers) and answers:
        if not isinstance(starts, list) or len(starts) != len(answers):
            given = len(starts) if isinstance(starts, list) else "no list of"
            raise ValueError(f"{len(answers)} answers have {given} starts; both are lists of one length")
        return [{"text": text, "answer_start": start} for text, start in zip(answers, starts, strict=True)]
    return answers


def _first(fields: dict[str, Any], given: str | None, names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in chain([given] if given else [], names) if name in fields), None)


def _listed_names(names: list[str]) -> str:
    return ", ".join(name[:40] for name in names[:12])


def _check_options(options: ReadingOptions) -> None:
    for column in (options.text_column, options.pair_column, options.label_column):
        if column is not None and is_column_number(column):
            raise ConfigError(f"column {column}: columns of questions go by name (question, context, answers)")


def _check_columns(path: Path, line: int, names: list[str], options: ReadingOptions, *, needs_label: bool) -> None:
    wanted = [options.text_column or "question", options.pair_column or "context"]
    wanted += [options.label_column] if options.label_column and needs_label else []
    for name in wanted:
        if name not in names:
            raise DataError(f"{path}: line {line}: there is no column {name!r}; the columns are {_listed_names(names)}")
    if needs_label and not any(name in names for name in (options.label_column, *_ANSWERS)):
        raise DataError(
            f"{path}: line {line}: no column of answers ({', '.join(_ANSWERS)}) among {_listed_names(names)}; name it "
            "with --label-column"
        )
    for name in set(wanted):
        if names.count(name) > 1:
            raise DataError(f"{path}: line {line}: the header has {names.count(name)} columns named {name!r:.80}")
