"""The two averages called GLUE score: the BERT paper's (its Table 1) and the leaderboard's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

# The metrics that the benchmark reports for each column; MNLI's two test sets are two columns.
OFFICIAL_METRICS: dict[str, tuple[str, ...]] = {
    "CoLA": ("matthews",),
    "SST-2": ("accuracy",),
    "MRPC": ("f1", "accuracy"),
    "STS-B": ("pearson", "spearman"),
    "QQP": ("f1", "accuracy"),
    "MNLI-m": ("accuracy",),
    "MNLI-mm": ("accuracy",),
    "QNLI": ("accuracy",),
    "RTE": ("accuracy",),
    "WNLI": ("accuracy",),
    "AX": ("matthews",),
}
# The paper's Table 1 has one number per column: F1 for MRPC and QQP, Spearman's correlation for STS-B.
_PAPER = {
    "MNLI-m": "accuracy", "MNLI-mm": "accuracy", "QQP": "f1", "QNLI": "accuracy", "SST-2": "accuracy",
    "CoLA": "matthews", "STS-B": "spearman", "MRPC": "f1", "RTE": "accuracy",
}  # fmt: skip
# The columns of each task of the leaderboard.
_LEADERBOARD = (
    ("CoLA",), ("SST-2",), ("MRPC",), ("STS-B",), ("QQP",), ("MNLI-m", "MNLI-mm"), ("QNLI",), ("RTE",), ("WNLI",)
)  # fmt: skip

Scores = Mapping[str, Mapping[str, float]]


def paper_average(scores: Scores) -> dict[str, Any]:
    """Return the mean of nine columns, including MNLI-m and MNLI-mm but not WNLI (BERT paper, Table 1).

    `value` is None if any part of it is missing; `missing` names those parts. `scores` maps columns of OFFICIAL_METRICS
    to their metrics, as fractions or in percent; the average has the same unit.
    Raises ValueError for a column that is not in GLUE and for a score that is not finite.
    """
    return _average(scores, [{column: (metric,)} for column, metric in _PAPER.items()])


def leaderboard_score(scores: Scores) -> dict[str, Any]:
    """Return the mean of nine tasks without AX, two metrics averaged, MNLI as one; raises like `paper_average`."""
    return _average(scores, [{column: OFFICIAL_METRICS[column] for column in columns} for columns in _LEADERBOARD])


def _average(scores: Scores, tasks: Sequence[Mapping[str, tuple[str, ...]]]) -> dict[str, Any]:
    """Average the metrics of each column, then the columns of each task, then the tasks."""
    for column, metrics in scores.items():
        if column not in OFFICIAL_METRICS:
            raise ValueError(f"{column!r} is not a column of GLUE; known: {', '.join(OFFICIAL_METRICS)}")
        for metric, value in metrics.items():
            if not math.isfinite(value):
                raise ValueError(f"{column}: {metric} is {value}; an average needs finite numbers")
    missing: list[str] = []
    for column, metrics in ((column, metrics) for task in tasks for column, metrics in task.items()):
        absent = [metric for metric in metrics if metric not in scores.get(column, {})]
        is_whole = len(absent) == len(metrics)
        missing += [column] if is_whole else [f"{column} ({metric})" for metric in absent]
    if missing:
        return {"value": None, "missing": missing}
    by_task = (
        fmean(fmean(scores[column][metric] for metric in metrics) for column, metrics in task.items()) for task in tasks
    )
    return {"value": fmean(by_task), "missing": []}
