"""The report of the quick start: one HTML page with everything in it, without scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskloom.config import Section, recipe_toml
from maskloom.runs.charts import DotRow, Line, dot_chart, line_chart
from maskloom.runs.curves import evaluations, in_one_count, mean_curve, phase_marks, steps, thinned
from maskloom.runs.pages import page_template
from maskloom.training.events import read_events

_NAMES = {"pretrained": "pre-trained", "random": "random start"}


def report_page(out: Path, results: dict[str, Any], recipes: Mapping[str, Section], commands: Sequence[str]) -> str:
    """Return the page for the figures of a finished quick start; curves come from the event logs in `out`."""
    run = json.loads((out / "pretrained" / "run.json").read_text(encoding="utf-8"))
    events = in_one_count(read_events(out / "pretrained" / "events.jsonl"))
    phases = getattr(recipes["pretrain"], "phases", [])
    return page_template("quickstart/report.html").render(
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


def _loss_chart(events: list[dict[str, Any]], metrics: dict[str, float]) -> str:
    training, held_out = thinned(steps(events, "losses", "mlm")), evaluations(events, "mlm_loss")
    return line_chart(
        [
            Line("training", training, "own", is_faint=True),
            Line("held out", held_out, "own"),
        ],
        x_name="step",
        y_name="masked-LM loss in nats",
        levels=[("word frequency", metrics["unigram_entropy"])],
        marks=phase_marks(events),
    )


def _sentence_chart(events: list[dict[str, Any]], metrics: dict[str, float]) -> str:
    return line_chart(
        [Line("held out", evaluations(events, "nsp_accuracy"), "own")],
        x_name="step",
        y_name="next-sentence accuracy",
        levels=[("majority", metrics["nsp_majority_share"])],
        marks=phase_marks(events),
        as_percent=True,
    )


def _dots(compared: dict[str, Any]) -> str:
    rows = [DotRow(name, list(compared[start]["scores"].values()), _style(start)) for start, name in _NAMES.items()]
    return dot_chart(rows, level=("constant answer", compared["majority"]), name="accuracy on dev, one dot per seed")


def _learning(out: Path, task: str) -> str:
    """Draw dev accuracy over steps: the mean over seeds bold, single seeds faint."""
    lines = []
    for start, name in _NAMES.items():
        by_seed: dict[str, list[tuple[float, float]]] = {}
        for event in read_events(out / "finetuned" / f"{task}-{start}" / "events.jsonl"):
            if event["event"] == "evaluation":
                by_seed.setdefault(event["stage"], []).append((event["step"], event["metrics"]["accuracy"]))
        lines += [Line(f"{name}, {seed}", points, _style(start), is_faint=True) for seed, points in by_seed.items()]
        lines.append(Line(name, mean_curve(by_seed.values()), _style(start)))
    return line_chart(lines, x_name="step", y_name="accuracy on dev", as_percent=True)


def _style(start: str) -> str:
    return "own" if start == "pretrained" else "other"
