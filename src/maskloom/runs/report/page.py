"""One HTML page about runs: curves by kind of run, scores, differences, data, environment, examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from maskloom.data.streams.sentence_pairs import PAIR_TASKS
from maskloom.errors import ConfigError
from maskloom.objectives.pretraining import PRETRAINING, Pretraining, row_of, unigram_of
from maskloom.runs.charts import Chart, Line, colour, distinct_names, line_chart, visible, write_html
from maskloom.runs.display import SILENT, Progress, formatted
from maskloom.runs.first_look import check_page
from maskloom.runs.report.record import (
    RunRecord,
    data_account,
    differences,
    read_run,
    score_table,
    scores,
    surroundings,
    trouble_table,
    with_unit,
)
from maskloom.runs.task_summaries import glue_rows, notes_of, restarts_text, search_rows

_MAX_RUNS = 12


def report(
    runs: Sequence[str | Path], out: str | Path | None, *, num_examples: int = 500, progress: Progress = SILENT
) -> dict[str, Any]:
    """Write one page about one run, or several side by side, and return its path and the kinds of the runs.

    Runs of training, of a search and of GLUE are shown, finished or not. At most `num_examples` dev examples of each
    fine-tuned run are predicted again. If `out` is None the page is report.html in the first run's folder. Raises
    ConfigError for a folder that is not a run, DataError for a run whose files are damaged.
    """
    if not 1 <= len(runs) <= _MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs: a report shows 1 to {_MAX_RUNS}")
    target = Path(runs[0]) / "report.html" if out is None else Path(out)
    names = distinct_names((folder.name, folder.parent.name) for folder in (Path(run).resolve() for run in runs))
    records = [read_run(run, name) for run, name in zip(runs, names, strict=True)]
    check_page(target, "--out")
    shown = {}
    for record in [inner for run in records for inner in run.trained]:
        if record.kind == "finetune" and num_examples and record.result is not None:
            from maskloom.runs.report.examples import examples_of  # heavy, and not needed for curves

            shown[record.name] = examples_of(record, num_examples, progress)
    colours, done = _colours(records), [record for record in records if record.result is not None]
    content = {
        "title": ", ".join(names),
        "cards": [_card(record, colours) for record in records],
        "charts": charts_of(records),
        "searches": [record for record in done if record.kind == "search"],
        "glue": [record for record in done if record.kind == "glue"],
        "search_rows": search_rows,
        "glue_rows": glue_rows,
        "notes_of": notes_of,
        "scores": score_table(records),
        "differences": differences(records) if len(records) > 1 else [],
        "names": names,
        "accounts": {record.name: data_account(record) for record in records},
        "surroundings": surroundings(records),
        "trouble": trouble_table(records),
        "examples": shown,
        "recipes": [(record.name, visible(record.recipe_text)) for record in records],
    }
    write_html(target, "runs/report/page.html", content)
    return {"page": str(target), "runs": {name: record.kind for name, record in zip(names, records, strict=True)}}


def _colours(runs: list[RunRecord]) -> dict[str, str]:
    """Return the CSS class of each curve by the name of its run."""
    names = (trained.name for run in runs for trained in run.trained)
    return {name: colour(place) for place, name in enumerate(names)}


def _card(run: RunRecord, colours: dict[str, str]) -> dict[str, Any]:
    kinds = {"pretrain": "pre-training", "finetune": "fine-tuning", "search": "search", "glue": "GLUE"}
    found = scores(run)
    name = _deciding(run, found)
    last = max((event.get("step") or 0 for events in run.stages.values() for event in events), default=0)
    reached = f": step {last:,}" if last else ""  # searches and GLUE have no steps of their own
    state = "finished" if run.result is not None else f"not finished{reached}"
    if run.kind == "glue" and run.result is not None:
        state = f"finished, {len(run.result['tasks'])} tasks"
    reference = unigram_of(found) if run.best is None else run.best["best"]["reference"]
    spread = None if run.best is None else run.best["restarts"]
    return {
        "name": run.name,
        "style": colours[run.trained[0].name] if len(run.trained) == 1 else "",
        "kind": kinds[run.kind],
        "state": state,
        "score": None if name is None or found.get(name) is None else formatted(found[name]),
        "score_name": None if name is None else with_unit(run, name).replace("_", " "),
        "reference": None if reference is None else formatted(reference),
        "spread": restarts_text(spread) if spread and spread["num_restarts"] > 1 else None,
    }


def _deciding(run: RunRecord, found: dict[str, float]) -> str | None:
    if run.kind == "pretrain":
        row = row_of(found)
        return row and f"{row.part}_loss"
    if run.kind == "glue":
        return next((name for name in ("leaderboard_score", "paper_average") if found.get(name) is not None), None)
    if run.result is None:
        name = run.description["inputs"].get("metric")
        return name if name in found else None
    return None if run.best is None else run.best["metric"]


_MAX_POINTS = 200
_OF_STEPS = {
    "Learning rate": "learning_rate",
    "Gradient norm": "gradient_norm",
    "Tokens per second": "tokens_per_second",
}
Points = list[tuple[float, float]]


def charts_of(records: list[RunRecord]) -> dict[str, list[Chart]]:
    """Return the charts of all runs, pre-training and fine-tuning separately, as their losses are not comparable."""
    trained, colours = [inner for run in records for inner in run.trained], _colours(records)
    groups = {}
    for group, kind, own in (("Pre-training", "pretrain", _pretraining), ("Fine-tuning", "finetune", _finetuning)):
        runs = [run for run in trained if run.kind == kind]
        charts = own(runs, colours)
        for title, key in _OF_STEPS.items():
            charts += _chart(title, runs, colours, (key,), None)
        if charts:
            groups[group] = charts
    return groups


def _pretraining(runs: list[RunRecord], colours: dict[str, str]) -> list[Chart]:
    """Draw losses and accuracies in one chart for each kind of prediction, as those of others are not comparable."""
    charts = list[Chart]()
    marks = phase_marks(runs[0].stages[""]) if len(runs) == 1 else []
    for part, row in {_predicted(run).part: _predicted(run) for run in runs}.items():
        chosen, (loss_name, targets) = [run for run in runs if _predicted(run).part == part], row.names
        charts += _chart(
            f"{_capital(loss_name)} loss, nats per token",
            chosen,
            colours,
            ("losses", part),
            f"{part}_loss",
            levels=_level("unigram", map(unigram_of, map(scores, chosen))),
            marks=marks,
            note="Thin line: training; with dots: held out. Below the dashed unigram loss, the model uses context.",
        )
        title = f"{targets} predicted correctly, held out"
        charts += _chart(title, chosen, colours, None, f"{part}_accuracy", marks=marks)
    for pair, task in PAIR_TASKS.items():
        levels = _level("majority", (scores(run).get(f"{pair}_majority_fraction") for run in runs))
        title = f"{_capital(task.name)} accuracy, held out"
        charts += _chart(title, runs, colours, None, f"{pair}_accuracy", levels=levels, marks=marks)
    return charts


def _predicted(run: RunRecord) -> Pretraining:
    """Return the row of what a pre-training run predicts."""
    return row_of(scores(run)) or PRETRAINING.get(str(run.recipe.get("objective"))) or PRETRAINING["masked_lm"]


def _level(name: str, values: Iterable[float | None]) -> list[tuple[str, float]]:
    """Return the first value as a level to draw, or [] if there is none."""
    return [(name, value) for value in values if value][:1]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _finetuning(runs: list[RunRecord], colours: dict[str, str]) -> list[Chart]:
    charts = list[Chart]()
    metrics = [run.description["inputs"].get("metric") or "accuracy" for run in runs]
    names = [with_unit(run, metric) for run, metric in zip(runs, metrics, strict=True)]
    for name, metric in dict(zip(names, metrics, strict=True)).items():
        chosen = [run for run, other in zip(runs, names, strict=True) if other == name]
        charts += _chart(f"Dev {name.replace('_', ' ')}", chosen, colours, None, metric)
    return charts + _chart("Loss", runs, colours, ("loss",), "loss", note="Thin lines: training; with dots: dev.")


def _chart(
    title: str,
    runs: list[RunRecord],
    colours: dict[str, str],
    path: tuple[str, ...] | None,
    metric: str | None,
    *,
    note: str = "",
    **how: Any,
) -> list[Chart]:
    """Draw a value of the steps thin and a metric of the evaluations bold, one colour per run; [] without data."""
    lines: list[Line] = []
    for run in runs:
        trained = [thinned(points(events, "step", *path)) for events in run.stages.values()] if path else []
        measured = [points(events, "evaluation", "metrics", metric) for events in run.stages.values()] if metric else []
        held_out = "held out" if run.kind == "pretrain" else "dev"
        lines += _lines(run.name if len(runs) > 1 else "", trained, measured, colours[run.name], held_out)
    if not any(line.points for line in lines):
        return []
    if not note and any(line.is_faint for line in lines):
        note = "Thin lines: single seeds; bold: their mean."
    return [Chart(title, line_chart(lines, x_name="step", y_name=title, **how), note)]


def _lines(name: str, trained: list[Points], measured: list[Points], style: str, held_out: str) -> list[Line]:
    """Return the lines of one run: evaluations bold over thin steps, or, without one of them, a mean over seeds."""
    trained, measured = [points for points in trained if points], [points for points in measured if points]
    bold, thin = (measured, trained) if measured else (trained, [])
    lines = [Line(f"{name} training".strip(), points, style, is_faint=True) for points in thin]
    if len(bold) > 1 and not thin:
        lines += [Line(f"{name} one seed".strip(), points, style, is_faint=True) for points in bold]
    mean = mean_curve(bold)
    if mean:
        label = name or (held_out if measured and thin else "mean" if len(bold) > 1 else "")
        lines.append(Line(label, mean, style, has_dots=bool(measured)))
    return lines


def phase_marks(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Mark where each phase after the first begins, in events with one running step count."""
    ends = {event["stage"]: event["step"] for event in events if event["event"] == "finished"}
    return [(f"start of phase {number}", step) for number, step in enumerate([*ends.values()][:-1], start=2)]


def points(events: Iterable[dict[str, Any]], kind: str, *path: str) -> Points:
    """Return a value of the events of a kind by step, such as ("losses", "mlm"), without non-finite ones."""
    found = []
    for event in (event for event in events if event.get("event") == kind):
        value: Any = event
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)) and isinstance(event.get("step"), int):
            found.append((event["step"], value))
    return found


def thinned(points: Points) -> Points:
    """Average neighbouring points, so that a long run's line stays readable."""
    width = -(-len(points) // _MAX_POINTS) if points else 1
    groups = [points[first : first + width] for first in range(0, len(points), width)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def mean_curve(curves: Iterable[Points]) -> Points:
    """Return the mean of curves at the steps that all of them share."""
    columns = [dict(points) for points in curves]
    shared = [step for step in columns[0] if all(step in column for column in columns)] if columns else []
    return [(step, sum(column[step] for column in columns) / len(columns)) for step in shared]
