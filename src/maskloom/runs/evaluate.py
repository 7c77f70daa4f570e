"""Scoring a fine-tuned model on a labelled file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError, DataError
from maskloom.inference import Ensemble, Predictor, open_models
from maskloom.inference.ensemble import Average
from maskloom.metrics.calibration import CalibrationMetric
from maskloom.runs.progress import Progress
from maskloom.runs.reading_defaults import FileReading, reading_for
from maskloom.tasks.encoding import EncodedData
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.task import ModelOutputs, score_outputs
from maskloom.training.memory import release_free_memory

_PIECE = 4096


def evaluate(
    model: str | Path | Sequence[str | Path],
    data: str | Path,
    *,
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    average: Average = "probabilities",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return metric, loss and the account of reading for a model folder, or an ensemble of several, on a labelled file.

    The file is read in pieces and each piece is reduced to what the metric needs, so memory does not grow with it.
    For kinds with probabilities `calibration_error` is that of what `predict` gives; where the model has a temperature,
    `calibration_error_untuned` is that without it. `average` says what of an ensemble is averaged. Raises ConfigError
    when the model has no head of a task or models do not go together, DataError for a wrong file.
    """
    progress, path = progress or Progress(), Path(data)
    models = [model] if isinstance(model, str | Path) else model
    predictor = open_models(models, average=average, max_length=max_length)
    task = predictor.required_task()
    source = reading_for(predictor, path, reading, needs_label=True)
    account: dict[str, Any] = {}
    watch = _CalibrationWatch(predictor)
    try:
        outcome = score_outputs(task, _pieces(source, predictor, account, progress), watch.outputs)
    except (ConfigError, DataError):
        raise
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    return {
        "metric": task.primary,
        **outcome.scores,
        "reference": outcome.reference,
        "degenerate": outcome.degenerate,
        **watch.errors(),
        "num_examples": source.report.num_kept,
        "data": {**source.report.as_dict(), **account, "max_length": predictor.max_length},
    }


def _pieces(
    source: FileReading, predictor: Predictor | Ensemble, account: dict[str, Any], progress: Progress
) -> Iterator[EncodedData]:
    """Yield the examples of a file in encoded pieces; `account` gathers the counts of all of them."""
    progress.begin("evaluating", source.count())
    for piece in source.pieces(_PIECE):
        encoded = predictor.encoded(ReadExamples(piece, source.report))
        for name, value in encoded.account().items():
            if name.startswith("num_"):
                account[name] = account.get(name, 0) + value
        yield encoded
        progress.advance(source.report.num_kept)
        release_free_memory()  # batches differ in size, so the C library would keep more and more of what was freed
    progress.end()


class _CalibrationWatch:
    """Gathers how far probabilities can be believed from the outputs that pass by, with and without a temperature."""

    def __init__(self, predictor: Predictor | Ensemble) -> None:
        self._predictor, self._task = predictor, predictor.required_task()
        temperature = self._task.temperature
        self._metrics: dict[str, CalibrationMetric] = {}
        if self._task.scored_logits is not None:
            self._metrics["calibration_error"] = CalibrationMetric(temperature=temperature)
            if temperature != 1.0:
                self._metrics["calibration_error_untuned"] = CalibrationMetric()

    def outputs(self, piece: EncodedData) -> ModelOutputs:
        """Return the outputs for a piece of data, having taken them in."""
        outputs = self._predictor.outputs(piece)
        if self._task.scored_logits is not None:
            logits, targets = self._task.scored_logits(piece, outputs.rows), self._task.targets(piece)
            for metric in self._metrics.values():
                metric.update(logits, targets)
        return outputs

    def errors(self) -> dict[str, float]:
        """Return the expected calibration error by name; {} for a kind without probabilities."""
        return {name: metric.compute()["calibration_error"] for name, metric in self._metrics.items()}
