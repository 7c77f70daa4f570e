"""Growing a vocabulary from characters by merging the best pair of neighbouring symbols, again and again.

A pair is the number `first << 32 | second` of two symbol ids, so that the order of pairs is the order of their ids.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from maskloom.text.scored_queues import LikelihoodQueue, PmiQueue
from maskloom.text.segmented_words import PAIR_SHIFT, SECOND, SegmentedWords, SymbolTable
from maskloom.text.vocabulary import CONTINUATION_PREFIX

Score = Literal["frequency", "likelihood", "pmi"]


class FrequencyQueue:
    """Pairs by how often they occur; a tie goes to the pair whose symbols are older."""

    def __init__(self, pair_counts: dict[int, int], min_frequency: int) -> None:
        self._counts = dict(pair_counts)
        self._min_frequency = min_frequency
        self._heap = [(-count, pair) for pair, count in self._counts.items() if count >= min_frequency]
        heapq.heapify(self._heap)

    def best(self) -> int | None:
        """Return the most frequent pair, or None when none occurs `min_frequency` times."""
        while self._heap:
            negative, pair = self._heap[0]
            count = self._counts.get(pair, 0)
            if count == -negative:
                return pair
            heapq.heappop(self._heap)
            # growth pushes a new entry, so only a count that fell has none of its own
            if self._min_frequency <= count < -negative:
                heapq.heappush(self._heap, (-count, pair))
        return None

    def update(self, changes: dict[int, int], merged: int, symbol: int, num_merged: int) -> None:
        """Apply changes of counts after a merge."""
        self._counts.pop(merged, None)
        for pair, change in changes.items():
            count = self._counts.get(pair, 0) + change
            if count:
                self._counts[pair] = count
                if change > 0 and count >= self._min_frequency:
                    heapq.heappush(self._heap, (-count, pair))
            else:
                self._counts.pop(pair, None)


def merge_pairs(
    words: Sequence[str],
    counts: Sequence[int],
    symbols: Sequence[str],
    *,
    num_symbols: int,
    score: Score,
    min_frequency: int,
    suffix: str = "",
    progress: Callable[[int], None] | None = None,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return `symbols` followed by merged ones, up to `num_symbols` in all, and the merges in their order.

    `symbols` are the characters and must cover `words`: bare for the start of a word and with `##` inside, or, where a
    `suffix` is given, with that at the end of a word and bare before it (Sennrich et al. 2016). A pair is
    merged while one occurs `min_frequency` times or more. "frequency" takes the pair that occurs most often;
    "likelihood" the one whose merge adds most to the log likelihood of the words under a unigram model of the symbols,
    and none that adds nothing (Schuster and Nakajima 2012; paper 3.2 names WordPiece); "pmi" the one with the highest
    freq(pair) / (freq(first) * freq(second)). All counts are those of the words as they are cut now. A tie goes to the
    pair whose first, then second symbol is older, so the result depends on nothing but the counts. Two ways to the same
    string are one symbol.
    """
    segmented = SegmentedWords(words, counts, *_symbols_of_characters(symbols, suffix), marks_end=bool(suffix))
    table = SymbolTable(symbols)
    if score == "frequency":
        pairs = FrequencyQueue(segmented.pair_counts, min_frequency)
    elif score == "pmi":
        pairs = PmiQueue(segmented.pair_counts, segmented.symbol_counts(len(symbols)), min_frequency)
    else:
        pairs = LikelihoodQueue(segmented, segmented.symbol_counts(len(symbols)), min_frequency, table)
    segmented.pair_counts.clear()
    merges: list[tuple[str, str]] = []
    while len(table.strings) < num_symbols and (pair := pairs.best()) is not None:
        symbol = table.symbol_of(pair)
        if symbol < 0:
            symbol = table.add(pair)
            if progress:
                progress(len(table.strings))
        merges.append((table.strings[pair >> PAIR_SHIFT], table.strings[pair & SECOND]))
        changes, num_merged = segmented.merge(pair, symbol)
        pairs.update(changes, pair, symbol, num_merged)
    return table.strings, merges


def _symbols_of_characters(symbols: Sequence[str], suffix: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the symbol of each code point at the start of a word, or with a suffix at its end, and elsewhere."""
    bare = {ord(symbol): index for index, symbol in enumerate(symbols) if len(symbol) == 1}
    if suffix:
        marked = {ord(s[0]): i for i, s in enumerate(symbols) if s.endswith(suffix) and len(s) == len(suffix) + 1}
    else:
        marked = {ord(s[2:]): i for i, s in enumerate(symbols) if s.startswith(CONTINUATION_PREFIX) and len(s) == 3}
    size = max([0, *bare, *marked]) + 1
    tables = np.full((2, size), -1, np.int32)
    for table, places in zip(tables, (marked, bare) if suffix else (bare, marked), strict=True):
        table[list(places.keys())] = list(places.values())
    return tables[0], tables[1]
