"""The official scores of a file of predictions on a SQuAD data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.metrics.answers import AnswerReport, score_answers
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.span.reading import iterate_questions, read_json
from maskloom.tasks.tables import read_rows


def score_files(
    data: str | Path,
    predictions: str | Path,
    *,
    null_odds: str | Path | None = None,
    null_threshold: float | None = None,
    options: ReadingOptions | None = None,
) -> AnswerReport:
    """Score predictions on questions with answers; ids without prediction count as wrong and are named.

    Predictions are a JSON object of texts by id, or the .jsonl rows that `predict` writes, which bring their null odds.
    The rules are those of v2.0 where any question is unanswerable, else those of v1.1. `null_odds` is a JSON object of
    numbers by id. Raises DataError for a wrong file.
    """
    path = Path(predictions)
    how = (data, options or ReadingOptions(), {})
    read = ReadExamples.of(data, lambda report: iterate_questions(*how, needs_label=True, report=report))
    questions = read.examples
    if path.suffix.lower() == ".jsonl":
        texts, odds = _rows(path)
    else:
        texts, odds = _by_id(path, str, "a text"), None
    if null_odds is not None:
        odds = _by_id(Path(null_odds), (int, float), "a number")
    golds = {question.id: [answer.text for answer in question.answers] for question in questions}
    has_unanswerable = any(question.is_impossible for question in questions)
    try:
        return score_answers(
            golds, texts, has_unanswerable=has_unanswerable, null_odds=odds, null_threshold=null_threshold
        )
    except ValueError as error:
        raise DataError(f"{null_odds or path}: {error}") from None


def _by_id(path: Path, kind: Any, wanted: str) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise DataError(f"{path}: a JSON object by question id is expected, this is {type(values).__name__}")
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise DataError(f"{path}: id {name!r:.80}: {wanted} is expected, this is {type(value).__name__}")
    return values


def _rows(path: Path) -> tuple[dict[str, str], dict[str, float] | None]:
    """Return texts by id, and null odds by id where rows have them."""
    texts: dict[str, str] = {}
    odds: dict[str, float] = {}
    for row in read_rows(path, "jsonl"):
        fields = row.fields if isinstance(row.fields, dict) else {}
        name, text = fields.get("id"), fields.get("answer")
        if row.problem or not isinstance(name, str) or not isinstance(text, str):
            raise DataError(f"{path}: line {row.line}: {row.problem or 'a row needs the texts id and answer'}")
        if name in texts:
            raise DataError(f"{path}: line {row.line}: the id {name!r:.80} comes twice")
        texts[name] = text
        null_odds = fields.get("null_odds")
        if isinstance(null_odds, int | float) and not isinstance(null_odds, bool):
            odds[name] = null_odds
    return texts, odds or None
