"""The kind of task whose answers are spans of a text, as the rest of the package is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskloom.errors import DataError
from maskloom.metrics.answers import answer_scores
from maskloom.tasks.examples import ReadExamples, checked_parts, checked_text
from maskloom.tasks.kind import TaskKind, Verdict
from maskloom.tasks.span.reading import Question, iterate_questions
from maskloom.tasks.span.settings import SpanSection, SpanSettings

if TYPE_CHECKING:
    from maskloom.tasks.task import Task

# Windows of a long context are many; this many questions on contexts of 4,000 words give some 20,000 windows.
_QUESTIONS_AT_ONCE = 512


def _make(labels: tuple[str, ...], primary: str | None, settings: SpanSettings) -> Task:
    from maskloom.tasks.span.task import span_task  # torch

    return span_task(labels, primary, settings)


def _check(train: ReadExamples, dev: ReadExamples) -> None:
    if all(question.is_impossible for question in train.examples):
        raise DataError(f"{train.report.path}: none of {len(train.examples)} questions has an answer to learn from")


def _example_of(item: Any, number: int) -> Question:
    """Return the question of (question, context)."""
    question, context = (
        checked_text(part, number, may_be_blank=False) for part in checked_parts(item, number, "(question, context)")
    )
    return Question(id=str(number), question=question, context=context, answers=None, line=number + 1)


def _judge(question: Any, prediction: dict[str, Any], target: Any, labels: tuple[str, ...]) -> Verdict:
    exact, _f1 = answer_scores(prediction["answer"], target, has_unanswerable=not target)
    truth = " | ".join(dict.fromkeys(target)) or "no answer"
    return Verdict(truth, prediction["answer"] or "no answer", 1.0 - exact, prediction["probability"])


SPAN = TaskKind(
    name="span",
    iterate=iterate_questions,
    check=_check,
    make=_make,
    example_of=_example_of,
    data_settings=lambda train: {"has_unanswerable": any(question.is_impossible for question in train.examples)},
    examples_at_once=_QUESTIONS_AT_ONCE,
    takes="questions with their contexts",
    pipeline_tag="question-answering",
    section=SpanSection,
    settings=SpanSettings,
    names_labels=False,
    softmax_over="rows",
    is_windowed=True,
    judge=_judge,
    reads_tokens=True,
    known_by="span",
)
