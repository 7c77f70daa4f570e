"""Scoring a fine-tuned model on a labelled file, and fitting its temperature and thresholds to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError, DataError, amount
from maskloom.inference import Ensemble, Predictor, open_models, resolve_model_folder
from maskloom.inference.ensemble import Average
from maskloom.inference.model_folder import SETTINGS_FILE, read_settings
from maskloom.metrics.calibration import ALL_RIGHT, CalibrationMetric, temperature_or_reason
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.reading_defaults import FileReading, reading_for
from maskloom.system.devices import describe_device
from maskloom.system.files import write_json
from maskloom.tasks.encoding import EncodedData
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.kinds import changed
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.task import ModelOutputs, Outputs, Task, score_outputs

_PIECE = 4096


def evaluate(
    model: str | Path | Sequence[str | Path],
    data: Path,
    *,
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    average: Average = "probabilities",
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Return metric, loss and reading report of a model folder, or an ensemble of several, on a labelled file.

    Memory does not grow with the file. For kinds with probabilities, `calibration_error` is that of the probabilities
    that `predict` gives. `average` says what an ensemble averages. Raises ConfigError for a model without a task head
    or incompatible ones, DataError for a wrong file.
    """
    predictor = open_models(model, average=average, max_length=max_length)
    progress.say(f"device: {describe_device(predictor.device)}")
    task = predictor.required_task()
    source = reading_for(predictor, data, reading, needs_label=True)
    account = Counter[str]()
    calibration = None if task.scored_logits is None else CalibrationMetric(temperature=task.settings.temperature)

    def outputs_of(piece: EncodedData) -> ModelOutputs:
        outputs = predictor.outputs(piece)
        if calibration is not None and task.scored_logits is not None:
            calibration.update(task.scored_logits(piece, outputs.rows), task.targets(piece))
        return outputs

    try:
        outcome = score_outputs(task, _pieces(source, predictor, account, progress), outputs_of)
    except (ConfigError, DataError):
        raise
    except ValueError as error:
        raise DataError(f"{data}: {error}") from None
    return {
        "metric": task.primary,
        **outcome.scores,
        **outcome.as_dict(),
        **({} if calibration is None else {"calibration_error": calibration.compute()["calibration_error"]}),
        "num_examples": source.report.num_kept,
        "data": {**source.report.as_dict(), **account, "max_length": predictor.max_length},
    }


def _pieces(
    source: FileReading, predictor: Predictor | Ensemble, account: Counter[str], progress: Progress
) -> Iterator[EncodedData]:
    """Yield the examples of a file in encoded pieces, adding up their counts in `account`."""
    progress.begin("evaluating", source.count())
    for piece in source.shown_pieces(_PIECE, progress):
        encoded = predictor.encoded(ReadExamples(piece, source.report))
        account.update({name: value for name, value in encoded.account().items() if name.startswith("num_")})
        yield encoded


def tune(
    model: str | Path,
    dev: Path,
    *,
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Fit settings of a model on a labelled file, write them into its folder, and return scores before and after.

    `temperature` calibrates probabilities; `thresholds` (of labels, or of the null answer) raise F1. All outputs are
    kept in memory. Raises ConfigError for a kind of task that has nothing to fit, DataError for a wrong file and for
    examples that determine no setting, unless the model is right on all of them.
    """
    predictor = Predictor.load(model, max_length=max_length)
    progress.say(f"device: {describe_device(predictor.device)}")
    check_tunable(predictor.required_task())
    source = reading_for(predictor, dev, reading, needs_label=True)
    examples = list(source.examples())
    if not examples:
        raise DataError(f"{dev}: no usable rows: {source.report.num_rows} read")
    encoded = predictor.encoded(ReadExamples(examples, source.report))
    result = tune_folder(model, encoded, predictor=predictor)
    if not result["settings"] and ALL_RIGHT not in result["note"]:
        raise DataError(f"{dev}: {result['note']}")
    account = {**source.report.as_dict(), **encoded.account(), "max_length": predictor.max_length}
    return {"model": str(model), "fitted_on": str(dev), **result, "data": account}


def tune_folder(folder: str | Path, encoded: EncodedData, *, predictor: Predictor | None = None) -> dict[str, Any]:
    """Fit the settings of the model in a folder on encoded examples, write them there, and return what changed.

    `before` are the scores without any temperature and with thresholds of 0.5. If the examples determine no temperature
    or null threshold, `note` says why. Raises ConfigError for a kind of task that has nothing to fit.
    """
    path = resolve_model_folder(folder)
    predictor = predictor or Predictor.load(path)
    task = predictor.required_task()
    outputs = predictor.outputs(encoded).rows
    fitted = check_tunable(task)(encoded, outputs)
    dropped = {"temperature", "thresholds", *fitted}
    fields = type(task.settings).model_fields
    untuned = changed(task, **{name: field.default for name, field in fields.items() if name in dropped})
    tuned = changed(task, **fitted)
    stored = read_settings(path)
    if fitted:
        write_json(path / SETTINGS_FILE, {**stored, "settings": {**stored.get("settings", {}), **fitted}})
    return {
        "settings": fitted,
        "labels": list(task.labels),
        "before": _scores(untuned, encoded, outputs),
        "after": _scores(tuned, encoded, outputs),
        "num_examples": encoded.num_examples,
        **_note(task, encoded, outputs, fitted),
    }


def _note(task: Task, encoded: EncodedData, outputs: Outputs, fitted: dict[str, Any]) -> dict[str, str]:
    """Return as `note` why examples determine no temperature or null threshold; {} if they do."""
    what, why = "a null threshold", None if fitted else "all of them, or none, have an answer"
    if task.scored_logits is not None:
        found = temperature_or_reason(task.scored_logits(encoded, outputs), task.targets(encoded))
        what, why = "a temperature", found if isinstance(found, str) else None
    kept = "the thresholds are those at temperature 1" if fitted else "nothing was changed"
    text = f"{what} cannot be fitted to {amount(encoded.num_examples, 'example')}: {why}; {kept}"
    return {} if why is None else {"note": text}


def check_tunable(task: Task) -> Any:
    """Return the task's fitting function; raises ConfigError for a kind of task that has none."""
    if task.tune is None:
        raise ConfigError(f"a {task.kind} task has neither a temperature nor thresholds to fit")
    return task.tune


def _scores(task: Task, encoded: EncodedData, outputs: Outputs) -> dict[str, float]:
    """Return the metric's scores, and calibration scores if the kind has probabilities."""
    metric, targets = task.metric(), task.targets(encoded)
    metric.update(task.decide(encoded, outputs), targets)
    scores = metric.compute()
    if task.scored_logits is not None:
        calibration = CalibrationMetric(temperature=task.settings.temperature)
        calibration.update(task.scored_logits(encoded, outputs), targets)
        scores |= calibration.compute()
    return scores
