"""Training of a character-based bidirectional language model, compared with a plain torch loop over the same weights.

The plain side steps through each direction separately with torch's own operations and lets autograd store them. It
computes the characters of every occurrence of a word, and the loss from all logits. Both sides multiply the inputs of
all steps in one product. Their losses and gradients are compared first. The page is benchmarks/elmo_speed.md.

    python benchmarks/elmo_speed.py --results benchmarks/elmo_speed
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import processor
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from maskloom.data.spelling import BothWaysBatch, Spelling
from maskloom.layers.attention import Kept
from maskloom.layers.projected_lstm import ProjectedLSTMs
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import EncoderWithHeads, build_model
from maskloom.objectives.carrying import with_carry
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.training.faults.memory import kept_memory

NUM_WORDS, STEPS = 20_000, 20
AIMS = (1.5, 2.0, 3.0)
OBJECTIVE = PRETRAINING["bidirectional_lm"].objective("bilm", None)
_PAGE = """\
# Pre-training an ELMo

Made by `{command}`; do not edit. Forward and backward pass of rows of
{steps} words, words drawn by Zipf's law from {words:,}, words per second. The plain side is a loop of torch over the
same weights: each way by itself, characters of every word as often as it comes, all logits. Losses agree to {loss:.0e},
gradients to {gradient:.0e} of the largest. "Step" adds what training does with gradients, the same on both sides:
their norm is clipped and torch's fused AdamW updates the weights.

| size | rows | threads | ours | plain loop | ratio | range | reached (floor / target / stretch) |
|---|---|---|---|---|---|---|---|
{rows}

{order} {machine}.
"""


def plain_layer(layer: ProjectedLSTMs, hidden: Tensor, rows: int) -> Tensor:
    """Return a layer's output for rows of equal length, (rows * steps, 2 size); the backward input is not reversed."""
    sides = []
    for way, vectors in enumerate(hidden.view(rows, -1, 2, layer.size).unbind(2)):
        by_input, by_h = layer.weight[way].chunk(2, 1)
        inputs = F.linear(vectors, by_input, layer.bias[way, 0])
        h, c = vectors.new_zeros(rows, layer.size), vectors.new_zeros(rows, layer.cell_size)
        found = []
        for step in inputs.unbind(1):
            i, f, o, g = (step + F.linear(h, by_h)).chunk(4, 1)
            c = (f.sigmoid() * c + i.sigmoid() * g.tanh()).clamp(-layer.clips[0], layer.clips[0])
            h = F.linear(o.sigmoid() * c.tanh(), layer.projection[way]).clamp(-layer.clips[1], layer.clips[1])
            found.append(h)
        sides.append(torch.stack(found, 1))
    output = torch.cat(sides, 2).view_as(hidden)
    return output + hidden if layer.adds_input else output


def plain_loss(model: EncoderWithHeads, batch: BothWaysBatch) -> Tensor:
    """Return the loss of a batch, computed by the plain loop."""
    encoder, sides = model.encoder, []
    for words in (batch.token_ids, batch.backward_ids):
        ids, lengths = batch.spelling.spelled(words)
        characters = encoder.spelled(torch.from_numpy(ids), SequenceLayout.from_lengths(lengths))[0]
        sides.append(encoder.embeddings.characters(characters))
    hidden = torch.cat(sides, 1)
    for layer in encoder.layers:
        hidden = plain_layer(layer, hidden, batch.num_sequences)
    labels = torch.from_numpy(np.concatenate([batch.mlm_labels, batch.backward_labels]))
    return F.cross_entropy(model.heads["bilm"](torch.cat(hidden.chunk(2, 1))), labels, reduction="sum")


def our_loss(model: EncoderWithHeads, batch: BothWaysBatch) -> Tensor:
    """Return the loss of a batch, computed as in training."""
    return OBJECTIVE.loss_sums(model, with_carry(batch, OBJECTIVE, model, None))["bilm"]


def our_layers(model: EncoderWithHeads, hidden: Tensor, rows: int) -> Tensor:
    """Return a scalar to differentiate: the sum of the recurrent layers' last output."""
    layout = SequenceLayout.from_lengths(np.full(rows, len(hidden) // rows))
    past = [Kept(state) for state in OBJECTIVE.first_carry(model, rows)]
    return model.encoder.encode_words(hidden, layout, past, is_reversed=True)[-1].sum()


def plain_layers(model: EncoderWithHeads, hidden: Tensor, rows: int) -> Tensor:
    """Return the same sum, computed by the plain loop."""
    for layer in model.encoder.layers:
        hidden = plain_layer(layer, hidden, rows)
    return hidden.sum()


def some_batch(rows: int) -> BothWaysBatch:
    """Return a batch of words whose frequencies follow Zipf's law."""
    rng = np.random.default_rng(0)
    names = ["".join(rng.choice([*"etaoinshrdlu"], rng.integers(2, 11))) + str(number) for number in range(NUM_WORDS)]
    weights = 1.0 / np.arange(1, NUM_WORDS + 1)
    words = len(SPECIAL_TOKENS) + rng.choice(NUM_WORDS, (2, rows, STEPS + 1), p=weights / weights.sum())
    ids, labels = words[:, :, :-1].reshape(2, -1), words[:, :, 1:].reshape(2, -1)
    lengths, places = np.full(rows, STEPS), np.arange(rows * STEPS)
    return BothWaysBatch(
        ids[0], np.zeros_like(ids[0]), lengths, places, labels[0], None,
        backward_ids=ids[1], backward_labels=labels[1], spelling=Spelling.of(Vocabulary([*SPECIAL_TOKENS, *names])),
    )  # fmt: skip


def seconds(
    model: EncoderWithHeads, loss: Callable[..., Tensor], *inputs: Any, least: float, optimizer: Optimizer | None = None
) -> float:
    """Return the mean seconds of one forward and backward pass or, with an optimiser, step, over `least` seconds."""
    started, number = time.perf_counter(), 0
    while time.perf_counter() - started < least:
        model.zero_grad()
        loss(model, *inputs).backward()
        if optimizer is not None:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        number += 1
    return (time.perf_counter() - started) / number


def gradients(model: EncoderWithHeads, loss: Callable[..., Tensor], *inputs: Any) -> tuple[float, Tensor]:
    """Return the loss and all gradients, concatenated."""
    model.zero_grad()
    value = loss(model, *inputs)
    value.backward()
    return float(value.detach()), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini"])
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each side in a round")
    parser.add_argument("--results", type=Path, default=None, help="write PATH.md and PATH.json")
    options = parser.parse_args()
    row, found, errors = ARCHITECTURES["elmo"], [], []
    for size in options.sizes:
        config = row.config_type.of_size(
            size, row.sizes, vocab_size=NUM_WORDS + len(SPECIAL_TOKENS), hidden_dropout_prob=0.0
        )
        model = build_model(config, ("bilm",), seed=0).train()
        for rows in options.rows:
            batch, hidden = some_batch(rows), torch.randn(rows * STEPS, config.hidden_size)
            (ours, one), (plain, other) = (gradients(model, loss, batch) for loss in (our_loss, plain_loss))
            errors.append((abs(ours - plain) / plain, float((one - other).abs().max() / other.abs().max())))
            for threads in options.threads:
                torch.set_num_threads(threads)
                for part, inputs, sides in (
                    ("step", (batch,), (our_loss, plain_loss)),
                    ("forward and backward", (batch,), (our_loss, plain_loss)),
                    ("recurrent layers", (hidden, rows), (our_layers, plain_layers)),
                ):
                    rates: dict[str, list[float]] = {side.__name__: [] for side in sides}
                    optimizer = AdamW(model.parameters(), lr=1e-6, fused=True) if part == "step" else None
                    quiet_load()  # before the first round: the rounds themselves raise the load
                    for number in range(options.rounds):
                        for side in in_turn(sides, number):
                            with kept_memory():  # as in training
                                took = seconds(model, side, *inputs, least=options.seconds, optimizer=optimizer)
                            rates[side.__name__].append(rows * STEPS / took)
                    about = {"size": size, "part": part, "rows": rows, "threads": threads, "rates": [*rates.values()]}
                    found.append(about)
                    print(_cells(about), flush=True)
    if options.results:
        options.results.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        page = _PAGE.format(
            command=shlex.join(["python", "benchmarks/elmo_speed.py", *sys.argv[1:]]),
            steps=STEPS,
            words=NUM_WORDS,
            loss=max(loss for loss, _ in errors),
            gradient=max(gradient for _, gradient in errors),
            rows="\n".join(map(_cells, found)),
            order=order_said(options.rounds),
            machine=processor(),
        )
        options.results.with_suffix(".md").write_text(page, encoding="utf-8")


def _cells(about: dict[str, Any]) -> str:
    ours, plain = about["rates"]
    ratios = [one / other for one, other in zip(ours, plain, strict=True)]
    ratio = statistics.median(ratios)
    cells = [f"{about['size']}, {about['part']}", about["rows"], about["threads"]]
    cells += [f"{statistics.median(ours):,.0f}", f"{statistics.median(plain):,.0f}", f"{ratio:.2f}"]
    cells += [f"{min(ratios):.2f} to {max(ratios):.2f}", reached(ratio, AIMS)]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
