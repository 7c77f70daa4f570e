"""Growing a vocabulary from characters by repeatedly merging the best pair of adjacent symbols.

Words are in flat arrays, where one call merges all occurrences of a pair. A pair of symbol ids is encoded as
`first << 32 | second`, so that pairs sort by their ids.
"""

from __future__ import annotations

import heapq
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from maskloom.text.vocabulary import CONTINUATION_PREFIX

Score = Literal["frequency", "likelihood"]
_SHIFT = 32
_SECOND = (1 << _SHIFT) - 1
_FEW = 48  # pairs at fewer places are merged one place at a time, which is faster than operations on such short arrays
_BLOCK = 128
_NO_KEY = np.iinfo(np.int64).max
_STEPS_A_NAT = 1024
_SQRT_HALF = 0.5**0.5
_LOG_2 = 0.6931471805599453


class SegmentedWords:
    """Distinct words with one place per character, and the places where each pair of symbols may begin.

    A symbol is stored at the place of its first character; places inside a symbol and between words hold -1.
    """

    def __init__(self, words: Sequence[str], counts: Sequence[int], symbols: Sequence[str], suffix: str | None) -> None:
        """Split words, with their frequencies, into characters; symbols and suffix are those of `merge_pairs`."""
        edges, inside = _symbols_of_characters(symbols, suffix)
        sizes = np.fromiter(map(len, words), np.int64, len(words)) + 1
        content = np.frombuffer("\0".join(["", *words, ""]).encode("utf-32-le", "surrogatepass"), "<u4")
        placed = inside[content].astype(np.int32)
        first = np.cumsum(sizes) - sizes + 1
        edge = first + sizes - 2 if suffix else first
        placed[edge] = edges[content[edge]]
        placed[first - 1] = placed[-1] = -1
        # places are read singly as well as in bulk: Python arrays, whose memory numpy can view
        self._symbols = array("i", placed.tobytes())
        self._begins = array("i", np.arange(len(placed), dtype=np.int32).tobytes())
        self._weights = array("q", bytes(8) + np.repeat(np.asarray(counts, np.int64), sizes).tobytes())
        views = (np.frombuffer(flat, f"i{flat.itemsize}") for flat in (self._symbols, self._begins, self._weights))
        self._views = tuple(views)
        self._lengths = dict.fromkeys(range(int(placed.max(initial=0)) + 1), 1)
        self._places: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
        begins = np.flatnonzero((placed[:-1] >= 0) & (placed[1:] >= 0)).astype(np.int32)
        self.pair_counts = self._note(_pairs(placed[begins], placed[begins + 1]), begins, self._views[2][begins])

    def symbol_counts(self, num_symbols: int) -> list[int]:
        """Return how often each symbol occurs."""
        symbols, _, weights = self._views
        is_symbol = symbols >= 0
        return np.bincount(symbols[is_symbol], weights[is_symbol], num_symbols).astype(np.int64).tolist()

    def merge(self, pair: int, symbol: int) -> tuple[dict[int, int], int]:
        """Replace every occurrence of a pair with `symbol`, from left to right in each word.

        Return the changes in the counts of other pairs and the number of replacements, both weighted by word counts.
        """
        first, second = pair >> _SHIFT, pair & _SECOND
        self._lengths[symbol] = self._lengths[first] + self._lengths[second]
        places = self._places.pop(pair)
        if len(places) < _FEW:
            changes, num_merged = self._merge_few(places, first, second, symbol)
        else:
            changes, num_merged = self._merge_many(np.frombuffer(places, np.int32), first, second, symbol)
        changes.pop(pair, None)
        return changes, num_merged

    def num_replacements(self, pair: int) -> int:
        """Return how often a pair of equal symbols would be merged, weighted by word counts: once in a run of three."""
        symbol = pair & _SECOND
        symbols, _, weights = self._views
        places = np.array(self._places[pair], np.int32)
        length = self._lengths[symbol]
        places = np.sort(places[(symbols[places] == symbol) & (symbols[places + length] == symbol)])
        return int(weights[_every_other(places, length)].sum())

    def _note(self, pairs: np.ndarray, places: np.ndarray, counts: np.ndarray) -> dict[int, int]:
        """Record where pairs begin, and return the total count of each pair."""
        order, keys, edges = _groups(pairs)
        ordered = places[order]
        bounds = [*edges.tolist(), len(pairs)]
        for pair, begin, end in zip(keys, bounds, bounds[1:], strict=False):
            self._places[pair].frombytes(ordered[begin:end].tobytes())
        return _sums(order, keys, edges, counts)

    def _merge_few(self, places: array[int], first: int, second: int, symbol: int) -> tuple[dict[int, int], int]:
        symbols, begins, weights, lengths = self._symbols, self._begins, self._weights, self._lengths
        noted = self._places
        changes: defaultdict[int, int] = defaultdict(int)
        num_merged = 0
        first_length, length = lengths[first], lengths[symbol]
        for place in sorted(places) if first == second else places:
            # another merge may have consumed either symbol since
            if symbols[place] != first or symbols[place + first_length] != second:
                continue
            count = weights[place]
            before = symbols[begins[place - 1]]
            if before >= 0:
                changes[before << _SHIFT | first] -= count
                pair = before << _SHIFT | symbol
                changes[pair] += count
                noted[pair].append(begins[place - 1])
            after = symbols[place + length]
            if after >= 0:
                changes[second << _SHIFT | after] -= count
                pair = symbol << _SHIFT | after
                changes[pair] += count
                noted[pair].append(place)
            symbols[place] = symbol
            symbols[place + first_length] = -1
            begins[place + length - 1] = place
            num_merged += count
        return changes, num_merged

    def _merge_many(self, places: np.ndarray, first: int, second: int, symbol: int) -> tuple[dict[int, int], int]:
        symbols, begins, weights = self._views
        first_length, length = self._lengths[first], self._lengths[symbol]
        places = np.sort(places[(symbols[places] == first) & (symbols[places + first_length] == second)])
        if first == second:
            places = _every_other(places, first_length)
        counts = weights[places]
        previous, following = begins[places - 1], places + length
        # where two merges are adjacent, the left one accounts for the pair between them
        touches = following[:-1] == places[1:]
        has_before = symbols[previous] >= 0
        has_before[1:] &= ~touches
        old_after = symbols[following]
        new_after = old_after.copy()
        new_after[:-1][touches] = symbol
        has_after = old_after >= 0
        symbols[places] = symbol
        symbols[places + first_length] = -1
        begins[following - 1] = places
        previous = previous[has_before]
        before, old_after, new_after = symbols[previous], old_after[has_after], new_after[has_after]
        both = np.concatenate([counts[has_before], counts[has_after]])
        added = np.concatenate([_pairs(before, symbol), _pairs(symbol, new_after)])
        removed = np.concatenate([_pairs(before, first), _pairs(second, old_after)])
        changes = self._note(added, np.concatenate([previous, places[has_after]]), both)
        for pair, count in _sums(*_groups(removed), both).items():
            changes[pair] = changes.get(pair, 0) - count
        return changes, int(counts.sum())


class SymbolTable:
    """A two-way table of symbol ids and strings, which initially are single characters.

    A string that continues a word begins with `prefix`, which is removed when it is joined to a preceding string.
    """

    def __init__(self, symbols: Sequence[str], prefix: str) -> None:
        self.strings, self._prefix = list(symbols), prefix
        self._ids = {symbol: index for index, symbol in enumerate(self.strings)}

    def add(self, pair: int) -> int:
        """Add the string of a pair and return its symbol."""
        self.strings.append(self._joined(pair))
        self._ids[self.strings[-1]] = len(self.strings) - 1
        return len(self.strings) - 1

    def symbol_of(self, pair: int) -> int:
        """Return the symbol that already has the string of a pair, or -1."""
        return self._ids.get(self._joined(pair), -1)

    def pairs_of(self, symbol: int) -> Iterator[int]:
        """Yield the pairs of symbols that merge into the string of a symbol."""
        string = self.strings[symbol]
        shortest = 3 if string.startswith(CONTINUATION_PREFIX) and len(string) > 2 else 1
        for cut in range(shortest, len(string)):
            first = self._ids.get(string[:cut])
            second = self._ids.get(CONTINUATION_PREFIX + string[cut:])
            if first is not None and second is not None:
                yield first << _SHIFT | second

    def _joined(self, pair: int) -> str:
        return self.strings[pair >> _SHIFT] + self.strings[pair & _SECOND].removeprefix(self._prefix)


class FrequencyQueue:
    """Pairs ordered by frequency; ties go to the pair with the older symbols."""

    def __init__(self, pair_counts: dict[int, int], min_frequency: int) -> None:
        self._counts = dict(pair_counts)
        self._min_frequency = min_frequency
        self._heap = [(-count, pair) for pair, count in self._counts.items() if count >= min_frequency]
        heapq.heapify(self._heap)

    def best(self) -> int | None:
        """Return the most frequent pair, or None if none occurs `min_frequency` times."""
        while self._heap:
            negative, pair = self._heap[0]
            count = self._counts.get(pair, 0)
            if count == -negative:
                return pair
            heapq.heappop(self._heap)
            # a count that grew already has a new entry, so only a count that fell needs one
            if self._min_frequency <= count < -negative:
                heapq.heappush(self._heap, (-count, pair))
        return None

    def update(self, changes: dict[int, int], merged: int, symbol: int, num_merged: int) -> None:
        """Apply the count changes of a merge."""
        self._counts.pop(merged, None)
        for pair, change in changes.items():
            count = self._counts.get(pair, 0) + change
            if count:
                self._counts[pair] = count
                if change > 0 and count >= self._min_frequency:
                    heapq.heappush(self._heap, (-count, pair))
            else:
                self._counts.pop(pair, None)


class LikelihoodQueue:
    """Pairs ordered by how much merging them increases the log-likelihood of the words under a unigram symbol model.

    With symbol counts c and their sum N, the words as currently split have the log-likelihood sum c log(c / N), which
    is sum c log c - N log N. A merge at n places reduces N and the counts of both symbols by n, and adds n to the count
    of the merged symbol, which may already exist; a symbol that is paired with itself loses 2 n. The gain is exact,
    about n log(n N / (c_first c_second)) if n is small compared with the counts, and rounded to steps of 1/1024 nat so
    that equal gains compare equal despite rounding errors. A pair without a gain is not merged.

    A merge changes the gain of every pair that shares a symbol with it, so most entries of a heap would be stale.
    Instead, gains are stored in an array of blocks that each record their best pair. A pair occupies a slot as long as
    it occurs; slots are never reused. N falls with every merge, which lowers the gain of every pair. Old gains are
    therefore upper bounds, and only the blocks with a changed count or with the highest bound are recomputed.
    """

    def __init__(
        self, words: SegmentedWords, symbol_counts: Sequence[int], min_frequency: int, pairs: SymbolTable
    ) -> None:
        self._words, self._pairs, self._min_frequency = words, pairs, min_frequency
        self._num_symbols = len(pairs.strings)
        self._symbol_counts = np.array(symbol_counts, dtype=np.int64)  # of future symbols too, which are 0
        self._total = int(sum(symbol_counts))
        # x log x of each symbol's count and of their sum: terms that the scores of many pairs share
        self._times_logs = _times_log(np.array([*symbol_counts, 0]))
        self._times_log_of_total = _times_log(np.array([self._total]))[0]
        self._slots: dict[int, int] = {}
        self._slots_of_symbol: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self._num_slots = 0
        self._counts, self._keys, self._scores = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self._targets, self._overlaps, self._block_totals = (np.zeros(0, np.int64) for _ in range(3))
        self._block_scores, self._block_keys = np.zeros(0), np.zeros(0, np.int64)
        self._add_blocks(max(1, -(-2 * len(words.pair_counts) // _BLOCK)))
        self._change(words.pair_counts)
        self._rescore(np.arange(self._num_slots))

    def best(self) -> int | None:
        """Return the pair with the highest gain, or None if none with `min_frequency` occurrences has a gain."""
        while (highest := self._block_scores.max()) > 0:
            blocks = np.flatnonzero(self._block_scores == highest)
            stale = blocks[self._block_totals[blocks] != self._total]
            if not len(stale):
                return int(self._block_keys[blocks].min())
            slots = (stale[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
            self._rescore(slots[slots < self._num_slots])
            self._block_totals[stale] = self._total
        return None

    def update(self, changes: dict[int, int], merged: int, symbol: int, num_merged: int) -> None:
        """Apply the count changes of a merge."""
        if symbol >= self._num_symbols:
            self._num_symbols = symbol + 1
            for pair in self._pairs.pairs_of(symbol):
                if pair in self._slots:
                    self._aim(self._slots[pair], symbol)
        first, second = merged >> _SHIFT, merged & _SECOND
        self._recount(first, second, symbol, num_merged)
        slot = self._slots.pop(merged)
        self._counts[slot] = 0
        self._change(changes)
        touched = [self._live_slots(one) for one in {first, second, symbol} if one in self._slots_of_symbol]
        self._rescore(np.concatenate([[slot], *touched]))

    def _recount(self, first: int, second: int, new: int, num_merged: int) -> None:
        """Move occurrences from two symbols, which may be the same, to a third."""
        self._symbol_counts[first] -= num_merged
        self._symbol_counts[second] -= num_merged
        self._symbol_counts[new] += num_merged
        self._total -= num_merged
        symbols = [first, second, new]
        *changed, self._times_log_of_total = _times_log(np.array([*self._symbol_counts[symbols], self._total]))
        self._times_logs[symbols] = changed

    def _add_blocks(self, number: int) -> None:
        """Allocate more slots, with a score of 0."""
        size = number * _BLOCK
        self._counts, self._scores = np.pad(self._counts, (0, size)), np.pad(self._scores, (0, size))
        self._keys = np.pad(self._keys, (0, size), constant_values=_NO_KEY)
        self._targets = np.pad(self._targets, (0, size), constant_values=-1)
        self._overlaps = np.pad(self._overlaps, (0, size))
        self._block_scores = np.pad(self._block_scores, (0, number))
        self._block_keys = np.pad(self._block_keys, (0, number), constant_values=_NO_KEY)
        self._block_totals = np.pad(self._block_totals, (0, number))

    def _change(self, changes: dict[int, int]) -> None:
        for pair, change in changes.items():
            slot = self._slots.get(pair)
            if slot is None:
                if not change:
                    continue
                slot = self._add(pair)
            self._counts[slot] += change
            if not self._counts[slot]:
                del self._slots[pair]
            elif pair >> _SHIFT == pair & _SECOND:
                self._overlaps[slot] = self._counts[slot] - self._words.num_replacements(pair)

    def _add(self, pair: int) -> int:
        """Return a new slot for a pair, with a count of 0."""
        slot = self._num_slots
        if slot == len(self._counts):
            self._add_blocks(len(self._block_keys))
        self._num_slots += 1
        self._slots[pair] = slot
        self._keys[slot] = pair
        for symbol in {pair >> _SHIFT, pair & _SECOND}:
            self._slots_of_symbol[symbol].append(slot)
        if (target := self._pairs.symbol_of(pair)) >= 0:
            self._aim(slot, target)
        return slot

    def _aim(self, slot: int, target: int) -> None:
        """Record that a pair merges into an existing symbol, whose count then also affects the pair's gain."""
        self._targets[slot] = target
        self._slots_of_symbol[target].append(slot)

    def _live_slots(self, symbol: int) -> np.ndarray:
        slots = np.array(self._slots_of_symbol[symbol])
        live = self._counts[slots] > 0
        if not live.all():
            # dead slots are returned one last time, so that their scores are cleared
            self._slots_of_symbol[symbol] = array("q", slots[live].tobytes())
        return slots

    def _rescore(self, slots: np.ndarray) -> None:
        if not len(slots):
            return
        self._scores[slots] = np.where(self._counts[slots] >= self._min_frequency, self._values(slots), 0.0)
        blocks = np.unique(slots // _BLOCK)
        scores = self._scores.reshape(-1, _BLOCK)[blocks]
        highest = scores.max(axis=1)
        self._block_scores[blocks] = highest
        block_keys = self._keys.reshape(-1, _BLOCK)[blocks]
        self._block_keys[blocks] = np.where(scores == highest[:, None], block_keys, _NO_KEY).min(axis=1)

    def _values(self, slots: np.ndarray) -> np.ndarray:
        keys, targets = self._keys[slots], self._targets[slots]
        first, second = keys >> _SHIFT, keys & _SECOND
        counts, is_double, is_there = self._counts[slots] - self._overlaps[slots], first == second, targets >= 0
        first_new = self._symbol_counts[first] - counts * (1 + is_double)
        there_new = self._symbol_counts[targets] * is_there + counts
        new = np.concatenate([first_new, self._symbol_counts[second] - counts, there_new, self._total - counts])
        first_change, second_change, there_change, total_change = _times_log(new).reshape(4, -1)
        old = self._times_logs
        gains = first_change - old[first] + (second_change - old[second]) * ~is_double
        gains += (there_change - old[targets] * is_there) - (total_change - self._times_log_of_total)
        return np.rint(gains * _STEPS_A_NAT) / _STEPS_A_NAT


def _times_log(counts: np.ndarray) -> np.ndarray:
    """Return x log x, or 0 for 0 and for negative values, which belong to slots whose pairs are gone."""
    values = np.maximum(counts, 1).astype(np.float64)
    return values * _log(values)


def _log(values: np.ndarray) -> np.ndarray:
    """Return natural logarithms by basic arithmetic, which unlike np.log is bit-identical on every machine."""
    mantissa, exponent = np.frexp(values)
    is_low = mantissa < _SQRT_HALF
    mantissa, exponent = np.where(is_low, 2 * mantissa, mantissa), exponent - is_low
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    series = np.full_like(square, 1 / 23)
    for divisor in range(21, 0, -2):
        series = series * square + 1 / divisor
    return exponent * _LOG_2 + 2 * ratio * series


def merge_pairs(
    words: Sequence[str],
    counts: Sequence[int],
    symbols: Sequence[str],
    *,
    num_symbols: int,
    score: Score,
    min_frequency: int,
    suffix: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return `symbols` followed by merged symbols, up to `num_symbols` in total, and the merges in order.

    `symbols` are the characters and must cover `words`: bare at the start of a word and with `##` inside, or, given a
    `suffix`, with the suffix at the end of a word and bare before it (Sennrich et al. 2016); an empty suffix leaves the
    end unmarked. Merging continues while a pair occurs at least `min_frequency` times. `score` selects the pair:
    "frequency" the most frequent one; "likelihood" the one whose merge most increases the log-likelihood of the words
    under a unigram model of the symbols, as long as there is an increase (Schuster and Nakajima 2012; paper 3.2 names
    WordPiece). All counts refer to the words as currently split. Ties go to the pair with the older first, then second,
    symbol, so the result depends only on the counts. Merges that give the same string share one symbol.
    """
    segmented = SegmentedWords(words, counts, symbols, suffix)
    table = SymbolTable(symbols, CONTINUATION_PREFIX if suffix is None else "")
    if score == "frequency":
        pairs = FrequencyQueue(segmented.pair_counts, min_frequency)
    else:
        pairs = LikelihoodQueue(segmented, segmented.symbol_counts(num_symbols), min_frequency, table)
    segmented.pair_counts.clear()
    merges: list[tuple[str, str]] = []
    while len(table.strings) < num_symbols and (pair := pairs.best()) is not None:
        symbol = table.symbol_of(pair)
        if symbol < 0:
            symbol = table.add(pair)
            if progress:
                progress(len(table.strings))
        merges.append((table.strings[pair >> _SHIFT], table.strings[pair & _SECOND]))
        changes, num_merged = segmented.merge(pair, symbol)
        pairs.update(changes, pair, symbol, num_merged)
    return table.strings, merges


def _symbols_of_characters(symbols: Sequence[str], suffix: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the symbol of each code point at the start of a word (with a suffix, its end), and elsewhere."""
    bare = {ord(symbol): index for index, symbol in enumerate(symbols) if len(symbol) == 1}
    if suffix is not None:
        marked = {ord(s[0]): i for i, s in enumerate(symbols) if s.endswith(suffix) and len(s) == len(suffix) + 1}
    else:
        marked = {ord(s[2:]): i for i, s in enumerate(symbols) if s.startswith(CONTINUATION_PREFIX) and len(s) == 3}
    size = max([0, *bare, *marked]) + 1
    tables = np.full((2, size), -1, np.int32)
    for table, places in zip(tables, (bare, marked) if suffix is None else (marked, bare), strict=True):
        table[list(places.keys())] = list(places.values())
    return tables[0], tables[1]


def _pairs(first: np.ndarray | int, second: np.ndarray | int) -> np.ndarray:
    return np.asarray(first, np.int64) << _SHIFT | np.asarray(second, np.int64)


def _groups(pairs: np.ndarray) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Return the order that groups equal pairs, the distinct pairs, and where each begins in that order."""
    order = np.argsort(pairs, kind="stable")
    ordered = pairs[order]
    edges = np.flatnonzero(np.diff(ordered, prepend=-1))
    return order, ordered[edges].tolist(), edges


def _sums(order: np.ndarray, keys: list[int], edges: np.ndarray, counts: np.ndarray) -> dict[int, int]:
    if not keys:
        return {}
    return dict(zip(keys, np.add.reduceat(counts[order], edges).tolist(), strict=True))


def _every_other(places: np.ndarray, length: int) -> np.ndarray:
    """Keep the first, third, ... of each run of ascending places spaced by `length`."""
    numbers = np.arange(len(places))
    is_first = np.diff(places, prepend=-1 - length) != length
    return places[(numbers - np.maximum.accumulate(np.where(is_first, numbers, 0))) % 2 == 0]
