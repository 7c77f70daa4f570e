"""The page and the figures of `pretraining_step.py`."""

from __future__ import annotations

import json
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from surroundings import processor

# What is aimed at: ratio over the peer as (floor, target, stretch), share of the GEMM peak in percent likewise, and the
# peer's memory of which ours may take that part. A mix of lengths, which the peer pads, multiplies the ratio.
RATIOS = {"tiny": (4.5, 6.0, 9.0), "mini": (3.0, 3.5, 4.5), "small": (2.2, 2.5, 2.8), "base": (1.3, 1.5, 1.6)}
MIXED_FACTORS = (1.7, 2.0, 2.5)
SHARES = {"tiny": (40, 55, 65), "mini": (55, 65, 75), "base": (65, 75, 85)}
MEMORY = {"tiny": (0.35, 0.2, 0.12), "mini": (0.45, 0.3, 0.2), "base": (0.75, 0.6, 0.5)}
_LEVELS = ("floor", "target", "stretch")


@dataclass(frozen=True)
class Result:
    """What was measured at one size and mix of lengths; rates are real tokens per second, a round each."""

    size: str
    mix: str
    batch_size: int
    real_share: float
    loss_difference: float
    gradient_difference: float
    gemm_peak: float
    flops_per_token: float
    products_share: float
    ours: list[float]
    peer: list[float]
    processor_ratio: float
    ours_memory: float
    peer_memory: float

    @property
    def ratios(self) -> list[float]:
        """Our rate over the peer's in each round."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def aims(self) -> tuple[float, ...]:
        """Floor, target and stretch of the ratio."""
        factors = MIXED_FACTORS if self.mix == "mixed" else (1.0, 1.0, 1.0)
        return tuple(aim * factor for aim, factor in zip(RATIOS[self.size], factors, strict=True))

    def share_of_peak(self, rates: list[float]) -> float:
        """Useful floating-point work (real tokens, predicted positions only) as a share of the measured GEMM peak."""
        return statistics.median(rates) * self.flops_per_token / self.gemm_peak


def reached(value: float, aims: tuple[float, ...] | None, *, smaller: bool = False) -> str:
    """Return the highest level that a value reaches, with all three aims."""
    if aims is None:
        return "-"
    met = [name for name, aim in zip(_LEVELS, aims, strict=True) if (value <= aim if smaller else value >= aim)]
    return f"{met[-1] if met else 'below floor'} ({' / '.join(f'{aim:.4g}' for aim in aims)})"


def write_report(path: Path, results: list[Result], *, text: str, command: str, load: float, num_threads: int) -> None:
    """Write PATH.md, and PATH.json with every figure, and print the page."""
    page = _page(results, text, command, load, num_threads)
    path.with_suffix(".md").write_text(page, encoding="utf-8")
    content = {
        "command": command,
        "machine": processor(),
        "load": load,
        "summary": summary_rows(results),
        "results": [asdict(result) for result in results],
    }
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(page)


def summary_rows(results: list[Result]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    names = {"128": "rows of 128 tokens", "512": "rows of 512 tokens", "mixed": "mixed lengths up to 128"}
    rows = []
    for mix in dict.fromkeys(result.mix for result in results):
        chosen = [result for result in results if result.mix == mix]
        sizes = " / ".join(result.size for result in chosen)
        ratios = " / ".join(f"{statistics.median(result.ratios):.1f}" for result in chosen)
        rows.append(
            {
                "job": f"pre-training step, {sizes}, {names[mix]}",
                "beside": "transformers' BertForPreTraining",
                "result": f"{ratios} times its tokens a second",
            }
        )
    return rows


def _page(results: list[Result], text: str, command: str, load: float, num_threads: int) -> str:
    import transformers

    lines = [
        "# Pre-training step: maskloom against transformers",
        "",
        f"Made by `{command}`; do not edit.",
        "",
        f"- Machine: {processor()} ({torch.backends.cpu.get_cpu_capability()}), {num_threads} threads, fp32; "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}.",
        f"- Text: {text}; vocabulary: BERT's uncased 30,522 pieces; dropout 0.1, masks of 15 %.",
        "- Lengths *128* and *512*: articles joined to long documents, so that nearly all rows are full; the peer pads "
        "to the longest of the batch. *mixed*: articles, each cut for a target length between 2 and 128 tokens; the "
        "peer pads to 128, as pre-training does.",
        "- Ours: the training loop with AdamW, clipping and dropout, reading and masking of its batches included.",
        "- Peer: `BertForPreTraining` as shipped (sdpa, labels -100 at positions that are not predicted), with fused "
        "AdamW, clipping and dropout; its padded tensors are ready before the clock starts.",
        "- Rates are real tokens per second, medians over rounds in turn (A B A B); the ratio is the median of the "
        "rounds' ratios with its range. It counts as reached what the lower end of the range reaches.",
        "- Share of GEMM peak counts useful work only: real tokens, predicted positions, backward twice forward, "
        "against a 2048-cube matrix product measured in the same rounds, by MKL or oneDNN, whichever is faster here. "
        "The peer's products go through MKL, as torch has it; ours through oneDNN where the processor has AVX-512 "
        "(`layers/matrix_products.py`), which counts most on processors that are not Intel's.",
        "- *In products*: the share of our step's time that passes inside matrix products, by torch's profiler in one "
        "step; what they reach of the peak there is the limit of these shapes. The rest goes over arrays in memory: "
        "softmax, dropout, GELU, norms, copies into the order of heads, the optimiser.",
        "- The ratio by processor time is that of the seconds of all threads, which other programs disturb least; load "
        f"before the start, from other programs: {load:.1f}.",
        "- Memory is what two steps add over the loaded weights, in a process of their own.",
        "",
        "| size | lengths | sequences | real share of padded | ours tok/s | peer tok/s | ratio | range "
        "| reached (floor / target / stretch) | by processor time | GEMM peak GFLOP/s | ours of peak | reached "
        "| in products, at | peer of peak | ours GiB | peer GiB | memory ratio, reached | loss, gradient difference |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        ratios, share, memory = r.ratios, r.share_of_peak(r.ours), r.ours_memory / r.peer_memory
        aims = SHARES.get(r.size) if r.mix != "mixed" else None
        lines.append(
            f"| {r.size} | {r.mix} | {r.batch_size} | {r.real_share:.2f} | {statistics.median(r.ours):,.0f} "
            f"| {statistics.median(r.peer):,.0f} | **{statistics.median(ratios):.2f}x** "
            f"| {min(ratios):.2f}-{max(ratios):.2f} | {reached(min(ratios), r.aims)} | {r.processor_ratio:.2f}x "
            f"| {r.gemm_peak / 1e9:.0f} | {share:.0%} | {reached(100 * share, aims)} "
            f"| {r.products_share:.0%}, {share / r.products_share:.0%} | {r.share_of_peak(r.peer):.0%} "
            f"| {r.ours_memory:.2f} | {r.peer_memory:.2f} "
            f"| {memory:.2f}, {reached(memory, MEMORY.get(r.size), smaller=True)} "
            f"| {r.loss_difference:.0e}, {r.gradient_difference:.0e} |"
        )
    return "\n".join(lines) + "\n"
