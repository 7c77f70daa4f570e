"""The rows of Table 7 of the BERT paper at small scale: which layers of a frozen encoder suit a BiLSTM best.

Each row is the recipe `features` with its layers, a smaller BiLSTM and fewer epochs, on a fixed part of CoNLL-2003; the
last row is fine-tuning. Finished runs in --out are not repeated. The page is results/feature_based.md.

    python benchmarks/feature_based.py --out ~/feature-based --results results/feature_based
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from surroundings import data_folder, minilm_folder, processor

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.recipe_files import recipe_path
from maskloom.runs.finetune import LabelledFiles, finetune

NUM_TRAIN, NUM_DEV = 1000, 600
CHANGES = ["features.lstm_size=256", "training.epochs=10.0"]
FINETUNING = ["training.learning_rate=2e-4", "training.epochs=3.0", 'tagging.context="sentence"', "data.max_length=128"]
# The layers of each row, or the fine-tuning recipe; the paper's name; the paper's dev F1 (base, on all sentences).
ROWS = (
    ("embeddings", "embeddings", "91.0"),
    ("last", "last hidden layer", "94.9"),
    ("second_to_last", "second-to-last hidden layer", "95.6"),
    ("sum_last_four", "sum of the last four", "95.9"),
    ("concat_last_four", "concatenation of the last four", "96.1"),
    ("sum_all", "sum of all layers", "95.5"),
    ("scalar_mix", "learned mix of all layers", "-"),
    ("conll2003", "fine-tuning", "96.4"),
)
_PAGE = """\
# Frozen features: the rows of the paper's Table 7

Made by `python benchmarks/feature_based.py --out DIR --seeds {seeds} --threads {threads} --results
results/feature_based`; do not edit. MiniLM (6 layers, hidden size 384, uncased) on {train:,} sentences of CoNLL-2003,
drawn by Python's `random.Random(0)`, scored on {dev} of its dev set: entity F1 in percent, the best epoch on dev, mean
± standard deviation over {seeds} seeds. The constant answer, no entity, has F1 0. The recipes are `features`, with
`--set features.layers=` as below, and `conll2003`, with

    {changes}

for frozen features and

    {finetuning}

for fine-tuning. The paper's figures are those of BERT base, cased, on all sentences: an order to compare
with, no target.

| what the BiLSTM reads | layers | F1 here | F1 in the paper |
|---|---|---|---|
{rows}

{machine}, {threads} thread.
"""


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, outside the repository")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=None, help="write PATH.md and PATH.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    files = [
        some_sentences(options.data / "conll2003" / f"{name}.txt", options.out / f"{name}.txt", number)
        for name, number in (("train", NUM_TRAIN), ("valid", NUM_DEV))
    ]
    found = {}
    for name, _, _ in ROWS:
        own = FINETUNING if name == "conll2003" else [f"features.layers={name}", *CHANGES]
        path = recipe_path("conll2003" if name == "conll2003" else "features")
        recipe = load_recipe(FinetuneRecipe, path, [*own, f"restarts={options.seeds}"])
        out = options.out / name
        resume = (out / "recipe.toml").exists()
        result = finetune(recipe, model=minilm_folder(), data=LabelledFiles(*files[:2]), out=out, resume=resume)
        found[name] = result["restarts"]
        print(name, result["restarts"]["mean"], result["restarts"]["standard_deviation"], flush=True)
    if options.results:
        write_page(options.results, found, options)


def some_sentences(source: Path, target: Path, number: int) -> Path:
    """Write randomly drawn sentences of a CoNLL file, unless `target` exists."""
    if not target.exists():
        blocks = source.read_text(encoding="utf-8").strip().split("\n\n")
        sentences = [block.strip("\n") for block in blocks if block.strip() and not block.startswith("-DOCSTART-")]
        random.Random(0).shuffle(sentences)
        target.write_text("\n\n".join(sentences[:number]) + "\n", encoding="utf-8")
    return target


def write_page(path: Path, found: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Write PATH.md and PATH.json."""
    path.with_suffix(".json").write_text(json.dumps({"rows": found}, indent=1) + "\n", encoding="utf-8")
    rows = [
        f"| {title} | {'-' if name == 'conll2003' else f'`{name}`'} | "
        f"{100 * found[name]['mean']:.1f} ± {100 * found[name]['standard_deviation']:.1f} | {published} |"
        for name, title, published in ROWS
    ]
    page = _PAGE.format(
        train=NUM_TRAIN,
        dev=NUM_DEV,
        seeds=options.seeds,
        changes=" ".join(f"--set {change}" for change in CHANGES),
        finetuning=" ".join(f"--set {change}" for change in FINETUNING),
        rows="\n".join(rows),
        machine=processor(),
        threads=options.threads,
    )
    path.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
