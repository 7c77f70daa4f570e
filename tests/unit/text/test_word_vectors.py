"""Vector files in both formats, damaged files, and queries to vectors."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from maskloom.errors import DataError
from maskloom.text.word_vectors import Form, WordVectors, read_vectors, write_vectors

WORDS = ["the", "naïve", "1", "new_york"]
MATRIX = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize("form", ["binary", "text"])
def test_what_is_written_is_read(form: Form, tmp_path: Path) -> None:
    write_vectors(tmp_path / "v", WORDS, MATRIX, form)
    found = read_vectors(tmp_path / "v")
    assert found.words == WORDS
    assert np.array_equal(found.matrix, MATRIX)


@pytest.mark.parametrize("end", [b"\n", b""])  # word2vec's and gensim's
def test_binary_files_of_other_programs_are_read(end: bytes, tmp_path: Path) -> None:
    rows = [word.encode() + b" " + struct.pack("<2f", *pair) + end for word, pair in [("a", (1, 2)), ("b", (3, -4))]]
    (tmp_path / "v.bin").write_bytes(b"2 2\n" + b"".join(rows))
    assert read_vectors(tmp_path / "v.bin").matrix.tolist() == [[1, 2], [3, -4]]


def test_a_text_file_of_word2vec_ends_its_lines_with_a_blank(tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(b"2 2\na 1.5 2 \nb 0 -1e-2 \n")
    found = read_vectors(tmp_path / "v")
    assert found.words == ["a", "b"]
    assert found.matrix.tolist() == [[1.5, 2.0], [0.0, np.float32(-0.01)]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a word2vec header"),
        (b"a 1 2\nb 1 2\n", "line 1: 'a 1 2' is not a word2vec header: the number of words and the size"),
        (b"the 0.418 0.25 -0.4\n", "line 1: 'the 0.418 0.25 -0.4' is a vector, as in GloVe's files; put a line"),
        (b"the " + b"-0.12345 " * 50 + b"\n", "line 1: 'the -0.12345 .*' is a vector"),
        (gzip.compress(b"1 2\na 1 2\n"), "v: is compressed with gzip; unpack it"),
        (b"\xff\xfe1\x00\n", "line 1: '��1.*' is not a word2vec header"),
        (b"0 2\n", "not a word2vec header"),
        (b"9999999999 300\na 1 2\n", "truncated: line 1 says 9,999,999,999 words of 300 numbers"),
        (b"3 2\na 1 2\nb 1 2\n  \n", "line 4: 0 numbers instead of 2 .line 1 says 3 words"),
        (b"2 2\na 1 2\nb 1 -7.24", "line 3: truncated: it ends without a line break"),
        (b"1 2\na 1 2\nb 1 2\n", "has data after the last word, on line 2"),
        (b"2 2\na 1 2\nb 1 2 3\n", "line 3: 3 numbers instead of 2"),
        (b"2 3\na 1.25 2.25\nb 1.25 2.25\n", "line 2: 2 numbers instead of 3 .line 1 says 2 words of 3 numbers"),
        (b"2 3\na 1 2 3 4\nb 1 2 3 4\n", "line 2: 4 numbers instead of 3 .line 1 says 2 words of 3 numbers"),
        (b"2 1\na " + b"\x00\x00\x80\x3f" * 2 + b"\nb " + bytes(8) + b"\n", "line 1 says 2 words of 1 numbers"),
        (b"2 2\na 1 2\nb 1 x\n", "line 3: 'x' is not a number"),
        (b"2 2\na 1 2\nb 1 nan\n", "word 2, 'b', has a number that is not finite"),
        (b"2 2\na 1 1e39\nb 1 2\n", "word 1, 'a', has a number that is not finite"),
        (b"2 1\na " + b"\x00\x00\x80\x7f" + b"\nb " + bytes(4), "word 1, 'a', has a number that is not finite"),
        (b"2 2\na 1 2\n\nb 1 2\n", "line 3: 0 numbers instead of 2"),
        (b"1 999999\na 1 2\n", "line 1 says 1 word of 999,999 numbers"),
        (b"2 2\na 1 2\na 1 3\n", "the word 'a' appears twice"),
        (b"2 2\na 1 2\nb\xff 1 2\n", "word 2: byte 2 is 0xff, not UTF-8"),
        (b"2 2\na " + bytes(8) + b"\nb " + bytes(7), "truncated in word 2 of 2"),
        (b"1 2\na " + bytes(8) + b"\nb " + bytes(8), "has data after word 1, which should be the last"),
    ],
)
def test_damaged_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        read_vectors(tmp_path / "v")
    assert str(tmp_path / "v") in str(refused.value)
    assert " b'" not in str(refused.value)


def test_nearest_words_and_analogies() -> None:
    words = ["man", "woman", "king", "queen", "apple"]
    vectors = WordVectors(words, np.array([[1, 0, 0], [1, 2, 0], [1, 0, 2], [1, 2, 2], [-3, 0.1, 0]], np.float32))
    found = vectors.neighbours("king", 2)
    assert [word for word, _ in found] == ["queen", "man"]
    assert found[0][1] == pytest.approx(5 / (5**0.5 * 3))
    assert vectors.analogy("man", "woman", "king", 1)[0][0] == "queen"
    assert len(vectors.neighbours("king", 99)) == 4


@pytest.mark.parametrize("scale", [3e38, 1.0, 1e-38])
def test_cosines_do_not_depend_on_the_length_of_vectors(scale: float) -> None:
    matrix = np.array([[1, 1, 1], [1, 1, -1], [0, 0, 0]], np.float32) * np.float32(scale)
    vectors = WordVectors(["a", "b", "c"], matrix)
    assert vectors.neighbours("a") == [("b", pytest.approx(1 / 3)), ("c", 0.0)]


def test_a_long_word_is_read(tmp_path: Path) -> None:
    long = "x" * 140_000
    for form in ("binary", "text"):
        write_vectors(tmp_path / "v", [long, "b"], np.ones((2, 3), np.float32), form)  # type: ignore[arg-type]
        assert read_vectors(tmp_path / "v").words == [long, "b"]


def test_unknown_words_are_named_with_like_ones() -> None:
    vectors = WordVectors(["france", "french", "fence"], np.eye(3, dtype=np.float32))
    with pytest.raises(DataError, match=r"3 words: 'frence' \(did you mean f.*french.*\?\); 'zzz'$"):
        vectors.rows_of(["france", "frence", "zzz"])
    with pytest.raises(DataError, match=r"'France' \(did you mean france\?\)"):
        vectors.neighbours("France")
    with pytest.raises(DataError, match=r"'FRENHC' \(did you mean french\?\)"):
        vectors.neighbours("FRENHC")


def test_the_plane_keeps_distances_of_what_lies_in_one() -> None:
    angles = np.array([0.1, 0.5, 1.4])
    circle = np.stack([np.cos(angles), np.sin(angles), np.zeros(3)], 1).astype(np.float32)
    vectors = WordVectors(["a", "b", "c"], 3 * circle)
    flat = vectors.plane(["a", "b", "c"])
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.linalg.norm(flat[i] - flat[j]) == pytest.approx(np.linalg.norm(circle[i] - circle[j]), abs=1e-6)
