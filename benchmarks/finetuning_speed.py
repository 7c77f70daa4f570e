"""Time fine-tuning and prediction against transformers, in turn, in one process, on natural lengths.

Both sides start from the same weights (MiniLM with one new head) and see the same examples: the pairs of MRPC, a wide
mix of single texts, the texts of GoEmotions, the questions of SQuAD. Before timing, losses and logits must agree with
dropout off. The peers cover the Trainer's options: padding to the longest row of a batch in random order, padding to
the maximum length, and length-grouped batches. Memory is measured in separate processes.

    python benchmarks/finetuning_speed.py [--rounds 5] [--threads 2] [--tasks MRPC "Wide mix" GoEmotions "SQuAD v1.1"]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import finetuning_mixture
import numpy as np
import torch
from finetuning_peer import peer_kind
from finetuning_peer_span import read_questions
from finetuning_speed_report import MKL, PEERS, Job, Memory, Surroundings, write_report
from finetuning_speed_sides import TASKS, Ours, Peer, decisions, is_same, peer_inputs
from finetuning_tasks import some_questions, write_files
from pretraining_step import gemm_peak, memory_kib
from rounds import in_turn, quiet_load
from surroundings import data_folder, minilm_folder

from maskloom.layers.processor import onednn
from maskloom.system.freed_memory import release_free_memory

MEMORY_STEPS = 60
# As in a training session; the timed loop runs outside a session.
SECONDS_BETWEEN_RELEASES = 10.0


@dataclass(frozen=True)
class Setting:
    """The measurement on one data set: `num_train` rows to draw from, `num_predict` dev inputs per round.

    Memory is measured for the sides in `memory_sides`.
    """

    max_length: int
    batch_size: int
    batches_per_round: int
    num_train: int
    num_predict: int
    memory_sides: tuple[str, ...] = ()

    @property
    def size(self) -> dict[str, int]:
        """Return the maximum length and the batch size, which both sides share."""
        return {"max_length": self.max_length, "batch_size": self.batch_size}


SETTINGS = {
    "MRPC": Setting(128, 16, 8, 3600, 256),
    finetuning_mixture.NAME: Setting(128, 16, 8, 4096, 384, ("maskloom", "dynamic")),
    "GoEmotions": Setting(128, 16, 8, 4096, 384),
    "SQuAD v1.1": Setting(384, 8, 4, 1200, 64, ("maskloom", "dynamic", "padded")),
}


def measure(name: str, options: argparse.Namespace, folder: Path) -> tuple[list[Job], list[Memory]]:
    """Check agreement, then time fine-tuning and prediction on one data set."""
    setting = SETTINGS[name]
    train, dev = data_files(name, options.data, folder)
    ours = Ours(name, minilm_folder(), train, data=options.data, **setting.size)
    ours.save(folder / "start")
    by_mkl = Ours(name, minilm_folder(), train, data=options.data, **setting.size)  # its own loop over the same batches
    peer = Peer(name, folder / "start", train, **setting.size)
    if len(peer.features) != len(ours.data) or not all(
        is_same(ours, index, row) for index, row in enumerate(peer.features)
    ):
        raise SystemExit(f"{name}: the two sides do not make the same tokens and labels of the same rows")
    memory = [] if options.no_memory else [measure_memory(name, side, options, folder) for side in setting.memory_sides]
    agreed = agreement(ours, peer)
    flops = 3 * useful_flops(ours, ours.data.lengths)
    training = Job("fine-tuning", name, float(ours.data.lengths.mean()), flops, agreed)
    slots: dict[str, int] = dict.fromkeys(PEERS, 0)
    num_tokens = 0
    for number in range(options.rounds + 1):
        batches = ours.round(number, setting.batches_per_round)
        count = sum(map(len, batches))
        num_tokens += int(ours.data.lengths[np.concatenate(batches)].sum())
        training.peaks.append(gemm_peak())
        for side in in_turn(("maskloom", MKL, *PEERS), number):
            if side in ("maskloom", MKL):
                work = (by_mkl if side == MKL else ours).train
                training.note(
                    side, count, lambda batches=batches, side=side, work=work: by_library(side, work, batches)
                )
                continue
            rows, is_padded = order_of(side, batches, ours.data.lengths), side == "padded"
            slots[side] += peer.num_slots(rows, is_padded=is_padded)
            training.note(side, count, lambda rows=rows, full=is_padded: peer.train(rows, is_padded=full))
        training.say(number)
    training.slots_per_token = {
        "maskloom": 1.0,
        MKL: 1.0,
        **{side: number / num_tokens for side, number in slots.items()},
    }
    training.drop_first()
    ours.save(folder / "trained")
    peer = Peer(name, folder / "trained", train, **setting.size)
    return [training, measure_prediction(name, ours, peer, dev, options.rounds)], memory


def by_library(side: str, work: Callable[[Any], object], given: Any) -> None:
    """Run our code with the library that a run chooses for matrix products on this processor, or with MKL only."""
    with mock.patch.object(onednn, "_library", "mkl") if side == MKL else nullcontext():
        work(given)


def order_of(side: str, batches: list[np.ndarray], lengths: np.ndarray) -> list[np.ndarray]:
    """Return the examples of a round in a peer's batches: ours, or the same examples grouped by length."""
    if side != "grouped":
        return batches
    rows = np.concatenate(batches)
    return np.split(rows[np.argsort(lengths[rows], kind="stable")], len(batches))


def useful_flops(ours: Ours, lengths: np.ndarray) -> float:
    """Return the average floating-point operations per real token in the encoder's forward pass."""
    config = ours.model.encoder.config
    hidden, layers, num_tokens = config.hidden_size, config.num_hidden_layers, float(lengths.sum())
    return 24 * hidden**2 * layers + 4 * hidden * layers * float((lengths.astype(np.float64) ** 2).sum()) / num_tokens


def measure_memory(name: str, side: str, options: argparse.Namespace, folder: Path) -> Memory:
    """Return the peak memory of training steps by one side, measured in a child process."""
    command = [sys.executable, __file__, "--memory-of", side, "--tasks", name, "--within", str(folder)]
    command += ["--threads", str(options.threads), "--data", str(options.data)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    loaded, peak = map(int, done.stdout.split()[-2:])
    found = Memory(name, side, (peak - loaded) / 2**20, peak / 2**20)
    print(f"{name}, {side}: {MEMORY_STEPS} steps add {found.added:.2f} GiB, {found.peak:.2f} GiB in all", flush=True)
    return found


def print_memory(name: str, side: str, data: Path, folder: Path) -> None:
    """Do the work of `measure_memory` in the child process."""
    setting, train = SETTINGS[name], written_files(name, folder)[0]
    ours = Ours(name, minilm_folder(), train, data=data, **setting.size)
    batches = ours.round(0, MEMORY_STEPS)
    if side == "maskloom":
        loaded, released = memory_kib("VmRSS"), time.monotonic()
        for batch in batches:
            ours.train([batch])
            if time.monotonic() - released >= SECONDS_BETWEEN_RELEASES:
                release_free_memory()
                released = time.monotonic()
    else:
        del ours
        peer = Peer(name, folder / "start", train, **setting.size)
        loaded = memory_kib("VmRSS")
        peer.train(order_of(side, batches, 0), is_padded=side == "padded")
    print(loaded, memory_kib("VmHWM"))


def measure_prediction(name: str, ours: Ours, peer: Peer, dev: Path, num_rounds: int) -> Job:
    """Time prediction, including tokenising and decoding, from files that are read beforehand."""
    predictor = ours.predictor()
    examples = ours.read(dev)
    inputs, count = peer_inputs(name, examples, dev), len(examples.examples)

    def peer_predicts(side: str) -> Any:
        is_sorted = side == "grouped"
        return peer.predict(inputs, is_sorted=is_sorted, batch_size=32 if is_sorted else 8, is_padded=side == "padded")

    found, expected = decisions(predictor.predict_examples(examples)), peer_predicts("grouped")
    if isinstance(found, list):
        share = sum(a == b for a, b in zip(found, expected, strict=True)) / count
        agreed, is_bad = f"{share:.0%} of answers are the same text", share < 0.8
    else:
        gap = float(np.abs(found - expected).max())
        agreed, is_bad = f"probabilities within {gap:.0e}", gap > 1e-3
    if is_bad:
        raise SystemExit(f"{name}: the two sides predict differently: {agreed}")
    encoded = predictor.encoded(examples)
    job = Job("prediction", name, float(encoded.lengths.sum()) / count, useful_flops(ours, encoded.lengths), agreed)
    for number in range(num_rounds + 1):
        job.peaks.append(gemm_peak())
        for side in in_turn(("maskloom", MKL, *PEERS), number):
            if side in ("maskloom", MKL):
                job.note(side, count, lambda side=side: by_library(side, predictor.predict_examples, examples))
            else:
                job.note(side, count, lambda side=side: peer_predicts(side))
        job.say(number)
    job.drop_first()
    return job


def data_files(name: str, data: Path, folder: Path) -> tuple[Path, Path]:
    """Write the rows for training and for prediction."""
    setting = SETTINGS[name]
    train, dev = written_files(name, folder)
    if name == finetuning_mixture.NAME:
        return finetuning_mixture.write_mixture(data, train.parent, setting.num_train, setting.num_predict)
    if TASKS[name].kind != "span":
        return write_files(TASKS[name], data, train.parent, setting.num_train, setting.num_predict)
    train.parent.mkdir(parents=True, exist_ok=True)
    for source, target, count in (
        ("train-v1.1.part.json", train, setting.num_train),
        ("dev-v1.1.json", dev, setting.num_predict),
    ):
        content = json.loads((data / "qa" / "squad" / source).read_text(encoding="utf-8"))
        target.write_text(json.dumps(some_questions(content, count)), encoding="utf-8")
    keep_alike_questions(train, setting, data)
    return train, dev


def written_files(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the paths of a task's train and dev files."""
    suffix = ".json" if TASKS[name].kind == "span" else ".tsv"
    return folder / "data" / f"train{suffix}", folder / "data" / f"dev{suffix}"


def keep_alike_questions(path: Path, setting: Setting, data: Path) -> None:
    """Reduce a file to the questions that produce one window on both sides, with the same tokens and labels."""
    kind = peer_kind(TASKS["SQuAD v1.1"], minilm_folder(), setting.max_length)
    questions, features = read_questions(path), kind.training_features(path)
    owners = [questions[owner]["id"] for owner in kind.encoded(questions)["overflow_to_sample_mapping"]]
    theirs = {name: row for name, row in zip(owners, features, strict=True) if owners.count(name) == 1}
    ours = Ours("SQuAD v1.1", minilm_folder(), path, data=data, **setting.size)
    alike = set()
    for window, number in enumerate(ours.data.windows[:, 0]):
        name = ours.data.questions[number].id
        if name in theirs and (ours.data.windows[:, 0] == number).sum() == 1 and is_same(ours, window, theirs[name]):
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
    """Compare losses and logits of some rows without dropout, and return the differences as text."""
    rows = np.arange(16)
    (loss, logits), (their_loss, their_logits) = ours.loss_and_logits(rows), peer.loss_and_logits(rows)
    gap, logit_gap = abs(loss - their_loss), float(np.abs(logits - their_logits).max())
    if gap > 1e-4 or logit_gap > 1e-3:
        raise SystemExit(f"the two sides disagree: losses {loss} and {their_loss}, logits by {logit_gap:.1e}")
    return f"loss within {gap:.0e}, logits within {logit_gap:.0e}"


def main() -> None:
    """Parse the options, measure every data set and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each job (default 5)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-memory", action="store_true", help="leave memory unmeasured")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="page to write")
    parser.add_argument("--memory-of", choices=["maskloom", *PEERS], help=argparse.SUPPRESS)
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)  # of the tokenizers library
    if options.memory_of:
        return print_memory(options.tasks[0], options.memory_of, options.data, options.within)
    load = quiet_load()
    command = shlex.join(["python", "benchmarks/finetuning_speed.py", *sys.argv[1:]])
    around = Surroundings(command, options.threads, load, MEMORY_STEPS)
    jobs: list[Job] = []
    memory: list[Memory] = []
    page = ""
    for name in options.tasks:
        with tempfile.TemporaryDirectory() as folder:
            new_jobs, new_memory = measure(name, options, Path(folder))
        jobs, memory = jobs + new_jobs, memory + new_memory
        page = write_report(options.out, jobs, memory, around)
    print(page, flush=True)
    return None


if __name__ == "__main__":
    main()
