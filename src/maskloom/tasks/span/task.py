"""Answers as spans as a kind of task: SQuAD v1.1 and v2.0 (BERT paper 4.2, 4.3)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from maskloom.config import SpanSection
from maskloom.errors import DataError
from maskloom.metrics.answers import AnswerMetric
from maskloom.objectives.span import SpanPrediction
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.inputs import checked_parts, checked_text
from maskloom.tasks.span.decoding import DecodedAnswer, DecodingOptions, decode_answers
from maskloom.tasks.span.encoding import EncodedQuestions, encode_questions
from maskloom.tasks.span.reading import Question, iterate_questions
from maskloom.tasks.task import Outputs, Task, TaskKind
from maskloom.text.tokenizer import Tokenizer

# Windows of a long context are many; this many questions on contexts of 4,000 words give some 20,000 windows.
_QUESTIONS_AT_ONCE = 512


def span_task(
    labels: tuple[str, ...] = (), primary: str | None = None, settings: Mapping[str, Any] | None = None
) -> Task:
    """Return the task of answering questions with spans of their contexts.

    `primary` is f1 or exact_match. `settings` are those of the recipe section [span], with `has_unanswerable`: whether
    the model may say that the context has no answer. Raises ValueError for a score that there is not.
    """
    chosen = {**SpanSection().model_dump(), "has_unanswerable": False, **(settings or {})}
    has_unanswerable, threshold = bool(chosen["has_unanswerable"]), float(chosen["null_threshold"])
    options = DecodingOptions(
        num_best=chosen["num_best"],
        max_answer_length=chosen["max_answer_length"],
        has_unanswerable=has_unanswerable,
        null_threshold=threshold,
    )
    metric = partial(AnswerMetric, primary=primary or "f1", null_threshold=threshold if has_unanswerable else None)
    return Task(
        kind="span",
        labels=(),
        primary=metric().primary,
        heads=("span",),
        objective=SpanPrediction(),
        encode=partial(_encode, chosen["stride"], chosen["max_question_length"]),
        decide=partial(_decide, options),  # pyright: ignore[reportArgumentType]
        targets=_targets,  # pyright: ignore[reportArgumentType]
        decode=partial(_decode, options),  # pyright: ignore[reportArgumentType]
        metric=metric,
        settings=chosen,
        tune=partial(_tune, options, metric().primary) if has_unanswerable else None,  # pyright: ignore[reportArgumentType]
        forms={".json": _official_lines},
        frames={".json": ("{\n", ", ", "}\n")},
    )


def _encode(
    stride: int,
    max_question_length: int,
    data: ReadExamples,
    tokenizer: Tokenizer,
    max_length: int,
    *,
    for_training: bool = False,
) -> EncodedQuestions:
    encoded = encode_questions(
        data.examples,
        tokenizer,
        max_length=max_length,
        stride=stride,
        max_question_length=max_question_length,
        for_training=for_training,
    )
    if not encoded.questions:
        raise DataError(f"{data.report.path}: no answer can be found among the words of its context")
    return encoded


def _decide(options: DecodingOptions, encoded: EncodedQuestions, outputs: Outputs) -> list[tuple[str, float | None]]:
    """Return the best answer that is not empty, with its null odds; the metric applies the threshold."""
    return [(found.best.text, found.null_odds) for found in decode_answers(encoded, outputs, options, only_best=True)]


def _targets(encoded: EncodedQuestions) -> list[tuple[str, ...]] | None:
    """Return the gold answers of every question; None where a question does not say."""
    if any(question.answers is None for question in encoded.questions):
        return None
    return [tuple(answer.text for answer in question.answers or ()) for question in encoded.questions]


def _decode(options: DecodingOptions, encoded: EncodedQuestions, outputs: Outputs) -> list[dict[str, Any]]:
    return [answer_row(found) for found in decode_answers(encoded, outputs, options)]


def answer_row(found: DecodedAnswer) -> dict[str, Any]:
    """Return an answer as plain values: text, probability, place in the context, null odds, candidates."""
    chosen = found.chosen
    odds = {} if found.null_odds is None else {"null_odds": found.null_odds}
    return {
        "answer": found.text,
        "probability": chosen.probability,
        "start": chosen.start,
        "end": chosen.end,
        **odds,
        "candidates": [asdict(candidate) for candidate in found.candidates],
    }


def _official_lines(question: Question, prediction: dict[str, Any]) -> list[str]:
    """Return the line of a question in a file of predictions that the official scripts read."""
    name, text = (json.dumps(value, ensure_ascii=False) for value in (question.id, prediction["answer"]))
    return [f"{name}: {text}"]


def _tune(
    options: DecodingOptions,
    primary: str,
    encoded: EncodedQuestions,
    outputs: Outputs,
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """Return the null threshold that scores best; {} where every question has an answer."""
    targets = _targets(encoded) or []
    if "null_threshold" in leave_out or all(targets):
        return {}
    metric = AnswerMetric(primary=primary)
    metric.update(_decide(options, encoded, outputs), targets)
    return {"null_threshold": metric.best_null_threshold()}


def _check(train: ReadExamples, dev: ReadExamples) -> None:
    if all(question.is_impossible for question in train.examples):
        raise DataError(f"{train.report.path}: none of {len(train.examples)} questions has an answer to learn from")


def _data_settings(train: ReadExamples) -> dict[str, Any]:
    return {"has_unanswerable": any(question.is_impossible for question in train.examples)}


def _example_of(item: Any, number: int) -> Question:
    """Return the question of (question, context)."""
    question, context = (
        checked_text(part, number, may_be_blank=False) for part in checked_parts(item, number, "(question, context)")
    )
    return Question(id=str(number), question=question, context=context, answers=None, line=number + 1)


SPAN = TaskKind(
    name="span",
    iterate=iterate_questions,
    check=_check,
    make=span_task,
    example_of=_example_of,
    data_settings=_data_settings,
    examples_at_once=_QUESTIONS_AT_ONCE,
    takes="questions with their contexts",
    pipeline_tag="question-answering",
    section=SpanSection,
    names_labels=False,
    softmax_over="rows",
    is_windowed=True,
)
