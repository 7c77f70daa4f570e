"""Time the training of an LSTM classifier and an LSTM tagger against torch's LSTM on packed sequences, in turn.

The classifier uses max pooling over the tokens of MR's sentences; the tagger tags CoNLL-2003. Both sides have the same
sizes and initial weights, one bidirectional layer, fused AdamW and gradient clipping. They read the same shuffled
batches, with natural lengths. The peer embeds padded batches and packs them for nn.LSTM, as is common practice; its
tensors are created beforehand, while our loop creates its batches itself. Rates are tokens per second, without padding.
Each side is a separate process. Before timing, both losses must agree without dropout.

    python benchmarks/recurrent_speed.py [--tasks classifier tagger] [--sizes 128 300] [--rounds 7]
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from gpt_speed import NUM_THREADS, made_by, peer_step, write_files
from rounds import order_said, quiet_load, rates_of_processes
from surroundings import data_folder, film_reviews, noted
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from maskloom.data.batch import PackedBatch
from maskloom.models.assembled import EncoderWithHeads, build_model
from maskloom.models.recurrent_config import LstmConfig
from maskloom.runs.corpus import train_vocabulary_from_files
from maskloom.system.devices import chosen_device
from maskloom.system.freed_memory import kept_memory
from maskloom.tasks.encoding import ShuffledBatches
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.task import Task
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.loop import accumulate_gradients, train_steps
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

BATCH, STEPS, AIM, NOT_SCORED = 32, 30, 1.3, -100
KINDS = {"classifier": "single", "tagger": "tagging"}
TOLD = {
    "classifier": "the classifier pools the maximum over the tokens of MR's film reviews",
    "tagger": "the tagger tags CoNLL-2003",
}
SIZES = (128, 300)
OURS, PEER = "maskloom", "torch, packed"


def main() -> None:
    """Run the requested measurements and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("recurrent_speed"))
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    if options.side:
        name, task, folder, size = options.side
        training_side(name, task, Path(folder), int(size))
        return
    load, results = quiet_load(), []
    with tempfile.TemporaryDirectory() as folder:
        for task in options.tasks:
            write_texts(task, Path(folder))
            for size in options.sizes:
                results.append(measured(task, Path(folder), size, options.rounds))
                print(results[-1], flush=True)
    summary = [] if os.environ.get("MASKLOOM_BENCH_BUSY") else summary_rows(results)
    write_files(options.out, page, (), load=load, rounds=options.rounds, results=results, summary=summary)


def write_texts(task: str, folder: Path) -> None:
    """Write the training file of a task and train its vocabulary."""
    if task == "classifier":
        rows = film_reviews()
        with (folder / "classifier.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        texts = [text for text, _ in rows]
    else:
        source = (data_folder() / "conll2003" / "train.txt").read_text(encoding="utf-8")
        (folder / "tagger.txt").write_text(source, encoding="utf-8")
        texts = [" ".join(line.split(" ")[0] for line in part.splitlines()) for part in source.split("\n\n")]
    words = folder / f"{task}-words.txt"
    words.write_text("\n".join(texts) + "\n", encoding="utf-8")
    train_vocabulary_from_files([words], VocabularySettings(8000), out=folder / f"{task}-vocab")


def task_and_batches(task: str, folder: Path) -> tuple[Task, ShuffledBatches]:
    """Return a task and the batches that both sides read."""
    kind = task_kind(KINDS[task])
    path = next(folder.glob(f"{task}.*"))
    read = kind.read(path)
    made = kind.make(kind.label_names(read, ReadingOptions(), kind.settings()), None, kind.settings())
    encoded = made.encode(read, Tokenizer.load(folder / f"{task}-vocab"), 128, for_training=True)
    return made, ShuffledBatches(encoded, BATCH, 0)


def new_model(task: str, made: Task, folder: Path, size: int) -> EncoderWithHeads:
    """Return our model with the given width."""
    number = len(Tokenizer.load(folder / f"{task}-vocab").vocabulary)
    config = LstmConfig(vocab_size=number, hidden_size=size, num_hidden_layers=1, pooling="max")
    return build_model(config, made.heads, len(made.labels), seed=0)


class PackedLstm(nn.Module):
    """The same network in idiomatic torch, with the weights of ours."""

    def __init__(self, model: EncoderWithHeads, head: str) -> None:
        super().__init__()
        config, dense = model.config, cast(nn.Linear, model.heads[head].dense)
        size, self.pools = config.hidden_size, head == "classifier"
        self.word = nn.Embedding(config.vocab_size, size)
        self.lstm = nn.LSTM(size, size // 2, bidirectional=True, batch_first=True)
        self.dropout, self.dense = nn.Dropout(config.hidden_dropout_prob), nn.Linear(size, dense.out_features)
        layer: Any = model.encoder.layers[0]
        with torch.no_grad():
            self.word.weight.copy_(model.encoder.word_embeddings)
            self.dense.load_state_dict(dense.state_dict())
            for way, ending in ((layer.forwards, ""), (layer.backwards, "_reverse")):
                for name, value in way.named_parameters():
                    getattr(self.lstm, name + ending).copy_(value)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return logits, (batch, labels) or (batch, length, tags)."""
        packed = pack_padded_sequence(self.dropout(self.word(ids)), lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, padding_value=float("-inf") if self.pools else 0.0
        )
        return self.dense(self.dropout(outputs.amax(1) if self.pools else outputs))


def padded(batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids (batch, length), lengths (batch,) and labels (batch,) or (batch, length)."""

    def rows(values: Any, fill: int) -> Tensor:
        parts = torch.from_numpy(values).long().split(batch.lengths.tolist())
        return pad_sequence(list(parts), batch_first=True, padding_value=fill)

    labels = (
        torch.from_numpy(batch.labels) if len(batch.labels) == len(batch.lengths) else rows(batch.labels, NOT_SCORED)
    )
    return rows(batch.token_ids, 0), torch.from_numpy(batch.lengths), labels


def peer_loss(peer: PackedLstm, ids: Tensor, lengths: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of a batch."""
    return F.cross_entropy(peer(ids, lengths).flatten(0, -2), labels.flatten(), ignore_index=NOT_SCORED)


def measured(task: str, folder: Path, size: int, rounds: int) -> dict[str, Any]:
    """Return tokens per second of both sides at a width, each side in a separate process."""
    made, batches = task_and_batches(task, folder)
    model = new_model(task, made, folder, size).eval()
    peer = PackedLstm(model, made.heads[0]).eval()
    differences = []
    for number in range(3):
        batch = batches.next_batch({"batch": number})[0]
        ours = accumulate_gradients(model, made.objective, batch, None)[made.objective.name]
        differences.append(abs(ours - float(peer_loss(peer, *padded(batch)).detach())))
    if max(differences) > 1e-5:
        raise SystemExit(f"the losses of both sides differ by {max(differences)}")
    rates = rates_of_processes(dict.fromkeys((OURS, PEER), (task, str(folder), str(size))), rounds)
    lengths = batches.data.lengths
    return {
        "what": f"{task}, width {size}",
        "lengths": [float(lengths.mean()), int(lengths.max())],
        "difference": max(differences),
        "rates": rates,
    }


def training_side(name: str, task: str, folder: Path, size: int) -> None:
    """For every line of standard input, print the tokens per second of a few steps."""
    chosen_device("cpu")  # as in every command
    made, batches = task_and_batches(task, folder)
    model = new_model(task, made, folder, size)
    settings = TrainingSection(steps=10**6, batch_size=BATCH, learning_rate=1e-3, num_threads=NUM_THREADS)
    if name == OURS:
        state = TrainState.fresh(model, settings)
        steps = train_steps(state, made.objective, batches.next_batch, settings=settings, seed=0)
        step: Callable[[Any], Any] = lambda _: next(steps)  # noqa: E731
    else:
        peer = PackedLstm(model, made.heads[0])
        step = peer_step(peer, lambda tensors: peer_loss(peer, *tensors), 1e-3)
    position: dict[str, int] = {}
    with kept_memory():  # as in a run, for the peer too
        for _ in sys.stdin:
            read = list[PackedBatch]()
            for _ in range(STEPS):
                batch, position = batches.next_batch(position)
                read.append(batch)
            inputs, number = [padded(batch) for batch in read], sum(len(batch.token_ids) for batch in read)
            started = time.perf_counter()
            for tensors in inputs:
                step(tensors)
            print(number / (time.perf_counter() - started), flush=True)


def _ratios(result: dict[str, Any]) -> list[float]:
    return [a / b for a, b in zip(result["rates"][OURS], result["rates"][PEER], strict=True)]


def summary_rows(results: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for result in results:
        task, width = result["what"].split(", width ")
        rows.setdefault(task, []).append((width, f"{statistics.median(_ratios(result)):.2f}"))
    return [
        {
            "job": f"LSTM {task} training, width {' / '.join(width for width, _ in found)}",
            "beside": "torch's LSTM on packed sequences",
            "result": f"{' / '.join(ratio for _, ratio in found)} times the tokens per second",
        }
        for task, found in rows.items()
    ]


def page(content: dict[str, Any]) -> str:
    """Return the page of stored figures as Markdown."""
    results = content["results"]
    tasks = {result["what"].partition(",")[0] for result in results}
    lines = [
        "# LSTM classifier and tagger: training compared with torch's packed sequences",
        "",
        f"{order_said(content['rounds'])} Batches of {BATCH}. Tokens per second, median of the rounds; ratio with its "
        "range.",
        "",
        f"One bidirectional LSTM layer: {'; '.join(TOLD[task] for task in TOLD if task in tasks)}. The peer is torch's "
        "`nn.LSTM` on `pack_padded_sequence`, with the same initial weights and batches, fused AdamW and gradient "
        "clipping; its padded tensors are ready before the clock starts, while ours includes batching.",
        "",
        *noted(content),
        f"| model | tokens per text: mean, most | {OURS} | {PEER} | ratio | at least {AIM} |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        ratios, (mean, most) = _ratios(result), result["lengths"]
        middle = statistics.median(ratios)
        ours, peer = (statistics.median(result["rates"][name]) for name in (OURS, PEER))
        lines.append(
            f"| {result['what']} | {mean:.0f}, {most} | {ours:,.0f} | {peer:,.0f} | "
            f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | {'yes' if middle >= AIM else 'no'} |"
        )
    if not content["summary"]:
        lines += ["", "Other programs ran at the same time, so the README quotes nothing of this."]
    largest = max(result["difference"] for result in results)
    lines += ["", f"Before timing, the losses of both sides differ by at most {largest:.1e}."]
    return "\n".join([*lines, *made_by(content)])


if __name__ == "__main__":
    main()
