"""R4 and R6: vocabulary and corpus builds killed by `kill -9` at any moment, and tampered corpora."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tools.checking import fresh_folder
from tools.soak.processes import CommandLine, ForkServer, Running, processor_time
from tools.soak.rows import Budget, Row, Trial

_WORDS = [first + middle + last for first in "bdfgkl" for middle in "aeiou" for last in "mnprst"]
_OUT = "out"
NUM_FLIPS = 200


@dataclass(frozen=True)
class Build:
    """A command that builds `out` in its working directory, and the undisturbed result.

    `passes` lists the fault points that its first process passes, in order.
    """

    name: str
    arguments: tuple[str, ...]
    files: dict[str, bytes]
    passes: list[str]
    seconds: float


def write_text(path: Path, *, megabytes: float, seed: int = 0) -> None:
    """Write documents of made-up words, one sentence per line."""
    draw = random.Random(seed)
    sentences = [" ".join(draw.choices(_WORDS, k=12)) + " ." for _ in range(2_000)]
    size, documents = 0, []
    while size < megabytes * 1e6:
        documents.append("\n".join(draw.choices(sentences, k=100)))
        size += len(documents[-1]) + 2
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def prepare(server: ForkServer, folder: Path, *, megabytes: float = 5) -> tuple[Build, Build, Build]:
    """Write a text, and build from it undisturbed: a vocabulary, a corpus with one process, and one with two."""
    folder.mkdir(parents=True)
    text = folder / "text.txt"
    write_text(text, megabytes=megabytes)
    vocabulary = _left_alone(server, "vocabulary", ("vocab", "train", str(text), "--size", "200"), folder / "vocab")
    build = ("corpus", "build", str(text), "--vocab", str(folder / "vocab" / _OUT), "--sentences", "lines", "--json")
    return (
        vocabulary,
        _left_alone(server, "corpus", build, folder / "one"),
        _left_alone(server, "corpus by 2 processes", (*build, "--workers", "2"), folder / "two"),
    )


def _left_alone(server: ForkServer, name: str, arguments: tuple[str, ...], folder: Path) -> Build:
    folder.mkdir()
    arguments, log = (*arguments, "--out", _OUT), folder / "passes"
    output, begin = folder / "output", time.monotonic()
    code = server.start(arguments, folder, output, MASKLOOM_FAULT_LOG=str(log)).wait()
    seconds = time.monotonic() - begin
    if code:
        raise RuntimeError(f"{name}: exit code {code}: {output.read_text(encoding='utf-8')[-2000:]}")
    passes = [] if "--workers" in arguments else log.read_text(encoding="utf-8").split()
    return Build(name, arguments, folder_bytes(folder / _OUT), passes, seconds)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def try_kill(server: ForkServer, build: Build, draw: random.Random, folder: Path) -> Trial:
    """Kill a build at a random moment, run the same command again, and compare with the undisturbed result."""
    fresh_folder(folder)
    out, output = folder / _OUT, folder.with_suffix(".output")
    if build.passes and draw.random() < 0.5:
        number = draw.randrange(len(build.passes))
        point = build.passes[number]
        moment = f"{point}#{build.passes[: number + 1].count(point)}"
        running: Running = server.start(build.arguments, folder, output, MASKLOOM_FAULTS=f"kill@{moment}")
        running.wait()
    else:
        seconds = draw.uniform(0, 1.2 * build.seconds)
        moment = f"{seconds:.2f} s"
        # worker processes end as they do for a user only if the command is a new interpreter
        start = CommandLine if "--workers" in build.arguments else server.start
        running = start(build.arguments, folder, output)
        if start is CommandLine:
            running.wait_until(out.exists)
        running.kill_at(seconds)
        running.wait()
    name = f"{build.name} killed at {moment}"
    taken_for_whole = _taken_for_whole(build, out)
    finished = _finished_shards(out)
    code, told = server.start(build.arguments, folder, output).ended()
    if code:
        return Trial(name, False, f"the same command again ends with {code}: {told[-500:]}")
    problems = [] if taken_for_whole is None else [taken_for_whole]
    again = folder_bytes(out)
    different = sorted(key for key in {*again, *build.files} if again.get(key) != build.files.get(key))
    problems += [f"{len(different)} files differ, such as {different[0]}"] if different else []
    problems += [f"left behind: {path.name}" for path in folder.iterdir() if path.name != _OUT]
    changed = [path for path, when in finished.items() if path.stat().st_mtime_ns != when]
    problems += [f"{len(changed)} of {len(finished)} finished shards were made again"] if changed else []
    # other processes may finish theirs after the first one was killed
    if finished and (kept := json.loads(told.splitlines()[-1])["num_kept_shards"]) < len(finished):
        problems.append(f"{kept} shards are said to be kept, {len(finished)} were finished")
    return Trial(name, not problems, "; ".join(problems) or f"{len(finished)} finished shards kept")


def _taken_for_whole(build: Build, out: Path) -> str | None:
    """Return the problem when a reader accepts an incomplete result of a killed build, else None."""
    from maskloom.data.corpus.opening import Corpus
    from maskloom.errors import DataError
    from maskloom.text.tokenizer import Tokenizer

    if not out.exists() or folder_bytes(out) == build.files:
        return None
    try:
        Tokenizer.load(out) if build.name == "vocabulary" else Corpus.open(out)
    except DataError:
        return None
    # complete, except for files that the build has yet to remove
    parts = {name for name in folder_bytes(out) if not name.startswith("building/")}
    return None if parts == set(build.files) else "half of it was taken for whole"


def _finished_shards(out: Path) -> dict[Path, int]:
    """Return the finished shards with their modification times."""
    records = (out / "building").glob("0*.json")
    return {path: path.stat().st_mtime_ns for record in records if (path := out / "shards" / f"{record.stem}.tokens")}


def try_disk_fault(server: ForkServer, build: Build, fault: str, folder: Path) -> Trial:
    """Make the disk fail at one point of a build, run the command again, and compare with the undisturbed result."""
    fresh_folder(folder)
    out, output = folder / _OUT, folder.with_suffix(".output")
    code, said = server.start(build.arguments, folder, output, MASKLOOM_FAULTS=fault).ended()
    told = [line for line in said.splitlines() if line.startswith(("error", "Trace"))]
    name = f"{build.name}, {fault}"
    if code != 74 or len(told) != 1 or not told[0].startswith("error: "):
        return Trial(name, False, f"exit code {code}: {told}")
    taken_for_whole = _taken_for_whole(build, out)
    code = server.start(build.arguments, folder, output).wait()
    same = code == 0 and folder_bytes(out) == build.files and [path.name for path in folder.iterdir()] == [_OUT]
    return Trial(
        name, same and not taken_for_whole, taken_for_whole or ("" if same else f"exit code {code} when again")
    )


def broken_disks(budget: Budget) -> Iterator[Trial]:
    """Yield a trial for every point at which a build accesses the disk, with alternating errors."""
    with ForkServer() as server:
        vocabulary, corpus, by_processes = prepare(server, budget.work / "left-alone", megabytes=2)
        errors = ("enospc", "eio", "erofs", "edquot")
        points = [(build, point) for build in (vocabulary, corpus) for point in sorted(set(build.passes))]
        points += [(by_processes, point) for point in ("shards.write", "shards.tokens", "shards.record")]
        for number, (build, point) in enumerate(points):
            yield try_disk_fault(server, build, f"{errors[number % len(errors)]}@{point}#1", budget.work / "broken")


def killed_builds(budget: Budget, num_trials: int = 20, *, megabytes: float = 5) -> Iterator[Trial]:
    """Yield a trial for each kill; the three builds alternate."""
    with ForkServer() as server:
        builds = prepare(server, budget.work / "left-alone", megabytes=megabytes)
        for number in range(num_trials):
            draw = budget.draw("R4", number)
            yield try_kill(server, builds[number % len(builds)], draw, budget.work / "killed")


@contextmanager
def _changed(path: Path, content: bytes | None) -> Iterator[None]:
    """Temporarily replace the content of a file, or remove the file."""
    before = path.read_bytes()
    try:
        path.unlink() if content is None else path.write_bytes(content)
        yield
    finally:
        path.write_bytes(before)


def _named(corpus: Path, files: list[str]) -> str | None:
    """Return the problem with opening a tampered corpus, or None when the error names the files."""
    from maskloom.data.corpus.opening import Corpus
    from maskloom.errors import DataError

    try:
        Corpus.open(corpus)
    except DataError as error:
        missing = [name for name in files if name not in str(error)]
        return f"{missing[0]} is not named: {error}" if missing else None
    return "nothing was noticed"


def _built(folder: Path, seed: int, *, megabytes: float = 0.3, **settings: int) -> Path:
    """Write text, build a corpus of it with a vocabulary of its own, and return the corpus."""
    from maskloom.data.corpus.building import CorpusSettings, build_corpus
    from maskloom.text.vocabulary import Vocabulary
    from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

    folder.mkdir(parents=True)
    write_text(folder / "text.txt", megabytes=megabytes, seed=seed)
    words = random.Random(seed).sample(_WORDS, len(_WORDS))
    tokenizer = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]))
    of_lines = CorpusSettings(sentences="lines", **settings)
    build_corpus(folder / "text.txt", tokenizer=tokenizer, out=folder / "corpus", settings=of_lines)
    return folder / "corpus"


def tampered_corpora(budget: Budget) -> Iterator[Trial]:
    """Yield a trial for each way of tampering with a corpus, and one for the cost of checking."""
    corpus, other = (_built(budget.work / str(seed), seed, shard_tokens=10_000) for seed in (1, 2))
    names = sorted(folder_bytes(corpus))
    draw = budget.draw("R6")
    sizes = [(corpus / name).stat().st_size for name in names]

    def tried(name: str, changes: dict[str, bytes | None]) -> Trial:
        problem = _with_changes(corpus, changes)
        return Trial(name, problem is None, problem or "")

    for _ in range(NUM_FLIPS):
        (name,) = draw.choices(names, sizes)
        content = bytearray((corpus / name).read_bytes())
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        yield tried(f"bit {bit} of {name}", {name: bytes(content)})
    for name in names:
        content = (corpus / name).read_bytes()
        # without its last byte, a newline, the manifest is still complete
        for length in {0, draw.randrange(len(content) - 1), len(content) - (2 if name == "manifest.json" else 1)}:
            yield tried(f"{name} cut to {length}", {name: content[:length]})
        yield tried(f"{name} longer", {name: content + b"\0"})
        yield tried(f"{name} missing", {name: None})
        of_another = (other / name).read_bytes() if (other / name).exists() else b""
        if of_another != content:
            # another corpus's manifest is valid in itself, but its files are not there
            yield tried(f"{name} of another corpus", {name: of_another})
    shards = [name for name in names if name.startswith("shards/")]
    for first, second in pairwise(shards):
        exchanged = {first: (corpus / second).read_bytes(), second: (corpus / first).read_bytes()}
        yield tried(f"{first} and {second} exchanged", dict(exchanged))
    yield _cost_of_checking(budget.work / "large")


def _with_changes(corpus: Path, changes: dict[str, bytes | None]) -> str | None:
    named = [name for name in changes if name != "manifest.json"]
    if len(changes) == 1:
        ((name, content),) = changes.items()
        with _changed(corpus / name, content):
            return _named(corpus, named)
    first, *rest = changes
    with _changed(corpus / first, changes[first]):
        return _with_changes(corpus, {name: changes[name] for name in rest}) or _named(corpus, [])


def _cost_of_checking(folder: Path) -> Trial:
    """Compare the processor time of checking a corpus with that of loading it once for training."""
    from maskloom.data.corpus.opening import Corpus
    from maskloom.data.settings import PretrainingData
    from maskloom.objectives.pretraining import PRETRAINING

    corpus = _built(folder, 0, megabytes=40)
    checked, unchecked = (
        min(processor_time(lambda verify=verify: Corpus.open(corpus, verify=verify)) for _ in range(5))
        for verify in (True, False)
    )
    settings: dict[str, Any] = {"batch_size": 64, "seed": 0}
    loader = PRETRAINING["masked_lm"].loader(Corpus.open(corpus), None, PretrainingData(), **settings)
    loading = processor_time(lambda: sum(1 for _ in loader.epoch_batches(0)))
    share = (checked - unchecked) / loading
    size = sum(path.stat().st_size for path in corpus.rglob("*") if path.is_file())
    told = f"{1000 * (checked - unchecked):.0f} ms for {size / 1e6:.0f} MB, {share:.1%} of loading one epoch"
    return Trial("cost of checking", share <= 0.02, told)


ROWS = (
    Row(
        "R4",
        "kill -9 while building vocabulary and shards, 20 moments",
        "output of the rerun byte-identical, finished shards reused, nothing left behind",
        20,
        killed_builds,
    ),
    Row(
        "R7b",
        "disk full, broken or read-only at every point of building vocabulary and shards",
        "exit 74 with one line; nothing incomplete is accepted; rerunning the command gives the same bytes",
        16,
        broken_disks,
    ),
    Row(
        "R6",
        "corpus tampering: 200 bit flips, truncations, missing or swapped files, another vocabulary",
        "all reported on opening; checks take <= 2% of the loading time",
        NUM_FLIPS,
        tampered_corpora,
    ),
)
