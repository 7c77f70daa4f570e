"""The report of the quick start: one HTML page with everything in it, without scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from maskloom.config import Section, recipe_toml
from maskloom.runs.charts import DotRow, Line, dot_chart, line_chart
from maskloom.training.events import read_events

_NAMES = {"pretrained": "pre-trained", "random": "random start"}
_MAX_POINTS = 200


def report_page(out: Path, results: dict[str, Any], recipes: Mapping[str, Section], commands: Sequence[str]) -> str:
    """Return the page for the figures of a finished quick start; curves come from the event logs in `out`."""
    environment = Environment(
        loader=PackageLoader("maskloom.runs.quickstart", "."), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["percent"] = lambda share: f"{share:.1%}"
    run = json.loads((out / "pretrained" / "run.json").read_text(encoding="utf-8"))
    events = _in_one_count(read_events(out / "pretrained" / "events.jsonl"))
    phases = getattr(recipes["pretrain"], "phases", [])
    return environment.get_template("report.html").render(
        phases=[phase.max_length for phase in phases],
        results=results,
        run=run,
        packages=sorted(results["text"]["packages"].items(), key=lambda item: -item[1]["sentences"]),
        recipes={name: recipe_toml(recipe) for name, recipe in recipes.items()},
        loss_chart=_loss_chart(events, results["pretraining"]),
        sentence_chart=_sentence_chart(events, results["pretraining"]),
        task_charts={task: _dots(compared) for task, compared in results["tasks"].items()},
        learning_charts={task: _learning(out, task) for task in results["tasks"]},
        commands=commands,
        minutes=sum(results["seconds"].values()) / 60,
    )


def _in_one_count(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count the steps of later phases on from those of the phases before."""
    offset, last, stage, counted = 0, 0, None, []
    for event in events:
        if event.get("stage") != stage:
            offset, last, stage = offset + last, 0, event.get("stage")
        last = max(last, event.get("step", 0))
        counted.append({**event, "step": offset + event.get("step", 0)})
    return counted


def _loss_chart(events: list[dict[str, Any]], metrics: dict[str, float]) -> str:
    steps = [(e["step"], e["losses"]["mlm"]) for e in events if e["event"] == "step"]
    held_out = _evaluations(events, "mlm_loss")
    return line_chart(
        [Line("training", _thinned(steps), "own", is_faint=True), Line("held out", held_out, "own")],
        x_name="step",
        y_name="masked-LM loss in nats",
        levels=[("word frequency", metrics["unigram_entropy"])],
        marks=_phase_marks(events),
    )


def _sentence_chart(events: list[dict[str, Any]], metrics: dict[str, float]) -> str:
    return line_chart(
        [Line("held out", _evaluations(events, "nsp_accuracy"), "own")],
        x_name="step",
        y_name="next-sentence accuracy",
        levels=[("majority", metrics["nsp_majority_share"])],
        marks=_phase_marks(events),
        as_percent=True,
    )


def _phase_marks(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Mark where each phase after the first begins."""
    ends = [event["step"] for event in events if event["event"] == "finished"]
    return [(f"phase {number} from here", step) for number, step in enumerate(ends[:-1], start=2)]


def _evaluations(events: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(e["step"], e["metrics"][name]) for e in events if e["event"] == "evaluation"]


def _dots(compared: dict[str, Any]) -> str:
    rows = [DotRow(name, list(compared[start]["scores"].values()), _style(start)) for start, name in _NAMES.items()]
    return dot_chart(rows, level=("commonest label", compared["majority"]), name="accuracy on dev, one dot a seed")


def _learning(out: Path, task: str) -> str:
    """Draw dev accuracy over steps: the mean over seeds bold, single seeds faint."""
    lines = []
    for start, name in _NAMES.items():
        by_seed: dict[str, list[tuple[float, float]]] = {}
        for event in read_events(out / "finetuned" / f"{task}-{start}" / "events.jsonl"):
            if event["event"] == "evaluation":
                by_seed.setdefault(event["stage"], []).append((event["step"], event["metrics"]["accuracy"]))
        lines += [Line(f"{name}, {seed}", points, _style(start), is_faint=True) for seed, points in by_seed.items()]
        lines.append(Line(name, _mean(by_seed.values()), _style(start)))
    return line_chart(lines, x_name="step", y_name="accuracy on dev", as_percent=True)


def _mean(curves: Iterable[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    return [(points[0][0], sum(value for _, value in points) / len(points)) for points in zip(*curves, strict=True)]


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Average neighbours, so that a long run's line stays readable."""
    width = -(-len(points) // _MAX_POINTS) if points else 1
    groups = [points[first : first + width] for first in range(0, len(points), width)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def _style(start: str) -> str:
    return "own" if start == "pretrained" else "other"
