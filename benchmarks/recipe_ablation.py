"""The effect of single choices in a pre-training recipe on a tiny BERT: equal steps, the same text and test masks.

    python benchmarks/recipe_ablation.py --corpus CORPUS --out ~/ablation [--results results/recipe_ablation]

Every variant differs from another one in a single choice. Each run uses one thread, and finished runs are not repeated.
Rates are measured at the end, with all threads: run that on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from surroundings import processor

from maskloom.config import PretrainRecipe, load_recipe
from maskloom.reproduce.judging import masked_losses
from maskloom.runs.corpus import stats
from maskloom.runs.plan import plan_pretraining
from maskloom.system.files import write_json, write_text

COMMON = (
    *("model.size=tiny", "data.max_length=64", "training.batch_size=32", "training.steps=3000"),
    *("training.warmup_ratio=0.05", "training.adam_beta2=0.98", "training.learning_rate=2e-3"),
    *("model.config.hidden_dropout_prob=0.0", "model.config.attention_probs_dropout_prob=0.0"),
    *("model.config.initializer_range=0.05", "data.next_sentence=false", "data.masked_lm_prob=0.3"),
    *("training.max_evaluation_instances=1024", "training.num_threads=1"),
)
PRE_NORM, ROTARY = ("model.config.pre_norm=true",), ("model.config.rotary=true",)
BEST = (*PRE_NORM, *ROTARY)
# Name: the variant to compare with, and the settings.
VARIANTS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "plain": (None, ()),
    "pre-norm": ("plain", PRE_NORM),
    "gated, pre-norm": ("pre-norm", (*PRE_NORM, "model.config.gated=true", "model.config.intermediate_size=344")),
    "rotary": ("plain", ROTARY),
    "rotary, pre-norm": ("rotary", BEST),
    "gated": ("rotary, pre-norm", (*BEST, "model.config.gated=true", "model.config.intermediate_size=344")),
    "rate 4e-3": ("rotary, pre-norm", (*BEST, "training.learning_rate=4e-3")),
    "batches of 16": ("rotary, pre-norm", (*BEST, "training.batch_size=16", "training.steps=6000")),
    "first weights 0.02": ("rotary, pre-norm", (*BEST, "model.config.initializer_range=0.02")),
    "masks 20 %": ("rotary, pre-norm", (*BEST, "data.masked_lm_prob=0.2")),
    "masks 15 %": ("rotary, pre-norm", (*BEST, "data.masked_lm_prob=0.15")),
    "next sentences": ("rotary, pre-norm", (*BEST, "data.next_sentence=true")),
    "sentence order": ("rotary, pre-norm", (*BEST, "data.next_sentence=true", "data.sentence_order=true")),
    "dropout 0.1": (
        "rotary, pre-norm",
        (*BEST, "model.config.hidden_dropout_prob=0.1", "model.config.attention_probs_dropout_prob=0.1"),
    ),
}


def main() -> None:
    """Run whatever is not finished, measure rates, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, outside the repository")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--runs-only", action="store_true", help="neither rates nor a page")
    parser.add_argument("--results", type=Path, default=None, help="write PATH.md and PATH.json")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name in options.variants:
        folder = options.out / "".join(sign if sign.isalnum() else "-" for sign in name)
        if not (folder / "metrics.json").exists():
            run(name, options.corpus, folder)
        if not (folder / "losses.json").exists():
            write_json(folder / "losses.json", masked_losses(folder / "model", options.corpus))
        if options.runs_only:
            continue
        metrics = json.loads((folder / "metrics.json").read_text())
        recipe = load_recipe(PretrainRecipe, None, [*settings(name)[:-1]])
        (rate,) = plan_pretraining(recipe, corpus=options.corpus, seconds=6.0)["sizes"]
        losses = json.loads((folder / "losses.json").read_text())
        found[name] = {"losses": losses, "tokens_per_second": rate["tokens_per_second"], "own": metrics["mlm_loss"]}
    if options.results and not options.runs_only:
        about = stats(options.corpus)
        write_json(options.results.with_suffix(".json"), {"processor": processor(), "corpus": about, "variants": found})
        write_text(options.results.with_suffix(".md"), page(found, about))


def settings(name: str) -> tuple[str, ...]:
    """Return the recipe settings of a variant; the number of threads is last."""
    own = VARIANTS[name][1]
    given = {setting.partition("=")[0] for setting in own}
    return (*(setting for setting in COMMON[:-1] if setting.partition("=")[0] not in given), *own, COMMON[-1])


def run(name: str, corpus: Path, folder: Path) -> None:
    """Pre-train a variant, or resume its run."""
    resume = ["--resume"] if folder.exists() else []
    command = [sys.executable, "-m", "maskloom", "pretrain", "--corpus", corpus, "--out", folder, *resume]
    command += [word for setting in settings(name) for word in ("--set", setting)]
    subprocess.run([str(word) for word in command], check=True)


def page(found: dict[str, Any], about: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    more = "" if found.keys() == VARIANTS.keys() else " --variants " + " ".join(f'"{name}"' for name in found)
    lines = [
        "# The effect of single choices on a tiny BERT",
        "",
        f"Generated by `python benchmarks/recipe_ablation.py --corpus CORPUS --out DIR --results PATH{more}`; "
        "do not edit.",
        "",
        f"The corpus has {about['num_tokens'] / 1e6:.1f} million tokens in {about['num_documents']:,} documents, and a "
        f"vocabulary of {about['vocabulary_size']:,}. The model has two layers of width 128 and is trained on rows of "
        "at most 64 tokens for 3,000 steps of 32 rows, unless the variant says otherwise. Each variant has one seed, "
        "so small differences mean little. The loss is measured with the paper's masks (15 %, 80/10/10) on rows of 128 "
        "tokens of held-out text, the same tokens for all variants. Speeds were measured on this machine, "
        f"{processor()}, with all its threads.",
        "",
        "| variant | compared with | loss, nats | difference | tokens/s | ratio |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, row in found.items():
        other = VARIANTS[name][0]
        loss, rate = fmean(row["losses"]), row["tokens_per_second"]
        beside = found.get(other) if other else None
        change = f"{loss - fmean(beside['losses']):+.2f}" if beside else "-"
        ratio = f"{rate / beside['tokens_per_second']:.2f}" if beside else "-"
        lines.append(f"| {name} | {other or '-'} | {loss:.2f} | {change} | {rate:,.0f} | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
