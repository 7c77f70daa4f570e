"""Growing a vocabulary from characters by merging the best pair of neighbouring symbols, again and again.

A word is kept as a str with one character `chr(symbol id)` a symbol, so that merging a pair in a word is a
`str.replace`, and a pair of symbols is a str of length two whose order is the order of its ids.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from maskloom.text.likelihood_queue import LikelihoodQueue
from maskloom.text.vocabulary import CONTINUATION_PREFIX

Score = Literal["frequency", "likelihood"]


class PairQueue(Protocol):
    """Knows the best pair to merge next, while counts change."""

    def best(self) -> str | None:
        """Return the pair with the highest score, or None when no pair is frequent enough."""
        ...

    def update(self, changes: dict[str, int], merged: str, symbol: str, num_merged: int) -> None:
        """Take note that `merged` became `symbol` in `num_merged` places, which changed the counts of other pairs."""
        ...


class FrequencyQueue:
    """Pairs by how often they occur; a tie goes to the pair whose symbols are older."""

    def __init__(self, pair_counts: dict[str, int], min_frequency: int) -> None:
        """Start from the counts of all pairs."""
        self._counts = dict(pair_counts)
        self._min_frequency = min_frequency
        self._heap = [(-count, pair) for pair, count in self._counts.items() if count >= min_frequency]
        heapq.heapify(self._heap)

    def best(self) -> str | None:
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

    def update(self, changes: dict[str, int], merged: str, symbol: str, num_merged: int) -> None:
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


class _SegmentedWords:
    """Distinct words as strings of symbols, and where each pair may be found."""

    def __init__(self, words: list[str], counts: Sequence[int]) -> None:
        self.words = words
        self.counts = counts
        self.places: defaultdict[str, list[int]] = defaultdict(list)
        self.pair_counts: defaultdict[str, int] = defaultdict(int)
        for index, word in enumerate(words):
            for start in range(len(word) - 1):
                pair = word[start : start + 2]
                self.pair_counts[pair] += counts[index]
                self._note(pair, index)

    def _note(self, pair: str, index: int) -> None:
        places = self.places[pair]
        if not places or places[-1] != index:
            places.append(index)

    def merge(self, pair: str, symbol: str) -> tuple[dict[str, int], int]:
        """Replace a pair by a symbol everywhere; return how the counts of other pairs changed, and the replacements."""
        first, second = pair
        changes: defaultdict[str, int] = defaultdict(int)
        num_merged = 0
        # places may name words that lost the pair to another merge since
        for index in self.places.pop(pair):
            word = self.words[index]
            start = word.find(pair)
            if start < 0:
                continue
            count = self.counts[index]
            if word.find(pair, start + 1) >= 0:
                num_merged += self._merge_repeated(index, pair, symbol, changes)
                continue
            if start:
                before = word[start - 1]
                changes[before + first] -= count
                changes[before + symbol] += count
                self.places[before + symbol].append(index)
            if start + 2 < len(word):
                after = word[start + 2]
                changes[second + after] -= count
                changes[symbol + after] += count
                self.places[symbol + after].append(index)
            self.words[index] = word[:start] + symbol + word[start + 2 :]
            num_merged += count
        changes.pop(pair, None)
        return changes, num_merged

    def _merge_repeated(self, index: int, pair: str, symbol: str, changes: dict[str, int]) -> int:
        """Merge a pair that stands in a word more than once, where neighbours may be merged too."""
        word, count = self.words[index], self.counts[index]
        merged = word.replace(pair, symbol)
        for start in range(len(word) - 1):
            changes[word[start : start + 2]] -= count
        for start in range(len(merged) - 1):
            changes[merged[start : start + 2]] += count
            self._note(merged[start : start + 2], index)
        self.words[index] = merged
        return count * (len(word) - len(merged))


def merge_pairs(
    words: Sequence[str],
    counts: Sequence[int],
    symbols: Sequence[str],
    *,
    num_symbols: int,
    score: Score,
    min_frequency: int,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Return `symbols` followed by merged ones, in the order of merging, up to `num_symbols` in all.

    `symbols` are the characters, bare for the start of a word and with `##` inside, and must cover `words`. A pair is
    merged while one occurs `min_frequency` times or more. "frequency" takes the pair that occurs most often;
    "likelihood" the one with the highest freq(pair) / (freq(first) * freq(second)) in the words as they are cut now
    (Schuster and Nakajima 2012; paper 3.2 names WordPiece). A tie goes to the pair whose first, then second symbol is
    older, so the result depends on nothing but the counts. Two ways to the same string are one symbol.
    """
    found = list(symbols)
    ids = {symbol: index for index, symbol in enumerate(found)}
    starts = {symbol: chr(index) for index, symbol in enumerate(found)}
    inside = {ord(s[2:]): chr(i) for i, s in enumerate(found) if s.startswith(CONTINUATION_PREFIX) and len(s) == 3}
    segmented = _SegmentedWords([starts[word[0]] + word[1:].translate(inside) for word in words], counts)
    pairs: PairQueue
    if score == "frequency":
        pairs = FrequencyQueue(segmented.pair_counts, min_frequency)
    else:
        pairs = LikelihoodQueue(segmented.pair_counts, _symbol_counts(segmented, len(found)), min_frequency)
    segmented.pair_counts.clear()
    while len(found) < num_symbols and (pair := pairs.best()) is not None:
        first, second = found[ord(pair[0])], found[ord(pair[1])]
        merged = first + second.removeprefix(CONTINUATION_PREFIX)
        if merged not in ids:
            ids[merged] = len(found)
            found.append(merged)
            if progress:
                progress(len(found))
        symbol = chr(ids[merged])
        changes, num_merged = segmented.merge(pair, symbol)
        pairs.update(changes, pair, symbol, num_merged)
    return found


def _symbol_counts(segmented: _SegmentedWords, num_symbols: int) -> list[int]:
    totals = [0] * num_symbols
    for word, count in zip(segmented.words, segmented.counts, strict=True):
        for symbol in word:
            totals[ord(symbol)] += count
    return totals
