"""The effect of pre-training and of the auxiliary LM loss on a small GPT (Radford et al. 2018, section 5: ablations).

A GPT of four layers, 128 wide, is trained on ten million tokens of English Wikipedia. It is fine-tuned on 1,000
examples of each task with lambda 0 and 0.5, and so is one with random weights, with five seeds each. Each stage stores
its result in --out and is not repeated; training resumes from its newest checkpoint. The page is results/gpt.md.

    python benchmarks/gpt_transfer.py --out ~/gpt --results results/gpt
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from surroundings import data_folder, parser_of_runs, processor, write_results

NUM_EXAMPLES, NUM_DEV, NUM_SEEDS, NUM_EPOCHS, LAMBDAS = 1000, 500, 5, 3, (0.0, 0.5)
GAIN = 5.0  # points that pre-training is expected to gain
PRETRAINING = {
    "objective": "causal_lm",
    "model": {
        "architecture": "gpt",
        "size": "mini",
        "config": {
            **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout_prob"), 0.0),
            "hidden_size": 128,
            "num_attention_heads": 4,
            "initializer_range": 0.05,
        },
    },
    "data": {"max_length": 128, "held_out_fraction": 0.01},
    "training": {"steps": 2442, "batch_size": 32, "learning_rate": 1.5e-3, "warmup_ratio": 0.05, "save_every": 200},
}
# Each task: its kind, the primary score, and further settings.
TASKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MR": ("single", "accuracy", {}),
    "RTE": ("pair", "accuracy", {}),
    "SNLI": ("pair", "accuracy", {}),
    "STS-B": ("regression", "pearson", {"pair": {"both_orders": True}}),
}


def main() -> None:
    """Run the stages that are not finished, and write the page."""
    parser = parser_of_runs(__doc__)
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stages", nargs="*", default=None, help="only these: pretrain, MR, RTE ...")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    stages: dict[str, Callable[[], dict[str, Any]]] = {"pretrain": lambda: pretrained(options)}
    stages |= {name: lambda name=name: fine_tuned(options, name) for name in TASKS}
    for name in options.stages or stages:
        path = options.out / f"{name}.json"
        if not path.exists():
            print(f"{name} ...", flush=True)
            path.write_text(json.dumps(stages[name](), indent=1) + "\n", encoding="utf-8")
        print(name, path.read_text(encoding="utf-8"), flush=True)
    if options.results:
        done = {name: options.out / f"{name}.json" for name in stages}
        found = {name: json.loads(path.read_text()) for name, path in done.items() if path.exists()}
        machine = (
            f"{processor()}, {options.threads} thread; Python {platform.python_version()}, torch {torch.__version__}"
        )
        command = shlex.join(["python", "benchmarks/gpt_transfer.py", *sys.argv[1:]])
        write_page(options.results, found, machine, command)


def pretrained(options: argparse.Namespace) -> dict[str, Any]:
    """Build the vocabulary and the corpus, and pre-train, or resume pre-training."""
    from maskloom.config import PretrainRecipe
    from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
    from maskloom.runs.pretrain import pretrain
    from maskloom.text.vocabulary_training import VocabularySettings

    text, out = options.data / "corpus" / "enwiki_part.txt.gz", options.out
    train_vocabulary_from_files([text], VocabularySettings(8000, model="bpe"), out=out / "vocab")
    build_corpus_from_files([text], vocab=out / "vocab", out=out / "corpus")
    run, started = out / "gpt", time.perf_counter()
    resume = (run / "run.json").exists()
    metrics = pretrain(PretrainRecipe.model_validate(PRETRAINING), corpus=out / "corpus", out=run, resume=resume)
    training, data = PRETRAINING["training"], PRETRAINING["data"]
    tokens = training["steps"] * training["batch_size"] * data["max_length"]
    return {"tokens": tokens, "seconds": time.perf_counter() - started, **metrics}


def rows_of(data: Path, name: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return rows (text, label) or (text, pair, label) for training and for scoring."""
    if name == "MR":
        lines = (
            (data / "family" / "sentiment" / "sent_conv" / "rt-polarity.all")
            .read_text("latin-1")
            .rstrip("\n")
            .split("\n")
        )
        rows = [(line.partition(" ")[2], line.partition(" ")[0]) for line in lines]
        random.Random(0).shuffle(rows)
        return rows[1000:], rows[:1000]
    kind, label = (
        ("nli/snli", "gold_label") if name == "SNLI" else (f"glue/{name}", "score" if name == "STS-B" else "label")
    )
    files = ("train_subset8999", "heldout_from_train1000") if name == "SNLI" else ("train", "dev")
    parts = []
    for file_name in files:
        with (data / kind / f"{file_name}.tsv").open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            parts.append([(row["sentence1"], row["sentence2"], row[label]) for row in rows])
    return parts[0], parts[1]


def fine_tuned(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Fine-tune on a sample of a task, from both starts and with both weights of the auxiliary LM loss."""
    from maskloom.config import FinetuneRecipe
    from maskloom.runs.finetune import LabelledFiles, finetune

    kind, metric, more = TASKS[name]
    train, dev = rows_of(options.data, name)
    random.Random(1).shuffle(train)
    files = []
    for part, rows in (("train", train[:NUM_EXAMPLES]), ("dev", dev[:NUM_DEV])):
        files.append(options.out / f"{name}-{part}.jsonl")
        keys = ("text", "label") if len(rows[0]) == 2 else ("text", "pair", "label")
        lines = (dict(zip(keys, row, strict=True)) for row in rows)
        files[-1].write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = {}
    for start in ("pre-trained", "random"):
        for weight in LAMBDAS:
            recipe = {
                "task": kind, "auxiliary_lm": weight, "restarts": NUM_SEEDS, "from_scratch": start == "random", **more,
                "data": {"max_length": 96},
                "training": {"epochs": float(NUM_EPOCHS), "batch_size": 16, "learning_rate": 5e-4, "warmup_ratio": 0.1,
                             "num_threads": options.threads},
            }  # fmt: skip
            out = options.out / f"{name}-{start}-{weight}"
            resume = (out / "run.json").exists()
            checked, model = FinetuneRecipe.model_validate(recipe), options.out / "gpt" / "model"
            data = LabelledFiles(files[0], files[1], metric=metric)
            result = finetune(checked, model=model, data=data, out=out, resume=resume)
            scores = list(result["restarts"]["scores"].values())
            key = f"{start}, lambda {weight:g}"
            found[key] = {"scores": scores, "steps": result["last"]["step"], "constant": result["best"]["reference"]}
    return {
        "metric": metric,
        "num_train": min(NUM_EXAMPLES, len(train)),
        "num_dev": min(NUM_DEV, len(dev)),
        "runs": found,
    }


def write_page(path: Path, found: dict[str, dict[str, Any]], machine: str, command: str) -> None:
    """Write PATH.md and PATH.json."""
    from maskloom.objectives.pretraining import unigram_of

    lm = found["pretrain"]
    starts = [f"{start}, lambda {weight:g}" for start in ("pre-trained", "random") for weight in LAMBDAS]
    lines = [
        "# A small GPT: gains from pre-training and from the auxiliary loss",
        "",
        f"Four layers, 128 wide, pre-trained on {lm['tokens']:,} tokens of English Wikipedia: held-out "
        f"loss {lm['lm_loss']:.3f} nats per token ({lm['lm_bits_per_character']:.3f} bits per character, "
        "perplexity "
        f"{lm['lm_perplexity']:.1f}; unigram {unigram_of(lm):.3f} nats). Then fine-tuned on {NUM_EXAMPLES} examples of "
        f"each task with {NUM_SEEDS} seeds. Scores are from the best of {NUM_EPOCHS} epochs on at most {NUM_DEV} dev "
        "examples: mean and standard deviation in percent.",
        "",
        "| task | score | " + " | ".join(starts) + " | constant answer |",
        "|---|---|" + "---|" * (len(starts) + 1),
    ]
    for name in (name for name in TASKS if name in found):
        task = found[name]
        cells = []
        for start in starts:
            scores = [100 * score for score in task["runs"][start]["scores"]]
            cells.append(f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores):.1f}")
        constant = task["runs"][starts[0]]["constant"]
        cells.append("-" if constant is None else f"{100 * constant:.1f}")
        lines.append(f"| {name} | {task['metric']} | " + " | ".join(cells) + " |")
    lines += ["", *conclusions(found), "", f"{machine}. Generated by `{command}`.", ""]
    write_results(path, {"machine": machine, "command": command, "stages": found}, "\n".join(lines))


def conclusions(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the conclusions in words: the effect of pre-training at lambda 0, and the effect of lambda on the score.

    A gain of more than `GAIN` points is shown or denied by the rule of `maskloom reproduce`: runs are paired by seed,
    and the mean difference must lie more than two standard errors above or below.
    """
    from maskloom.reproduce.experiments import Trend
    from maskloom.reproduce.results import verdict_text

    lines = [
        f"The claim is that pre-training gains more than {GAIN:g} points. It is *shown* if the mean difference minus "
        f"{GAIN:g} is more than two standard errors above 0, and *denied* if it is more than two below 0. The effect "
        "of lambda is reported without a claim.",
        "",
    ]
    for name in (name for name in TASKS if name in found):
        scores = {key: [100 * score for score in run["scores"]] for key, run in found[name]["runs"].items()}
        gains = differences(scores, "pre-trained, lambda 0", "random, lambda 0")
        moves = differences(scores, "pre-trained, lambda 0.5", "pre-trained, lambda 0")
        claim = f"{name}: pre-training gains more than {GAIN:g} points"
        verdict = Trend(claim, lambda _, gains=gains: [gain - GAIN for gain in gains]).verdict({})
        moved, error = statistics.fmean(moves), statistics.stdev(moves) / len(moves) ** 0.5
        told = f"It gains {statistics.fmean(gains):+.1f}; lambda 0.5 then changes it by {moved:+.1f}, "
        told += f"standard error {error:.1f}."
        lines.append(f"- {verdict_text(verdict)}. {told}")
    return lines


def differences(scores: dict[str, list[float]], one: str, other: str) -> list[float]:
    """Return the score differences between two kinds of runs, seed by seed."""
    return [above - below for above, below in zip(scores[one], scores[other], strict=True)]


if __name__ == "__main__":
    main()
