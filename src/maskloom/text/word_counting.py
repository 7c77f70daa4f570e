"""Counting the words of any amount of text in bounded memory, with the same result for any number of processes.

Text is processed in batches of about a million characters. In each batch, distinct white-space-delimited chunks are
counted first, so that each is normalised once. Batch counts are added up; when there are more distinct words than the
cap, they are spilled to a sorted run on disk, and runs are merged at the end. The sums do not depend on the order of
the texts, on which process counted what, or on when memory was full.
"""

from __future__ import annotations

import heapq
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

from tokenizers import pre_tokenizers

from maskloom.system.fault_points import fault_point
from maskloom.system.worker_processes import ONE_PROCESS, Work, results
from maskloom.text.normalization import split_chunks, words
from maskloom.text.vocabulary import SURROGATE

Progress = Callable[[str, int, int], None]

_BATCH_LENGTH = 1 << 20
_MAX_OPEN_RUNS = 64
_SAFE_CUT = re.compile(r"(?<!\s)[ \n]")
# White space, as GPT-2's rules define it, stays with the chunk that follows, whose word may begin with a space.
_CHUNK_OF_BYTES = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|\s+")
_OF_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
# Characters that always begin a word, for cutting text without white space; where there is none, the cut falls in a
# word that is too long to be counted anyway.
_BETWEEN_WORDS = re.compile(r"[!-&(-\-/;-@\\_{-~\u4e00-\u9fff]")
_LONGEST_RUN = 1 << 16


@dataclass
class WordCounts:
    """Word frequencies, for the most frequent words up to the cap.

    `num_words` counts every occurrence in the text. The `num_pruned_distinct_words` words above the cap, with
    `num_pruned_words` occurrences, are the rarest, and among equally rare words the last by code points.
    `num_spilled_runs` were written to disk.
    """

    counts: dict[str, int] = field(default_factory=dict)
    num_texts: int = 0
    num_words: int = 0
    num_distinct_words: int = 0
    num_pruned_words: int = 0
    num_pruned_distinct_words: int = 0
    num_spilled_runs: int = 0


def count_words(
    texts: Iterable[str],
    *,
    lowercase: bool | None,
    max_distinct_words: int,
    work: Work = ONE_PROCESS,
    progress: Progress | None = None,
    scratch: Path | None = None,
    place: Callable[[], str] | None = None,
) -> WordCounts:
    """Count the words of all texts, normalised as by the tokenizer; with `lowercase` None, count `byte_words`.

    Memory holds about `max_distinct_words` distinct words while counting, twice as many while merging runs, and the
    words of two batches per process. Temporary files, in the folder `scratch`, and processes are always cleaned up
    unless this process is killed. `place` returns the location of the last text drawn, for messages. Raises
    ChildProcessError as `results_of_processes` does.
    """
    found = WordCounts()
    batches = _batches(texts, found)

    def name(_: list[str]) -> str:
        return f"the words up to {place()}" if place else f"the words up to text {found.num_texts}"

    with tempfile.TemporaryDirectory(prefix="maskloom-words-", dir=scratch) as folder:
        totals = _SpillingTotals(Path(folder), max_distinct_words)
        with closing(results(_batch_counter, (lowercase,), batches, work, name=name)) as counted:
            for counts in counted:
                totals.add(counts)
                if progress:
                    progress("count words", found.num_texts, 0)
        found.num_spilled_runs = len(totals.runs)
        _keep_most_frequent(totals.merged(), max_distinct_words, found)
    return found


def byte_words(text: str) -> list[str]:
    """Split text into words as GPT-2 does, in its notation of bytes: "Ġthe" is a word with the space before it."""
    return [word for word, _ in _OF_BYTES.pre_tokenize_str(SURROGATE.sub("\ufffd", text))]


def _batch_counter(lowercase: bool | None) -> Callable[[list[str]], dict[str, int]]:
    if lowercase is None:
        split, words_of = _CHUNK_OF_BYTES.findall, byte_words
    else:
        split, words_of = split_chunks, partial(words, lowercase=lowercase)

    def count(batch: list[str]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for chunk, number in Counter(chain.from_iterable(map(split, batch))).items():
            # splitting into words takes hundreds of bytes per character
            for part in _cut(chunk, _LONGEST_RUN, _LONGEST_RUN // 2, _LONGEST_RUN, (_BETWEEN_WORDS,)):
                for word in words_of(part):
                    counts[word] = counts.get(word, 0) + number
        return counts

    return count


def _batches(texts: Iterable[str], found: WordCounts) -> Iterator[list[str]]:
    """Group texts into batches, spreading a long text over several, so that memory does not depend on its length."""
    batch: list[str] = []
    length = 0
    for text in texts:
        found.num_texts += 1
        # cut at blanks, which split no word, or else between words that need no blank
        cuts = (_SAFE_CUT, _BETWEEN_WORDS)
        for piece in _cut(text, _BATCH_LENGTH, _BATCH_LENGTH, _BATCH_LENGTH + _LONGEST_RUN, cuts):
            batch.append(piece)
            length += len(piece)
            if length >= _BATCH_LENGTH:
                yield batch
                batch, length = [], 0
    if batch:
        yield batch


def _cut(text: str, most: int, first: int, last: int, places: tuple[re.Pattern[str], ...]) -> Iterator[str]:
    """Cut text longer than `most` at one of `places` between `first` and `last` characters, or else at `last`."""
    start = 0
    while len(text) - start > most:
        found = (place.search(text, start + first, start + last) for place in places)
        end = next((match.start() for match in found if match), start + last)
        if end >= len(text):
            break
        yield text[start:end]
        start = end
    yield text[start:] if start else text


class _SpillingTotals:
    """Sums counts in memory and spills them to a sorted run on disk when there are more words than the cap."""

    def __init__(self, folder: Path, cap: int) -> None:
        self.runs: list[Path] = []
        self._folder = folder
        self._cap = cap
        self._counts: Counter[str] = Counter()

    def add(self, counts: dict[str, int]) -> None:
        self._counts.update(counts)
        if len(self._counts) > self._cap:
            path = self._folder / f"run-{len(self.runs)}"
            _write_run(path, self._sorted())
            self.runs.append(path)
            self._counts = Counter()

    def merged(self) -> Iterator[tuple[str, int]]:
        """Yield every word once with its count."""
        if not self.runs:
            yield from self._counts.items()
            return
        runs = list(self.runs)
        while len(runs) > _MAX_OPEN_RUNS:
            joined = runs[0].with_name(f"{runs[0].name}-merged")
            _write_run(joined, _summed(heapq.merge(*map(_read_run, runs[:_MAX_OPEN_RUNS]))))
            for path in runs[:_MAX_OPEN_RUNS]:
                path.unlink()
            runs = [*runs[_MAX_OPEN_RUNS:], joined]
        for word, count in _summed(heapq.merge(iter(self._sorted()), *map(_read_run, runs))):
            yield word.decode("utf-8", "surrogatepass"), count

    def _sorted(self) -> list[tuple[bytes, int]]:
        # a str may hold lone surrogates, which strict UTF-8 rejects
        return sorted((word.encode("utf-8", "surrogatepass"), count) for word, count in self._counts.items())


def _write_run(path: Path, pairs: Iterable[tuple[bytes, int]]) -> None:
    with path.open("wb") as file:
        fault_point("words.run")
        file.writelines(b"%s\t%d\n" % pair for pair in pairs)


def _read_run(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as file:
        for line in file:
            word, _, count = line.rpartition(b"\t")
            yield word, int(count)


def _summed(pairs: Iterator[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Sum the counts of adjacent equal words."""
    for word, same in groupby(pairs, key=itemgetter(0)):
        yield word, sum(count for _, count in same)


def _keep_most_frequent(pairs: Iterator[tuple[str, int]], cap: int, found: WordCounts) -> None:
    kept: dict[str, int] = {}
    for word, count in pairs:
        kept[word] = count
        found.num_words += count
        found.num_distinct_words += 1
        if len(kept) > 2 * cap:
            kept = _most_frequent(kept, cap)
    found.counts = _most_frequent(kept, cap) if len(kept) > cap else kept
    found.num_pruned_distinct_words = found.num_distinct_words - len(found.counts)
    found.num_pruned_words = found.num_words - sum(found.counts.values())


def _most_frequent(counts: dict[str, int], cap: int) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:cap])
