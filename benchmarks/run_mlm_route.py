"""Train like transformers' run_mlm for some minutes, for `maskloom reproduce budget --beside run_mlm=OUT`.

    python benchmarks/run_mlm_route.py --corpus CORPUS --minutes 60 --out OUT [--learning-rate 5e-4 --batch-size 8
    --bf16]

The tokens of the training documents, each document between [CLS] and [SEP], are concatenated and cut into blocks of
128, as in run_mlm without --line_by_line. Transformers' collator draws masks at 15%, the model is BertForMaskedLM with
sdpa and dropout of 0.1, and the optimiser is AdamW with warm-up and linear decay. The loop is plain torch, without the
Trainer's overhead. Documents that `budget` holds out are excluded. The defaults of run_mlm are a rate of 5e-5 and
batches of 8. --bf16 trains under autocast, as the Trainer does for the same flag. The clock starts at the first step,
and the rate follows it, as in `budget`. OUT receives the model in transformers' format, and the vocabulary.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.reproduce.judging import HELD_OUT_FRACTION

LENGTH = 128
TOKENIZER = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def main() -> None:
    """Train and write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--warmup", type=float, default=0.05, help="share of the time")
    parser.add_argument("--bf16", action="store_true", help="as run_mlm --bf16: faster on processors with AMX")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    steps, seconds = train(options)
    print(json.dumps({"steps": steps, "seconds": seconds, "tokens": steps * options.batch_size * LENGTH}))


def blocks_of(corpus: Corpus) -> np.ndarray:
    """Return the training documents as blocks of tokens, (blocks, 128)."""
    train, _ = split_documents(corpus, HELD_OUT_FRACTION, seed=0)
    first, last = (corpus.vocabulary.ids[piece] for piece in ("[CLS]", "[SEP]"))
    parts: list[np.ndarray] = []
    for document in train:
        ids = corpus.sentences(*(int(end) for end in corpus.document_offsets[document : document + 2]))
        parts += [np.array([first]), ids.astype(np.int64), np.array([last])]
    joined = np.concatenate(parts)
    return joined[: len(joined) // LENGTH * LENGTH].reshape(-1, LENGTH)


def train(options: argparse.Namespace) -> tuple[int, float]:
    """Train for the given minutes, write the model, and return steps and seconds."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, DataCollatorForLanguageModeling

    corpus = Corpus.open(options.corpus)
    torch.manual_seed(options.seed)
    tokenizer = BertTokenizerFast.from_pretrained(options.corpus)
    config = BertConfig(
        vocab_size=len(corpus.vocabulary),
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=max(1, options.hidden // 64),
        intermediate_size=4 * options.hidden,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0, fused=True)
    batches = iterate(blocks_of(corpus), options.batch_size, DataCollatorForLanguageModeling(tokenizer), options.seed)
    steps, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < 60.0 * options.minutes:
        rate = rate_at(seconds / (60.0 * options.minutes), options.learning_rate, options.warmup)
        optimizer.param_groups[0]["lr"] = rate
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
            loss = model(**next(batches)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % 200 == 0:
            print(f"step {steps}: loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
    model.save_pretrained(options.out)
    for name in TOKENIZER:
        if (options.corpus / name).exists():
            shutil.copy(options.corpus / name, options.out / name)
    return steps, seconds


def rate_at(share: float, peak: float, warmup: float) -> float:
    """Return the learning rate after a share of the time: run_mlm's linear warm-up to a peak, then linear decay to 0.

    A number of steps planned beforehand would leave the rate at 0, or too high, at the end of the time.
    """
    return peak * (share / warmup if share < warmup else (1.0 - share) / (1.0 - warmup))


def iterate(blocks: np.ndarray, batch_size: int, collate, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches epoch after epoch, with a new shuffle and new masks in each epoch."""
    draw = np.random.default_rng(seed)
    while True:
        order = draw.permutation(len(blocks))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield collate([{"input_ids": blocks[index]} for index in order[start : start + batch_size]])


if __name__ == "__main__":
    main()
