"""The effect of single choices in a pre-training recipe on a tiny BERT: equal steps, the same text and test masks.

    python benchmarks/recipe_ablation.py --corpus CORPUS --out ~/ablation [--results results/recipe_ablation]

Every variant differs from another one in a single choice. Each run uses one thread, and finished runs are not repeated.
Results are updated: variants and seeds that are not asked for keep their losses. Rates are measured at the end for all
variants, with all threads: run that on an idle machine.
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
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corpus.statistics import corpus_statistics
from maskloom.reproduce.experiments import Trend
from maskloom.reproduce.judging import masked_losses
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
SHORT, LONGER = (
    "{max_length=64, steps=%d, batch_size=%d}",
    "{max_length=128, steps=%d, batch_size=%d, learning_rate=5e-4}",
)
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
    "masks 20%": ("rotary, pre-norm", (*BEST, "data.masked_lm_prob=0.2")),
    "masks 15%": ("rotary, pre-norm", (*BEST, "data.masked_lm_prob=0.15")),
    "next sentences": ("rotary, pre-norm", (*BEST, "data.next_sentence=true")),
    "sentence order": ("rotary, pre-norm", (*BEST, "data.next_sentence=true", "data.sentence_order=true")),
    "dropout 0.1": (
        "rotary, pre-norm",
        (*BEST, "model.config.hidden_dropout_prob=0.1", "model.config.attention_probs_dropout_prob=0.1"),
    ),
    "embeddings of 64": ("rotary", (*ROTARY, "model.config.embedding_size=64")),
    "rows of 128": ("rotary", (*ROTARY, "data.max_length=128", "training.steps=1500")),
    "short rows first": ("rows of 128", (*ROTARY, f"phases=[{SHORT % (2700, 32)}, {LONGER % (150, 32)}]")),
    "growing batches": (
        "rotary",
        (*ROTARY, f"phases=[{SHORT % (2000, 16)}, {SHORT % (1000, 32)}, {SHORT % (500, 64)}]"),
    ),
    "cosine": ("rotary", (*ROTARY, 'training.schedule="cosine"')),
}


def main() -> None:
    """Run whatever is not finished, measure rates, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, outside the repository")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--results", type=Path, default=None, help="update PATH.json and write PATH.md")
    options = parser.parse_args()
    path = options.results.with_suffix(".json") if options.results else None
    about = json.loads(json.dumps(corpus_statistics(Corpus.open(options.corpus))))
    before: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {"variants": {}}
    if before.get("corpus", about) != about:
        parser.error(f"{path}: measured with another corpus; choose another --results")
    if of_seed_0(before):
        parser.error(f"{path}: measured on the text that seed 0 holds out; choose another --results")
    found = before["variants"]
    for seed in options.seeds:
        for name in options.variants:
            folder = options.out / "".join(sign if sign.isalnum() else "-" for sign in f"{name} {seed}")
            if not (folder / "metrics.json").exists():
                run(name, seed, options.corpus, folder)
            told = folder / "held-out-losses.json"
            if not told.exists():
                write_json(told, masked_losses(folder / "model", options.corpus, seed=seed))
            losses = json.loads(told.read_text())
            found.setdefault(name, {"losses": {}})["losses"][str(seed)] = losses
    if path is None:
        return
    for name in (name for name in VARIANTS if name in found):
        recipe = load_recipe(PretrainRecipe, None, [*settings(name)[:-1]])
        (rate,) = plan_pretraining(recipe, corpus=options.corpus, seconds=6.0)["sizes"]
        found[name]["tokens_per_second"] = rate["tokens_per_second"]
    results = {"processor": processor(), "corpus": about, "held_out": "by each seed", "variants": found}
    write_json(path, results)
    write_text(path.with_suffix(".md"), page(results))


def settings(name: str) -> tuple[str, ...]:
    """Return the recipe settings of a variant; the number of threads is last."""
    own = VARIANTS[name][1]
    given = {setting.partition("=")[0] for setting in own}
    if "phases" in given:
        given |= {"data.max_length", "training.batch_size", "training.steps"}
    return (*(setting for setting in COMMON[:-1] if setting.partition("=")[0] not in given), *own, COMMON[-1])


def run(name: str, seed: int, corpus: Path, folder: Path) -> None:
    """Pre-train a variant, or resume its run."""
    resume = ["--resume"] if folder.exists() else []
    command = [sys.executable, "-m", "maskloom", "pretrain", "--corpus", corpus, "--out", folder, *resume]
    command += [word for setting in (*settings(name), f"seed={seed}") for word in ("--set", setting)]
    subprocess.run([str(word) for word in command], check=True)


def page(results: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    about, found = results["corpus"], results["variants"]
    as_many = (
        "*Rows of 128*, *short rows first* (nine tenths of the tokens in rows of 64, then rows of 128) and *growing "
        "batches* (16, 32, then 64 rows) see as many tokens. Each phase of the latter two has its own schedule and "
        "optimiser state. "
    )
    as_many, limits = as_many if "growing batches" in found else "", ""
    if of_seed_0(results):
        as_many += (
            "The three phases of *growing batches* read the same 32,000 rows with the same masks, a third of the text "
            "that the others read. "
        )
        limits += "That text is held out by seed 0; runs with other seeds read about a quarter of it in training. "
    if "plain" in found:
        limits += (
            "Variants without rotary positions were trained on the first 64 positions only, so their losses, and the "
            "gain of *rotary*, are too large. "
        )
    lines = [
        "# The effect of single choices on a tiny BERT",
        "",
        "Generated by `python benchmarks/recipe_ablation.py --corpus CORPUS --out DIR --results PATH`; do not edit.",
        "",
        f"The corpus has {about['num_tokens'] / 1e6:.1f} million tokens in {about['num_documents']:,} documents, and a "
        f"vocabulary of {about['vocabulary_size']:,}. The model has two layers of width 128 and is trained on rows of "
        f"at most 64 tokens for 3,000 steps of 32 rows, unless the variant says otherwise. {as_many}The loss is "
        "measured with the paper's masks (15%, 80/10/10) on rows of 128 tokens of held-out text, the same tokens for "
        f"all variants; it is the mean over seeds. {limits}Differences are means over the seeds that both variants "
        "have, with their standard error: *lower* or *higher* if they are more than two standard errors from 0. With "
        f"one seed, small differences mean little. Speeds were measured on this machine, {results['processor']}, with "
        "all its threads, each once and for about six seconds.",
        "",
        "| variant | compared with | seeds | loss, nats | difference | | tokens/s | ratio |",
        "|---|---|---:|---:|---:|---|---:|---:|",
    ]
    for name, row in ((name, found[name]) for name in VARIANTS if name in found):
        other, rate, seeds = VARIANTS[name][0], row["tokens_per_second"], row["losses"]
        loss = fmean(fmean(losses) for losses in seeds.values())
        beside = found.get(other) if other else None
        change, word = difference(seeds, beside["losses"]) if beside else ("-", "")
        ratio = f"{rate / beside['tokens_per_second']:.2f}" if beside else "-"
        lines.append(
            f"| {name} | {other or '-'} | {len(seeds)} | {loss:.2f} | {change} | {word} | {rate:,.0f} | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def of_seed_0(results: dict[str, Any]) -> bool:
    """Return whether losses of other seeds are on the text that seed 0 holds out, as in earlier results."""
    seeds = {seed for row in results["variants"].values() for seed in row["losses"]}
    return "held_out" not in results and not seeds <= {"0"}


def difference(mine: dict[str, list[float]], others: dict[str, list[float]]) -> tuple[str, str]:
    """Return the mean difference over common seeds, with its standard error, and what it shows."""
    found = [fmean(mine[seed]) - fmean(others[seed]) for seed in mine if seed in others]
    if len(found) < 2:
        return f"{found[0]:+.2f}" if found else "-", ""
    verdict = Trend("higher", lambda _: found).verdict({})
    words = {"shown": "higher", "denied": "lower"}
    return f"{verdict['mean']:+.2f} ± {verdict['standard_error']:.2f}", words.get(verdict["verdict"], "not shown")


if __name__ == "__main__":
    main()
