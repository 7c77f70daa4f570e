"""Documents from the bytes of a text file: every line ending, any block size, and memory in proportion to the text."""

import io
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from maskloom.data.corpus import documents as reading
from maskloom.errors import DataError

ENDS = {"LF": "\n", "CR LF": "\r\n", "CR": "\r", "CR CR LF": "\r\r\n"}
TEXT = "One line.\nAnd “another”.\n\nA second\n \t\n\n\nand a third.\n"


def texts(content: bytes, rule: reading.DocumentRule = "blank-line", longest: int | None = None) -> Iterator:
    return reading._plain_texts(Path("a.txt"), io.BufferedReader(io.BytesIO(content)), rule, longest)


def documents(content: bytes, rule: reading.DocumentRule = "blank-line") -> list[tuple[str, int, int]]:
    found = texts(content, rule)
    return [(reading._unix_line_ends(text.content).strip(b"\n").decode(), text.line, text.offset) for text in found]


@pytest.mark.parametrize("name", list(ENDS))
@pytest.mark.parametrize("block", [1, 3, 8, 1 << 20])
def test_every_line_end_gives_the_same_documents(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BLOCK", block)
    found = documents(TEXT.replace("\n", ENDS[name]).encode())
    lines = [(text.split(), line) for text, line, _ in found]
    assert lines == [(["One", "line.", "And", "“another”."], 1), (["A", "second"], 4), (["and", "a", "third."], 8)]
    assert [text.count("\n") for text, _, _ in found] == [1, 0, 0]


def test_a_document_knows_where_it_starts_in_the_file() -> None:
    content = "\r\rone\r\rtwo é\r\r\nthree\r\n\r\nfour".encode()
    found = documents(content)
    assert [line for _, line, _ in found] == [3, 5, 8]
    assert [content[offset:][:4] for _, _, offset in found] == [b"one\r", b"two ", b"four"]


@pytest.mark.parametrize(
    ("content", "pieces"),
    [
        ("one two three four", ["one two ", "three four"]),
        ("a\nb\nc d e f g h i j", ["a\nb", "c d e f g ", "h i j"]),
        ("ééééééééé", ["ééééé", "éééé"]),
        ("one\n\ntwo three four\n\nfive", ["one", "two three ", "four", "five"]),
    ],
)
def test_long_documents_are_cut_into_pieces_in_the_order_of_the_text(
    content: str, pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BLOCK", 3)
    found = [*texts(content.encode(), longest=10)]
    assert [text.content.decode().strip("\n") for text in found] == pieces
    for text in found:
        assert content.encode()[text.offset :].startswith(text.content)
        assert text.line == content.encode()[: text.offset].count(b"\n") + 1
    monkeypatch.setattr(reading, "MAX_DOCUMENT_BYTES", 10)
    with pytest.raises(DataError, match="a document of more than 10 bytes"):
        documents(content.encode() * 3)


def test_cutting_keeps_memory_bounded_and_bad_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BLOCK", 1 << 16)
    content = b"word " * (1 << 19) + b"\x80" * (1 << 18)
    tracemalloc.start()
    total = sum(len(text.content) for text in texts(content, longest=1 << 16))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert total == (5 << 19) + (1 << 18)


def expected(content: bytes) -> list[tuple[str, int, int]]:
    """Return the documents of a text with LF or CR LF, found line by line."""
    found: list[tuple[str, int, int]] = []
    lines: list[bytes] = []
    first, offset, position = 1, 0, 0
    for number, line in enumerate([*content.splitlines(keepends=True), b"\n"], start=1):
        if line.isspace():
            if lines:
                found.append((b"".join(lines).replace(b"\r\n", b"\n").decode().strip("\n"), first, offset))
            lines, first, offset = [], number + 1, position + len(line)
        else:
            lines.append(line)
        position += len(line)
    return found


@pytest.mark.parametrize("seed", range(100))
def test_blocks_of_any_size_give_what_lines_give(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    pieces = rng.choices(["a", "bc ", " ", "\t", "\n", "\n\n", "\r\n", "é“", "word"], k=rng.randint(0, 40))
    content = "".join(pieces).encode()
    monkeypatch.setattr(reading, "_BLOCK", rng.choice([1, 2, 5, 11, 100]))
    assert documents(content) == expected(content)


def test_a_whole_file_is_one_document() -> None:
    assert documents(TEXT.encode(), "file") == [(TEXT.strip(), 1, 0)]
    assert documents(b"\n \n", "file") == []


@pytest.mark.parametrize("content", [b"a\n\n" + b"x" * 500, b"a\n\n" + b" " * 500, b"a\n\n" + b"b\n" * 200])
def test_too_large_documents_are_named_by_their_line(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BLOCK", 64)
    monkeypatch.setattr(reading, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(DataError, match="line 3: a document of more than 100 bytes"):
        documents(content)


@pytest.mark.parametrize("unit", [b"a\n", b"a ", b"\r", b"\n", b" ", b"a\n\n"])
def test_memory_is_that_of_the_text_and_not_of_its_lines(unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_BLOCK", 1 << 12)
    content = unit * ((1 << 16) // len(unit))
    tracemalloc.start()
    try:
        for _ in texts(content):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # a list of lines would take about thirty times the size of the text
    assert peak < 8 * len(content)
