"""The page of `embedding.py`, built from its figures."""

from __future__ import annotations

import statistics
from typing import Any

from rounds import order_said, reached

SIDES = {
    "ours": "maskloom fp32",
    "ours_bf16": "maskloom bf16",
    "ours_int8": "maskloom int8",
    "sentence_transformers": "sentence-transformers fp32, as shipped",
    "onnxruntime_given": "onnxruntime fp32, given order",
    "onnxruntime_sorted": "onnxruntime fp32, sorted",
    "onnxruntime_int8": "onnxruntime int8, sorted",
}
# Ours, the peer, then floor, target and stretch of the speed ratio.
AIMS = (
    ("ours", "sentence_transformers", (1.1, 1.3, 1.5)),
    ("ours", "onnxruntime_sorted", (0.9, 1.05, 1.2)),
    ("ours", "onnxruntime_given", None),
    ("ours_bf16", "sentence_transformers", None),
    ("ours_bf16", "onnxruntime_sorted", None),
    ("ours_bf16", "onnxruntime_int8", None),
    ("ours_int8", "sentence_transformers", (1.3, 1.7, 2.0)),
    ("ours_int8", "onnxruntime_int8", (0.7, 0.9, 1.05)),
    ("ours_int8", "ours", None),
)
# Ours, the peer, then floor, target and stretch of our milliseconds divided by the peer's.
LATENCY_AIMS = (
    ("ours", "transformers", (0.8, 0.6, 0.4)),
    ("ours_int8", "onnxruntime_int8", (2.5, 1.5, 1.1)),
)
_HIDDEN, _LAYERS = 384, 6


def page(figures: dict[str, Any]) -> str:
    """Return the Markdown page."""
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    rounds = figures["rounds"]
    lines = [
        "# Bulk embedding: maskloom, sentence-transformers and onnxruntime",
        "",
        f"Made by `{figures['command']}`; do not edit.",
        "",
        f"- Machine: {figures['processor']} ({figures['capability']}), {figures['threads']} threads; {versions}; load "
        f"before the start, from other programs: {figures['load']:.1f}.",
        "- Model: MiniLM-L6 (6 layers, 384 wide), mean of the tokens, length 1, at most 256 tokens. Text: sentences of "
        f"English Wikipedia; rounds with sentences of their own, about "
        f"{statistics.mean(row['tokens'] for row in rounds):,.0f} tokens each; {order_said(len(rounds))} "
        "Tokenizing is part of every side's time.",
        "- Peers: sentence-transformers as shipped (it sorts by length, batches of 32, padded); onnxruntime with its "
        "default optimisations on an export by torch.onnx, batches of 32 padded, in the given order and sorted by "
        "length; its int8 is dynamic quantisation with weights by channel.",
        f"- Before timing, every fp32 side gave the vectors of transformers to {max(figures['vectors'].values()):.0e}.",
        "- Share of GEMM peak counts the work on real tokens against a 2048-cube fp32 product in the same round. "
        "A ratio is the median of the rounds' ratios, with its range, and what it reaches is what the lower end "
        "reaches; by processor time it is that of all threads' "
        "seconds.",
        "",
        "| side | sentences' tokens/s | share of fp32 GEMM peak |",
        "|---|---|---|",
    ]
    for side, name in SIDES.items():
        rates = [row["tokens"] / row["sides"][side][0] for row in rounds]
        shares = [_flops(row) / row["sides"][side][0] / row["peak"] for row in rounds]
        lines.append(f"| {name} | {statistics.median(rates):,.0f} | {statistics.median(shares):.0%} |")
    lines += ["", "| ratio of speeds | median | range | by processor time | reached (floor / target / stretch) |"]
    lines += ["|---|---|---|---|---|"]
    for ours, peer, aim in AIMS:
        names = f"{SIDES[ours]} over {SIDES[peer]}"
        wall, busy = ([row["sides"][peer][k] / row["sides"][ours][k] for row in rounds] for k in (0, 1))
        lines.append(
            f"| {names} | **{statistics.median(wall):.2f}x** | {min(wall):.2f}-{max(wall):.2f} "
            f"| {statistics.median(busy):.2f}x | {reached(min(wall), aim)} |"
        )
    return (
        "\n".join([*lines, *_latency(figures["latency"]), *_quality(figures["quality"]), *_bulk(figures["bulk"])])
        + "\n"
    )


def summary_rows(figures: dict[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    rows = []
    for ours, name in (("ours", "fp32"), ("ours_bf16", "bf16"), ("ours_int8", "int8")):
        ratios = []
        if ours not in figures["rounds"][0]["sides"]:
            continue
        for peer in ("sentence_transformers", "onnxruntime_sorted", "onnxruntime_int8"):
            found = [row["sides"][peer][0] / row["sides"][ours][0] for row in figures["rounds"]]
            ratios.append(f"{statistics.median(found):.2f}")
        rows.append(
            {
                "job": f"sentence embeddings, MiniLM, {name}",
                "beside": "sentence-transformers / onnxruntime fp32 / onnxruntime int8, the last two on sorted batches",
                "result": f"{' / '.join(ratios)} times the sentences per second",
            }
        )
    latency = figures["latency"]
    parts = [f"{latency[ours][0] / latency[peer][0]:.2f}" for ours, peer, _ in LATENCY_AIMS]
    rows.append(
        {
            "job": "latency for one sentence, fp32 / int8",
            "beside": "transformers fp32 / onnxruntime int8",
            "result": f"{' / '.join(parts)} of its time",
        }
    )
    return rows


def _latency(latency: dict[str, list[float]]) -> list[str]:
    lines = ["", "## One sentence at a time", "", "| side | p50 ms | p95 ms |", "|---|---|---|"]
    names = {**SIDES, "transformers": "transformers fp32"}
    lines += [f"| {names[side]} | {p50:.1f} | {p95:.1f} |" for side, (p50, p95) in latency.items()]
    lines.append("")
    for ours, peer, aim in LATENCY_AIMS:
        ratio = latency[ours][0] / latency[peer][0]
        lines.append(
            f"- {names[ours]} takes **{ratio:.2f}** of the time of {names[peer]} (p50; "
            f"reached: {reached(ratio, aim, smaller=True)}, less is better)."
        )
    return lines


def _quality(quality: dict[str, dict[str, float]]) -> list[str]:
    lines = [
        "",
        "## What fewer bits cost",
        "",
        "Cosine to our fp32 vector of the same sentence; correlation of cosines with the scores of STS-B's dev set, in "
        "points. The bar: a mean cosine of at least 0.99, and both correlations within 0.5 point of fp32.",
        "",
        "| side | cosine, mean | minimum | below 0.99 | STS-B Pearson | Spearman |",
        "|---|---|---|---|---|---|",
    ]
    for side, row in quality.items():
        lines.append(
            f"| {SIDES[side]} | {row['cosine_mean']:.4f} | {row['cosine_minimum']:.4f} | {row['below_099']:.1%} "
            f"| {row['pearson']:.2f} | {row['spearman']:.2f} |"
        )
    return lines


def _bulk(bulk: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "## From file to file",
        "",
        "A process of its own, start and loading included; peak is its largest resident memory. Ours is "
        "`maskloom embed`, which streams; the peers hold all texts and vectors, as their interfaces have it.",
        "",
        "| side | sentences | seconds | sentences/s | peak MiB |",
        "|---|---|---|---|---|",
    ]
    for row in bulk:
        lines.append(
            f"| {SIDES[row['side']]} | {row['sentences']:,} | {row['seconds']:.1f} "
            f"| {row['sentences'] / row['seconds']:,.0f} | {row['peak_mib']:,.0f} |"
        )
    return lines


def _flops(row: dict[str, Any]) -> float:
    return _LAYERS * (24 * _HIDDEN**2 * row["tokens"] + 4 * _HIDDEN * row["squares"])
