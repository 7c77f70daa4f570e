"""The page and the figures of `pretraining_step.py`."""

from __future__ import annotations

import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rounds import KEEPING, KEEPING_SAID, order_said, reached
from surroundings import processor, versions, write_results

OURS, SHIPPED, PREDICTED = "maskloom", "transformers", "transformers, predicted positions"
KEPT = f"{PREDICTED}{KEEPING}"
NUM_PROFILED = 3
# Targets as (floor, target, stretch): the ratio over the peer as shipped and over the peer that only scores predicted
# positions, the share of the GEMM peak in percent, and our memory as a fraction of the shipped peer's. For a mix of
# lengths, which the peer pads, the first ratio is multiplied by these factors.
RATIOS = {"tiny": (4.5, 6.0, 9.0), "mini": (3.0, 3.5, 4.5), "small": (2.2, 2.5, 2.8), "base": (1.3, 1.5, 1.6)}
MIXED_FACTORS = (1.7, 2.0, 2.5)
RATIOS_TO_PREDICTED = {
    "128": {"tiny": (1.6, 2.0, 2.5), "mini": (1.5, 1.8, 2.2), "small": (1.3, 1.5, 1.7), "base": (1.3, 1.4, 1.5)},
    "mixed": {"tiny": (2.6, 3.2, 4.0), "mini": (2.2, 2.8, 3.4), "small": (2.2, 2.6, 3.0), "base": (2.2, 2.5, 2.8)},
}
SHARES = {"tiny": (40, 55, 65), "mini": (55, 65, 75), "base": (65, 75, 85)}
MEMORY = {"tiny": (0.35, 0.2, 0.12), "mini": (0.45, 0.3, 0.2), "base": (0.75, 0.6, 0.5)}


@dataclass(frozen=True)
class Result:
    """The measurements at one size and mix of lengths; rates are real tokens per second by side, one per round."""

    size: str
    mix: str
    batch_size: int
    real_share: float
    loss_difference: float
    gradient_difference: float
    gemm_peak: float
    flops_per_token: float
    products_share: float
    rates: dict[str, list[float]]
    processor_seconds: dict[str, list[float]]
    memory: dict[str, float]

    def ratios(self, side: str, *, of: str = OURS) -> list[float]:
        """The rate of the side `of`, ours by default, divided by the rate of `side` in each round."""
        return [ours / peer for ours, peer in zip(self.rates[of], self.rates[side], strict=True)]

    def processor_ratio(self, side: str) -> float:
        """The median over rounds of a side's processor seconds divided by ours."""
        pairs = zip(self.processor_seconds[side], self.processor_seconds[OURS], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def aims(self, side: str) -> tuple[float, ...] | None:
        """Floor, target and stretch of the ratio to a side, None where there are no targets."""
        if side in (PREDICTED, KEPT):
            return RATIOS_TO_PREDICTED.get(self.mix, {}).get(self.size)
        factors = MIXED_FACTORS if self.mix == "mixed" else (1.0, 1.0, 1.0)
        return tuple(aim * factor for aim, factor in zip(RATIOS[self.size], factors, strict=True))

    def share_of_peak(self, side: str) -> float:
        """Useful floating-point work (real tokens, predicted positions only) as a share of the measured GEMM peak."""
        return statistics.median(self.rates[side]) * self.flops_per_token / self.gemm_peak


def write_report(path: Path, results: list[Result], *, text: str, command: str, load: float, num_threads: int) -> None:
    """Write PATH.md, and PATH.json with every figure, and print the page."""
    page = _page(results, text, command, load, num_threads)
    content = {
        "command": command,
        "machine": processor(),
        "versions": versions("transformers"),
        "load": load,
        "summary": summary_rows(results),
        "results": [asdict(result) for result in results],
    }
    write_results(path, content, page)
    print(page)


def summary_rows(results: list[Result]) -> list[dict[str, str]]:
    """Return the rows of the README's table: against the peer as shipped, and against it in its best plain form."""
    names = {"128": "rows of 128 tokens", "512": "rows of 512 tokens", "mixed": "mixed lengths up to 128"}
    besides = {
        SHIPPED: "transformers' BertForPreTraining as shipped",
        PREDICTED: "the same, with the MLM head on predicted positions only",
        KEPT: "as before, keeping memory",
    }
    rows = []
    for mix in dict.fromkeys(result.mix for result in results):
        chosen = [result for result in results if result.mix == mix]
        sizes = " / ".join(result.size for result in chosen)
        for side, beside in besides.items():
            if any(side not in result.rates for result in chosen):  # measured before there was this side
                continue
            digits = 1 if side == SHIPPED else 2
            ratios = " / ".join(f"{statistics.median(result.ratios(side)):.{digits}f}" for result in chosen)
            rows.append(
                {
                    "job": f"pre-training step, {sizes}, {names[mix]}",
                    "beside": beside,
                    "result": f"{ratios} times the tokens per second",
                }
            )
    return rows


def _page(results: list[Result], text: str, command: str, load: float, num_threads: int) -> str:
    import transformers

    num_rounds = len(results[0].rates[OURS])
    lines = [
        "# Pre-training step: maskloom against transformers",
        "",
        f"Generated by `{command}`; do not edit.",
        "",
        f"- Machine: {processor()} ({torch.backends.cpu.get_cpu_capability()}), {num_threads} threads, fp32; "
        f"Python {platform.python_version()}, torch {torch.__version__} ({_blas()}), "
        f"transformers {transformers.__version__}.",
        f"- Load average before the start, of all programs: {load:.1f}.",
        f"- Text: {text}; vocabulary: BERT's uncased 30,522 pieces; dropout 0.1, 15% of tokens masked.",
        "- Lengths *128* and *512*: articles joined to long documents, so that nearly all rows are full; the peer pads "
        "to the longest of the batch. *mixed*: articles, each cut for a target length between 2 and 128 tokens; the "
        "peer pads to 128, as pre-training does.",
        "- *maskloom*: the training loop with AdamW, clipping and dropout, reading and masking of its batches "
        "included. *MKL*, *oneDNN*: the same with the library that it does not use on this processor "
        "(`MASKLOOM_PRODUCTS`).",
        "- *transformers*: `BertForPreTraining` as shipped (sdpa, labels -100 at positions that are not predicted), "
        "with fused AdamW, clipping and dropout; its padded tensors are ready before the clock starts. *Predicted "
        "positions*: three lines of user code select them before `model.cls`. *oneDNN*, where maskloom uses it: its "
        "linear layers replaced by ours, as torch itself offers oneDNN's fp32 products only for inference, so that "
        "both sides multiply with the same library.",
        f"- {KEEPING_SAID}",
        f"- Rates are real tokens per second, medians over {order_said(num_rounds)} A ratio is the median of the "
        "rounds' ratios with its range. The target reached is the one that the lower end of the range reaches.",
        "- The fraction of GEMM peak counts useful work only: real tokens, predicted positions, backward twice "
        "forward, against a 2048-cube matrix product measured in the same rounds, by MKL or oneDNN, whichever is "
        "faster here. *In products*: the fraction of our step's time spent in matrix products, by torch's profiler, "
        f"median of {NUM_PROFILED} steps; the fraction of the peak that they reach is the limit for these shapes.",
        "- The ratio by processor time is that of the seconds of all threads, which other programs disturb least.",
        "- Memory is what two steps add to the loaded weights, in a separate process.",
        "",
        *_rates(results),
        *_ratios(results),
        *_limits(results),
    ]
    return "\n".join(lines) + "\n"


def _rates(results: list[Result]) -> list[str]:
    sides = list(results[0].rates)
    lines = ["## Tokens per second", "", f"| size | lengths | {' | '.join(sides)} |", "|---" * (2 + len(sides)) + "|"]
    for r in results:
        rates = " | ".join(f"{statistics.median(r.rates[side]):,.0f}" for side in sides)
        lines.append(f"| {r.size} | {r.mix} | {rates} |")
    return [*lines, ""]


def _ratios(results: list[Result]) -> list[str]:
    """Return the table of our ratios to every other side, and of the ratio with MKL on both sides."""
    lines = ["## maskloom compared with", ""]
    lines += ["| size | lengths | side | ratio | range | reached (floor / target / stretch) | by processor time |"]
    lines += ["|---" * 7 + "|"]
    for r in results:
        for side in list(r.rates)[1:]:
            ratios = r.ratios(side)
            level = reached(min(ratios), r.aims(side) if side in (SHIPPED, PREDICTED, KEPT) else None)
            lines.append(
                f"| {r.size} | {r.mix} | {side} | **{statistics.median(ratios):.2f}x** "
                f"| {min(ratios):.2f}-{max(ratios):.2f} | {level} | {r.processor_ratio(side):.2f}x |"
            )
        if any(side.startswith("maskloom, ") for side in r.rates):  # a processor on which there is a choice
            ratios = r.ratios(PREDICTED, of="maskloom, MKL" if "maskloom, MKL" in r.rates else OURS)
            lines.append(
                f"| {r.size} | {r.mix} | MKL on both sides: {PREDICTED} | **{statistics.median(ratios):.2f}x** "
                f"| {min(ratios):.2f}-{max(ratios):.2f} | - | - |"
            )
    return [*lines, ""]


def _limits(results: list[Result]) -> list[str]:
    lines = ["## Limits, memory, agreement", ""]
    lines += [
        "| size | lengths | sequences | real tokens per padded | GEMM peak GFLOP/s | ours of peak | reached "
        "| in products, at | peer of peak, shipped / predicted | GiB ours / shipped / predicted "
        "| ours of shipped, reached | loss, gradient difference |"
    ]
    lines += ["|---" * 12 + "|"]
    for r in results:
        share, memory = r.share_of_peak(OURS), r.memory[OURS] / r.memory[SHIPPED]
        aims = SHARES.get(r.size) if r.mix != "mixed" else None
        lines.append(
            f"| {r.size} | {r.mix} | {r.batch_size} | {r.real_share:.2f} | {r.gemm_peak / 1e9:.0f} | {share:.0%} "
            f"| {reached(100 * share, aims)} | {r.products_share:.0%}, {share / r.products_share:.0%} "
            f"| {r.share_of_peak(SHIPPED):.0%} / {r.share_of_peak(PREDICTED):.0%} "
            f"| {r.memory[OURS]:.2f} / {r.memory[SHIPPED]:.2f} / {r.memory[PREDICTED]:.2f} "
            f"| {memory:.2f}, {reached(memory, MEMORY.get(r.size), smaller=True)} "
            f"| {r.loss_difference:.0e}, {r.gradient_difference:.0e} |"
        )
    return lines


def _blas() -> str:
    """Return the names of the available matrix-product libraries."""
    libraries = ["MKL"] if torch.backends.mkl.is_available() else []
    return " and ".join([*libraries, *(["oneDNN"] if torch.backends.mkldnn.is_available() else [])]) or "no MKL"
