"""Compare BERT's pre-training, fine-tuning and embedding with an earlier commit, by running the commands of both.

    git clone . ../before && git -C ../before checkout a4a0852
    python benchmarks/earlier_commit.py --before ../before

Each side builds its own vocabulary and corpus from the same text, and its own models. Training rates are read from the
steps in events.jsonl, without the first two. For embedding, the rate is the number of texts divided by the
seconds of the command, minus the seconds of the same command with one text. The page is earlier_commit.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import processor, versions, write_real_text, write_results

SIDES = ("now", "before")
SIZES = ("tiny", "base")
# Steps of a run.
_STEPS = {"pretrain tiny": 60, "pretrain base": 9, "finetune tiny": 90, "finetune base": 9}
_ROWS = {"tiny": 64, "base": 8}
_TEXTS = {"tiny": 12_000, "base": 300}
_AIMS = (0.97, 0.97, 0.97)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier commit")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    options = parser.parse_args()
    places = {"now": Path(__file__).resolve().parents[1], "before": options.before.resolve()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = _write_texts(folder)
        for side in SIDES:
            _prepare(places[side], folder, side)
        load = quiet_load()
        rates: dict[str, dict[str, list[float]]] = {job: {side: [] for side in SIDES} for job in _jobs()}
        for number in range(options.rounds):
            for side in in_turn(SIDES, number):
                for job in rates:
                    rates[job][side].append(_rate(places[side], folder, side, job))
                    print(number, side, job, f"{rates[job][side][-1]:,.0f}", flush=True)
    revision = subprocess.run(
        ["git", "-C", str(places["before"]), "log", "-1", "--format=%h"], check=True, capture_output=True, text=True
    ).stdout.strip()
    machine = f"{processor()}, 2 threads; {versions()}"
    about = {"machine": machine, "load": load, "before": revision, "rounds": options.rounds, "text": text}
    about["steps"] = "all steps but the first two"
    figures = {**about, "rates": rates}
    target = Path(__file__)
    write_results(target, figures, page(figures))


def _jobs() -> list[str]:
    return [f"{job} {size}" for job in ("pretrain", "finetune", "embed") for size in SIZES]


def _maskloom(place: Path, *arguments: str | Path) -> float:
    """Run a command from a checkout; return its seconds."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "maskloom", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(place / "src")},
        cwd=place / "src",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{place}: maskloom {arguments[0]} failed:\n{done.stderr}")
    return time.perf_counter() - started


def _write_texts(folder: Path) -> str:
    """Write the input of both sides: running text, labelled lines and lines to embed; return the text's description."""
    name = write_real_text(folder / "text.txt", 4_000_000)
    lines = [line[:400] for line in (folder / "text.txt").read_text(encoding="utf-8").splitlines() if len(line) > 80]
    rows = "".join(f"{line.replace(chr(9), ' ')}\t{'even' if len(line) % 2 == 0 else 'odd'}\n" for line in lines)
    counts = {f"train-{size}": _STEPS[f"finetune {size}"] * _ROWS[size] for size in SIZES}
    for part, count in {**counts, "dev": 8}.items():
        taken = rows.splitlines(keepends=True)[:count]
        (folder / f"{part}.tsv").write_text("text\tlabel\n" + "".join(taken), encoding="utf-8")
    for size, number in _TEXTS.items():
        repeated = (lines * (1 + number // len(lines)))[:number]
        (folder / f"{size}.txt").write_text("\n".join(repeated) + "\n", encoding="utf-8")
    (folder / "one.txt").write_text(lines[0] + "\n", encoding="utf-8")
    return name


def _prepare(place: Path, folder: Path, side: str) -> None:
    """Build the vocabulary, the corpus, and a model of each size for a side."""
    vocab, corpus = folder / f"{side}-vocab", folder / f"{side}-corpus"
    _maskloom(place, "vocab", "train", folder / "text.txt", "--size", "8000", "--out", vocab)
    _maskloom(place, "corpus", "build", folder / "text.txt", "--vocab", vocab, "--out", corpus)
    for size in SIZES:
        out = folder / f"{side}-model-{size}"
        _maskloom(
            place, "pretrain", "--corpus", corpus, "--size", size, "--steps", "1", "--batch-size", "2", "--out", out
        )


def _rate(place: Path, folder: Path, side: str, job: str) -> float:
    """Return tokens per second of training, or texts per second of embedding."""
    kind, size = job.split(" ")
    out, model = folder / "run", folder / f"{side}-model-{size}"
    if kind == "embed":
        seconds = {
            name: _maskloom(
                place, "embed", "--model", model, "--input", folder / f"{name}.txt", "--output", out.with_suffix(".npy")
            )
            for name in (size, "one")
        }
        return _TEXTS[size] / (seconds[size] - seconds["one"])
    steps = _STEPS[job]
    shutil.rmtree(out, ignore_errors=True)
    settings = ("--set", "training.num_threads=2", "--set", "training.log_every=1")
    if kind == "pretrain":
        data = ("--corpus", folder / f"{side}-corpus", "--size", size, "--max-length", "128", "--steps", str(steps))
        once = ("evaluate_every", "save_every")  # only at the end, and with few instances
        for key, number in (*((key, steps) for key in once), ("max_evaluation_instances", 8)):
            settings += ("--set", f"training.{key}={number}")
    else:
        data = (
            "--model",
            model,
            "--train",
            folder / f"train-{size}.tsv",
            "--dev",
            folder / "dev.tsv",
            "--task",
            "single",
        )
        settings += ("--set", "training.epochs=1")
    _maskloom(place, kind, *data, "--batch-size", str(_ROWS[size]), "--out", out, *settings)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [event["tokens_per_second"] for event in events if event["event"] == "step"][2:]
    return len(found) / sum(1 / rate for rate in found)


def page(figures: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# BERT compared with an earlier commit",
        "",
        f"Generated by `python benchmarks/earlier_commit.py --before CHECKOUT --rounds {figures['rounds']}`. "
        f"{order_said(figures['rounds'])} Medians of tokens (embedding: texts) per second; ratio of now to before, "
        f"with the range of the rounds. A training rate is that of {figures['steps']}. Before: commit "
        f"{figures['before']}, the last with BERT alone. Text: {figures['text']}; rows of 128 ({_ROWS['tiny']} at "
        f"tiny, {_ROWS['base']} at base), a vocabulary of 8,000; texts of at most 400 characters.",
        "",
        "| job | now | before | ratio | reached |",
        "|---|---:|---:|---|---|",
    ]
    for job, sides in figures["rates"].items():
        ratios = [now / before for now, before in zip(sides["now"], sides["before"], strict=True)]
        lines.append(
            f"| {job} | {median(sides['now']):,.0f} | {median(sides['before']):,.0f} | {median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}) | {reached(median(ratios), _AIMS)} |"
        )
    return "\n".join([*lines, "", f"{figures['machine']}; load at the start {figures['load']:.2f}.", ""])


if __name__ == "__main__":
    main()
