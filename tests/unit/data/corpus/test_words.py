"""Word spans in bytes compared with a plain implementation of the rule, and the word table with a dict."""

import random
import re

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maskloom.data.corpus.words import LONGEST_NAMED, RaggedIds, WordTable, byte_classes, word_names, word_spans

PARTS = [b"a", b"B9", b" ", b"\n", b"-", b"..", b"[", b"\xc3\xa9", b"\0", b"\x7f"]
PLAIN_WORD = re.compile(rb"[0-9A-Za-z]+|[!-/:-@\[-`{-~]")


def by_rule(content: bytes, odd_symbols: bytes = b"") -> list[tuple[bytes, bool]]:
    found = []
    for chunk in re.findall(rb"[^ \t\n\r]+", content):
        if all(33 <= byte < 127 and byte not in odd_symbols for byte in chunk):
            found.extend((word, False) for word in PLAIN_WORD.findall(chunk))
        else:
            found.append((chunk, True))
    return found


@settings(max_examples=70, deadline=None)
@given(
    st.lists(st.sampled_from([b"a", b"B9", b" ", b"\n", b"-", b"..", b"[", b"\xc3\xa9", b"\0", b"\x7f"]), max_size=12)
)
@example([])
@example([b" ", b"\n"])
def test_spans_are_those_of_the_rule(parts: list[bytes]) -> None:
    content = b"".join(parts)
    for odd_symbols in (b"", b"["):
        spans = word_spans(content, byte_classes(odd_symbols))
        words = [content[start:end] for start, end in zip(spans.starts, spans.ends, strict=True)]
        assert list(zip(words, spans.is_odd.tolist(), strict=True)) == by_rule(content, odd_symbols)


def test_names_differ_exactly_where_words_do() -> None:
    rng = np.random.default_rng(3)
    words = [
        rng.integers(97, 99, size).astype(np.uint8).tobytes() for size in range(1, LONGEST_NAMED + 1) for _ in range(30)
    ]
    # words that differ in a single byte, at each position of the longest word
    words += [bytes(97 + (place == other) for place in range(LONGEST_NAMED)) for other in range(LONGEST_NAMED + 1)]
    content = b"x".join(words)
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    names = word_names(content, ends - [len(word) for word in words], ends)
    assert len(np.unique(names, axis=1)[0]) == len(set(words))
    seen: dict[bytes, tuple[int, ...]] = {}
    for word, name in zip(words, names.T.tolist(), strict=True):
        assert seen.setdefault(word, tuple(name)) == tuple(name)


def test_the_table_answers_like_a_dict_while_it_grows() -> None:
    rng = np.random.default_rng(4)
    # many names share one half, so that both halves must count
    names = np.unique(rng.integers(0, 300, (2, 20_000), dtype=np.uint64), axis=1)
    names = names[:, rng.permutation(names.shape[1])]
    lists = [[random.Random(index).randrange(99)] * (index % 4) for index in range(names.shape[1])]
    table, added = WordTable(np.dtype("<u2")), 0
    for size in (0, 1, 100, 4_500, 9_000):
        part = slice(added, added + size)
        table.add(names[:, part], RaggedIds.of_lists(lists[part], np.dtype("<u2")))
        added += size
        assert len(table) == added
        assert table.find(names).tolist() == [*range(added), *[-1] * (names.shape[1] - added)]
    asked = rng.integers(0, added, 500)
    answer = table.ids.take(asked)
    found = [answer.flat[first:last].tolist() for first, last in zip(answer.edges, answer.edges[1:], strict=False)]
    assert found == [lists[index] for index in asked]


def test_nothing_is_found_in_an_empty_table() -> None:
    table = WordTable(np.dtype("<u4"))
    assert table.find(np.zeros((2, 3), dtype=np.uint64)).tolist() == [-1, -1, -1]
    assert table.find(np.empty((2, 0), dtype=np.uint64)).tolist() == []
    assert len(table.ids.take(np.empty(0, dtype=np.int64)).flat) == 0
