"""Curves out of a run's event log, as points (step, value)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

Points = list[tuple[float, float]]
_MAX_POINTS = 200


def in_one_count(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count the steps of later phases of a pre-training on from those of the phases before."""
    staged = [event for event in events if "stage" in event]
    lasts: dict[str, int] = {}
    for event in staged:
        lasts[event["stage"]] = max(lasts.get(event["stage"], 0), event.get("step", 0))
    offsets = dict(zip(lasts, accumulate(lasts.values(), initial=0), strict=False))
    return [{**event, "step": offsets[event["stage"]] + event.get("step", 0)} for event in staged]


def phase_marks(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Mark where each phase after the first begins, in events of one count."""
    ends = {event["stage"]: event["step"] for event in events if event["event"] == "finished"}
    return [(f"phase {number} from here", step) for number, step in enumerate([*ends.values()][:-1], start=2)]


def steps(events: Iterable[dict[str, Any]], *path: str) -> Points:
    """Return a figure of the training steps, such as ("losses", "mlm"); what was not finite is left out."""
    return _points((event for event in events if event.get("event") == "step"), path)


def evaluations(events: Iterable[dict[str, Any]], name: str) -> Points:
    """Return a metric of the evaluations."""
    return _points((event for event in events if event.get("event") == "evaluation"), ("metrics", name))


def thinned(points: Points) -> Points:
    """Average neighbours, so that a long run's line stays readable."""
    width = -(-len(points) // _MAX_POINTS) if points else 1
    groups = [points[first : first + width] for first in range(0, len(points), width)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def mean_curve(curves: Iterable[Points]) -> Points:
    """Return the mean of curves at the steps that all of them have."""
    columns = [dict(points) for points in curves]
    shared = [step for step in columns[0] if all(step in column for column in columns)] if columns else []
    return [(step, sum(column[step] for column in columns) / len(columns)) for step in shared]


def _points(events: Iterable[dict[str, Any]], path: tuple[str, ...]) -> Points:
    found = []
    for event in events:
        value: Any = event
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)) and isinstance(event.get("step"), int):
            found.append((event["step"], value))
    return found
