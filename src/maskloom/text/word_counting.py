"""Counting the words of any amount of text in bounded memory, in one process or several, with one result.

Text is cut at white space and distinct chunks are counted first, so that each chunk is normalised once. When a counter
holds more chunks than its cap, its words go to a sorted run on disk; runs are merged at the end. Sums do not depend on
the order of the texts, on who counted what, or on when a counter was full.
"""

from __future__ import annotations

import heapq
import multiprocessing
import queue
import re
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskloom.text.normalization import split_chunks, words

_SLICE_LENGTH = 1 << 20
_MAX_OPEN_RUNS = 64
_SAFE_CUT = re.compile("[ \n]")


@dataclass
class WordCounts:
    """How often each word occurs, for the most frequent words up to the cap.

    `num_words` counts every occurrence in the text; `num_pruned_distinct` words with `num_pruned_words` occurrences
    were over the cap: the rarest, and among equally rare ones the last by code points. `num_runs` went to disk.
    """

    counts: dict[str, int] = field(default_factory=dict)
    num_texts: int = 0
    num_words: int = 0
    num_distinct_words: int = 0
    num_pruned_words: int = 0
    num_pruned_distinct: int = 0
    num_runs: int = 0


def count_words(
    texts: Iterable[str],
    *,
    lowercase: bool,
    max_distinct_words: int,
    num_workers: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> WordCounts:
    """Count the words of all texts, normalised as the tokenizer normalises them.

    At most about `max_distinct_words` distinct chunks are in memory at a time, over all processes together.
    Raises RuntimeError when a worker process dies or fails; temporary files and processes are gone either way.
    """
    with tempfile.TemporaryDirectory(prefix="maskloom-words-") as folder:
        if num_workers == 1:
            counter = _SpillingCounter(Path(folder), "run", lowercase=lowercase, cap=max_distinct_words)
            for number, text in enumerate(texts, start=1):
                counter.add(text)
                if progress and number % 1000 == 0:
                    progress("count words", number, 0)
            num_texts, runs, rest = counter.num_texts, counter.runs, counter.pop_words()
        else:
            pool = _CountingProcesses(Path(folder), num_workers, lowercase, max_distinct_words)
            num_texts, runs = pool.count(texts, progress)
            rest = Counter()
        found = WordCounts(num_texts=num_texts, num_runs=len(runs))
        merged = _merged(runs, rest, Path(folder)) if runs else iter(rest.items())
        _keep_most_frequent(merged, max_distinct_words, found)
    return found


class _SpillingCounter:
    """Counts chunks in memory and, when over the cap, writes their words to a sorted run."""

    def __init__(self, folder: Path, name: str, *, lowercase: bool, cap: int) -> None:
        self.num_texts = 0
        self.runs: list[Path] = []
        self._folder = folder
        self._name = name
        self._lowercase = lowercase
        self._cap = cap
        self._chunks: Counter[str] = Counter()

    def add(self, text: str) -> None:
        self.num_texts += 1
        for piece in _slices(text):
            self._chunks.update(split_chunks(piece))
            if len(self._chunks) > self._cap:
                self.spill()

    def pop_words(self) -> Counter[str]:
        """Return the words counted since the last run, and forget them."""
        found: Counter[str] = Counter()
        for chunk, count in self._chunks.items():
            for word in words(chunk, lowercase=self._lowercase):
                found[word] += count
        self._chunks = Counter()
        return found

    def spill(self) -> None:
        path = self._folder / f"{self._name}-{len(self.runs)}"
        _write_run(path, sorted((_as_bytes(word), count) for word, count in self.pop_words().items()))
        self.runs.append(path)


def _slices(text: str) -> Iterator[str]:
    """Cut a long text at blanks, so that a text of any length is counted in bounded memory."""
    start = 0
    while len(text) - start > _SLICE_LENGTH:
        cut = _SAFE_CUT.search(text, start + _SLICE_LENGTH)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.end()
    yield text[start:] if start else text


def _as_bytes(word: str) -> bytes:
    # a str may hold lone surrogates, which strict UTF-8 refuses
    return word.encode("utf-8", "surrogatepass")


def _write_run(path: Path, pairs: Iterable[tuple[bytes, int]]) -> None:
    with path.open("wb") as file:
        file.writelines(b"%s\t%d\n" % pair for pair in pairs)


def _read_run(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as file:
        for line in file:
            word, _, count = line.rpartition(b"\t")
            yield word, int(count)


def _summed(pairs: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Join neighbours that are the same word."""
    current, total = next(pairs, (b"", 0))
    for word, count in pairs:
        if word == current:
            total += count
        else:
            yield current, total
            current, total = word, count
    if total:
        yield current, total


def _merged(runs: list[Path], rest: Counter[str], folder: Path) -> Iterator[tuple[str, int]]:
    """Merge sorted runs and what is still in memory into one sorted stream."""
    runs = list(runs)
    number = 0
    while len(runs) > _MAX_OPEN_RUNS:
        joined = folder / f"merged-{number}"
        number += 1
        _write_run(joined, _summed(heapq.merge(*map(_read_run, runs[:_MAX_OPEN_RUNS]))))
        for path in runs[:_MAX_OPEN_RUNS]:
            path.unlink()
        runs = [*runs[_MAX_OPEN_RUNS:], joined]
    in_memory = iter(sorted((_as_bytes(word), count) for word, count in rest.items()))
    for word, count in _summed(heapq.merge(in_memory, *map(_read_run, runs))):
        yield word.decode("utf-8", "surrogatepass"), count


def _keep_most_frequent(pairs: Iterator[tuple[str, int]], cap: int, found: WordCounts) -> None:
    kept: dict[str, int] = {}
    for word, count in pairs:
        kept[word] = count
        found.num_words += count
        found.num_distinct_words += 1
        if len(kept) > 2 * cap:
            kept = _most_frequent(kept, cap)
    found.counts = _most_frequent(kept, cap) if len(kept) > cap else kept
    found.num_pruned_distinct = found.num_distinct_words - len(found.counts)
    found.num_pruned_words = found.num_words - sum(found.counts.values())


def _most_frequent(counts: dict[str, int], cap: int) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:cap])


class _CountingProcesses:
    """Worker processes that each count what they get into runs of their own."""

    def __init__(self, folder: Path, num_workers: int, lowercase: bool, max_distinct_words: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._tasks: Any = context.Queue(maxsize=2 * num_workers)
        self._results: Any = context.Queue()
        self._finished: list[list[str]] = []
        cap = max(1, max_distinct_words // num_workers)
        self._processes = [
            context.Process(
                target=_count_in_worker,
                args=(self._tasks, self._results, str(folder), f"worker-{number}", lowercase, cap),
                daemon=True,
            )
            for number in range(num_workers)
        ]

    def count(self, texts: Iterable[str], progress: Callable[[str, int, int], None] | None) -> tuple[int, list[Path]]:
        """Give out the texts, wait for the runs, and leave no process behind, whatever happens."""
        try:
            for process in self._processes:
                process.start()
            num_sent = 0
            for batch in _batches(texts):
                self._send(batch)
                num_sent += len(batch)
                if progress:
                    progress("count words", num_sent, 0)
            for _ in self._processes:
                self._send(None)
            runs: list[Path] = []
            for _ in self._processes:
                runs.extend(self._receive())
            return num_sent, sorted(runs)
        except BaseException:
            for process in self._processes:
                if process.is_alive():
                    process.terminate()
            raise
        finally:
            for process in self._processes:
                if process.pid is not None:
                    process.join()
            self._tasks.cancel_join_thread()
            self._tasks.close()
            self._results.close()

    def _send(self, batch: list[str] | None) -> None:
        while True:
            try:
                self._tasks.put(batch, timeout=1)
                return
            except queue.Full:
                self._take_result(timeout=0.01)

    def _receive(self) -> list[Path]:
        while not self._finished:
            self._take_result(timeout=1)
        return [Path(run) for run in self._finished.pop()]

    def _take_result(self, timeout: float) -> None:
        """Wait for a worker's result; raise what went wrong in one, or that one is gone."""
        try:
            runs, failure = self._results.get(timeout=timeout)
        except queue.Empty:
            for process in self._processes:
                if process.exitcode:
                    raise RuntimeError(
                        f"a process that counts words ended with code {process.exitcode}; if it was killed, memory may "
                        "have run out: use fewer workers"
                    ) from None
            return
        if failure:
            raise RuntimeError(f"a process that counts words failed:\n{failure}")
        self._finished.append(runs)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Gather short texts, and leave long ones alone, so that a message holds about a million characters."""
    batch: list[str] = []
    length = 0
    for text in texts:
        batch.append(text)
        length += len(text)
        if length >= _SLICE_LENGTH:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _count_in_worker(tasks: Any, results: Any, folder: str, name: str, lowercase: bool, cap: int) -> None:
    try:
        counter = _SpillingCounter(Path(folder), name, lowercase=lowercase, cap=cap)
        while (batch := tasks.get()) is not None:
            for text in batch:
                counter.add(text)
        counter.spill()
        results.put(([str(run) for run in counter.runs], None))
    except BaseException:
        results.put(([], traceback.format_exc()))
