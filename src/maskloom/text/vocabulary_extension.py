"""Choosing pieces to add to an existing vocabulary so that the words of a text split into the fewest pieces."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from maskloom.errors import ConfigError
from maskloom.text.vocabulary import CONTINUATION_PREFIX, MAX_WORD_LENGTH, Vocabulary, longest_pieces

# Anything with more pieces is not a word: addresses, sequences, noise.
_MOST_PIECES = 12


@dataclass(frozen=True)
class NewPiece:
    """A piece to add, its pieces in the old vocabulary, and the number of pieces it saved when chosen."""

    token: str
    old_pieces: tuple[str, ...]
    num_saved: int


def choose_pieces(
    counts: Mapping[str, int], vocabulary: Vocabulary, *, num_pieces: int, min_frequency: int
) -> list[NewPiece]:
    """Return up to `num_pieces` new pieces in the order chosen, or fewer if no further piece saves anything.

    `counts` maps normalised words to frequencies. Candidates are runs of adjacent pieces, at the start of a word or,
    with `##`, inside it, that occur at least `min_frequency` times. The choice is greedy: next comes the piece that
    saves most pieces where its run occurs, corrected by splitting the words again (WordPiece, longest match first);
    ties go to the lower code points. A piece that would make a known word unknown is rejected, and unknown words stay
    unknown. Raises ConfigError for numbers below 1.
    """
    for name, value in (("num_pieces", num_pieces), ("min_frequency", min_frequency)):
        if value < 1:
            raise ConfigError(f"{name} = {value}: it must be at least 1")
    words = _CutWords(counts, set(vocabulary.tokens))
    old = set(vocabulary.tokens)
    # (-pieces saved, token, the estimate it comes from, number of pieces chosen when words were split, or -1)
    heap = [(-estimate, token, estimate, -1) for token, estimate in words.estimates.items()]
    heapq.heapify(heap)
    chosen: list[NewPiece] = []
    while heap and len(chosen) < num_pieces:
        negative, token, estimate, num_before = heapq.heappop(heap)
        current = words.estimates.get(token, 0)
        if current <= 0 or words.frequencies[token] < min_frequency:
            continue
        if current != estimate:
            heapq.heappush(heap, (-current, token, current, -1))
        elif num_before == len(chosen):
            chosen.append(NewPiece(token, tuple(_cut_token(token, old) or ()), -negative))
            for grown in words.add(token):
                estimate = words.estimates[grown]
                heapq.heappush(heap, (-estimate, grown, estimate, -1))
        elif (saved := words.saved_by(token)) > 0:
            heapq.heappush(heap, (-saved, token, estimate, len(chosen)))
    return chosen


class _CutWords:
    """The words of more than one piece, as currently split, and what joining each run of pieces may save.

    The estimate of a candidate is the number of pieces saved where its pieces are adjacent. It may also match across
    the current boundaries, which only splitting the words shows.
    """

    def __init__(self, counts: Mapping[str, int], known: set[str]) -> None:
        self.estimates: defaultdict[str, int] = defaultdict(int)
        self.frequencies: defaultdict[str, int] = defaultdict(int)
        self._known = known
        self._counts: dict[str, int] = {}
        self._cuts: dict[str, list[str]] = {}
        self._words_with: defaultdict[str, set[str]] = defaultdict(set)
        for word in sorted(counts):
            cut = _cut(word, known) if len(word) <= MAX_WORD_LENGTH else None
            if cut is not None and 1 < len(cut) <= _MOST_PIECES:
                self._counts[word] = counts[word]
                self._enter(word, cut)

    def saved_by(self, token: str) -> int:
        """Return how many pieces adding a token saves, or 0 if a known word would become unknown."""
        changed = self._changed_by(token)
        self._known.add(token)
        cuts = {word: _cut(word, self._known) for word in changed}
        self._known.remove(token)
        saved = 0
        for word, cut in cuts.items():
            if cut is None:
                return 0
            saved += self._counts[word] * (len(self._cuts[word]) - len(cut))
        return saved

    def add(self, token: str) -> list[str]:
        """Add a token and split the words again; return the distinct candidates whose estimates have grown."""
        changed = self._changed_by(token)
        self._known.add(token)
        before = {run: self.estimates[run] for word in changed for run, _ in _runs(self._cuts[word])}
        for word in changed:
            self._count(word, -1)
            for piece in self._cuts[word]:
                self._words_with[piece].discard(word)
            self._enter(word, _cut(word, self._known) or [])
        after = {run for word in changed for run, _ in _runs(self._cuts[word])}
        return sorted(run for run in after if self.estimates[run] > before.get(run, 0))

    def _changed_by(self, token: str) -> list[str]:
        """Return the words where the token matches from the start of a piece that equals its own first piece."""
        first = (_cut_token(token, self._known) or [token])[0]
        body = token.removeprefix(CONTINUATION_PREFIX)
        found = []
        for word in self._words_with[first]:
            place = 0
            for piece in self._cuts[word]:
                if piece == first and word.startswith(body, place):
                    found.append(word)
                    break
                place += len(piece.removeprefix(CONTINUATION_PREFIX)) if place else len(piece)
        return sorted(found)

    def _enter(self, word: str, cut: list[str]) -> None:
        self._cuts[word] = cut
        for piece in cut:
            self._words_with[piece].add(word)
        self._count(word, 1)

    def _count(self, word: str, sign: int) -> None:
        count = sign * self._counts[word]
        for run, num_joined in _runs(self._cuts[word]):
            self.estimates[run] += count * (num_joined - 1)
            self.frequencies[run] += count


def _runs(cut: list[str]) -> Iterator[tuple[str, int]]:
    """Yield each run of two or more adjacent pieces as one token, with its number of pieces."""
    for first in range(len(cut) - 1):
        token = cut[first]
        for last in range(first + 1, len(cut)):
            token += cut[last].removeprefix(CONTINUATION_PREFIX)
            yield token, last - first + 1


def _cut_token(token: str, known: set[str]) -> list[str] | None:
    """Split a token as its characters would be split in a word, at the start or inside."""
    is_inside = token.startswith(CONTINUATION_PREFIX) and len(token) > len(CONTINUATION_PREFIX)
    return _cut(token.removeprefix(CONTINUATION_PREFIX) if is_inside else token, known, is_inside=is_inside)


def _cut(text: str, known: set[str], *, is_inside: bool = False) -> list[str] | None:
    cut = longest_pieces(text, known, is_inside=is_inside)
    return None if cut is None else [piece for piece, _, _ in cut]
