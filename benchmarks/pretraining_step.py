"""Time our pre-training step against the step of transformers' BertForPreTraining, in turn, in one process.

All sides start from the same weights and see the same pre-training batches of real text: full rows of 128 or 512
tokens, or a mix of lengths. Ours is the training loop itself, including drawing and masking the batch, once with its
default library for matrix products and, with AVX-512, once with the other. The peer is first the model as shipped (sdpa
attention, padding, vocabulary logits at every position with labels -100) with the optimiser and gradient clipping of
its Trainer. A second variant applies its head only to the predicted positions. If ours takes oneDNN, a third also uses
our linear layers, so that both sides multiply with the same library. Its padded tensors are created beforehand and are
not timed. `--compiled` adds the second variant with torch.compile.
Before timing, with dropout off, the losses and all gradients of every side must agree with ours.

    python benchmarks/pretraining_step.py [--sizes tiny mini small base] [--mixes 128 512 mixed] [--rounds 5]
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from pretraining_step_report import KEPT, NUM_PROFILED, OURS, PREDICTED, SHIPPED, Result, write_report
from rounds import in_turn, memory_of, quiet_load
from surroundings import minilm_folder, write_real_text
from torch import Tensor
from torch.nn.functional import cross_entropy

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.data.batch import PretrainingBatch
from maskloom.data.corpus.building import build_corpus
from maskloom.data.corpus.opening import Corpus
from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.layers.processor import onednn
from maskloom.layers.processor.matrix_products import Dense, product
from maskloom.layers.processor.onednn import library_of_products
from maskloom.models.assembled import EncoderWithHeads, build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.system.freed_memory import kept_memory
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.loop import accumulate_gradients, train_steps
from maskloom.training.optimizers import parameter_groups
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

SEED, NUM_THREADS = 0, 2
TEXT_BYTES = 6_000_000
SIZES = ("tiny", "mini", "small", "base")
STEPS_PER_ROUND = {"tiny": 2}
PRODUCTS = {"mkldnn::_linear_pointwise", "aten::bmm", "aten::mm", "aten::addmm", "aten::addmm_"}
SETTINGS = {"learning_rate": 1e-4, "warmup_steps": 0, "max_grad_norm": 1.0, "num_threads": NUM_THREADS}
# For full rows, articles are joined into documents of at least this number of characters.
_JOINED = 200_000
MEMORY_SIDES = (OURS, SHIPPED, PREDICTED)


@dataclass(frozen=True)
class Mix:
    """Sequence lengths: the maximum, the fraction of documents with shorter targets, and the peer's padding."""

    max_length: int
    max_predictions_per_seq: int
    short_seq_prob: float
    joins_articles: bool
    pads_to_maximum: bool
    batch_sizes: dict[str, int]


MIXES = {
    "128": Mix(128, 20, 0.1, True, False, {"tiny": 64, "mini": 32, "small": 16, "base": 8}),
    "512": Mix(512, 76, 0.1, True, False, {"tiny": 16, "mini": 8, "small": 4, "base": 2}),
    "mixed": Mix(128, 20, 1.0, False, True, {"tiny": 64, "mini": 32, "small": 16, "base": 8}),
}
# The library that a run chooses on this processor; if there is a choice, the other one is measured as well.
OWN_LIBRARY: Literal["onednn", "mkl"] = "onednn" if library_of_products().startswith("oneDNN") else "mkl"


class Ours:
    """maskloom's training loop, one step at a time, with matrix products by the given library."""

    def __init__(
        self,
        folder: Path,
        loader: Loader[PretrainingBatch],
        batch_size: int,
        library: Literal["onednn", "mkl"] = OWN_LIBRARY,
    ) -> None:
        self._library: Literal["onednn", "mkl"] = library
        self.model: EncoderWithHeads = load_model(folder)[0]
        self.objective = MaskedLanguageModeling()
        settings = TrainingSection(steps=1_000_000, batch_size=batch_size, **SETTINGS)
        self._state = TrainState.fresh(self.model, settings)
        self._steps = train_steps(self._state, self.objective, loader.next_batch, settings=settings, seed=SEED)

    def step(self, batch: PretrainingBatch) -> None:
        """Run the loop's next step; `batch` is the batch that it must read, as a check."""
        with kept_memory(), mock.patch.object(onednn, "_library", self._library):  # as in a run
            report = next(self._steps)
        assert report.num_tokens == batch.num_tokens, "the two sides do not see the same batches"

    def loss_and_gradients(self, batch: PretrainingBatch, folder: Path) -> tuple[float, dict[str, Tensor]]:
        """Return the loss without dropout, and the gradients under their published names."""
        from safetensors.torch import load_file

        self.model.eval()
        loss = sum(accumulate_gradients(self.model, self.objective, batch, None).values())
        gradients = copy.deepcopy(self.model)
        for ours, copied in zip(self.model.parameters(), gradients.parameters(), strict=True):
            assert ours.grad is not None
            copied.data = ours.grad
        save_model(gradients, folder)
        self.model.zero_grad()
        return loss, load_file(folder / "model.safetensors")


class Peer:
    """BertForPreTraining with its Trainer's optimiser (fused AdamW, the default in this release) and gradient clipping.

    `head` applies to every position, as shipped, or only to predicted ones. `linear` is torch's, or ours by oneDNN,
    which torch itself offers only for inference.
    """

    def __init__(
        self,
        folder: Path,
        head: Literal["every", "predicted"] = "every",
        linear: Literal["torch", "onednn"] = "torch",
        *,
        is_compiled: bool = False,
    ) -> None:
        from transformers import BertForPreTraining

        self._head = head
        self.model = BertForPreTraining.from_pretrained(folder, attn_implementation="sdpa")
        for module in self.model.modules() if linear == "onednn" else ():
            if type(module) is torch.nn.Linear:
                module.__class__ = _Rows
        self._body = torch.compile(self.model.bert) if is_compiled else self.model.bert
        groups = parameter_groups(self.model, 0.01)
        self._optimizer = torch.optim.AdamW(groups, lr=SETTINGS["learning_rate"], eps=1e-6, fused=True)

    def step(self, batch: dict[str, Tensor]) -> None:
        """Take one training step, as in its Trainer."""
        self.model.train()
        self._loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), SETTINGS["max_grad_norm"])
        self._optimizer.step()
        self.model.zero_grad()

    def loss_and_gradients(self, batch: dict[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
        """Return the loss without dropout, and the gradients by name."""
        self.model.eval()
        loss = self._loss(batch)
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad()
        return float(loss.detach()), gradients

    def _loss(self, batch: dict[str, Tensor]) -> Tensor:
        if self._head == "every":
            return self.model(**batch).loss
        labels = batch["labels"]
        inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
        found = self._body(**inputs)
        scores, relation = self.model.cls(found.last_hidden_state[labels != -100], found.pooler_output)
        return cross_entropy(scores, labels[labels != -100]) + cross_entropy(relation, batch["next_sentence_label"])


class _Rows(Dense):
    """Our linear layer for tensors with any number of dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the transformed rows in the input's shape."""
        return super().forward(input.flatten(0, -2)).view(*input.shape[:-1], -1)


def padded(batch: PretrainingBatch, mix: Mix) -> dict[str, Tensor]:
    """Convert a packed batch into the tensors for BertForPreTraining, padded according to the mix."""
    shape = (batch.num_sequences, padded_length(batch, mix))
    is_real = np.arange(shape[1])[None, :] < batch.lengths[:, None]
    ids, segments, labels = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, -100)
    packed_labels = np.full(batch.num_tokens, -100)
    packed_labels[batch.mlm_positions] = batch.mlm_labels
    ids[is_real], segments[is_real], labels[is_real] = batch.token_ids, batch.segment_ids, packed_labels
    arrays = {
        "input_ids": ids,
        "token_type_ids": segments,
        "attention_mask": is_real.astype(np.int64),
        "labels": labels,
        "next_sentence_label": batch.nsp_labels,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def padded_length(batch: PretrainingBatch, mix: Mix) -> int:
    """Return the length to which the peer's rows are padded: the maximum, or the longest row of the batch."""
    return mix.max_length if mix.pads_to_maximum else int(batch.lengths.max())


def gemm_peak() -> float:
    """Return the machine's current peak rate of fp32 matrix products in FLOP/s, over both of torch's libraries."""
    size, best = 2048, math.inf
    left, right = torch.rand(size, size), torch.rand(size, size)
    with mock.patch.object(onednn, "_library", "onednn"):
        for multiply in (torch.mm, product):
            for _ in range(8):
                started = time.perf_counter()
                multiply(left, right)
                best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def useful_flops(config: BertConfig, batches: list[PretrainingBatch]) -> float:
    """Return the useful floating-point operations of a training step per real token (backward is twice forward)."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    tokens = sum(batch.num_tokens for batch in batches)
    pairs = sum(int((batch.lengths**2).sum()) for batch in batches)
    predictions = sum(len(batch.mlm_labels) for batch in batches)
    body = 24 * hidden**2 * layers * tokens + 4 * hidden * layers * pairs
    return 3 * (body + 2 * (hidden**2 + hidden * config.vocab_size) * predictions) / tokens


def compare(ours: Ours, peer: Peer, batch: PretrainingBatch, mix: Mix, folder: Path) -> tuple[float, float]:
    """Return the difference in loss and the largest relative one in a gradient; raises SystemExit if too large."""
    loss, gradients = ours.loss_and_gradients(batch, folder / "gradients")
    peer_loss, peer_gradients = peer.loss_and_gradients(padded(batch, mix))
    scale = torch.stack([gradient.norm() for gradient in peer_gradients.values()]).norm()
    worst = 0.0
    for name, expected in peer_gradients.items():
        difference = (gradients[name] - expected).norm()
        worst = max(worst, float(difference / torch.maximum(expected.norm(), 1e-3 * scale)))
    if abs(loss - peer_loss) > 1e-4 or worst > 1e-3:
        raise SystemExit(f"the two sides disagree: losses {loss} and {peer_loss}, gradients by {worst:.1e} (relative)")
    return abs(loss - peer_loss), worst


def timed(side: Ours | Peer, batches: list[Any], num_tokens: int) -> tuple[float, float]:
    """Take a step on each batch; return real tokens per second and the processor seconds of all threads."""
    started, busy = time.perf_counter(), time.process_time()
    for batch in batches:
        side.step(batch)
    return num_tokens / (time.perf_counter() - started), time.process_time() - busy


def share_in_products(ours: Ours, batches: list[PretrainingBatch]) -> float:
    """Return the share of a step's time spent inside matrix products by torch's profiler, the median of all batches."""
    shares = []
    for batch in batches:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            started = time.perf_counter()
            ours.step(batch)
            seconds = time.perf_counter() - started
        busy = sum(event.self_cpu_time_total for event in profiler.key_averages() if event.key in PRODUCTS)
        shares.append(busy / 1e6 / seconds)
    return statistics.median(shares)


def make_sides(
    folder: Path, loader: Loader[PretrainingBatch], batch_size: int, *, with_compiled: bool
) -> dict[str, Ours | Peer]:
    """Return the sides of the comparison, by their names on the page."""
    sides: dict[str, Ours | Peer] = {OURS: Ours(folder, loader, batch_size)}
    if OWN_LIBRARY == "onednn":
        sides["maskloom, MKL"] = Ours(folder, loader, batch_size, "mkl")
    elif library_of_products().startswith("MKL"):
        sides["maskloom, oneDNN"] = Ours(folder, loader, batch_size, "onednn")
    sides |= {SHIPPED: Peer(folder), PREDICTED: Peer(folder, "predicted"), KEPT: Peer(folder, "predicted")}
    if OWN_LIBRARY == "onednn":  # elsewhere, our layers use the library that the peer uses anyway
        sides[f"{PREDICTED}, oneDNN"] = Peer(folder, "predicted", "onednn")
    if with_compiled:
        sides[f"{PREDICTED}, compiled"] = Peer(folder, "predicted", is_compiled=True)
    return sides


def measure(size: str, name: str, options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> Result:
    """Compare all sides at one size and mix, then time them in turn for the requested number of rounds."""
    mix, num_rounds = MIXES[name], options.rounds
    corpus = Corpus.open(corpus_folder(folder, mix))
    config = BertConfig.of_size(size, vocab_size=len(corpus.vocabulary))
    save_model(build_model(config, seed=SEED), folder / "model")
    loader = make_loader(corpus, mix, size)
    steps = STEPS_PER_ROUND.get(size, 1)
    batches: list[PretrainingBatch] = []
    position: dict[str, int] = {}
    for _ in range(steps * (num_rounds + 1) + NUM_PROFILED):
        batch, position = loader.next_batch(position)
        batches.append(batch)
    memory = {side: peak_memory(side, size, name, folder) for side in MEMORY_SIDES}
    sides = make_sides(folder / "model", loader, mix.batch_sizes[size], with_compiled=options.compiled)
    ours = sides[OURS]
    assert isinstance(ours, Ours)
    differences = [compare(ours, side, batches[0], mix, folder) for side in sides.values() if isinstance(side, Peer)]
    rates: dict[str, list[float]] = {side: [] for side in sides}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    peaks = []
    for number in range(num_rounds + 1):
        chosen = batches[number * steps : (number + 1) * steps]
        num_tokens = sum(batch.num_tokens for batch in chosen)
        tensors = [padded(batch, mix) for batch in chosen]
        peaks.append(gemm_peak())
        for side in in_turn(list(sides), number):
            runner = sides[side]
            with memory_of(side):
                rate, busy = timed(runner, chosen if isinstance(runner, Ours) else tensors, num_tokens)
            rates[side].append(rate)
            seconds[side].append(busy)
        say(f"  round {number}: " + ", ".join(f"{side} {found[-1]:.0f}" for side, found in rates.items()) + " tokens/s")
    slots = sum(batch.num_sequences * padded_length(batch, mix) for batch in batches)
    return Result(
        size=size,
        mix=name,
        batch_size=mix.batch_sizes[size],
        real_share=sum(batch.num_tokens for batch in batches) / slots,
        loss_difference=max(loss for loss, _ in differences),
        gradient_difference=max(gradient for _, gradient in differences),
        gemm_peak=statistics.median(peaks),
        flops_per_token=useful_flops(config, batches),
        products_share=share_in_products(ours, batches[-NUM_PROFILED:]),
        rates={side: found[1:] for side, found in rates.items()},  # the first round creates the optimiser's state
        processor_seconds={side: found[1:] for side, found in seconds.items()},
        memory=memory,
    )


def make_loader(corpus: Corpus, mix: Mix, size: str) -> Loader[PretrainingBatch]:
    """Return the loader of a mix."""
    return PRETRAINING["masked_lm"].loader(
        corpus,
        None,
        PretrainingData(
            max_length=mix.max_length,
            short_seq_prob=mix.short_seq_prob,
            max_predictions_per_seq=mix.max_predictions_per_seq,
        ),
        batch_size=mix.batch_sizes[size],
        seed=SEED,
    )


def corpus_folder(folder: Path, mix: Mix) -> Path:
    """Return the corpus folder of a mix."""
    return folder / ("joined" if mix.joins_articles else "articles")


def join_articles(source: Path, target: Path) -> None:
    """Copy text without most of the empty lines between articles, so that documents fill long sequences."""
    num_characters = 0
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as joined:
        for line in lines:
            num_characters += len(line)
            if line.strip() or num_characters >= _JOINED:
                joined.write(line)
            if not line.strip() and num_characters >= _JOINED:
                num_characters = 0


def peak_memory(side: str, size: str, mix: str, folder: Path) -> float:
    """Return the peak memory of two steps in a child process, in GiB on top of the loaded weights."""
    command = [sys.executable, __file__, "--memory-of", side, "--sizes", size, "--mixes", mix, "--within", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def print_memory(side: str, size: str, mix: Mix, folder: Path) -> None:
    """Do the work of `peak_memory` in the child process."""
    loader = make_loader(Corpus.open(corpus_folder(folder, mix)), mix, size)
    runner = (
        Ours(folder / "model", loader, mix.batch_sizes[size])
        if side == OURS
        else Peer(folder / "model", "predicted" if side == PREDICTED else "every")
    )
    loaded = memory_kib("VmRSS")
    position: dict[str, int] = {}
    for _ in range(2):
        batch, position = loader.next_batch(position)
        runner.step(batch if isinstance(runner, Ours) else padded(batch, mix))  # pyright: ignore[reportArgumentType]
    print((memory_kib("VmHWM") - loaded) / 2**20)


def memory_kib(key: str) -> int:
    """Return the resident memory of this process (VmRSS) or its peak (VmHWM); ru_maxrss would include the parent's."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(key))


def main() -> None:
    """Parse the options, measure every size and mix, and write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES), help="lengths of sequences")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each (default 5)")
    parser.add_argument("--compiled", action="store_true", help="also transformers' body with torch.compile")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(""), help="PATH.md and PATH.json")
    parser.add_argument("--memory-of", choices=MEMORY_SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.memory_of:
        return print_memory(options.memory_of, options.sizes[0], MIXES[options.mixes[0]], options.within)
    load = quiet_load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_real_text(folder / "articles.txt", TEXT_BYTES)
        join_articles(folder / "articles.txt", folder / "joined.txt")
        for kind in ("articles", "joined"):
            tokenizer = Tokenizer.load(minilm_folder())
            build_corpus([folder / f"{kind}.txt"], tokenizer=tokenizer, out=folder / kind)
        results = []
        for mix in options.mixes:
            for size in options.sizes:
                print(f"{size}, {mix}", flush=True)
                results.append(measure(size, mix, options, folder, lambda line: print(line, flush=True)))
    command = " ".join(["python benchmarks/pretraining_step.py", *sys.argv[1:]])
    write_report(options.out, results, text=text, command=command, load=load, num_threads=NUM_THREADS)
    return None


if __name__ == "__main__":
    main()
