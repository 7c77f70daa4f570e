"""Word vectors in word2vec's two file formats, with nearest neighbours, analogies and a projection onto a plane."""

from __future__ import annotations

import difflib
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from maskloom.errors import DataError, amount
from maskloom.system.files import output_file
from maskloom.system.foreign_files import check_regular

Form = Literal["binary", "text"]
_MAX_WORD_BYTES = 1 << 22
_NUM_NEAR = 3


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, `matrix` (words, size) float32; training writes the most frequent words first."""

    words: list[str]
    matrix: np.ndarray

    @cached_property
    def places(self) -> dict[str, int]:
        """The row of each word."""
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> np.ndarray:
        """The vectors scaled to unit length; a zero vector stays zero."""
        exponents = np.frexp(np.abs(self.matrix).max(1, keepdims=True))[1]
        scaled = np.ldexp(self.matrix, -exponents)  # exact, and squares neither overflow nor vanish
        return np.divide(scaled, np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 0.5), out=scaled)

    def rows_of(self, words: Sequence[str]) -> list[int]:
        """Return the rows of words; raises DataError with up to ten unknown words and similar known spellings."""
        unknown = [word for word in dict.fromkeys(words) if word not in self.places]
        if unknown:
            named = "; ".join(f"{word!r:.80}{self._spelled_like(word)}" for word in unknown[:10])
            raise DataError(f"not among the {len(self.words):,} words: {named}")
        return [self.places[word] for word in words]

    def _spelled_like(self, word: str) -> str:
        if word.lower() in self.places:
            return f" (did you mean {word.lower()}?)"
        like: dict[str, str] = {}  # the most frequent spelling of each known word, by lower case
        begin = {*word[:2].lower()}
        for known in self.words:
            if abs(len(known) - len(word)) <= 2 and begin & {*known[:2].lower()}:
                like.setdefault(known.lower(), known)
        near = [like[one] for one in difflib.get_close_matches(word[:80].lower(), like, _NUM_NEAR, 0.75)]
        return f" (did you mean {', '.join(near)}?)" if near else ""

    def neighbours(self, word: str, number: int = 10) -> list[tuple[str, float]]:
        """Return the words nearest to a word, with cosines; raises DataError for an unknown word."""
        (row,) = self.rows_of([word])
        return self._nearest(self.directions[row], {row}, number)

    def analogy(self, a: str, b: str, c: str, number: int = 10) -> list[tuple[str, float]]:
        """Return the words nearest to b - a + c: "a is to b as c to ..."; raises DataError for unknown words."""
        rows = self.rows_of([a, b, c])
        first, second, third = self.directions[rows]
        wanted = second - first + third
        return self._nearest(wanted / max(float(np.linalg.norm(wanted)), 1e-30), {*rows}, number)

    def _nearest(self, direction: np.ndarray, left_out: set[int], number: int) -> list[tuple[str, float]]:
        cosines = self.directions @ direction
        count = min(number + len(left_out), len(cosines))
        order = np.argpartition(-cosines, count - 1)[:count]
        order = order[np.argsort(-cosines[order], kind="stable")]
        kept = [row for row in order.tolist() if row not in left_out][:number]
        return [(self.words[row], float(cosines[row])) for row in kept]

    def plane(self, words: Sequence[str]) -> np.ndarray:
        """Project two or more words onto the two principal components of their vectors; return (words, 2)."""
        chosen = self.directions[self.rows_of(words)].astype(np.float64)
        left, sizes, _ = np.linalg.svd(chosen - chosen.mean(0), full_matrices=False)
        flat = np.zeros((len(words), 2))
        flat[:, : min(2, len(sizes))] = (left * sizes)[:, :2]
        return flat


def write_vectors(path: Path, words: Iterable[str], matrix: np.ndarray, form: Form) -> None:
    """Write vectors in word2vec's format, binary (float32, little-endian) or text with 9 digits."""
    row_of_text = "%.9g" + " %.9g" * (matrix.shape[1] - 1)
    with output_file(path) as file:
        file.write(f"{len(matrix)} {matrix.shape[1]}\n".encode())
        for word, row in zip(words, matrix, strict=True):
            values = row.astype("<f4").tobytes() if form == "binary" else (row_of_text % tuple(row)).encode()
            file.write(word.encode() + b" " + values + b"\n")


def read_vectors(path: Path) -> WordVectors:
    """Read a file in word2vec's binary or text format, detected from its content.

    Raises DataError (with file and line or row) for a wrong header, truncated or trailing data, a repeated word,
    invalid UTF-8, and values that are not finite numbers.
    """
    check_regular(path)
    with path.open("rb") as file:
        header = file.readline(64)
        num_words, size = _sizes(path, header)
        if path.stat().st_size - len(header) < num_words * (2 * size + 1):
            raise DataError(f"{path}: truncated: line 1 says {amount(num_words, 'word')} of {size:,} numbers")
        matrix = np.empty((num_words, size), np.float32)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            line_end = content.find(b"\n", len(header))
            first = content[len(header) : line_end if line_end > 0 else len(content)].split()
            # more than one number, even if not as many as the header says: no binary row looks like this
            is_text = (len(first) == size + 1 or len(first) > 2) and all(map(_is_number, first[1:]))
            rows = _rows_of_text if is_text else _rows_of_binary
            try:
                words = list(rows(path, content, len(header), matrix))
            except DataError as error:
                raise DataError(f"{error} (line 1 says {amount(num_words, 'word')} of {size:,} numbers)") from None
    bad = np.flatnonzero(~np.isfinite(matrix).all(1))
    if len(bad):
        raise DataError(f"{path}: word {bad[0] + 1:,}, {words[bad[0]]!r:.80}, has a number that is not finite")
    vectors = WordVectors(words, matrix)
    if len(vectors.places) < num_words:
        twice = next(word for place, word in enumerate(words) if vectors.places[word] != place)
        raise DataError(f"{path}: the word {twice!r:.80} appears twice")
    return vectors


def _sizes(path: Path, header: bytes) -> tuple[int, int]:
    fields = header.split()
    if header.endswith(b"\n") and len(fields) == 2 and all(field.isdigit() and len(field) <= 12 for field in fields):
        num_words, size = map(int, fields)
        if num_words and size:
            return num_words, size
    wanted = "the number of words and the size, such as 71290 100"
    if header.startswith(b"\x1f\x8b"):
        raise DataError(f"{path}: is compressed with gzip; unpack it")
    shown = header[:40].decode("utf-8", "replace").rstrip("\n")
    if len(fields) > 3 and all(map(_is_number, fields[1:-1])):  # the last one may be truncated
        raise DataError(f"{path}: line 1: {shown!r} is a vector, as in GloVe's files; put a line before it: {wanted}")
    raise DataError(f"{path}: line 1: {shown!r} is not a word2vec header: {wanted}")


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _rows_of_binary(path: Path, content: mmap.mmap, place: int, matrix: np.ndarray) -> Iterator[str]:
    num_words, size = matrix.shape
    for row in range(num_words):
        while content[place : place + 1] == b"\n":  # word2vec ends rows with it, gensim does not
            place += 1
        blank = content.find(b" ", place, place + _MAX_WORD_BYTES)
        end = blank + 1 + 4 * size
        if blank < 0 or end > len(content):
            raise DataError(f"{path}: truncated in word {row + 1:,} of {num_words:,}, or not {size} numbers a word")
        yield _word(path, content[place:blank], row)
        matrix[row] = np.frombuffer(content, "<f4", size, blank + 1)
        place = end
    if content[place:].strip(b"\n"):
        raise DataError(f"{path}: has data after word {num_words:,}, which should be the last")


def _rows_of_text(path: Path, content: mmap.mmap, place: int, matrix: np.ndarray) -> Iterator[str]:
    num_words, size = matrix.shape
    content.seek(place)
    for row in range(num_words):
        line, where = content.readline(), f"{path}: line {row + 2:,}"
        fields = line.rstrip().split(b" ")
        if not line:
            raise DataError(f"{path}: truncated after {amount(row, 'word')}")
        if not line.endswith(b"\n"):  # the number at its end may lack digits
            raise DataError(f"{where}: truncated: it ends without a line break; add one if it is whole")
        if len(fields) != size + 1:
            raise DataError(f"{where}: {len(fields) - 1} numbers instead of {size}")
        try:
            with np.errstate(over="ignore"):
                matrix[row] = np.array(list(map(float, fields[1:])), np.float32)
        except ValueError:
            wrong = next(field for field in fields[1:] if not _is_number(field)).decode("utf-8", "replace")
            raise DataError(f"{where}: {wrong!r:.80} is not a number") from None
        yield _word(path, fields[0], row)
    if content.read().strip():
        raise DataError(f"{path}: has data after the last word, on line {num_words + 1:,}")


def _word(path: Path, content: bytes, row: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        value = content[error.start]
        raise DataError(f"{path}: word {row + 1:,}: byte {error.start + 1} is 0x{value:02x}, not UTF-8") from None
