"""Time the training of a vocabulary of 30,000 pieces from 20 and 200 MB of real text, ours against `tokenizers`.

Ours is the command `maskloom vocab train` with one and two processes (on 20 MB with both scores); the peer is a script
using `WordPieceTrainer` with one and two threads. Each training is a new process, timed from its start to its end.
Memory is the highest sum of resident memory over all its processes.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from child_processes import MEBIBYTE, Measured, measured
from real_text import write_mixed_text
from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import processor, write_results

from maskloom.runs.corpus import inspect_vocabulary

SIZE = 30_000
SMALL, LARGE = 20, 200
# our time divided by the peer's, both with two: floor, target, stretch
AIMS = {SMALL: (2.0, 1.0, 0.7), LARGE: (1.2, 0.8, 0.7)}
PEER = """
import sys
from pathlib import Path
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
text, size, out = sys.argv[1:]
tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
trainer = trainers.WordPieceTrainer(
    vocab_size=int(size), min_frequency=2, limit_alphabet=1000, special_tokens=specials, show_progress=False)
tokenizer.train([text], trainer)
Path(out).mkdir()
tokenizer.model.save(out)
"""


@dataclass
class Contestant:
    """One way to train on one text, and its measurements in each round."""

    side: str
    score: str
    workers: int
    megabytes: int
    runs: list[Measured] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    pieces_per_word: float | None = None

    def train(self, text: Path, out: Path) -> None:
        """Train once in a child process, and record the time, the memory and the result."""
        if self.side == "maskloom":
            options = ["--size", str(SIZE), "--out", str(out), "--score", self.score, "--workers", str(self.workers)]
            command = [sys.executable, "-m", "maskloom", "vocab", "train", str(text), *options]
        else:
            command = [sys.executable, "-c", PEER, str(text), str(SIZE), str(out)]
        self.runs.append(measured(command, {"RAYON_NUM_THREADS": str(self.workers)}))
        self.digests.add(hashlib.sha256((out / "vocab.txt").read_bytes()).hexdigest())
        if self.pieces_per_word is None and self.megabytes == SMALL:
            found = inspect_vocabulary(out, [text])
            assert found["size"] == SIZE, f"{found['size']} tokens instead of {SIZE}"
            self.pieces_per_word = found["coverage"]["pieces_per_word"]

    def summary(self) -> dict[str, Any]:
        """Return the medians, with the maximum of memory."""
        return {
            "side": self.side,
            "score": self.score,
            "processes": self.workers,
            "megabytes": self.megabytes,
            "rounds": len(self.runs),
            "seconds": statistics.median(run.seconds for run in self.runs),
            "processor": statistics.median(run.processor for run in self.runs),
            "mebibytes": max(run.peak for run in self.runs) / MEBIBYTE,
            "pieces_per_word": self.pieces_per_word,
        }


def contestants() -> list[Contestant]:
    """Return all contestants, ordered by text, with the peer after ours, so that rounds alternate."""
    found = []
    for megabytes in (SMALL, LARGE):
        for workers in (1, 2):
            found.append(Contestant("maskloom", "frequency", workers, megabytes))
            found.append(Contestant("tokenizers", "frequency", workers, megabytes))
            if megabytes == SMALL:
                found.append(Contestant("maskloom", "likelihood", workers, megabytes))
    return found


def compared(found: list[Contestant]) -> list[dict[str, Any]]:
    """Return our wall-clock and processor time divided by the peer's, with as many threads as we have processes."""
    rows = []
    sides = {(each.side, each.score, each.workers, each.megabytes): each.runs for each in found}
    for megabytes in (SMALL, LARGE):
        for workers in (1, 2):
            ours = sides["maskloom", "frequency", workers, megabytes]
            peer = sides["tokenizers", "frequency", workers, megabytes]
            by_clock = [own.seconds / other.seconds for own, other in zip(ours, peer, strict=True)]
            used = [own.processor / other.processor for own, other in zip(ours, peer, strict=True)]
            rows.append(
                {
                    "megabytes": megabytes,
                    "processes": workers,
                    "ratio": statistics.median(by_clock),
                    "lowest": min(by_clock),
                    "highest": max(by_clock),
                    "by_processor_time": statistics.median(used),
                    "aims": AIMS[megabytes],
                }
            )
    return rows


def summary_rows(ratios: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    found = {(row["megabytes"], row["processes"]): f"{row['ratio']:.2f}" for row in ratios}
    return [
        {
            "job": f"vocabulary of {SIZE:,} pieces from {megabytes} MB, 1 / 2 processes",
            "beside": "the tokenizers trainer, 1 / 2 threads",
            "result": f"{found[megabytes, 1]} / {found[megabytes, 2]} of its time",
        }
        for megabytes in (SMALL, LARGE)
    ]


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """Describe how time and memory of each side grow from the small to the large text."""
    found = []
    for side in ("maskloom", "tokenizers"):
        for workers in (1, 2):
            small, large = (
                next(
                    row
                    for row in rows
                    if (row["side"], row["score"], row["processes"], row["megabytes"])
                    == (side, "frequency", workers, size)
                )
                for size in (SMALL, LARGE)
            )
            seconds, memory = large["seconds"] / small["seconds"], large["mebibytes"] / small["mebibytes"]
            found.append(f"{side} with {workers}: {seconds:.1f} times the seconds, {memory:.1f} times the memory")
    return found


def report(result: dict[str, Any]) -> str:
    """Return the Markdown page of results."""
    lines = [
        f"# A vocabulary of {SIZE:,} pieces: maskloom against tokenizers",
        "",
        f"Generated by `{result['command']}`; do not edit.",
        "",
        f"- Machine: {result['machine']}; {result['versions']}. Load before the start, from other programs: "
        f"{result['load']:.1f}.",
        f"- Text: {result['text']}. The smaller text is made of the same kinds in the same proportions. Uncased, "
        "minimum frequency 2, at most 1,000 characters.",
        f"- Seconds are medians over {order_said(result['sides'][0]['rounds'])} They count from "
        "the start of the process to its end, reading included. Memory is the peak of all processes together; "
        "shared pages count for each.",
        "- Pieces per word are counted on the same text by `maskloom vocab inspect`. Our vocabularies were identical "
        "to the byte in every run and for any number of processes.",
        f"- Growth from {SMALL} to {LARGE} MB, ten times the text: {'; '.join(growth(result['sides']))}. What grows "
        "is the table of distinct words, which has a cap (`--max-distinct-words`).",
        "",
        "| MB | our processes, their threads | our time / the peer's | range | by processor time | "
        "reached (floor / target / stretch) |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["ratios"]:
        level = reached(row["highest"], row["aims"] if row["processes"] == 2 else None, smaller=True)
        lines.append(
            f"| {row['megabytes']} | {row['processes']} | **{row['ratio']:.2f}** | {row['lowest']:.2f}-"
            f"{row['highest']:.2f} | {row['by_processor_time']:.2f} | {level} |"
        )
    lines += [
        "",
        "| trainer | score | MB | processes | rounds | seconds | processor seconds | peak MiB | pieces per word |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["sides"]:
        pieces = "-" if row["pieces_per_word"] is None else f"{row['pieces_per_word']:.3f}"
        lines.append(
            f"| {row['side']} | {row['score']} | {row['megabytes']} | {row['processes']} | {row['rounds']} | "
            f"**{row['seconds']:.1f}** | {row['processor']:.1f} | {row['mebibytes']:.0f} | {pieces} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the options, measure in turn, and write the page."""
    parser = argparse.ArgumentParser(description="Time vocabulary training against tokenizers.")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, help="times that each training is run")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="page to write")
    options = parser.parse_args()
    load = quiet_load()
    found = contestants()
    with tempfile.TemporaryDirectory() as name:
        paths = {size: Path(name) / f"text-{size}.txt" for size in (SMALL, LARGE)}
        texts = {size: write_mixed_text(path, size * 1_000_000) for size, path in paths.items()}
        print(texts[LARGE], flush=True)
        for number in range(options.rounds):
            for index, each in in_turn(list(enumerate(found)), number):
                each.train(paths[each.megabytes], Path(name) / f"{number}-{index}")
                last = each.runs[-1]
                print(
                    f"{each.side} {each.score} {each.workers} {each.megabytes} MB: {last.seconds:.1f} s, "
                    f"{last.processor:.1f} s of processors, {last.peak / MEBIBYTE:.0f} MiB",
                    flush=True,
                )
    for score, size in (("frequency", SMALL), ("frequency", LARGE), ("likelihood", SMALL)):
        same = [each for each in found if (each.side, each.score, each.megabytes) == ("maskloom", score, size)]
        assert len(set().union(*(each.digests for each in same))) == 1, f"{score}, {size} MB: vocabularies differ"
    result = {
        "command": " ".join(["python benchmarks/vocabulary_training.py", *sys.argv[1:]]),
        "machine": f"{processor()}; Python {platform.python_version()}",
        "versions": f"tokenizers {metadata.version('tokenizers')}",
        "load": load,
        "text": texts[LARGE],
        "summary": summary_rows(compared(found)),
        "ratios": compared(found),
        "sides": [each.summary() for each in found],
    }
    write_results(options.out, result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
