"""Time pre-training steps in bf16 on a CPU against transformers in bf16, and both in fp32, in turn, in one process.

    python benchmarks/half_precision.py [--sizes tiny mini small base] [--mixes 128 mixed] [--rounds 5]

All sides take steps on the same batches of real text, from the same weights. bf16 is torch's autocast on both sides.
The peer is BertForPreTraining with sdpa, its head on the predicted positions only, fused AdamW and clipping; rows are
padded to 128, and its tensors are ready before the clock starts. Ours is the training loop.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pretraining_step import MIXES, NUM_THREADS, SEED, SIZES, TEXT_BYTES, corpus_folder, join_articles, make_loader
from rounds import in_turn, order_said, quiet_load
from step_sides import Ours, Peer
from surroundings import minilm_folder, processor, write_real_text

from maskloom.checkpoints.huggingface import save_model
from maskloom.data.corpus.building import build_corpus
from maskloom.data.corpus.opening import Corpus
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.system.files import write_json, write_text
from maskloom.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
OURS, OURS_FP32, PEER, PEER_FP32 = "maskloom, bf16", "maskloom, fp32", "transformers, bf16", "transformers, fp32"
PRECISIONS = {OURS: "bf16", OURS_FP32: "fp32", PEER: "bf16", PEER_FP32: "fp32"}
STEPS_PER_ROUND = {"tiny": 4, "mini": 2}
# Steps until oneDNN has its kernels for the numbers of rows that follow.
NUM_WARM_UP = {"tiny": 16, "mini": 10, "small": 6, "base": 4}


def measure(size: str, name: str, num_rounds: int, folder: Path) -> dict[str, Any]:
    """Return the rates of all sides in every round, and the largest difference of our losses in bf16 from fp32."""
    mix, steps, warm_up = MIXES[name], STEPS_PER_ROUND.get(size, 1), NUM_WARM_UP[size]
    corpus = Corpus.open(corpus_folder(folder, mix))
    config = BertConfig.of_size(size, vocab_size=len(corpus.vocabulary))
    save_model(build_model(config, seed=SEED), folder / "model")
    loader, position, batches = make_loader(corpus, mix, size), dict[str, int](), []
    for _ in range(warm_up + steps * num_rounds):
        batch, position = loader.next_batch(position)
        batches.append(batch)
    sides = {
        side: Ours(config, CPU, batches, precision)
        if "maskloom" in side
        else Peer(folder / "model", CPU, batches, precision)
        for side, precision in PRECISIONS.items()
    }
    losses = {side: [runner.step() for _ in range(warm_up)] for side, runner in sides.items()}
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(num_rounds):
        chosen = batches[warm_up + steps * number : warm_up + steps * (number + 1)]
        for side in in_turn(list(sides), number):
            started = time.perf_counter()
            losses[side] += [sides[side].step() for _ in chosen]
            rates[side].append(sum(batch.num_tokens for batch in chosen) / (time.perf_counter() - started))
    apart = max(abs(one - other) for one, other in zip(losses[OURS], losses[OURS_FP32], strict=True))
    return {"size": size, "mix": name, "rates": rates, "loss_difference": apart, "steps": len(losses[OURS])}


def page(found: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Pre-training in bf16 on a CPU",
        "",
        f"Made by `{found['command']}`; do not edit.",
        "",
        f"{found['machine']}; {NUM_THREADS} threads; Python {platform.python_version()}, torch {torch.__version__}; "
        f"load at the start {found['load']:.2f}. {found['text']}. BERT's vocabulary of 30,522 pieces, dropout 0.1. "
        f"{order_said(found['num_rounds'])}",
        "",
        "bf16 is autocast on both sides. *transformers* computes its head on predicted positions only and pads rows "
        "to 128. *128*: nearly full rows; *mixed*: between 2 and 128 tokens. Real tokens per second, medians; ratios "
        "are medians of the rounds' ratios with their range. The last column is the largest difference of our two "
        "losses of a step, in nats.",
        "",
        f"| size | rows | {OURS} | {OURS_FP32} | {PEER} | {PEER_FP32} | bf16 / fp32, ours | both in bf16 | "
        "both in fp32 | losses apart |",
        "|---|---|---:|---:|---:|---:|---|---|---|---:|",
    ]
    for row in found["results"]:
        rates = [f"{statistics.median(row['rates'][side]):,.0f}" for side in PRECISIONS]
        compared = [ratio(row, *pair) for pair in ((OURS, OURS_FP32), (OURS, PEER), (OURS_FP32, PEER_FP32))]
        cells = [row["size"], row["mix"], *rates, *compared, f"{row['loss_difference']:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def ratio(row: dict[str, Any], side: str, other: str) -> str:
    """Return the median ratio of two sides' rates with its range."""
    found = ratios(row, side, other)
    return f"**{statistics.median(found):.2f}** ({found[0]:.2f}-{found[-1]:.2f})"


def ratios(row: dict[str, Any], side: str, other: str) -> list[float]:
    """Return the ratios of two sides' rates, ascending."""
    return sorted(a / b for a, b in zip(row["rates"][side], row["rates"][other], strict=True))


def summary_rows(results: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    rows = []
    for other, beside in ((PEER, "transformers in bf16, MLM head on predicted positions only"), (OURS_FP32, "fp32")):
        for mix, name in (("128", "rows of 128"), ("mixed", "mixed lengths")):
            chosen = [row for row in results if row["mix"] == mix]
            medians = [f"{statistics.median(ratios(row, OURS, other)):.2f}" for row in chosen]
            sizes = " / ".join(row["size"] for row in chosen)
            result = f"{' / '.join(medians)} times the tokens per second"
            rows.append({"job": f"pre-training in bf16, {name}: {sizes}", "beside": beside, "result": result})
    return rows


def main() -> None:
    """Measure every size and mix, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--mixes", nargs="+", default=["128", "mixed"], choices=["128", "mixed"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(""), help="PATH.md and PATH.json")
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    os.environ["HF_HUB_OFFLINE"] = "1"
    load, results = quiet_load(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_real_text(folder / "articles.txt", TEXT_BYTES)
        join_articles(folder / "articles.txt", folder / "joined.txt")
        for kind in ("articles", "joined"):
            build_corpus([folder / f"{kind}.txt"], tokenizer=Tokenizer.load(minilm_folder()), out=folder / kind)
        for mix in options.mixes:
            for size in options.sizes:
                results.append(measure(size, mix, options.rounds, folder))
                print(results[-1], flush=True)
    found = {"command": " ".join(["python benchmarks/half_precision.py", *sys.argv[1:]]), "machine": processor()}
    found |= {"load": load, "text": text, "num_rounds": options.rounds, "results": results}
    found["summary"] = summary_rows(results)
    write_json(options.out.with_suffix(".json"), found)
    write_text(options.out.with_suffix(".md"), page(found))


if __name__ == "__main__":
    main()
