"""Answers to questions on one text, of any length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError
from maskloom.inference import Ensemble, Predictor, open_models
from maskloom.inference.ensemble import Average
from maskloom.runs.first_look import check_questions, read_context
from maskloom.runs.progress import Progress
from maskloom.tasks.examples import ReadExamples, ReadingReport
from maskloom.tasks.kinds import make_task
from maskloom.tasks.span.encoding import EncodedQuestions
from maskloom.tasks.span.reading import Question
from maskloom.tasks.task import Task

# Logits of a window of 384 tokens take 3 KB.
_WINDOWS_AT_ONCE = 8192


def answer(
    model: str | Path | Sequence[str | Path],
    context: str | Path,
    questions: Sequence[str],
    *,
    top_k: int = 1,
    max_length: int | None = None,
    null_threshold: float | None = None,
    average: Average = "probabilities",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the answers that a model, or an ensemble of several, finds in a text file, "-" for standard input.

    The text is tokenised once for all questions and read in windows, whose batches go over questions. `answers` holds
    for each question its `answer` ("" where the model says that there is none), `probability` among the candidates,
    `start` and `end` in characters of the text, and the `top_k` best candidates. `null_threshold` lets a model say that
    there is no answer, or moves where it does. Raises ConfigError for a model of another task, an empty question or
    wrong settings, DataError for a file that cannot be read.
    """
    progress = progress or Progress()
    if top_k < 1:
        raise ConfigError(f"top_k {top_k}: at least 1 is expected")
    check_questions(questions)
    text = read_context(context)
    predictor = open_models([model] if isinstance(model, str | Path) else model, average=average, max_length=max_length)
    task = _task(predictor, null_threshold)
    encoded = task.encode(_examples(text, questions, Path(context)), predictor.tokenizer, predictor.max_length)
    if not isinstance(encoded, EncodedQuestions):
        raise ConfigError(f"this model was fine-tuned for a {task.kind} task; it answers no questions")
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
        "max_length": predictor.max_length,
        "answers": [{"question": question, **row} for question, row in zip(questions, rows, strict=True)],
    }


def answer_lines(result: dict[str, Any]) -> list[str]:
    """Return each question with its answer, how sure the model is and where it stands, for a person."""
    lines = []
    for row in result["answers"]:
        lines.append(row["question"])
        for candidate in row["candidates"] if len(row["candidates"]) > 1 else [_chosen(row)]:
            text = " ".join(candidate["text"].split()) or "(no answer)"
            place = "" if candidate["start"] is None else f", characters {candidate['start']} to {candidate['end']}"
            lines.append(f"  {text}  ({candidate['probability']:.3f}{place})")
    windows = f"{result['num_windows']:,} windows of at most {result['max_length']} tokens"
    return [*lines, f"{result['num_characters']:,} characters read in {windows}"]


def _chosen(row: dict[str, Any]) -> dict[str, Any]:
    return {"text": row["answer"], **{key: row[key] for key in ("probability", "start", "end")}}


def _task(predictor: Predictor | Ensemble, null_threshold: float | None) -> Task:
    task = predictor.required_task()
    if task.kind != "span":
        raise ConfigError(f"this model was fine-tuned for a {task.kind} task; it answers no questions")
    if null_threshold is None:
        return task
    settings = {**task.settings, "has_unanswerable": True, "null_threshold": null_threshold}
    return make_task("span", primary=task.primary, settings=settings)


def _examples(text: str, questions: Sequence[str], path: Path) -> ReadExamples:
    examples = [
        Question(id=str(number), question=question, context=text, answers=None, line=number)
        for number, question in enumerate(questions, start=1)
    ]
    return ReadExamples(examples, ReadingReport(path))
