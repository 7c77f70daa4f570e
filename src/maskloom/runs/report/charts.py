"""The charts of a report: runs of one sort beside each other, each in its colour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from maskloom.metrics.language_model import PAIR_TASKS, PARTS, pair_task_of, part_of
from maskloom.runs.charts import Line, line_chart
from maskloom.runs.report.record import RunRecord
from maskloom.runs.report.tables import scores, with_unit

NUM_COLOURS = 6
_MAX_POINTS = 200
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """A chart with its heading, and one sentence on how to read it."""

    title: str
    svg: str
    note: str = ""


def charts_of(records: list[RunRecord]) -> dict[str, list[Chart]]:
    """Return the charts of all runs: pre-training and fine-tuning apart, as their losses do not compare."""
    trained = [inner for run in records for inner in run.trained]
    colours = {run.name: f"c{place % NUM_COLOURS}" for place, run in enumerate(trained)}
    groups = {
        "Pre-training": _pretraining([run for run in trained if run.kind == "pretrain"], colours),
        "Fine-tuning": _finetuning([run for run in trained if run.kind == "finetune"], colours),
    }
    return {name: charts for name, charts in groups.items() if charts}


def _pretraining(runs: list[RunRecord], colours: dict[str, str]) -> list[Chart]:
    if not runs:
        return []
    metrics = scores(runs[0])
    entropy = metrics.get("unigram_entropy")
    marks = phase_marks(runs[0].stages[""]) if len(runs) == 1 else []
    part, pair = part_of(metrics) or "mlm", pair_task_of(metrics) or "nsp"
    loss = _chart(
        f"{_capital(PARTS[part].loss)} loss, nats per token",
        runs,
        colours,
        ("losses", part),
        f"{part}_loss",
        levels=[("word frequency", entropy)] if entropy else [],
        marks=marks,
        note="Thin: training; with dots: held out. Below the dashed line the model uses context.",
    )
    majority = metrics.get(f"{pair}_majority_fraction")
    sentence = _chart(
        f"{_capital(PAIR_TASKS[pair])} accuracy, held out",
        runs,
        colours,
        None,
        f"{pair}_accuracy",
        levels=[("majority", majority)] if majority else [],
        marks=marks,
        as_percent=True,
    )
    accuracy = _chart(
        f"{PARTS[part].targets} guessed right, held out",
        runs,
        colours,
        None,
        f"{part}_accuracy",
        marks=marks,
        as_percent=True,
    )
    return [chart for chart in (loss, sentence, accuracy, *_optimisation(runs, colours)) if chart is not None]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _finetuning(runs: list[RunRecord], colours: dict[str, str]) -> list[Chart]:
    charts: list[Chart | None] = []
    metrics = [run.description["inputs"].get("metric") or "accuracy" for run in runs]
    names = [with_unit(run, metric) for run, metric in zip(runs, metrics, strict=True)]
    for name, metric in dict(zip(names, metrics, strict=True)).items():
        chosen = [run for run, other in zip(runs, names, strict=True) if other == name]
        title, is_fraction = f"Dev {name.replace('_', ' ')}", metric == "accuracy"
        charts.append(_chart(title, chosen, colours, None, metric, as_percent=is_fraction))
    charts.append(_chart("Loss", runs, colours, ("loss",), "loss", note="Thin: training; with dots: dev."))
    return [chart for chart in (*charts, *_optimisation(runs, colours)) if chart is not None]


def _optimisation(runs: list[RunRecord], colours: dict[str, str]) -> list[Chart | None]:
    return [
        _chart("Learning rate", runs, colours, ("learning_rate",), None),
        _chart("Gradient norm", runs, colours, ("gradient_norm",), None),
        _chart("Tokens per second", runs, colours, ("tokens_per_second",), None),
    ]


def _chart(
    title: str,
    runs: list[RunRecord],
    colours: dict[str, str],
    path: tuple[str, ...] | None,
    metric: str | None,
    *,
    note: str = "",
    **how: Any,
) -> Chart | None:
    """Draw a figure of the steps thin and a metric of the evaluations bold, each run in a colour; None without both."""
    lines: list[Line] = []
    for run in runs:
        trained = [thinned(steps(events, *path)) for events in run.stages.values()] if path else []
        measured = [evaluations(events, metric) for events in run.stages.values()] if metric else []
        held_out = "held out" if run.kind == "pretrain" else "dev"
        lines += _lines(run.name if len(runs) > 1 else "", trained, measured, colours[run.name], held_out)
    if not any(line.points for line in lines):
        return None
    return Chart(title, line_chart(lines, x_name="step", y_name=title, **how), note)


def _lines(name: str, trained: list[Points], measured: list[Points], style: str, held_out: str) -> list[Line]:
    """Return the lines of one run: its evaluations bold, or, where it has none, its steps; all single seeds thin."""
    trained, measured = [points for points in trained if points], [points for points in measured if points]
    bold, thin = (measured, trained) if measured else (trained, [])
    lines = [Line(f"{name} training".strip(), points, style, is_faint=True) for points in thin]
    if len(bold) > 1:
        lines += [Line(f"{name} one seed".strip(), points, style, is_faint=True) for points in bold]
    mean = mean_curve(bold)
    if mean:
        label = name or (held_out if measured and thin else "mean" if len(bold) > 1 else "")
        lines.append(Line(label, mean, style, has_dots=bool(measured)))
    return lines


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
