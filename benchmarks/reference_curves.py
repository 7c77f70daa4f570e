"""Held-out losses of one run of each size on the same text, which `maskloom plan` shows next to a budget.

    python benchmarks/reference_curves.py --corpus CORPUS --text "what it is" --work WORK tiny=10 mini=15 small=15

trains each size for its minutes, or resumes the runs in WORK, and writes the losses into the package.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import maskloom
from maskloom.runs.plan import CURVES
from maskloom.training.events import read_events

ARCHITECTURE, OBJECTIVE = "bert", "masked_lm"
RECIPE = {
    "model": {"config": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}},
    "data": {"max_length": 128, "masked_lm_prob": 0.3},
    "training": {
        "batch_size": 16,
        "adam_beta2": 0.98,
        "warmup_ratio": 0.05,
        "evaluate_every": 400,
        "save_every": 2000,
        "max_evaluation_instances": 1024,
    },
}
# The standard deviation of the initial weights, and the peak learning rate, which is lower for wider models.
OF_SIZE = {"tiny": (0.1, 1.5e-3), "mini": (0.1, 1e-3), "small": (0.1, 1e-3)}


def recipe(size: str, minutes: float) -> dict[str, Any]:
    """Return the recipe of a size."""
    deviation, rate = OF_SIZE[size]
    config = {**RECIPE["model"]["config"], "initializer_range": deviation}
    training = {**RECIPE["training"], "learning_rate": rate, "minutes": minutes}
    return {"model": {"size": size, "config": config}, "data": RECIPE["data"], "training": training}


def curve(run: Path) -> list[list[float]]:
    """Return step, tokens and held-out loss of each evaluation of a run, including the final one."""
    events = list(read_events(run / "events.jsonl"))
    account = next(event for event in events if event["event"] == "data")
    per_step = RECIPE["training"]["batch_size"] * account["tokens_per_instance"]
    found = {
        event["step"]: [event["step"], round(event["step"] * per_step), round(event["metrics"]["mlm_loss"], 4)]
        for event in events
        if event["event"] in ("evaluation", "finished") and event["step"]
    }
    return [found[step] for step in sorted(found)]


def main() -> None:
    """Train whatever is missing, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--text", required=True, help="what the corpus is, as the planner words it")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("sizes", nargs="+", metavar="SIZE=MINUTES")
    given = parser.parse_args()
    sizes = {}
    for size, minutes in (each.split("=") for each in given.sizes):
        run = given.work / size
        values = recipe(size, float(minutes))
        maskloom.pretrain(given.corpus, run, recipe=values, resume=(run / "recipe.toml").exists())
        sizes[size] = curve(run)
    told = "3 of 10 tokens predicted, steps of 16 rows of 128, no dropout, a learning rate that falls to 0 at the end"
    facts = {"architecture": ARCHITECTURE, "objective": OBJECTIVE, "text": given.text, "recipe": told}
    found = {**facts, "sizes": sizes}
    lines = json.dumps(found, indent=1).replace("[\n    ", "[").replace(",\n    ", ", ").replace("\n   ]", "]")
    CURVES.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
