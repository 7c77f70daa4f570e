"""The report of the quick start: one HTML page with everything in it, without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskloom.config import Section, recipe_toml
from maskloom.runs.charts import DotRow, dot_chart
from maskloom.runs.pages import page_template
from maskloom.runs.report.charts import charts_of
from maskloom.runs.report.record import read_run

_NAMES = {"pretrained": "pre-trained", "random": "random start"}


def report_page(out: Path, results: dict[str, Any], recipes: Mapping[str, Section], commands: Sequence[str]) -> str:
    """Return the page for the figures of a finished quick start; curves come from the event logs in `out`."""
    pretrained = read_run(out / "pretrained", "pre-trained")
    phases = getattr(recipes["pretrain"], "phases", [])
    return page_template("quickstart/report.html").render(
        phases=[phase.max_length for phase in phases],
        results=results,
        run=pretrained.description,
        packages=sorted(results["text"]["packages"].items(), key=lambda item: -item[1]["sentences"]),
        recipes={name: recipe_toml(recipe) for name, recipe in recipes.items()},
        pretraining_charts=charts_of([pretrained])["Pre-training"][:2],
        task_charts={task: _dots(compared) for task, compared in results["tasks"].items()},
        learning_charts={task: _learning(out, task) for task in results["tasks"]},
        commands=commands,
        minutes=sum(results["seconds"].values()) / 60,
    )


def _dots(compared: dict[str, Any]) -> str:
    rows = [
        DotRow(name, list(compared[start]["scores"].values()), f"c{place}")
        for place, (start, name) in enumerate(_NAMES.items())
    ]
    return dot_chart(rows, level=("constant answer", compared["majority"]), name="accuracy on dev, one dot per seed")


def _learning(out: Path, task: str) -> str:
    """Draw dev accuracy over steps from both starts: the means over seeds bold, single seeds faint."""
    runs = [read_run(out / "finetuned" / f"{task}-{start}", name) for start, name in _NAMES.items()]
    return charts_of(runs)["Fine-tuning"][0].svg
