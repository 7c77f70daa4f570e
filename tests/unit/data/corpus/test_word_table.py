"""The table of words against a dict."""

import random

import numpy as np

from maskloom.data.corpus.word_table import RaggedIds, WordTable


def test_it_answers_like_a_dict_while_it_grows() -> None:
    rng = np.random.default_rng(4)
    # many share a half of the name, so that both halves must count
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
