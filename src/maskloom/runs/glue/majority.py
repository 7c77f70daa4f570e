"""WNLI as the BERT paper treats it: no model, the commonest label of training is every answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from maskloom.config import DataError
from maskloom.files import write_json
from maskloom.foreign_files import read_json_object
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.kinds import KINDS

_FILE = "majority.json"


def answer_by_majority(train: Path, dev: Path, out: Path) -> dict[str, Any]:
    """Write the commonest label of WNLI's training data to `out`, and return its accuracy on dev.

    WNLI's dev set repeats sentences of train with opposite answers, so that learning it scores below chance. Of labels
    that are equally common the first one counts.
    """
    row = catalog_row("wnli")
    options = ReadingOptions(format="wnli")
    counts = {}
    for name, path in (("train", train), ("dev", dev)):
        labels = [str(example.label) for example in KINDS[row.kind].read(path, options).examples]
        unknown = next((label for label in labels if label not in row.labels), None)
        if unknown is not None:
            raise DataError(f"{path}: the label {unknown!r:.80} is not one of {', '.join(row.labels)}")
        counts[name] = Counter(labels)
    label = max(row.labels, key=lambda name: counts["train"][name])
    accuracy = counts["dev"][label] / counts["dev"].total()
    write_json(out / _FILE, {"label": label, "train_counts": dict(sorted(counts["train"].items()))})
    return {
        "status": "majority",
        "metric": "accuracy",
        "columns": {"WNLI": {"accuracy": accuracy}},
        "label": label,
        "seconds": 0.0,
    }


def majority_label(folder: Path) -> str:
    """Return the label that `answer_by_majority` wrote; raises DataError when there is none."""
    path = folder / _FILE
    if not path.is_file():
        raise DataError(f"{path}: not there; run the task wnli first (maskloom glue run)")
    return str(read_json_object(path)["label"])
