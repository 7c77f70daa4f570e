"""Time sequence-to-sequence training and decoding against transformers and torch, in turn, on Multi30k.

Training: our loop, including batching, against transformers' BartForConditionalGeneration (a BART with the same
weights) and torch's nn.Transformer (a Transformer of the same sizes), both with fused AdamW and gradient clipping, as
shipped and keeping memory as we do. All sides read the same batches of natural lengths, grouped by length, so that the
peers pad little; their tensors are created beforehand. Rates are source and target tokens per second, without padding.
Each side is a separate process. Before timing, the losses of our BART and of transformers' must agree without dropout.

Decoding: beam size 4, targets of 24 tokens, batches of sources with different lengths, our BART against transformers'
generate with its cache; both must produce the same tokens. Rates are target tokens per second.

    python benchmarks/seq2seq_speed.py [--jobs train decode] [--sizes 128 256 512] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpt_speed import LEVELS, NUM_THREADS, PEAK_SAID, PEERS, made_by, peer_step, shares_of_peak, write_files
from pretraining_step import gemm_peak
from rounds import KEEPING, KEEPING_SAID, in_turn, memory_of, order_said, quiet_load, rates_of_processes, reached
from surroundings import data_folder, noted
from torch import nn

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.data.batch import SourceTargetBatch
from maskloom.generation.search import Generation
from maskloom.layers.processor.onednn import pack_for_inference
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig
from maskloom.models.transformer_config import TransformerConfig
from maskloom.objectives.sequence_to_sequence import SequenceToSequence
from maskloom.runs.corpus import train_vocabulary_from_files
from maskloom.system.devices import chosen_device
from maskloom.tasks.encoding import ShuffledBatches
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.settings import Seq2SeqSettings
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.loop import accumulate_gradients, train_steps
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

LAYERS, BATCH = {128: 2, 256: 4, 512: 6}, {128: 64, 256: 64, 512: 32}
STEPS, WARM_UP = {128: 16, 256: 8, 512: 3}, {128: 60, 256: 30, 512: 8}  # by then memory and kernels are ready
TRAINING_AIMS = {128: (1.5, 2.0, 2.5), 256: (1.5, 2.0, 2.5), 512: (1.1, 1.3, 1.5)}
DECODING_AIMS = {256: (1.5, 2.0, 3.0), 512: (1.1, 1.3, 1.6)}
PAD, BEGIN, END = 0, 2, 3  # special-token ids of a vocabulary trained here
NUM_TOKENS, BEAM = 24, 4
BART, PEER_BART = "maskloom, BART", "transformers, BART"
TRANSFORMER, PEER_TRANSFORMER = "maskloom, Transformer", "torch, nn.Transformer"
PAIRS = {BART: PEER_BART, TRANSFORMER: PEER_TRANSFORMER}


def main() -> None:
    """Run the requested measurements and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="*", default=["train", "decode"], choices=["train", "decode"])
    parser.add_argument("--sizes", nargs="*", type=int, default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("seq2seq_speed"))
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    if options.side:
        name, folder, size = options.side
        training_side(name, Path(folder), int(size))
        return
    load, results = quiet_load(), []
    with tempfile.TemporaryDirectory() as folder:
        make_vocabulary(Path(folder))
        for size in options.sizes if "train" in options.jobs else ():
            results += train(Path(folder), size, options.rounds)
            print(results[-4:], flush=True)
        for size in (size for size in options.sizes if "decode" in options.jobs and size in DECODING_AIMS):
            results += [decode(Path(folder), size, number, options.rounds) for number in (8, 32)]
            print(results[-2:], flush=True)
    figures = {"load": load, "rounds": options.rounds, "results": results, "summary": summary_rows(results)}
    write_files(options.out, page, PEERS, **figures)


def make_vocabulary(folder: Path) -> None:
    """Train the joint vocabulary of both languages."""
    texts = [data_folder() / "family" / "multi30k" / f"train.{language}" for language in ("de", "en")]
    train_vocabulary_from_files(texts, VocabularySettings(6000, lowercase=False), out=folder / "vocab")


def batches_of(folder: Path, size: int) -> ShuffledBatches:
    """Return the batches that all sides read."""
    kind, settings = task_kind("seq2seq"), Seq2SeqSettings(target_suffix="en", decoder_start=END)
    read = kind.read(data_folder() / "family" / "multi30k" / "train.de", ReadingOptions(), settings)
    encoded = kind.make((), None, settings).encode(read, Tokenizer.load(folder / "vocab"), 128, for_training=True)
    return ShuffledBatches(encoded, BATCH[size], 0, group_by_length=True)


def bart(folder: Path, size: int) -> BartConfig:
    """Return the configuration of a BART with the given width."""
    vocabulary = Tokenizer.load(folder / "vocab").vocabulary
    return BartConfig(
        vocab_size=len(vocabulary),
        hidden_size=size,
        num_hidden_layers=LAYERS[size],
        num_attention_heads=size // 64,
        intermediate_size=4 * size,
        max_position_embeddings=256,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=None,
    )


def transformer(folder: Path, size: int) -> TransformerConfig:
    """Return the configuration of a Transformer with the given width."""
    return TransformerConfig(
        vocab_size=len(Tokenizer.load(folder / "vocab").vocabulary),
        hidden_size=size,
        num_hidden_layers=LAYERS[size],
        num_attention_heads=size // 64,
        intermediate_size=4 * size,
        attention_probs_dropout_prob=0.1,
    )


def train(folder: Path, size: int, rounds: int) -> list[dict[str, Any]]:
    """Return tokens per second of every side at a width, each side in a separate process."""
    place = folder / f"bart-{size}"
    model = build_model(bart(folder, size), ("decoder",), seed=0)
    save_model(model, place)
    batches = batches_of(folder, size)
    difference = check_losses(model, place, batches.next_batch({})[0])
    pairs = [(ours, peer + how) for ours, peer in PAIRS.items() for how in ("", KEEPING)]
    names, peaks = dict.fromkeys(name for pair in pairs for name in pair), list[float]()
    given = dict.fromkeys(names, (str(folder), str(size)))
    rates = rates_of_processes(given, rounds, before_each=lambda: peaks.append(gemm_peak()))
    what = f"training, d {size}, {LAYERS[size]} layers, {BATCH[size]} pairs"
    limits = {"peak": statistics.median(peaks), "flops": useful_flops(bart(folder, size), batches)}
    return [
        {"what": what, "aims": TRAINING_AIMS[size], "ours": ours, "peer": peer, "difference": difference, **limits}
        | {"steps": STEPS[size], "warm_up": WARM_UP[size]}
        | {"rates": [rates[ours], rates[peer]]}
        for ours, peer in pairs
    ]


def useful_flops(config: BartConfig, batches: ShuffledBatches) -> float:
    """Return the operations that training needs per source or target token: backward is twice forward."""
    hidden, layers, total, tokens = config.hidden_size, config.num_hidden_layers, 0.0, 0
    for number in range(50):
        batch = batches.data.batch(batches.indices(number))
        source, target = batch.lengths.astype(float), batch.target_lengths.astype(float)
        # the encoder's layers, keys and values of cross-attention; the decoder's other products; scores; vocabulary
        total += layers * hidden**2 * (28 * source.sum() + 28 * target.sum())
        total += 4 * layers * hidden * (source @ source + target @ target / 2 + source @ target)
        total += 2 * hidden * config.vocab_size * target.sum()
        tokens += int(source.sum() + target.sum())
    return 3.0 * total / tokens


def check_losses(model: Any, place: Path, batch: SourceTargetBatch) -> float:
    """Return the difference of both BARTs' losses without dropout; raises SystemExit when it is above 1e-4."""
    from transformers import BartForConditionalGeneration

    peer = BartForConditionalGeneration.from_pretrained(place).eval()
    ours = accumulate_gradients(model.eval(), SequenceToSequence(), batch, None)["seq2seq"]
    with torch.no_grad():
        theirs = float(peer(**padded(batch)).loss)
    if (difference := abs(ours - theirs)) > 1e-4:
        raise SystemExit(f"the losses differ: {ours} and {theirs}")
    return difference


def padded(batch: SourceTargetBatch) -> dict[str, torch.Tensor]:
    """Return a batch as padded tensors under transformers' names."""
    assert batch.labels is not None

    def rows(ids: Any, lengths: Any, fill: int) -> torch.Tensor:
        parts = torch.from_numpy(ids).split(lengths.tolist())
        return nn.utils.rnn.pad_sequence([part.long() for part in parts], batch_first=True, padding_value=fill)

    sources = rows(batch.token_ids, batch.lengths, PAD)
    mask = torch.arange(sources.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
    return {
        "input_ids": sources,
        "attention_mask": mask.long(),
        "decoder_input_ids": rows(batch.target_ids, batch.target_lengths, PAD),
        "labels": rows(batch.labels, batch.target_lengths, -100),
    }


def training_side(name: str, folder: Path, size: int) -> None:
    """For every line of standard input, print the tokens per second of a few steps."""
    chosen_device("cpu")  # as in every command
    batches = batches_of(folder, size)
    settings = TrainingSection(steps=10**6, batch_size=BATCH[size], learning_rate=1e-4, num_threads=NUM_THREADS)
    if name in PAIRS:
        place, config = folder / f"bart-{size}", transformer(folder, size)
        model = load_model(place)[0] if name == BART else build_model(config, ("decoder",), seed=0)
        state = TrainState.fresh(model, settings)
        steps = train_steps(state, SequenceToSequence(0.1), batches.next_batch, settings=settings, seed=0)
        step: Callable[[Any], Any] = lambda _: next(steps)  # noqa: E731
    else:
        step = peer_step(*peer_and_loss(name.removesuffix(KEEPING), folder, size))
    position: dict[str, int] = {}

    def rate(num_steps: int) -> float:
        nonlocal position
        number, inputs = 0, []
        for _ in range(num_steps):
            batch, position = batches.next_batch(position)
            number += len(batch.token_ids) + len(batch.target_ids)
            inputs.append(padded(batch))
        started = time.perf_counter()
        for tensors in inputs:
            step(tensors)
        return number / (time.perf_counter() - started)

    with memory_of(name):
        rate(WARM_UP[size])
        for _ in sys.stdin:
            print(rate(STEPS[size]), flush=True)


def peer_and_loss(name: str, folder: Path, size: int) -> tuple[Any, Callable[[Any], torch.Tensor]]:
    """Return a peer and its loss on padded tensors, with label smoothing in its usual form."""
    from transformers import BartForConditionalGeneration

    if name == PEER_BART:
        place = folder / f"bart-{size}"
        peer: Any = BartForConditionalGeneration.from_pretrained(place, attn_implementation="sdpa")
    else:
        peer = TorchTransformer(transformer(folder, size))

    def loss(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = tensors["labels"]
        given = {key: value for key, value in tensors.items() if key != "labels"}
        logits = peer(**given).logits if name == PEER_BART else peer(**given)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)

    return peer, loss


class TorchTransformer(nn.Module):
    """torch's nn.Transformer with three-way tied embeddings and learned positions."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.word, self.position = nn.Embedding(config.vocab_size, size), nn.Embedding(256, size)
        self.dropout, self.scale = nn.Dropout(config.hidden_dropout_prob), size**0.5
        layers = {"num_encoder_layers": config.num_hidden_layers, "num_decoder_layers": config.num_hidden_layers}
        how = {"dim_feedforward": config.intermediate_size, "dropout": 0.1, "batch_first": True}
        self.stacks = nn.Transformer(size, config.num_attention_heads, **layers, **how)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return logits (batch, target, vocabulary)."""
        padding, length = attention_mask == 0, decoder_input_ids.shape[1]
        vectors = self.stacks(
            self.embedded(input_ids),
            self.embedded(decoder_input_ids),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return vectors @ self.word.weight.T

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the input vectors."""
        return self.dropout(self.word(ids) * self.scale + self.position.weight[: ids.shape[1]])


def decode(folder: Path, size: int, number: int, rounds: int) -> dict[str, Any]:
    """Return tokens per second of both sides at a width and a number of sources."""
    from transformers import BartForConditionalGeneration

    place = folder / f"decoding-{size}"
    config = bart(folder, size).model_copy(update={"initializer_range": 0.1})  # prevents ties between candidates
    model = build_model(config, ("decoder",), seed=0).eval()
    save_model(model, place)
    pack_for_inference(model, decodes=True)  # as in maskloom.load
    peer = BartForConditionalGeneration.from_pretrained(place, attn_implementation="sdpa").eval()
    batches = batches_of(folder, size)
    batch = batches.data.batch(np.arange(number))  # in file order, with different lengths
    objective = SequenceToSequence(generation=Generation(NUM_TOKENS, beam=BEAM, min_tokens=NUM_TOKENS))
    given = {key: value for key, value in padded(batch).items() if key in ("input_ids", "attention_mask")}
    begin = batch.marks[0, :-1].tolist()
    prefix = torch.tensor([begin]).expand(number, -1)
    how = {"do_sample": False, "num_beams": BEAM, "decoder_input_ids": prefix, "min_new_tokens": NUM_TOKENS}

    def ours() -> list[list[int]]:
        return [text.token_ids for text in objective.found(model, batch)]

    def theirs() -> list[list[int]]:
        with torch.inference_mode():
            return peer.generate(**given, **how, max_new_tokens=NUM_TOKENS)[:, len(begin) :].tolist()

    same = sum(a == b for one, other in zip(ours(), theirs(), strict=True) for a, b in zip(one, other, strict=True))
    rates: list[list[float]] = [[], []]
    for number_of_round in range(rounds):
        for place_in_rates, run in in_turn([(0, ours), (1, theirs)], number_of_round):
            started = time.perf_counter()
            run()
            rates[place_in_rates].append(number * NUM_TOKENS / (time.perf_counter() - started))
    what = f"decoding, d {size}, {LAYERS[size]} layers, {number} sources"
    found = {"what": what, "aims": DECODING_AIMS[size], "ours": BART, "peer": "transformers, generate"}
    return {**found, "rates": rates, "equal_tokens": same / (number * NUM_TOKENS)}


def summary_rows(results: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for result in results:
        kind, size, *_, last = result["what"].split(", ")
        beside = result["peer"] if kind == "training" else f"{result['peer']}, beam {BEAM}, {last}"
        job = f"{result['ours'].partition(', ')[2]} {kind}"
        ratio = statistics.median(a / b for a, b in zip(*result["rates"], strict=True))
        rows.setdefault((job, beside), []).append((size.removeprefix("d "), f"{ratio:.2f}"))
    return [
        {
            "job": f"{job}, width {' / '.join(size for size, _ in found)}",
            "beside": beside,
            "result": f"{' / '.join(ratio for _, ratio in found)} times the tokens per second",
        }
        for (job, beside), found in rows.items()
    ]


def page(content: dict[str, Any]) -> str:
    """Return the page of stored figures as Markdown."""
    results = content["results"]
    has_peak = any("peak" in result for result in results)
    lines = [
        "# Sequence to sequence: training and decoding",
        "",
        f"{order_said(content['rounds'])} Tokens per second, median of the rounds; ratio of ours to the peer with its "
        "range. Multi30k, German to English, one WordPiece vocabulary for both languages.",
        "",
        *compared(results),
        *([KEEPING_SAID, ""] if any(result["peer"].endswith(KEEPING) for result in results) else []),
        *noted(content),
        *([PEAK_SAID, ""] if has_peak else []),
        f"| job | ours | tokens/s | peer | tokens/s | ratio | {LEVELS} |{' of peak |' if has_peak else ''}",
        "|---" * (7 + has_peak) + "|",
    ]
    for result in results:
        ours, peer = result["rates"]
        ratios = [a / b for a, b in zip(ours, peer, strict=True)]
        middle = statistics.median(ratios)
        share = f" {shares_of_peak(result, ours, peer)} |" if has_peak else ""
        lines.append(
            f"| {result['what']} | {result['ours']} | {statistics.median(ours):,.0f} | {result['peer']} | "
            f"{statistics.median(peer):,.0f} | {middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | "
            f"{reached(middle, result['aims'])} |{share}"
        )
    if differences := [result["difference"] for result in results if "difference" in result]:
        lines += ["", f"Before timing, the losses of both BARTs differ by at most {max(differences):.1e} nats."]
    if equal := [f"{100 * result['equal_tokens']:.0f}%" for result in results if "equal_tokens" in result]:
        lines += ["", f"Decoded tokens that are equal on both sides, row by row: {', '.join(equal)}."]
    return "\n".join([*lines, *made_by(content)])


def rounds_said(results: list[dict[str, Any]]) -> str:
    """Say how many steps a round takes, and how many come before the first; earlier figures do not have them."""
    steps = {result["what"].split(", ")[1]: result for result in results if "steps" in result}
    if not steps:
        return ""
    timed, before = (" / ".join(str(each[key]) for each in steps.values()) for key in ("steps", "warm_up"))
    return f" A round takes {timed} steps ({' / '.join(steps)}), after {before} that are not timed."


def compared(results: list[dict[str, Any]]) -> list[str]:
    """Return a paragraph on each job of the page: what both sides do."""
    jobs, lines = {result["what"].partition(",")[0] for result in results}, []
    if "training" in jobs:
        lines += [
            "Training: all sides read the same batches, grouped by length, and train with a label smoothing of 0.1; "
            "tokens are those of sources and targets, without padding. The peers are transformers' "
            "`BartForConditionalGeneration` with sdpa and the same weights, and torch's `nn.Transformer` with the same "
            "sizes, both with fused AdamW and gradient clipping; their padded tensors are ready before the clock "
            f"starts, while ours includes batching.{rounds_said(results)}",
            "",
        ]
    if "decoding" in jobs:
        lines += [
            f"Decoding: {NUM_TOKENS} tokens for each source with beam {BEAM}, by a BART with random weights; sources "
            "in the file's order, with different lengths. The peer is transformers' `generate` with its cache and "
            "sdpa.",
            "",
        ]
    return lines


if __name__ == "__main__":
    main()
