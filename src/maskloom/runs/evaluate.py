"""Scoring a fine-tuned model on a labelled file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from maskloom.config import DataError
from maskloom.inference import Predictor
from maskloom.runs.progress import Progress, SilentProgress
from maskloom.runs.reading_defaults import FileReading, reading_for
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.encoding import EncodedData
from maskloom.tasks.evaluation import score_outputs
from maskloom.tasks.examples import ReadExamples

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

    The file is read in pieces and each piece is reduced to what the metric needs, so memory does not grow with it.
    Raises ConfigError when the model has no head of a task, DataError for a wrong file.
    """
    progress, path = progress or SilentProgress(), Path(data)
    predictor = Predictor.load(model, max_length=max_length)
    task = predictor.required_task()
    source = reading_for(predictor, path, reading, needs_label=True)
    account: dict[str, Any] = {}
    try:
        outcome = score_outputs(task, _pieces(source, predictor, account, progress), predictor.outputs)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    return {
        "metric": task.primary,
        **outcome.scores,
        "reference": outcome.reference,
        "degenerate": outcome.degenerate,
        "num_examples": source.report.num_kept,
        "data": {**source.report.as_dict(), **account, "max_length": predictor.max_length},
    }


def _pieces(
    source: FileReading, predictor: Predictor, account: dict[str, Any], progress: Progress
) -> Iterator[EncodedData]:
    """Yield the examples of a file in encoded pieces; `account` gathers the counts of all of them."""
    task, examples = predictor.required_task(), source.examples()
    progress.begin("evaluating", 0)
    while piece := list(islice(examples, _PIECE)):
        encoded = task.encode(ReadExamples(piece, source.report), predictor.tokenizer, predictor.max_length)
        for name, value in encoded.account().items():
            if name.startswith("num_"):
                account[name] = account.get(name, 0) + value
        yield encoded
        progress.advance(source.report.num_kept)
    progress.end()
