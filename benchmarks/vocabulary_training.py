"""Time the training of a vocabulary of 30,000 pieces from 20 MB of real text, ours against that of `tokenizers`.

Ours is the command `maskloom vocab train` with both scores and one and two processes; the peer is a program around
`WordPieceTrainer` with one and two threads. Each training is a new process; seconds are those from its start to its
end, and memory is the highest sum of resident memory over all its processes, looked up in /proc again and again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from surroundings import processor, write_real_text

from maskloom.runs.vocabulary import inspect_vocabulary

SIZE = 30_000
TEXT_BYTES = 20_000_000
MAX_SECONDS, MAX_MEBIBYTES = 60.0, 2048.0
MEBIBYTE = 1 << 20
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
    """One way to train, and what was measured of it in each round."""

    side: str
    score: str
    num_workers: int
    seconds: list[float] = field(default_factory=list)
    mebibytes: list[float] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    num_tokens: int = 0
    pieces_per_word: float = 0.0

    @property
    def median(self) -> float:
        """The median of its seconds."""
        return statistics.median(self.seconds)

    def train(self, text: Path, out: Path) -> None:
        """Train once in a process of its own and take note of the time, the memory and the result."""
        if self.side == "maskloom":
            options = [
                "--size",
                str(SIZE),
                "--out",
                str(out),
                "--score",
                self.score,
                "--workers",
                str(self.num_workers),
            ]
            command = [sys.executable, "-m", "maskloom", "vocab", "train", str(text), *options]
        else:
            command = [sys.executable, "-c", PEER, str(text), str(SIZE), str(out)]
        seconds, peak = measured(command, {"RAYON_NUM_THREADS": str(self.num_workers)})
        self.seconds.append(seconds)
        self.mebibytes.append(peak / MEBIBYTE)
        self.digests.add(hashlib.sha256((out / "vocab.txt").read_bytes()).hexdigest())
        if not self.num_tokens:
            found = inspect_vocabulary(out, [text])
            self.num_tokens, self.pieces_per_word = found["size"], found["coverage"]["pieces_per_word"]


def measured(command: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Run a command in a session of its own; return its seconds and the peak of its resident memory in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident_memory(process.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - start
    if process.returncode:
        assert process.stderr is not None
        raise SystemExit(process.stderr.read().decode())
    return seconds, peak


def resident_memory(session: int) -> int:
    """Return the resident memory of all processes of a session in bytes; pages that they share count for each."""
    num_pages = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        # counted from the field after the name: the session is the fourth, the resident pages are the 22nd
        if int(fields[3]) == session:
            num_pages += int(fields[21])
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def report(contestants: list[Contestant], text: str, command: str) -> str:
    """Return the Markdown page of results."""
    import tokenizers

    peers = {c.num_workers: c.median for c in contestants if c.side == "tokenizers"}
    ours = [c for c in contestants if c.side == "maskloom"]
    slowest, largest = max(c.median for c in ours), max(max(c.mebibytes) for c in ours)
    verdict = "met" if slowest <= MAX_SECONDS and largest <= MAX_MEBIBYTES else "MISSED"
    lines = [
        f"# A vocabulary of {SIZE:,} pieces: maskloom against tokenizers",
        "",
        f"Made by `{command}`; do not edit.",
        "",
        f"- Machine: {processor()}; Python {platform.python_version()}, tokenizers {tokenizers.__version__}.",
        f"- Text: {text}; uncased, minimum frequency 2, at most 1,000 characters.",
        "- Seconds are medians over rounds in turn, from the start of the process to its end, reading included; the "
        "ratio is the peer's seconds over ours with as many threads as we have processes. Memory is the peak of all "
        "processes together; pages that they share count for each.",
        "- Pieces per word are counted on the same text by `maskloom vocab inspect`.",
        f"- Bar: at most {MAX_SECONDS:.0f} s and {MAX_MEBIBYTES:.0f} MiB: {verdict}, with {slowest:.1f} s and "
        f"{largest:.0f} MiB at most.",
        "",
        "| trainer | score | processes | rounds | seconds | range | peer / ours | peak MiB | size | pieces per word |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in contestants:
        ratio = f"{peers[c.num_workers] / c.median:.2f}" if c.side == "maskloom" else "-"
        lines.append(
            f"| {c.side} | {c.score} | {c.num_workers} | {len(c.seconds)} | **{c.median:.1f}** "
            f"| {min(c.seconds):.1f}-{max(c.seconds):.1f} | {ratio} | {max(c.mebibytes):.0f} | {c.num_tokens:,} "
            f"| {c.pieces_per_word:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the options, measure in turn, and write the page."""
    parser = argparse.ArgumentParser(description="Time vocabulary training against tokenizers.")
    parser.add_argument("--rounds", type=int, default=3, help="times that each training is run (default 3)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="page to write")
    options = parser.parse_args()
    kinds = [("maskloom", "frequency"), ("maskloom", "likelihood"), ("tokenizers", "frequency")]
    contestants = [Contestant(side, score, workers) for side, score in kinds for workers in (1, 2)]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "text.txt"
        text = write_real_text(path, TEXT_BYTES)
        print(text, flush=True)
        for number in range(options.rounds):
            for index, contestant in enumerate(contestants):
                contestant.train(path, Path(name) / f"{number}-{index}")
                print(
                    f"{contestant.side} {contestant.score} {contestant.num_workers}: {contestant.seconds[-1]:.1f} s",
                    flush=True,
                )
    for score in ("frequency", "likelihood"):
        digests = set().union(*(c.digests for c in contestants if (c.side, c.score) == ("maskloom", score)))
        assert len(digests) == 1, f"score {score}: the vocabularies of different runs differ"
    page = report(contestants, text, " ".join(["python benchmarks/vocabulary_training.py", *sys.argv[1:]]))
    options.out.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
