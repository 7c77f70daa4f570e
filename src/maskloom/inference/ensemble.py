"""Ensembles of models of one task, which average probabilities or logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from maskloom.errors import ConfigError
from maskloom.inference.predictor import Predictor, TaskModel
from maskloom.metrics.calibration import THRESHOLD, TUNED_SETTINGS, log_sigmoid, log_softmax
from maskloom.system.files import file_sha256
from maskloom.tasks.catalog import Kind
from maskloom.tasks.encoding import EncodedData, batches_by_length
from maskloom.tasks.kinds import KINDS, changed
from maskloom.tasks.settings import ClassificationSettings, SpanSettings
from maskloom.tasks.task import PROCESSOR_TOKENS, ModelOutputs, Task
from maskloom.text.vocabulary import first_difference

Average = Literal["probabilities", "logits"]

# Settings in which members may differ, because they affect how outputs are interpreted, not how they are computed.
_FREE_SETTINGS = {*TUNED_SETTINGS, "class_weights", "words"}


class Ensemble(TaskModel):
    """Several fine-tuned models of one task with the interface of a `Predictor`.

    With `average` "probabilities" the logits are the log of the members' mean probabilities: over labels for classes
    and tags, over the tokens of a window for the start and end of an answer, over choices. For multi-label tasks they
    are the log odds of each label's mean probability. "logits" averages the logits. Regression scores are averaged
    either way. Windows of one context keep their relative level: the mean over members of the log of the softmax
    denominator. The paper does not say how it combined its seven SQuAD models (Table 2); this is our interpretation.
    Each member's temperature is applied to its logits first; thresholds are averaged. The loss weights classes only if
    all members do so equally. The order of the members does not matter, except for the name of the score that selects
    the best weights.
    """

    def __init__(self, members: Sequence[Predictor], *, average: Average = "probabilities") -> None:
        """Combine open models. Raises ConfigError, naming the first difference, unless they are models of one task."""
        if average not in ("probabilities", "logits"):
            raise ConfigError(f"average {average!r} is not probabilities or logits")
        if not members:
            raise ConfigError("an ensemble needs at least one model")
        first = members[0]
        for number, member in enumerate(members, start=1):
            _check_member(first, member, f"model {number} of the ensemble")
        self.members = tuple(members)
        self.average: Average = average
        self.tokenizer = first.tokenizer
        self.max_length = first.max_length
        self.settings = first.settings
        self.task = _task_of([member.required_task() for member in members])

    @classmethod
    def load(
        cls, folders: Sequence[str | Path], *, average: Average = "probabilities", max_length: int | None = None
    ) -> Ensemble:
        """Open model or run folders. Raises ConfigError, naming the folder, unless they are models of one task."""
        if isinstance(folders, str) or not isinstance(folders, Iterable):
            raise ConfigError(f"folders: expected a list of model folders, got {type(folders).__name__}")
        members: list[Predictor] = []
        for number, folder in enumerate(folders, start=1):
            members.append(Predictor.load(folder, max_length=max_length))
            _check_member(members[0], members[-1], f"{folder}: model {number} of the ensemble")
        return cls(members, average=average)

    @property
    def device(self) -> torch.device:
        """The device that the models are on."""
        return self.members[0].device

    def outputs(self, encoded: EncodedData) -> ModelOutputs:
        """Return the averaged outputs for encoded examples, with their loss if the data has labels."""
        task = self.required_task()
        parts = [
            [_at_temperature(member.required_task(), row) for row in member.outputs(encoded).rows]
            for member in self.members
        ]
        average = _average_chains if "crf" in task.heads else average_rows
        rows = [average(task.kind, unit, self.average) for unit in zip(*parts, strict=True)]
        return ModelOutputs(rows, *self._loss(encoded, rows))

    def _loss(self, encoded: EncodedData, rows: list[np.ndarray]) -> tuple[float, float]:
        """Return the summed loss of the averages and the weight to divide it by; (0, 0) without labels."""
        loss_sum, weight, objective = 0.0, 0.0, self.required_task().objective
        for batch in batches_by_length(encoded, max_tokens=PROCESSOR_TOKENS):
            if batch.labels is None:
                break
            logits = torch.from_numpy(np.concatenate([rows[index] for index in batch.indices]))
            loss_sum += float(objective.loss_sum_of(logits, batch))
            weight += sum(objective.target_counts(batch).values())
        return loss_sum, weight


def open_models(
    folders: str | Path | Sequence[str | Path], *, average: Average = "probabilities", max_length: int | None = None
) -> Predictor | Ensemble:
    """Open one model, or several as an ensemble; raises ConfigError for logits to average over a single model."""
    folders = [folders] if isinstance(folders, str | Path) else folders
    if len(folders) == 1:
        if average != "probabilities":
            raise ConfigError(f"average = {average!r}: {folders[0]} is one model; give several, or leave it out")
        return Predictor.load(folders[0], max_length=max_length)
    return Ensemble.load(folders, average=average, max_length=max_length)


def average_rows(kind: Kind, members: Sequence[np.ndarray], average: Average) -> np.ndarray:
    """Return the average of the members' rows for one unit, as logits (rows, width) float32."""
    stacked = np.stack(members).astype(np.float64)
    row = KINDS[kind]
    if average == "logits" or row.is_scale:
        return _mean(stacked).astype(np.float32)
    if row.softmax_over is None:
        return (_log_mean(log_sigmoid(stacked)) - _log_mean(log_sigmoid(-stacked))).astype(np.float32)
    axis = 1 if row.softmax_over == "rows" else 2
    logs = log_softmax(stacked, axis=axis)
    averages = _log_mean(logs)
    if row.is_windowed:
        # add back the normaliser of each window, because answers compete across windows by unnormalised scores
        averages += _mean((stacked - logs).mean(axis=axis, keepdims=True))
    return averages.astype(np.float32)


def _at_temperature(task: Task, rows: np.ndarray) -> np.ndarray:
    """Return a member's rows at its temperature; the best paths of a conditional random field do not change."""
    if task.settings.temperature == 1.0:
        return rows
    if "crf" not in task.heads:
        return rows / task.settings.temperature
    num_tags = len(task.labels)
    return np.concatenate([log_softmax(rows[:, :num_tags] / task.settings.temperature), rows[:, num_tags:]], axis=1)


def _average_chains(kind: Kind, members: Sequence[np.ndarray], average: Average) -> np.ndarray:
    """Return the averaged log-probabilities of tags, then the fraction of members whose best path has each tag."""
    stacked = np.stack(members).astype(np.float64)
    num_tags = stacked.shape[2] // 2
    logs, paths = stacked[..., :num_tags], stacked[..., num_tags:]
    means = _mean(logs) if average == "logits" else _log_mean(logs)
    return np.concatenate([means, _mean(paths)], axis=1).astype(np.float32)


def _mean(stacked: np.ndarray) -> np.ndarray:
    """Return the mean over members, sorted first so that their order does not change the result by a single bit."""
    return np.sort(stacked, axis=0).mean(axis=0)


def _log_mean(logs: np.ndarray) -> np.ndarray:
    """Return the log of the mean over members of exp(logs), computed stably."""
    top = logs.max(axis=0)
    return top + np.log(_mean(np.exp(logs - top)))


def _task_of(tasks: list[Task]) -> Task:
    """Return the task for averaged outputs: temperature 1, as already applied, and the members' mean thresholds."""
    first = tasks[0]
    known, changes = [task.settings for task in tasks], dict[str, Any](temperature=1.0)
    given = [settings.thresholds for settings in known if isinstance(settings, ClassificationSettings)]
    if any(given):
        thresholds = zip(*(values or [THRESHOLD] * len(first.labels) for values in given), strict=True)
        changes["thresholds"] = [math.fsum(values) / len(tasks) for values in thresholds]
    if margins := [settings.null_threshold for settings in known if isinstance(settings, SpanSettings)]:
        changes["null_threshold"] = math.fsum(margins) / len(tasks)
    weights = [getattr(settings, "class_weights", None) for settings in known]
    if any(values != weights[0] for values in weights):
        changes["class_weights"] = None
    return changed(first, **changes)


def _comparable(task: Task) -> dict[str, Any]:
    """Return the settings of a task, with the path of its word vectors replaced by a hash of their contents."""
    found = task.settings.model_dump()
    if place := (found.get("features") or {}).get("word_vectors"):
        found["features"]["word_vectors"] = _sum_of(place, Path(place).stat().st_mtime_ns)
    return found


@lru_cache
def _sum_of(place: str, changed: int) -> str:
    """Return the hash of a file that was `changed` at a time, computed once for all comparisons."""
    return file_sha256(place)


def _check_member(first: Predictor, other: Predictor, name: str) -> None:
    """Raise ConfigError if a member generates text or, naming the first difference, does not match the first one."""
    one, two = first.required_task(), other.required_task()
    if KINDS[two.kind].has_decoder:
        raise ConfigError(f"{name} is a {two.kind} model; the outputs of such models cannot be averaged")
    facts: list[tuple[str, Any, Any]] = [
        ("kind of task", one.kind, two.kind),
        ("labels", one.labels, two.labels),
        ("whether it takes pairs", first.settings.get("takes_pairs"), other.settings.get("takes_pairs")),
        ("max_length", first.max_length, other.max_length),
    ]
    here, there = _comparable(one), _comparable(two)
    facts += [(f"setting {key}", here.get(key), there.get(key)) for key in sorted({*here, *there} - _FREE_SETTINGS)]
    for what, here, there in facts:
        if here != there:
            raise ConfigError(f"{name} differs from the first in {what}: {there!r}, not {here!r}")
    if first.tokenizer.identity() != other.tokenizer.identity():
        where = first_difference(other.tokenizer.vocabulary, first.tokenizer.vocabulary)
        what = f"has a different tokenizer from the first: it differs {where}"
        raise ConfigError(f"{name} {what}; all must read the same tokens")
