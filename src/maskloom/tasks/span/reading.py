"""Files of questions: SQuAD v1.1 and v2.0 JSON, and rows of JSONL, CSV or TSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from maskloom.foreign_files import is_utf8
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.examples import ReadingReport, kept_examples
from maskloom.tasks.span.questions import Answer, Question
from maskloom.tasks.span.rows import question_rows
from maskloom.tasks.span.squad_json import squad_rows
from maskloom.tasks.tables import BadRowError, Row

_SHOWN = 60


def is_squad_file(path: Path) -> bool:
    """Tell by its suffix whether a file holds SQuAD JSON, which may be gzipped."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-1:] == [".json"] or suffixes[-2:] == [".json", ".gz"]


def iterate_questions(
    path: str | Path,
    options: ReadingOptions,
    settings: Mapping[str, Any],
    *,
    needs_label: bool,
    report: ReadingReport,
) -> Iterator[Question]:
    """Yield the questions of a file in its order.

    `needs_label` asks for answers, or for the word that there is none; without it answers are not looked at. Raises
    DataError that names file, place and rule for a question that breaks one, unless `options.on_bad_rows` is "skip",
    which counts it: an answer that does not stand in the context where it should, an empty question, context or answer,
    an id that comes twice, a missing or ill-typed key.
    """
    path = Path(path)
    rows, form = (
        (squad_rows(path), Row.by_name)
        if is_squad_file(path)
        else question_rows(path, options, needs_label=needs_label)
    )
    seen: dict[str, str] = {}

    def question_of(row: Row) -> Question:
        question = _question(form(row), row.line, needs_label=needs_label)
        if question.id in seen:
            raise BadRowError("an id comes twice", f"{question.id!r:.80} is also that of {seen[question.id]}")
        seen[question.id] = row.where
        return question

    yield from kept_examples(rows, question_of, report, skips=options.on_bad_rows == "skip")


def _question(fields: dict[str, Any], line: int, *, needs_label: bool) -> Question:
    context = _text(fields.get("context"), "context")
    return Question(
        id=_identifier(fields.get("id")),
        question=_text(fields.get("question"), "question"),
        context=context,
        answers=_answers(fields, context) if needs_label else None,
        line=line,
        title=fields["title"] if isinstance(fields.get("title"), str) else None,
    )


def _identifier(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRowError("the id is not a name", repr(value))
    if not is_utf8(str(value)):
        raise BadRowError("the id holds half of a surrogate pair", f"{value!r:.80} is not valid Unicode")
    return str(value)


def _text(value: Any, name: str) -> str:
    if value is None:
        raise BadRowError(f"no {name}")
    if not isinstance(value, str):
        raise BadRowError(f"the {name} is not a string", f"it is {type(value).__name__}")
    if not value.strip():
        raise BadRowError(f"empty {name}")
    if not is_utf8(value):
        raise BadRowError(f"the {name} holds half of a surrogate pair", "it is not valid Unicode")
    return value


def _answers(fields: dict[str, Any], context: str) -> tuple[Answer, ...]:
    answers, is_impossible = fields.get("answers"), fields.get("is_impossible")
    if is_impossible is not None and not isinstance(is_impossible, bool):
        raise BadRowError("is_impossible is not true or false", repr(is_impossible))
    if answers is not None and not isinstance(answers, list):
        raise BadRowError("the answers are not a list", f"they are {type(answers).__name__}")
    if not answers and not is_impossible:
        raise BadRowError("no answers", "a question without answer says so: is_impossible is true")
    if answers and is_impossible:
        raise BadRowError("is_impossible is true, yet there are answers")
    return tuple(_answer(value, context) for value in answers or ())


def _answer(value: Any, context: str) -> Answer:
    """Return an answer without the white space around it; its start may count that or point past it."""
    if not isinstance(value, dict):
        raise BadRowError("an answer is not an object", f"it is {type(value).__name__}")
    for key in ("text", "answer_start"):
        if value.get(key) is None:
            raise BadRowError(f"an answer has no {key}")
    text, start = _text(value["text"], "answer text"), value["answer_start"]
    if isinstance(start, bool) or not isinstance(start, int):
        raise BadRowError("answer_start is not a whole number", repr(start))
    if not 0 <= start < len(context):
        raise BadRowError(
            "answer_start is outside of the context", f"{start}, the context has {len(context)} characters"
        )
    stripped = text.strip()
    if context.startswith(text, start):
        return Answer(stripped, start + len(text) - len(text.lstrip()))
    if context.startswith(stripped, start):
        return Answer(stripped, start)
    raise BadRowError("an answer does not stand in the context", _what_stands(stripped, start, context))


def _what_stands(text: str, start: int, context: str) -> str:
    """Say what stands where an answer should, and where it stands instead."""
    there = context[start : start + min(len(text), _SHOWN)]
    places = [place for place in (context.rfind(text, 0, start + len(text)), context.find(text, start)) if place >= 0]
    elsewhere = ""
    if places:
        elsewhere = f"; it stands at {min(places, key=lambda place: abs(place - start))}"
    return f"{text[:_SHOWN]!r:.80} at {start}, where {there!r:.80} stands{elsewhere}"
