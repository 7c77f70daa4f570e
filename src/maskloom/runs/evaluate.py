"""Scoring a fine-tuned model on a labelled file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from maskloom.config import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.runs.progress import Progress, SilentProgress
from maskloom.runs.reading_defaults import options_for, reading_kind
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.encoding import EncodedExamples
from maskloom.tasks.evaluation import evaluate_task
from maskloom.tasks.examples import Example, ReadExamples, ReadingReport
from maskloom.tasks.reading import iterate_examples

_PIECE = 4096


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return metric, loss and the account of reading for a model folder on a labelled file.

    The file is read in pieces and each piece is reduced to decisions, so memory does not grow with texts. Raises
    ConfigError when the model has no classifier, DataError for a wrong file.
    """
    progress, path = progress or SilentProgress(), Path(data)
    predictor = Predictor.load(model, max_length=max_length)
    if predictor.task is None:
        raise ConfigError(f"{model}: this model has no classifier, so there is nothing to score; fine-tune it first")
    kind = reading_kind(path, predictor.task.kind, reading, predictor.settings, needs_label=True)
    options = options_for(path, kind, reading, predictor.settings, needs_label=True)
    report = ReadingReport(path)
    cut = {"num_truncated_examples": 0, "num_truncated_tokens": 0}
    pieces = _pieces(iterate_examples(path, kind, options, report=report), predictor, report, cut, progress)
    try:
        outcome = evaluate_task(predictor.model, predictor.task, pieces)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    return {
        "metric": predictor.task.primary,
        **outcome.scores,
        "reference": outcome.reference,
        "degenerate": outcome.degenerate,
        "num_examples": report.num_kept,
        "data": {**report.as_dict(), "max_length": predictor.max_length, **cut},
    }


def _pieces(
    examples: Iterator[Example], predictor: Predictor, report: ReadingReport, cut: dict[str, int], progress: Progress
) -> Iterator[EncodedExamples]:
    assert predictor.task is not None
    progress.begin("evaluating", 0)
    while piece := list(islice(examples, _PIECE)):
        encoded = predictor.task.encode(ReadExamples(piece, report), predictor.tokenizer, predictor.max_length)
        cut["num_truncated_examples"] += encoded.num_truncated_examples
        cut["num_truncated_tokens"] += encoded.num_truncated_tokens
        yield encoded
        progress.advance(report.num_kept)
    progress.end()
