"""Turn text into numbered words: the vocabulary by count, and a file of numbers that training memory-maps."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from maskloom.data.corpus.documents import Document
from maskloom.errors import DataError, amount
from maskloom.system.files import replacing
from maskloom.words.settings import WordsRecipe

END = -1
"""The number after each sentence in the file of numbers."""
_BLOCK = 1 << 20
# Part of a line up to white space; if none follows within as many bytes again, the cut is between two characters.
_PIECE = re.compile(rb"[^\n]{1,65536}\S{0,65536}[\x80-\xbf]*")
# How many chunks between white space are cached, and the length of the longest that is.
_MOST_CHUNKS, _LONGEST_CHUNK = 1 << 19, 64


class _Spaces(dict[int, str]):
    """Maps every character that is not a letter, mark or number to a blank, for `str.translate`."""

    def __missing__(self, character: int) -> str:
        kept = chr(character) if unicodedata.category(chr(character))[0] in "LMN" else " "
        self[character] = kept
        return kept


class Numbering(dict[str, tuple[int, ...]]):
    """Maps each chunk of text between white space to the numbers of its words, assigned as words appear."""

    def __init__(self, recipe: WordsRecipe) -> None:
        super().__init__()
        self.numbers: defaultdict[str, int] = defaultdict()
        self.numbers.default_factory = self.numbers.__len__
        self._cuts, self._is_cased, self._spaces = recipe.tokenize == "words", recipe.cased, _Spaces()

    def __missing__(self, chunk: str) -> tuple[int, ...]:
        words = [chunk]
        if self._cuts:
            text = unicodedata.normalize("NFC", chunk if self._is_cased else chunk.lower())
            words = text.translate(self._spaces).split()
        if len(self) > _MOST_CHUNKS:
            self.clear()
        numbers = tuple(map(self.numbers.__getitem__, words))
        if len(chunk) <= _LONGEST_CHUNK:
            self[chunk] = numbers
        return numbers

    def numbered(self, line: str) -> Iterable[int]:
        """Return the numbers of the words in a line, or in part of one."""
        return chain.from_iterable(map(self.__getitem__, line.split()))


def training_pairs(sentence: str, recipe: WordsRecipe) -> Iterator[tuple[list[str], str]]:
    """Yield a sentence's training pairs, words and the word that they predict, in full windows (Mikolov et al. 2013).

    With CBOW the words of a window together predict its centre; with skip-gram the centre is paired with each of them.
    In training, frequent words are subsampled first, and the width of each window is random. Raises DataError for fewer
    than two words.
    """
    numbering = Numbering(recipe)
    numbers = list(numbering.numbered(sentence))
    names = list(numbering.numbers)
    words = [names[number] for number in numbers]
    if len(words) < 2:
        raise DataError(f"{sentence[:60]!r}: {amount(len(words), 'word')}; a window needs at least two")
    for place, word in enumerate(words):
        around = [*words[max(0, place - recipe.window) : place], *words[place + 1 : place + 1 + recipe.window]]
        if recipe.model == "cbow":
            yield around, word
        else:
            yield from (([word], other) for other in around)


def write_numbers(
    documents: Iterable[Document], recipe: WordsRecipe, path: Path, progress: Callable[[int], None]
) -> tuple[list[str], int]:
    """Write the numbers of all words of the text, with `END` after each line.

    Return the words by number, and how often text without white space was so long that it was cut. Every distinct word
    of the text is held in memory, at about 150 bytes each.
    """
    numbering, pending, total, num_cuts = Numbering(recipe), list[int](), 0, 0
    with replacing(path) as file:
        for document in documents:
            for piece in _PIECE.finditer(document.content):
                pending.extend(numbering.numbered(piece[0].decode()))
                if len(pending) >= _BLOCK:
                    total += len(pending) - 1
                    file.write(np.array(pending[:-1], np.int32).tobytes())
                    del pending[:-1]  # the last one shows whether the line has words
                    progress(total)
                following = document.content[piece.end() : piece.end() + 1]
                num_cuts += bool(following.strip())
                if following in (b"\n", b"") and pending and pending[-1] != END:
                    pending.append(END)
        file.write(np.array(pending, np.int32).tobytes())
    numbering.numbers.default_factory = None  # break a cycle that would keep all words in memory
    return [*numbering.numbers], num_cuts


def blocks(path: Path) -> Iterator[np.ndarray]:
    """Yield a file of numbers piece by piece; each but the last ends at a sentence end if it has one."""
    left = np.empty(0, np.int32)
    with path.open("rb") as file:
        while content := file.read(4 * _BLOCK):
            piece = np.concatenate([left, np.frombuffer(content, np.int32)])
            ends = np.flatnonzero(piece == END)
            cut = int(ends[-1]) + 1 if len(ends) else len(piece)
            left = piece[cut:]
            yield piece[:cut]
    if len(left):
        yield left


def counts_of(path: Path, num_words: int) -> np.ndarray:
    """Return how often each number occurs, (words,) int64."""
    counts = np.zeros(num_words, np.int64)
    for block in blocks(path):
        counts += np.bincount(block[block != END], minlength=num_words)
    return counts


def rewrite(path: Path, changed: Callable[[np.ndarray], np.ndarray]) -> None:
    """Rewrite a file of numbers block by block, applying `changed` to each."""
    with replacing(path) as file:
        for block in blocks(path):
            file.write(changed(block).astype(np.int32, copy=False).tobytes())


def keep_frequent(path: Path, words: list[str], min_count: int) -> tuple[list[str], np.ndarray]:
    """Renumber the words, at least one, by their counts, remove the rare ones from the file, return words and counts.

    They are by descending count, those with equal counts in the order of their characters; counts are (words,) int64.
    Raises DataError if fewer than two words are frequent enough.
    """
    counts = counts_of(path, len(words))
    kept = np.flatnonzero(counts >= min_count)
    if len(kept) < 2:
        first = int(counts.argmax())
        raise DataError(
            f"--min-count {min_count}: of {amount(len(words), 'distinct word')}, only {len(kept)} occur that often, "
            f"but at least two must; the most frequent, {words[first]!r:.60}, occurs "
            f"{amount(int(counts[first]), 'time')}; give more text or a lower --min-count"
        )
    order = sorted(kept.tolist(), key=lambda number: (-counts[number], words[number]))
    renumbered = np.full(len(words) + 1, END - 1, np.int32)  # the last one is for END
    renumbered[order] = np.arange(len(order), dtype=np.int32)
    renumbered[END] = END

    def without_rare(block: np.ndarray) -> np.ndarray:
        block = renumbered[block]
        block = block[block >= END]
        is_second_end = (block == END) & np.concatenate([[True], block[:-1] == END])
        return block[~is_second_end]

    rewrite(path, without_rare)
    return [words[number] for number in order], counts[order]


def join_phrases(path: Path, words: list[str], recipe: WordsRecipe) -> list[str]:
    """Join pairs of words that often occur together into one word, as word2phrase does; return the phrases.

    A pair is a phrase if (n_ab - min_count) N / (n_a n_b) exceeds the threshold, where N is the number of words of the
    text, and both words occur at least min_count times. If three words in a row form two pairs, the first two are
    joined. The most frequent phrases are returned first.
    """
    counts = counts_of(path, len(words))
    num_words, is_frequent = len(words), counts >= recipe.min_count

    def pairs(block: np.ndarray) -> np.ndarray:
        first, second = block[:-1].astype(np.int64), block[1:].astype(np.int64)
        is_pair = (first != END) & (second != END) & is_frequent[first] & is_frequent[second]
        return np.where(is_pair, first * num_words + second, -1)

    keys, numbers = np.empty(0, np.int64), np.empty(0, np.int64)
    for block in blocks(path):
        here, times = np.unique(pairs(block), return_counts=True)
        keys, places = np.unique(np.concatenate([keys, here]), return_inverse=True)
        numbers = np.bincount(places, np.concatenate([numbers, times]), len(keys)).astype(np.int64)
    first, second = counts[keys // num_words], counts[keys % num_words]
    score = (numbers - recipe.min_count) * float(counts.sum()) / np.maximum(first * second.astype(float), 1)
    is_kept = (score > recipe.phrase_threshold) & (keys >= 0)
    phrases, by_frequency = keys[is_kept], np.argsort(-numbers[is_kept], kind="stable")
    names = [f"{words[key // num_words]}_{words[key % num_words]}" for key in phrases.tolist()]
    wanted = {*names}  # some may be words of the text already
    numbers_of = {word: number for number, word in enumerate(words) if word in wanted}
    words += [name for name in dict.fromkeys(names) if name not in numbers_of]
    numbers_of |= {name: number for number, name in enumerate(words[num_words:], num_words)}
    joins = np.array([numbers_of[name] for name in names], np.int32)

    def joined(block: np.ndarray) -> np.ndarray:
        found = pairs(block)
        nearest = np.minimum(np.searchsorted(phrases, found), len(phrases) - 1)
        is_phrase = phrases[nearest] == found
        # in a run of overlapping pairs every second one is joined, beginning with the first
        places = np.arange(len(found))
        last_other = np.maximum.accumulate(np.where(is_phrase, -1, places))
        is_joined = is_phrase & ((places - last_other) % 2 == 1)
        block = block.copy()
        block[:-1][is_joined] = joins[nearest[is_joined]]
        return block[~np.concatenate([[False], is_joined])]

    if len(phrases):
        rewrite(path, joined)
    return [names[place] for place in by_frequency.tolist()]
