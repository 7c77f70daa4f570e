"""Words as symbols in flat arrays, where one call merges all occurrences of a pair of adjacent symbols."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from maskloom.text.vocabulary import CONTINUATION_PREFIX

PAIR_SHIFT = 32
SECOND = (1 << PAIR_SHIFT) - 1
FEW = 48
"""Pairs at fewer places are merged one place at a time, which is faster than operations on such short arrays."""


class SegmentedWords:
    """Distinct words with one place per character, and the places where each pair of symbols may begin.

    A symbol is stored at the place of its first character; places inside a symbol and between words hold -1. A pair of
    symbol ids is encoded as `first << 32 | second`, so that pairs sort by their ids.
    """

    def __init__(
        self,
        words: Sequence[str],
        counts: Sequence[int],
        edges: np.ndarray,
        inside: np.ndarray,
        *,
        marks_end: bool = False,
    ) -> None:
        """Split words into characters; `edges` and `inside` map code points to symbols at and off the edge of a word.

        The edge of a word is its first character, or with `marks_end` its last. `counts` holds the words' frequencies.
        """
        sizes = np.fromiter(map(len, words), np.int64, len(words)) + 1
        content = np.frombuffer("\0".join(["", *words, ""]).encode("utf-32-le", "surrogatepass"), "<u4")
        symbols = inside[content].astype(np.int32)
        first = np.cumsum(sizes) - sizes + 1
        edge = first + sizes - 2 if marks_end else first
        symbols[edge] = edges[content[edge]]
        symbols[first - 1] = symbols[-1] = -1
        # places are read singly as well as in bulk: Python arrays, whose memory numpy can view
        self._symbols = array("i", symbols.tobytes())
        self._begins = array("i", np.arange(len(symbols), dtype=np.int32).tobytes())
        self._weights = array("q", bytes(8) + np.repeat(np.asarray(counts, np.int64), sizes).tobytes())
        views = (np.frombuffer(flat, f"i{flat.itemsize}") for flat in (self._symbols, self._begins, self._weights))
        self._views = tuple(views)
        self._lengths = dict.fromkeys(range(int(symbols.max(initial=0)) + 1), 1)
        self._places: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
        found = np.flatnonzero((symbols[:-1] >= 0) & (symbols[1:] >= 0)).astype(np.int32)
        self.pair_counts = self._note(_pairs(symbols[found], symbols[found + 1]), found, self._views[2][found])

    def symbol_counts(self, num_symbols: int) -> list[int]:
        """Return how often each symbol occurs."""
        symbols, _, weights = self._views
        is_symbol = symbols >= 0
        return np.bincount(symbols[is_symbol], weights[is_symbol], num_symbols).astype(np.int64).tolist()

    def merge(self, pair: int, symbol: int) -> tuple[dict[int, int], int]:
        """Replace every occurrence of a pair with `symbol`, from left to right in each word.

        Return the changes in the counts of other pairs and the number of replacements, both weighted by word counts.
        """
        first, second = pair >> PAIR_SHIFT, pair & SECOND
        self._lengths[symbol] = self._lengths[first] + self._lengths[second]
        places = self._places.pop(pair)
        if len(places) < FEW:
            changes, num_merged = self._merge_few(places, first, second, symbol)
        else:
            changes, num_merged = self._merge_many(np.frombuffer(places, np.int32), first, second, symbol)
        changes.pop(pair, None)
        return changes, num_merged

    def num_replacements(self, pair: int) -> int:
        """Return how often a pair of equal symbols would be merged, weighted by word counts: once in a run of three."""
        symbol = pair & SECOND
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
                changes[before << PAIR_SHIFT | first] -= count
                pair = before << PAIR_SHIFT | symbol
                changes[pair] += count
                noted[pair].append(begins[place - 1])
            after = symbols[place + length]
            if after >= 0:
                changes[second << PAIR_SHIFT | after] -= count
                pair = symbol << PAIR_SHIFT | after
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

    def __init__(self, symbols: Sequence[str], prefix: str = CONTINUATION_PREFIX) -> None:
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
                yield first << PAIR_SHIFT | second

    def _joined(self, pair: int) -> str:
        return self.strings[pair >> PAIR_SHIFT] + self.strings[pair & SECOND].removeprefix(self._prefix)


def _pairs(first: np.ndarray | int, second: np.ndarray | int) -> np.ndarray:
    return np.asarray(first, np.int64) << PAIR_SHIFT | np.asarray(second, np.int64)


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
