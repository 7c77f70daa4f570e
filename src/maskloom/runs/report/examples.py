"""Dev examples that a fine-tuned model gets right and wrong, predicted again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from maskloom.errors import DataError
from maskloom.inference import Predictor
from maskloom.runs.charts import visible
from maskloom.runs.display import Progress
from maskloom.runs.report.record import RunRecord
from maskloom.runs.run_folder import fingerprint
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.judging import Verdict
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.tables import ReadingOptions

_AT_ONCE = 256
_NUM_SHOWN = 8
_MAX_CHARACTERS = 400
_MAX_CONFUSED_LABELS = 12


def examples_of(run: RunRecord, most: int, progress: Progress) -> dict[str, Any]:
    """Predict at most `most` examples of a finished run's dev file, evenly spaced, and return what a page shows.

    The file must still have the content that the run read; `absent` says why there are no examples. On a scale, `right`
    are the closest to the truth and `wrong` the furthest from it. If the model sees whole documents, the first examples
    are used instead of evenly spaced ones. `confusion` counts, for tasks with few labels, the pairs of a true label
    (rows) and a predicted one (columns).
    """
    dev = Path(run.description.get("paths", {}).get("dev", ""))
    if problem := _why_none(run, dev):
        return {"absent": problem}
    predictor = Predictor.load(run.model_folder)
    task, inputs = predictor.required_task(), run.description["inputs"]
    kind = KINDS[task.kind]
    data = kind.read(dev, ReadingOptions(**inputs.get("reading", {})), task.settings)
    sees_document = getattr(task.settings, "context", None) == "document"
    chosen = data.examples[:most] if sees_document else _spread(data.examples, most)
    judged: list[Verdict] = []
    confusion = np.zeros((len(task.labels), len(task.labels)), dtype=np.int64)
    progress.begin(f"{run.name}: examples of {dev.name}", len(chosen))
    for first in range(0, len(chosen), _AT_ONCE):
        piece = ReadExamples(chosen[first : first + _AT_ONCE], data.report)
        encoded = predictor.encoded(piece)
        decoded = task.decode(encoded, predictor.outputs(encoded).rows)
        targets = kind.targets_by_example(encoded, task.targets(encoded))
        for example, prediction, target in zip(piece.examples, decoded, targets, strict=True):
            judged.append(_judged(example, kind.judge(example, prediction, target, task.labels)))
            if "label" in prediction:
                confusion[int(target), task.labels.index(prediction["label"])] += 1
        progress.advance(first + len(piece.examples))
    progress.end()
    return _sorted_out(judged, len(data.examples), kind.is_scale, task.labels, confusion)


def _why_none(run: RunRecord, dev: Path) -> str:
    if run.result is None:
        return "the run is not finished"
    if not (run.model_folder / "config.json").is_file():
        return "the run kept no model"
    try:
        is_same = fingerprint(dev) == run.description["inputs"].get("dev")
    except DataError as error:
        return str(error)
    return "" if is_same else f"{dev} has changed since the run read it"


def _sorted_out(
    judged: list[Verdict], num_in_file: int, is_graded: bool, labels: tuple[str, ...], confusion: np.ndarray
) -> dict[str, Any]:
    right, wrong = [one for one in judged if not one.error], [one for one in judged if one.error]
    if is_graded:
        right = sorted(judged, key=lambda one: one.error)
    shown_wrong = sorted(wrong, key=lambda one: (-one.error if is_graded else 0, -(one.probability or 0.0)))
    is_small = confusion.sum() > 0 and len(labels) <= _MAX_CONFUSED_LABELS
    return {
        "absent": "",
        "num_predicted": len(judged),
        "num_in_file": num_in_file,
        "num_right": len(right),
        "is_graded": is_graded,
        "right": right[:_NUM_SHOWN] if is_graded else _spread(right, _NUM_SHOWN),
        "wrong": shown_wrong[:_NUM_SHOWN],
        "labels": [*map(visible, labels)],
        "confusion": confusion.tolist() if is_small else [],
    }


def _spread(listed: Sequence[Any], most: int) -> list[Any]:
    """Return a few items from all over the list, so that not all come from the beginning of a sorted file."""
    count = min(most, len(listed))
    return [listed[place * len(listed) // count] for place in range(count)]


def _judged(example: Any, verdict: Verdict) -> Verdict:
    """Return the verdict with the example's text, formatted for a page."""
    row = {name: text for name, text in example.as_row().items() if name != "id" and not name.startswith("choice")}
    text, truth, answer = "\n".join(map(_cut, row.values())), _cut(verdict.truth), _cut(verdict.answer)
    return verdict._replace(text=text, truth=truth or "none", answer=answer or "none")


def _cut(text: str) -> str:
    text = visible(text)
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + " …"
