"""Rows of JSONL, CSV and TSV as questions in SQuAD's form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.columns import ReadingOptions, check_given, check_single, is_column_number, no_labels
from maskloom.tasks.tables import BadRowError, Row, by_name, layout_of, read_rows, up_to_first

_ANSWERS = ("answers", "answer", "answer_text")
_STARTS = ("answer_start", "answer_starts", "start")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False, "": None}


def question_rows(
    path: Path, options: ReadingOptions, *, needs_label: bool
) -> tuple[Iterator[Row], Callable[[Row], dict[str, Any]]]:
    """Return the rows of a .jsonl, .csv or .tsv file, and what brings a row into SQuAD's form.

    Columns: `question` (or --text-column), `context` (or --pair-column), `id` if there is one (else the line),
    `is_impossible` if there is one, and the answers: `answers` as {"text": [...], "answer_start": [...]} or as a list
    of {"text", "answer_start"}, or one in `answer` (or --label-column) with its `answer_start`, or several in lists of
    both. Raises DataError for columns that are not there, ConfigError for columns by number.
    """
    for column in (options.text_column, options.pair_column, options.label_column):
        if column is not None and is_column_number(column):
            raise ConfigError(f"column {column}: columns of questions go by name (question, context, answers)")
    try:
        layout = layout_of(path)
    except DataError as error:
        raise DataError(f"{error}, and not SQuAD's .json") from None
    if layout == "text":
        raise DataError(f"{path}: a .txt file holds no contexts; use SQuAD's .json, or .jsonl, .csv or .tsv rows")
    rows = read_rows(path, layout)
    seen = up_to_first(rows) if layout == "jsonl" else [next(rows)]
    names = [name.strip() for name in seen[-1].fields]
    if layout != "jsonl" or not seen[-1].problem:
        _check_columns(names, options, f"{path}: line {seen[-1].line}", needs_label=needs_label)
    if layout == "jsonl":
        return chain(seen, rows), partial(_squad_form, options, needs_label)
    return by_name(rows, names), partial(_squad_form_of_text, options, needs_label)


def _squad_form(options: ReadingOptions, needs_label: bool, row: Row) -> dict[str, Any]:
    fields, answers = row.by_name(), None
    if needs_label:
        answers = _listed(_first(fields, options.label_column, _ANSWERS), _first(fields, None, _STARTS))
    is_impossible = fields.get("is_impossible")
    return {
        "id": fields.get("id", str(row.line)),
        "question": fields.get(options.text_column or "question"),
        "context": fields.get(options.pair_column or "context"),
        "answers": answers,
        "is_impossible": True if answers == [] and is_impossible is None else is_impossible,
        "title": fields.get("title"),
    }


def _squad_form_of_text(options: ReadingOptions, needs_label: bool, row: Row) -> dict[str, Any]:
    """Return what a row of text fields says: empty means absent, numbers and lists are written as in JSON."""
    fields = {name: value for name, value in row.by_name().items() if value != ""}
    truth = fields.pop("is_impossible", "")
    if needs_label:
        if truth.strip().lower() not in _TRUTHS:
            raise BadRowError("is_impossible is not true or false", f"{truth!r:.60}")
        fields["is_impossible"] = _TRUTHS[truth.strip().lower()]
        answers, starts = _first(fields, options.label_column, _ANSWERS), _first(fields, None, _STARTS)
        for name in (options.label_column, *_ANSWERS, *_STARTS):
            fields.pop(name or "", None)
        if starts is not None:
            fields["answer_start"] = starts = _from_json(starts, "answer_start is not a number or a JSON list")
        if answers is not None and (isinstance(starts, list) or starts is None) and answers[:1] in ("[", "{"):
            answers = _from_json(answers, "the answers are not a JSON list")
        if answers is not None:
            fields["answers"] = answers
    return _squad_form(replace(options, label_column=None), needs_label, row._replace(fields=fields))


def _from_json(text: str, problem: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRowError(problem, f"{text[:60]!r:.80}") from None


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
            raise BadRowError(f"{len(answers)} answers have {given} starts; both are lists of one length")
        return [{"text": text, "answer_start": start} for text, start in zip(answers, starts, strict=True)]
    return answers


def _first(fields: dict[str, Any], given: str | None, names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in chain([given] if given else [], names) if name in fields), None)


def _check_columns(names: list[str], options: ReadingOptions, place: str, *, needs_label: bool) -> None:
    wanted = [options.text_column or "question", options.pair_column or "context"]
    wanted += [options.label_column] if options.label_column and needs_label else []
    check_given(wanted, names, place)
    if needs_label and not any(name in names for name in (options.label_column, *_ANSWERS)):
        raise no_labels(place, _ANSWERS, names, "answers")
    check_single(wanted, names, place)
