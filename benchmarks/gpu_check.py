"""GPU checks: tests, BERT steps against transformers' fastest setup, embedding, bf16 against fp32, several devices.

`make gpu-check` runs it and writes gpu.md and gpu.json. Steps are those of the training loop, on random tokens. The
peer is BertForPreTraining with sdpa and its head on the predicted positions, eager and compiled, under the same
autocast. The losses of all sides must agree before timing.

    python benchmarks/gpu_check.py [--parts tests steps embedding curve ranks] [--rounds 5]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from child_processes import first_of_ranks
from full_rows import full_rows
from gpu_check_report import page
from rounds import MIN_ROUNDS, in_turn
from step_sides import Ours, Peer
from surroundings import processor, versions, write_results

from maskloom.checkpoints.huggingface import save_model
from maskloom.data.batch import PretrainingBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.system.devices import chosen_device, describe_device
from maskloom.training.loop import train_steps
from maskloom.training.precision import in_precision
from maskloom.training.ranks.ranks import Ranks, joined_ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("tests", "embedding", "curve", "ranks", "steps")  # the longest last
# Size, rows per step, length, and whether lengths are mixed; the peer then pads rows to the length.
CASES = (
    ("base", 256, 128, False),
    ("base", 64, 512, False),
    ("base", 256, 128, True),
    ("large", 32, 512, False),
)
CURVE_EVERY = 20
_WARM_UP = 2
KINDS_OF_RANKS = ("ddp", "fsdp")


@dataclass(frozen=True)
class Extent:
    """The extent of the measurement: cases, steps, the vocabulary, texts to embed, and sizes and steps of the rest."""

    cases: tuple[tuple[str, int, int, bool], ...] = CASES
    steps: int = 10
    vocab_size: int = 30_522
    product: int = 8192
    texts: int = 8192
    curve: tuple[str, int] = ("mini", 400)
    ranks: str = "base"
    compiles: bool = True


TRIAL = Extent((("tiny", 4, 32, False), ("tiny", 4, 32, True)), 2, 2000, 256, 16, ("tiny", 20), "tiny", False)


def main() -> None:
    """Run the requested parts, and write the page of all parts that have figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("gpu"))
    parser.add_argument("--trial", action="store_true", help="tiny models on any device, to try the script itself")
    parser.add_argument("--rank", choices=KINDS_OF_RANKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    extent = TRIAL if options.trial else Extent()
    if options.rank:
        print(json.dumps(_trained_by_ranks(options.rank, extent)))
        return
    device = chosen_device()
    if device.type != "cuda" and not options.trial:
        raise SystemExit(f"no CUDA device here: torch {torch.__version__} finds {device}")
    place = options.results.with_suffix(".json")
    about = {"device": describe_device(device), "processor": processor(), "rounds": options.rounds}
    about["versions"] = versions("transformers", "sentence-transformers")
    figures = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    if any(figures.get(name) != value for name, value in about.items()):
        figures = about  # the page names one machine, one set of versions and one number of rounds
    figures["load"] = os.getloadavg()[0]
    figures["peak"] = product_rate(device, extent.product)

    def steps() -> list[dict[str, Any]]:
        """Measure every case, and store each result immediately."""
        figures["steps"] = []
        figures.pop("note", None)  # about the steps that were stored
        for case in extent.cases:
            figures["steps"].append(measure_steps(device, extent, case, options.rounds))
            write_results(place, figures, page(figures))
        return figures["steps"]

    parts: dict[str, Callable[[], Any]] = {
        "tests": run_tests,
        "steps": steps,
        "embedding": lambda: measure_embedding(device, extent.texts, options.rounds),
        "curve": lambda: {name: curve(device, name, *extent.curve) for name in ("fp32", "bf16")},
        "ranks": lambda: measure_ranks(device, extent),
    }
    for name in options.parts:
        print(f"{name} ...", flush=True)
        figures[name] = parts[name]()
        write_results(place, figures, page(figures))


def run_tests() -> str:
    """Run the tests that require a GPU, and return pytest's last line."""
    files = [str(path) for path in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in path.read_text("utf-8")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout[-4000:])
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"pytest ended with {done.returncode}"


def product_rate(device: torch.device, size: int) -> float:
    """Return the rate of a large bf16 matrix product in FLOP/s, as the practical peak of the device."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = math.inf
    for _ in range(6):
        started = now(device)
        for _ in range(10):
            left @ right
        best = min(best, (now(device) - started) / 10)
    return 2 * size**3 / best


def now(device: torch.device) -> float:
    """Return the time after all work queued on a device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def batches_of(
    extent: Extent, rows: int, length: int, number: int, *, is_mixed: bool, seed: int = 0
) -> list[PretrainingBatch]:
    """Return batches of full rows, or of rows of 1/8 to full length; 20 of 128 positions are predicted."""
    if not is_mixed:
        return [full_rows(rows, length, vocabulary=extent.vocab_size, seed=each) for each in range(number)]
    draw, found = np.random.default_rng(seed), []
    for _ in range(number):
        lengths = draw.integers(length // 8, length + 1, rows)
        starts = np.cumsum(lengths) - lengths
        predicted = np.maximum(1, np.round(0.15625 * lengths)).astype(np.int64)
        positions = [
            start + np.sort(draw.choice(size, number, replace=False))
            for start, size, number in zip(starts, lengths, predicted, strict=True)
        ]
        found.append(
            PretrainingBatch(
                token_ids=draw.integers(1000, extent.vocab_size, lengths.sum()),
                segment_ids=np.zeros(lengths.sum(), dtype=np.int64),
                lengths=lengths,
                mlm_positions=np.concatenate(positions),
                mlm_labels=draw.integers(1000, extent.vocab_size, predicted.sum()),
                nsp_labels=draw.integers(0, 2, rows),
            )
        )
    return found


def measure_steps(
    device: torch.device, extent: Extent, case: tuple[str, int, int, bool], rounds: int
) -> dict[str, Any]:
    """Time steps of all sides in turn; return tokens per second, peak memory and the first loss of each side.

    No batch is repeated and, after the first, sides have their own mixed lengths: one that prepares for each new number
    of tokens does so in nearly every step, as in a run.
    """
    size, rows, length, is_mixed = case
    config = BertConfig.of_size(size, vocab_size=extent.vocab_size)
    common = batches_of(extent, rows, length, 1, is_mixed=is_mixed)
    batches: dict[str, list[PretrainingBatch]] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_model(build_model(config, seed=0), folder)
        makers: dict[str, Callable[[list[PretrainingBatch]], Any]] = {
            "maskloom": lambda own: Ours(config, device, own, "bf16"),
            "maskloom, compiled blocks": lambda own: Ours(config, device, own, "bf16", compile_=True),
            "maskloom, recomputed blocks": lambda own: Ours(config, device, own, "bf16", recompute=True),
            "transformers": lambda own: Peer(Path(folder), device, own, "bf16"),
            "transformers, compiled": lambda own: Peer(Path(folder), device, own, "bf16", is_compiled=True),
        }
        if not extent.compiles:
            makers = {name: make for name, make in makers.items() if "compiled" not in name}
        sides, memory, first, problems = {}, {}, {}, {}
        for seed, (name, make) in enumerate(makers.items(), start=1):
            number = _WARM_UP - 1 + rounds * extent.steps
            batches[name] = common + batches_of(extent, rows, length, number, is_mixed=is_mixed, seed=seed)
            try:
                gc.collect()  # or the peak depends on what earlier sides have not yet freed
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
                side = make(batches[name])
                first[name], *_ = [side.step() for _ in range(_WARM_UP)]
                memory[name] = (torch.cuda.max_memory_allocated() - before) if device.type == "cuda" else 0
                sides[name] = side
            except Exception as error:  # the page reports a side that cannot run
                problems[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        worst = max(abs(loss / first["maskloom"] - 1) for loss in first.values())
        if worst > 2e-2:  # dropout is on, with different draws on each side
            raise SystemExit(f"{size}: first losses differ by {worst:.1%}: {first}")
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            start = _WARM_UP + number * extent.steps
            for name in in_turn(list(sides), number):
                num_tokens = sum(batch.num_tokens for batch in batches[name][start : start + extent.steps])
                started = now(device)
                for _ in range(extent.steps):
                    sides[name].step()
                rates[name].append(num_tokens / (now(device) - started))
            print(f"  {size} {length}{' mixed' if is_mixed else ''}, round {number + 1}: ", end="")
            print(", ".join(f"{name} {found[-1]:,.0f}" for name, found in rates.items()), flush=True)
    from pretraining_step import useful_flops

    about = {"size": size, "rows": rows, "length": length, "is_mixed": is_mixed}
    flops = useful_flops(config, batches["maskloom"])
    return about | {"rates": rates, "memory": memory, "losses": first, "problems": problems, "flops_per_token": flops}


def measure_embedding(device: torch.device, num_texts: int, rounds: int) -> dict[str, list[float]]:
    """Time embedding of sentences of 5 to 120 words by maskloom and by sentence-transformers in fp16."""
    from surroundings import minilm_folder

    import maskloom

    draw = np.random.default_rng(0)
    words = ["a", "model", "reads", "each", "text", "and", "gives", "one", "vector", "for", "all", "of", "them"]
    texts = [" ".join(draw.choice(words, size)) for size in draw.integers(5, 121, num_texts)]
    model = maskloom.load(minilm_folder(), device=str(device))
    runs: dict[str, Callable[[], Any]] = {"maskloom": lambda: model.encode(texts)}
    try:
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(str(minilm_folder()), device=str(device)).half()
        for size in (32, 256, 1024):
            runs[f"sentence-transformers, fp16, batches of {size}"] = partial(peer.encode, texts, batch_size=size)
    except ImportError:
        print("  sentence-transformers is not installed")
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for number in range(rounds):
        for name in in_turn(list(runs), number):
            started = now(device)
            runs[name]()
            rates[name].append(len(texts) / (now(device) - started))
    return rates


def curve(device: torch.device, precision: str, size: str, num_steps: int) -> list[float]:
    """Return the losses of a small BERT that learns 20 topics of 49 words: the words of a row are all of one topic."""
    model = build_model(BertConfig.of_size(size, vocab_size=5 + 20 * 49), seed=0).to(device)
    settings = TrainingSection(steps=num_steps, learning_rate=1e-3, warmup_ratio=0.1)

    def next_batch(at: dict[str, int]) -> tuple[PretrainingBatch, dict[str, int]]:
        draw, number = np.random.default_rng(at.get("n", 0)), at.get("n", 0)
        ids = 5 + 49 * draw.integers(0, 20, (64, 1)) + draw.integers(0, 49, (64, 64))
        labels = ids[:, ::8].copy()
        ids[:, ::8] = 4
        positions = np.arange(0, 64 * 64, 8)
        batch = PretrainingBatch(
            token_ids=ids.reshape(-1),
            segment_ids=np.zeros(ids.size, dtype=np.int64),
            lengths=np.full(64, 64),
            mlm_positions=positions,
            mlm_labels=labels.reshape(-1),
            nsp_labels=None,
        )
        return batch, {"n": number + 1}

    objective = in_precision(MaskedLanguageModeling(pair_part=None), precision, device)
    steps = train_steps(
        TrainState.fresh(model, settings), objective, next_batch, settings=settings, seed=0, ranks=Ranks(device)
    )
    return [report.loss for report in steps if report.step % CURVE_EVERY == 0]


def measure_ranks(device: torch.device, extent: Extent) -> dict[str, Any]:
    """Train with one rank per device, with DDP and FSDP, and return the rate and the last loss of each.

    A trial without GPUs uses two processes. Each kind runs in new processes, since a process joins a group only once.
    """
    num_ranks = torch.cuda.device_count() if device.type == "cuda" else 2
    if num_ranks < 2:
        return {"problem": "1 device: training on several is not measured here"}
    command = [sys.executable, __file__, *(["--trial"] if extent is TRIAL else []), "--rank"]
    starts = {kind: first_of_ranks([*command, kind], num_ranks=num_ranks, threads=1) for kind in KINDS_OF_RANKS}
    return {kind: json.loads(output.splitlines()[-1]) for kind, output in starts.items()}


def _trained_by_ranks(parallel: Literal["ddp", "fsdp"], extent: Extent) -> dict[str, Any]:
    with joined_ranks(parallel, limit=600.0) as ranks:
        settings = TrainingSection(steps=2 + extent.steps, learning_rate=1e-4, warmup_steps=0)
        model = build_model(BertConfig.of_size(extent.ranks, vocab_size=extent.vocab_size), seed=0)
        ranks.spread(model)
        objective = in_precision(MaskedLanguageModeling(), "bf16", ranks.device)
        _size, rows, length, _is_mixed = extent.cases[0]
        own = full_rows(min(rows, 64), length, vocabulary=extent.vocab_size, seed=ranks.rank)
        state = TrainState.fresh(model, settings)
        steps = train_steps(state, objective, lambda at: (own, at), settings=settings, seed=0, ranks=ranks)
        reports = list(steps)
    tokens = reports[-1].num_tokens * extent.steps / sum(report.seconds for report in reports[2:])
    places = {"device": str(ranks.device), "ranks": ranks.world_size}
    return {**places, "tokens_per_second": tokens, "loss": reports[-1].loss}


if __name__ == "__main__":
    main()
