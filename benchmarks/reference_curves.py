"""Held-out losses of one run of each size on the same text, which `maskloom plan` shows next to a budget.

    python benchmarks/reference_curves.py --corpus CORPUS --text "what it is" --work WORK tiny=60 mini=60

trains each size for its minutes, or resumes the runs in WORK, and writes the losses into the package.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from maskloom.config import PretrainRecipe, load_recipe
from maskloom.recipe_files import SHIPPED
from maskloom.reproduce.judging import HELD_OUT_FRACTION
from maskloom.runs.display import terminal_progress
from maskloom.runs.plan import CURVES
from maskloom.runs.pretrain import pretrain
from maskloom.training.events import read_events

NAME, HELD_OUT = "one-hour", f"data.held_out_fraction={HELD_OUT_FRACTION}"


def recipe(size: str, minutes: str) -> PretrainRecipe:
    """Return the recipe of a size."""
    changes = [HELD_OUT, f"model.size={size}", f"training.minutes={minutes}"]
    return load_recipe(PretrainRecipe, SHIPPED / f"{NAME}.toml", changes)


def curve(run: Path, trained: PretrainRecipe) -> list[list[float]]:
    """Return step, tokens and held-out loss of each evaluation in a run's first phase.

    Losses in the second phase, on longer rows, are not comparable with them.
    """
    phase, tokens_per_step, found = trained.phases[0], 0.0, dict[int, list[float]]()
    for event in read_events(run / "events.jsonl"):
        if event.get("stage") != "phase-1":
            continue
        if event["event"] == "data":
            tokens_per_step = (phase.batch_size or trained.training.batch_size) * event["tokens_per_instance"]
        elif event["event"] == "evaluation":
            step, loss = event["step"], event["metrics"]["mlm_loss"]
            found[step] = [step, round(step * tokens_per_step), round(loss, 4)]
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
        run, chosen = given.work / size, recipe(size, minutes)
        resumes = (run / "recipe.toml").exists()
        pretrain(chosen, corpus=given.corpus, out=run, resume=resumes, progress=terminal_progress())
        sizes[size] = curve(run, chosen)
    told = f"with the first phase of {NAME}: rows of 64, 3 of 10 tokens predicted, a learning rate that falls to 0"
    found = {"architecture": "bert", "objective": "masked_lm", "text": given.text, "recipe": told, "sizes": sizes}
    lines = json.dumps(found, indent=1).replace("[\n    ", "[").replace(",\n    ", ", ").replace("\n   ]", "]")
    CURVES.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
