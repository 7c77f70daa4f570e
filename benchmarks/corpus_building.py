"""Time the building of a corpus from real text, ours against create_pretraining_data of google-research/bert, in turn.

Both sides read the same file, one sentence a line and a blank line between documents, with the same uncased vocabulary
of 30,522 tokens; that they find the same ids is checked first. The peer is its `create_training_instances` as the
package bert-tensorflow holds it: reading, `FullTokenizer`, instances in memory. The writing of TFRecord files that
follows in its program is left out, since TensorFlow is not installed, which favours the peer. Ours is `build_corpus`
into a new folder: start of the processes, reading, duplicates, encoding, and all files forced to disk. Ours samples and
masks while it trains, so the time to draw one epoch of masked instances, in one process, is measured beside it.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import resource
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from surroundings import minilm_folder, processor, write_real_text

from maskloom.data.corpus import Corpus
from maskloom.data.corpus_building import build_corpus
from maskloom.data.documents import read_documents
from maskloom.data.masking import MaskingSettings
from maskloom.data.pretraining_loader import PretrainingLoader
from maskloom.data.sampling import SamplingSettings
from maskloom.text.sentences import split_sentences
from maskloom.text.tokenizer import Tokenizer

BAR = 20.0
LENGTH, MAX_PREDICTIONS, BATCH_SIZE, SEED = 128, 20, 256, 0
SMALL_SHARE, CHECKED_SHARE = 8, 64
PEER_DUPLICATES = 10
PACKAGES = ("bert-tensorflow", "tokenizers", "numpy")


@dataclass
class Peer:
    """The modules of bert-tensorflow, and a tokenizer of theirs."""

    generator: Any
    tokenizer: Any

    @classmethod
    def load(cls, vocabulary: Path) -> Peer:
        """Import the modules with stand-ins for TensorFlow, which they need for options, files and logging only."""
        names = ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "absl", "absl.flags", "six")
        modules = {name: types.ModuleType(name) for name in names}

        def ignore(*_: Any, **__: Any) -> None: ...

        def opened(name: str, mode: str) -> Any:
            return open(name, mode, encoding="utf-8")

        kinds = ("DEFINE_string", "DEFINE_bool", "DEFINE_integer", "DEFINE_float")
        tensorflow: Any = modules["tensorflow.compat.v1"]
        tensorflow.flags = types.SimpleNamespace(FLAGS=None, **dict.fromkeys(kinds, ignore))
        tensorflow.gfile = types.SimpleNamespace(GFile=opened)
        tensorflow.logging = types.SimpleNamespace(info=ignore)
        parents: Any = modules
        parents["tensorflow"].compat = modules["tensorflow.compat"]
        parents["tensorflow.compat"].v1 = tensorflow
        parents["six"].PY2, parents["six"].PY3 = False, True
        parents["absl"].flags = modules["absl.flags"]
        parents["absl.flags"].DEFINE_bool = ignore
        parents["absl.flags"].FLAGS = types.SimpleNamespace(preserve_unused_tokens=False)
        with mock.patch.dict(sys.modules, modules):
            from bert import create_pretraining_data, tokenization  # pyright: ignore[reportMissingImports]
        return cls(create_pretraining_data, tokenization.FullTokenizer(str(vocabulary), do_lower_case=True))

    def seconds(self, text: Path, num_duplicates: int) -> Cost:
        """Make its instances of a text once."""
        start = Cost.now()
        instances = self.generator.create_training_instances(
            [str(text)], self.tokenizer, LENGTH, num_duplicates, 0.1, 0.15, MAX_PREDICTIONS, random.Random(SEED)
        )
        cost = start.until_now()
        assert instances
        del instances
        gc.collect()
        return cost

    def ids(self, text: Path) -> list[int]:
        """Return the ids of a whole text."""
        lines = text.read_text(encoding="utf-8").split("\n")
        tokens = [token for line in lines for token in self.tokenizer.tokenize(line)]
        return self.tokenizer.convert_tokens_to_ids(tokens)


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and seconds of all processors in this process and those that it started and that ended."""

    seconds: float
    processor: float

    @classmethod
    def now(cls) -> Cost:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used))

    def until_now(self) -> Cost:
        now = Cost.now()
        return Cost(now.seconds - self.seconds, now.processor - self.processor)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.processor + other.processor)


@dataclass
class Measured:
    """What each round cost."""

    peer: list[Cost] = field(default_factory=list)
    build: dict[int, list[Cost]] = field(default_factory=lambda: {1: [], 2: []})
    drawing: list[Cost] = field(default_factory=list)

    def ours(self, num_workers: int, *, with_drawing: bool) -> list[Cost]:
        """Return the cost of building, or of building and drawing, round by round."""
        if not with_drawing:
            return self.build[num_workers]
        return [build + drawing for build, drawing in zip(self.build[num_workers], self.drawing, strict=True)]

    def ratios(self, ours: list[Cost]) -> list[float]:
        """Return the peer's seconds over ours, round by round."""
        return [peer.seconds / own.seconds for peer, own in zip(self.peer, ours, strict=True)]


def write_sentences(path: Path, num_bytes: int) -> str:
    """Write whole documents of a text, one sentence a line; say what text it is."""
    raw = path.with_name("raw.txt")
    name = write_real_text(raw, num_bytes)
    with path.open("w", encoding="utf-8") as file:
        for document in read_documents(raw):
            file.write("\n".join(split_sentences(document.text)) + "\n\n")
    return name


def shortened(text: Path, divisor: int) -> Path:
    """Write the first documents of a text that make up a part of it."""
    short = text.with_name(f"part_{divisor}.txt")
    content = text.read_text(encoding="utf-8")
    short.write_text(content[: content.index("\n\n", len(content) // divisor) + 1], encoding="utf-8")
    return short


def build(text: Path, tokenizer: Tokenizer, num_workers: int, use: Callable[[Path], Any]) -> tuple[Cost, Any]:
    """Build a corpus in a new folder; return the cost and what `use` makes of the folder."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        out = Path(folder) / "corpus"
        start = Cost.now()
        build_corpus(text, tokenizer=tokenizer, out=out, num_workers=num_workers, sentences="lines")
        return start.until_now(), use(out)


def drawing(folder: Path) -> Cost:
    """Draw every masked instance of one epoch."""
    start = Cost.now()
    loader = PretrainingLoader(
        Corpus.open(folder, verify=False),
        None,
        batch_size=BATCH_SIZE,
        seed=SEED,
        sampling=SamplingSettings(max_length=LENGTH),
        masking=MaskingSettings(max_predictions=MAX_PREDICTIONS),
    )
    assert sum(batch.num_sequences for batch in loader.epoch_batches(0))
    return start.until_now()


def all_ids(folder: Path) -> list[int]:
    corpus = Corpus.open(folder)
    return corpus.sentences(0, corpus.num_sentences).tolist()


def measure(text: Path, peer: Peer, tokenizer: Tokenizer, num_rounds: int) -> Measured:
    """Time all sides in turn, round by round."""
    measured = Measured()
    for number in range(num_rounds):
        measured.peer.append(peer.seconds(text, 1))
        for num_workers in (1, 2):
            cost, drawn = build(text, tokenizer, num_workers, drawing)
            measured.build[num_workers].append(cost)
        measured.drawing.append(drawn)
        ratio = measured.ratios(measured.build[2])[-1]
        print(f"round {number + 1}: peer {measured.peer[-1]}, ours {cost}, ratio {ratio:.1f}", flush=True)
    return measured


def row(side: str, processes: int, costs: list[Cost], num_tokens: int, ratios: list[float] | None) -> str:
    """Return a row of the table: medians over the rounds."""
    seconds = statistics.median(cost.seconds for cost in costs)
    used = statistics.median(cost.processor for cost in costs)
    ratio = f"**{statistics.median(ratios):.1f}** | {min(ratios):.1f}-{max(ratios):.1f}" if ratios else "1 | -"
    return f"| {side} | {processes} | {seconds:.2f} | {used:.2f} | {num_tokens / seconds:,.0f} | {ratio} |"


def report(measured: Measured, text: str, num_tokens: int, default_ratio: float, load: float) -> str:
    """Return the measurements as Markdown."""
    best = statistics.median(measured.ratios(measured.build[2]))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    lines = [
        "# Building a corpus: maskloom against google-research/bert's create_pretraining_data",
        "",
        f"Made by `{' '.join(['python benchmarks/corpus_building.py', *sys.argv[1:]])}`; do not edit.",
        "",
        f"- Machine: {processor()}; Python {platform.python_version()}, {versions}. "
        f"Load before the start, from other programs: {load:.1f}.",
        f"- Text: {text}, one sentence a line, {num_tokens:,} tokens; uncased vocabulary of 30,522. Both sides find "
        f"the same ids (checked on 1/{CHECKED_SHARE} of the text).",
        f"- Seconds are medians of {len(measured.peer)} rounds in turn, processor seconds those of all processes "
        "together, which other programs on the machine disturb least; a token counts once however often it is "
        "used. Ours with 2 processes: one more reads for both.",
        "- The peer makes each instance once (dupe_factor 1), its kindest setting, and writes no files. With its "
        f"default of {PEER_DUPLICATES} copies, on 1/{SMALL_SHARE} of the text, it takes {default_ratio:.1f} times as "
        "long, and every ratio would be larger by that.",
        f"- Bar: at least {BAR:.0f} times the peer with 2 processes: {'met' if best >= BAR else 'missed'}, "
        f"with {best:.1f}.",
        "",
        "| side | processes | seconds | processor seconds | tokens a second | times the peer | range |",
        "|---|---|---|---|---|---|---|",
        row("create_pretraining_data, dupe_factor 1", 1, measured.peer, num_tokens, None),
    ]
    for processes in (1, 2):
        for with_drawing in (False, True):
            side = "maskloom, corpus" + (" and one epoch of masked instances drawn" if with_drawing else "")
            ours = measured.ours(processes, with_drawing=with_drawing)
            lines.append(row(side, processes, ours, num_tokens, measured.ratios(ours)))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    model = minilm_folder()
    peer = Peer.load(model / "vocab.txt")
    tokenizer = Tokenizer.load(model, compatibility="google")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        name = write_sentences(text, int(options.megabytes * 1e6))
        checked = shortened(text, CHECKED_SHARE)
        assert build(checked, tokenizer, 1, all_ids)[1] == peer.ids(checked), "the ids of both sides differ"
        measured = measure(text, peer, tokenizer, options.rounds)
        small = shortened(text, SMALL_SHARE)
        default_ratio = peer.seconds(small, PEER_DUPLICATES).processor / peer.seconds(small, 1).processor
        num_tokens = build(text, tokenizer, 2, lambda out: Corpus.open(out).num_tokens)[1]
        content = report(measured, name, num_tokens, default_ratio, load)
    options.out.write_text(content, encoding="utf-8")
    print(content)


if __name__ == "__main__":
    main()
