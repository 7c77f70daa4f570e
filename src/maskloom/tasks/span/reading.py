"""Reads questions from SQuAD v1.1 and v2.0 JSON and from JSONL, CSV or TSV rows; scores files of predictions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.metrics.answers import score_answers
from maskloom.system.foreign_files import is_utf8, parse_json, read_bytes, read_json
from maskloom.tasks import tables
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.examples import ReadExamples, ReadingReport, checked_parts, checked_text, kept_examples
from maskloom.tasks.tables import BadRowError, Columns, ReadingOptions, Row, UsualNames, row_text


@dataclass(frozen=True)
class Answer:
    """An answer as a span of the context: `context[start:start + len(text)] == text`, stripped of white space."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """One question about a context.

    `answers` is None if they are unknown, and empty if the context does not contain the answer. `line` is the line of a
    row or, in a SQuAD file, the number of the question, from 1.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    line: int

    @property
    def is_impossible(self) -> bool:
        """Whether the file says that the context does not answer the question."""
        return self.answers == ()

    def inputs(self) -> tuple[str, str]:
        """Return the model's input; questions with equal inputs differ only in their answers."""
        return self.question, self.context

    def as_row(self) -> dict[str, str]:
        """Return the question as shown in a row of predictions, without the context, which is long and shared."""
        return {"id": self.id, "question": self.question}


def iterate_questions(
    path: str | Path,
    options: ReadingOptions,
    settings: Any,
    *,
    needs_label: bool,
    report: ReadingReport,
    needs_places: bool = True,
) -> Iterator[Question]:
    """Yield the questions of a file in file order.

    With `needs_label`, each question must have answers or be marked as unanswerable; otherwise answers are ignored.
    Without `needs_places`, only the texts of answers are read, and they all start at 0, as in the official script.
    Raises DataError, with file, place and rule, for a question that breaks a rule, such as an answer that is not at its
    place in the context, unless `options.on_bad_rows` is "skip", which counts it.
    """
    path = Path(path)
    if options.format is not None:
        catalog_row(options.format, kinds=("span",))
    if path.suffix.lower() == ".json":
        rows, form = squad_rows(path), Row.by_name
    else:
        rows, form = question_rows(path, options, needs_label=needs_label)
        rows = tables.noting_quotes(rows, report.notes) if tables.suffix_of(path) == ".tsv" else rows
    seen: dict[str, str] = {}

    def question_of(row: Row) -> Question:
        fields = form(row)
        context = _text(fields.get("context"), "context")
        question = Question(
            id=_identifier(fields.get("id")),
            question=_text(fields.get("question"), "question"),
            context=context,
            answers=_answers(fields, context if needs_places else None) if needs_label else None,
            line=row.line,
        )
        if question.id in seen:
            raise BadRowError("an id appears twice", f"{question.id!r:.80} is also the id of {seen[question.id]}")
        seen[question.id] = row.where
        return question

    yield from kept_examples(rows, question_of, report, skips=options.on_bad_rows == "skip")


def _identifier(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRowError("the id is not a name", repr(value))
    if not is_utf8(str(value)):
        raise BadRowError("the id contains an unpaired surrogate", f"{value!r:.80} is not valid Unicode")
    return str(value)


def _text(value: Any, name: str) -> str:
    if value is None:
        raise BadRowError(f"no {name}")
    return row_text(value, f"the {name}", empty=f"empty {name}")


def _answers(fields: dict[str, Any], context: str | None) -> tuple[Answer, ...]:
    answers, is_impossible = fields.get("answers"), fields.get("is_impossible")
    if is_impossible is not None and not isinstance(is_impossible, bool):
        raise BadRowError("is_impossible is not true or false", repr(is_impossible))
    if answers is not None and not isinstance(answers, list):
        raise BadRowError("the answers are not a list", f"they are {type(answers).__name__}")
    if not answers and not is_impossible:
        raise BadRowError("no answers", "a question without an answer needs is_impossible = true")
    if answers and is_impossible:
        raise BadRowError("is_impossible is true, yet there are answers")
    return tuple(_answer(value, context) for value in answers or ())


def _answer(value: Any, context: str | None) -> Answer:
    """Return an answer without surrounding white space; its start may be before or after leading white space."""
    if not isinstance(value, dict):
        raise BadRowError("an answer is not an object", f"it is {type(value).__name__}")
    for key in ("text",) if context is None else ("text", "answer_start"):
        if value.get(key) is None:
            raise BadRowError(f"an answer has no {key}")
    text, start = _text(value["text"], "answer text"), value.get("answer_start")
    if context is None:
        return Answer(text.strip(), 0)
    if isinstance(start, bool) or not isinstance(start, int):
        raise BadRowError("answer_start is not a whole number", repr(start))
    if not 0 <= start < len(context):
        place = f"{start}, the context has {len(context)} characters"
        raise BadRowError("answer_start is outside of the context", place)
    stripped = text.strip()
    if context.startswith(text, start):
        return Answer(stripped, start + len(text) - len(text.lstrip()))
    if context.startswith(stripped, start):
        return Answer(stripped, start)
    there = context[start : start + len(stripped)]
    found = [at for at in (context.rfind(stripped, 0, start + len(stripped)), context.find(stripped, start)) if at >= 0]
    elsewhere = f"; the nearest occurrence is at {min(found, key=lambda at: abs(at - start))}" if found else ""
    detail = f"{stripped!r:.80} at {start}, where the context has {there!r:.80}{elsewhere}"
    raise BadRowError("an answer is not at its place in the context", detail)


MAX_JSON_BYTES = 1 << 30
"""1 GiB: twenty times SQuAD v2.0; use JSONL, which is read row by row, for larger data."""


def squad_rows(path: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD v1.1 or v2.0 file in file order, with their contexts.

    Raises DataError, with file and place, for a file that cannot be read or has no articles and paragraphs.
    """
    try:
        articles = _list_of(read_json(path, limit=MAX_JSON_BYTES), "data", path, "the file")
    except DataError as error:
        hint = "; if each line is a question, name the file .jsonl" if str(error).endswith(("data", "none")) else ""
        raise DataError(f"{error}{hint}") from None
    number = 0
    for article_number, article in enumerate(articles, start=1):
        title = article.get("title") if isinstance(article, dict) else None
        article_place = f"article {article_number}" + (f" ({title:.80})" if title and isinstance(title, str) else "")
        for paragraph_number, paragraph in enumerate(_list_of(article, "paragraphs", path, article_place), start=1):
            place = f"{article_place}, paragraph {paragraph_number}"
            for question_number, question in enumerate(_list_of(paragraph, "qas", path, place), start=1):
                number += 1
                yield _row(question, paragraph.get("context"), f"{place}, question {question_number}", number)


def _row(question: Any, context: Any, place: str, number: int) -> Row:
    if not isinstance(question, dict):
        return Row({}, number, f"a question is not an object: it is {type(question).__name__}", place)
    if (identifier := question.get("id")) is None:
        return Row({}, number, "no id", place)
    return Row({**question, "context": context}, number, place=f"{place} (id {identifier!r:.80})")


def _list_of(value: Any, key: str, path: Path, place: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else value
    if not isinstance(value, dict) or not isinstance(found, list):
        got = "none" if found is None else type(found).__name__
        raise DataError(f"{path}: {place}: expected SQuAD's format, an object with a list {key!r}, got {got}")
    return found


_USUAL = UsualNames(labels=("answers", "answer", "answer_text"), noun="answer")


def question_rows(
    path: Path, options: ReadingOptions, *, needs_label: bool
) -> tuple[Iterator[Row], Callable[[Row], dict[str, Any]]]:
    """Return the rows of a .jsonl, .csv or .tsv file, and a function that converts a row to SQuAD's form.

    Columns: `question` (or --text-column), `context` (or --pair-column), optionally `id` (default: the line) and
    `is_impossible`, and one `answer` (or --label-column) with its `answer_start`; in JSONL also several `answers`, as
    {"text": [...], "answer_start": [...]} or as a list of {"text", "answer_start"}. Raises DataError for missing
    columns.
    """
    try:
        layout = tables.layout_of(path)
    except DataError as error:
        hint = "; SQuAD's .json is accepted too" if path.is_file() else ""  # it is the suffix that is wrong
        raise DataError(f"{error}{hint}") from None
    if layout == "text":
        raise DataError(f"{path}: a .txt file has no contexts; use SQuAD's .json, or .jsonl, .csv or .tsv rows")
    rows = tables.read_rows(path, layout)
    seen = tables.up_to_first(rows) if layout == "jsonl" else [next(rows)]
    names = list(seen[-1].fields) if layout == "jsonl" else [name.strip() for name in seen[-1].fields]
    columns = Columns(options.text_column or "question", options.pair_column or "context", options.label_column)
    if layout != "jsonl" or not seen[-1].problem:
        given = replace(options, text_column=columns.text, pair_column=columns.pair)
        how = {"place": f"{path}: line {seen[-1].line}", "takes_pair": True, "needs_label": needs_label}
        columns = tables.choose_names(names, given, _USUAL, **how)
    rows = chain(seen, rows) if layout == "jsonl" else tables.by_name(rows, names)
    return rows, partial(_squad_form, columns, needs_label)


def _squad_form(columns: Columns, needs_label: bool, row: Row) -> dict[str, Any]:
    """Convert a row to SQuAD's form; an empty field is absent."""
    fields = {name: value for name, value in row.by_name().items() if value != ""}
    question, context = fields.get(columns.text), fields.get(columns.pair or "")
    found = {"id": fields.get("id", str(row.line)), "question": question, "context": context}
    if not needs_label:
        return found
    answers, start = (
        next((fields[name] for name in names if name in fields), None)
        for names in ((columns.label, *_USUAL.labels), ("answer_start", "start"))
    )
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise BadRowError("answers and starts are not lists of equal length", f"{answers!r:.80}")
        answers = [{"text": text, "answer_start": at} for text, at in zip(texts, starts, strict=True)]
    elif isinstance(answers, str):
        answers = [{"text": answers, "answer_start": _of_text(start)}]
    is_impossible = _of_text(fields.get("is_impossible", True if answers == [] else None))
    return {**found, "answers": answers, "is_impossible": is_impossible}


def _of_text(field: Any) -> Any:
    """Return the whole number or truth value that a text says, or any other value unchanged."""
    if not isinstance(field, str):
        return field
    is_number = field.isdecimal() and field.isascii() and len(field) < 10
    return int(field) if is_number else {"true": True, "false": False}.get(field.lower(), field)


def score_files(
    data: str | Path,
    predictions: str | Path,
    *,
    null_odds: str | Path | None = None,
    null_threshold: float | None = None,
) -> dict[str, Any]:
    """Score predictions against the answers to questions; ids without a prediction count as wrong and are listed.

    Predictions are a JSON object of texts by id, as `predict` writes to a .json file; `null_odds` is one of numbers.
    Raises DataError for an invalid file, and unlike the official script, which takes the last, for a repeated id.
    """
    path, how = Path(predictions), {"needs_label": True, "needs_places": False}
    questions = iterate_questions(data, ReadingOptions(), {}, report=ReadingReport(Path(data)), **how)
    texts = _by_id(path, str, "a text")
    odds = None if null_odds is None else _by_id(Path(null_odds), (int, float), "a number")
    golds = {question.id: [answer.text for answer in question.answers or ()] for question in questions}
    try:
        return score_answers(golds, texts, null_odds=odds, null_threshold=null_threshold)
    except ValueError as error:
        raise DataError(f"{null_odds or path}: {error}") from None


def _by_id(path: Path, kind: Any, wanted: str) -> dict[str, Any]:
    content, repeated = read_bytes(path, limit=MAX_JSON_BYTES), list[str]()

    def by_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        return dict(pairs)

    values = parse_json(content, str(path), objects=by_key)
    if not isinstance(values, dict):
        raise DataError(f"{path}: expected a JSON object, got {type(values).__name__}")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise DataError(f"{path}: id {name!r:.80}: expected {wanted}, got {type(value).__name__}")
    if repeated:
        key = re.escape(json.dumps(repeated[0], ensure_ascii=False).encode("utf-8", "replace"))
        found = re.finditer(rb"(?<!\\)%s\s*:" % key, content)
        lines = [content.count(b"\n", 0, place.start()) + 1 for place in found]
        if len(lines) < 2:  # the key is written with escapes
            raise DataError(f"{path}: an id appears twice: {repeated[0]!r:.80}")
        raise DataError(f"{path}: line {lines[1]}: an id appears twice: {repeated[0]!r:.80}, first in line {lines[0]}")
    return values


def check_answers(train: ReadExamples, dev: ReadExamples) -> None:
    """Raise DataError if no training question has an answer."""
    if all(question.is_impossible for question in train.examples):
        raise DataError(f"{train.report.path}: none of {len(train.examples)} questions has an answer to learn from")


def question_example(item: Any, number: int) -> Question:
    """Return the question for a (question, context) pair."""
    question, context = (
        checked_text(part, number, may_be_blank=False) for part in checked_parts(item, number, "(question, context)")
    )
    return Question(id=str(number), question=question, context=context, answers=None, line=number + 1)
