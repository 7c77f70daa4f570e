"""The official scores of a file of predictions, id to text, on a SQuAD data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.config import DataError
from maskloom.metrics.answers import AnswerReport, score_answers
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.span.reading import read_questions
from maskloom.tasks.span.squad_json import read_json


def score_files(
    data: str | Path,
    predictions: str | Path,
    *,
    null_odds: str | Path | None = None,
    null_threshold: float | None = None,
    options: ReadingOptions | None = None,
) -> AnswerReport:
    """Score predictions, a JSON object of texts by id, on questions with answers.

    The rules are those of v2.0 where any question is unanswerable, else those of v1.1. `null_odds` is a JSON object of
    numbers by id. Raises DataError for a wrong file.
    """
    questions = read_questions(data, options).examples
    texts = _by_id(Path(predictions), str, "a text")
    odds = None if null_odds is None else _by_id(Path(null_odds), (int, float), "a number")
    golds = {question.id: [answer.text for answer in question.answers] for question in questions}
    has_unanswerable = any(question.is_impossible for question in questions)
    try:
        return score_answers(
            golds, texts, has_unanswerable=has_unanswerable, null_odds=odds, null_threshold=null_threshold
        )
    except ValueError as error:
        raise DataError(f"{null_odds}: {error}") from None


def _by_id(path: Path, kind: Any, wanted: str) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise DataError(f"{path}: a JSON object by question id is expected, this is {type(values).__name__}")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise DataError(f"{path}: id {name!r}: {wanted} is expected, this is {type(value).__name__}")
    return values
