from itertools import pairwise

import numpy as np
import pytest
from tests.batches import rows_of

from maskloom.data.corruption import NextTokens
from maskloom.data.counter_random import Permutation
from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.data.streams import running_text
from maskloom.data.streams.running_text import RunningText
from maskloom.errors import DataError


@pytest.fixture
def loader(random_corpus):
    def make(corpus=None, documents=None, *, max_length=16, batch_size=4, seed=1, **how):
        data = PretrainingData(max_length=max_length, next_sentence=False)
        corpus = corpus or random_corpus(12)
        stream = RunningText(corpus, documents, data, seed=seed)
        return Loader(stream, NextTokens(corpus.vocabulary, data, seed), batch_size=batch_size, **how)

    return make


def text_of(corpus, document):
    first, last = corpus.document_offsets[document], corpus.document_offsets[document + 1]
    marks = corpus.tokenizer.running_text
    return [*marks.begin, *corpus.sentences(int(first), int(last)).tolist(), *marks.end]


def training_rows(loader, num_batches, position=None):
    rows, position = [], position or {}
    for _ in range(num_batches):
        batch, position = loader.next_batch(position)
        rows += rows_of(batch)
    return rows, position


def test_an_epoch_is_every_document_once_as_one_sequence(loader, random_corpus):
    corpus = random_corpus(12)
    rows = [row for batch in loader(corpus).epoch_batches(3) for row in rows_of(batch)]
    assert [len(inputs) for inputs, _ in rows[:-1]] == [16] * (len(rows) - 1)
    assert all(inputs[1:] == targets[:-1] for inputs, targets in rows)
    assert all(before[1][-1] == after[0][0] for before, after in pairwise(rows))
    sequence = [*[token for inputs, _ in rows for token in inputs], rows[-1][1][-1]]
    whole, texts = [], [text_of(corpus, document) for document in range(12)]
    while len(whole) < len(sequence):
        found = next(text for text in texts if sequence[len(whole) : len(whole) + len(text)] == text)
        texts.remove(found)
        whole += found
    assert whole == sequence
    assert texts == []


def test_training_takes_every_whole_row_of_an_epoch_in_an_order_of_its_own(loader):
    one = loader()
    number = one.account().num_instances
    rows, _ = training_rows(one, -(-2 * number // 4))
    for epoch, taken in enumerate((rows[:number], rows[number : 2 * number])):
        in_order = [row for batch in one.epoch_batches(epoch) for row in rows_of(batch)][:number]
        assert sorted(taken) == sorted(in_order)
        assert taken != in_order
    assert sorted(rows[:number]) != sorted(rows[number : 2 * number])


def test_the_order_of_an_epoch_is_drawn_once_and_is_the_keyed_permutation(random_corpus, monkeypatch):
    made = []

    def permutation(*key):
        made.append(key)
        return Permutation(*key)

    monkeypatch.setattr(running_text, "Permutation", permutation)
    stream = RunningText(random_corpus(12), None, PretrainingData(max_length=16, next_sentence=False), seed=1)
    number, taken, position = stream.extent().num_rows, [], {}
    for _ in range(2 * number // 4):
        rows, position = stream.read(position, 4)
        taken += rows.first.tolist()
    orders = [Permutation(number, 1, 402, epoch)[np.arange(number)] for epoch in (0, 1)]
    assert taken == (16 * np.concatenate(orders)[: len(taken)]).tolist()
    assert made == [(number, 1, 402, 0), (number, 1, 402, 1)]


def test_a_position_is_a_place_in_an_endless_stream(loader):
    rows, position = training_rows(loader(), 9)
    assert position == {"row": 36}
    later, _ = training_rows(loader(), 5, {"row": 16})
    assert later == rows[16:]
    assert training_rows(loader(seed=2), 9)[0] != rows


def test_ranks_make_the_rows_of_one_process_together(loader):
    whole, _ = training_rows(loader(), 3)
    halves = [training_rows(loader(rows=slice(first, first + 2)), 3)[0] for first in (0, 2)]
    together = [row for step in range(3) for half in halves for row in half[2 * step : 2 * step + 2]]
    assert together == whole


def test_only_the_documents_asked_for_are_read(loader, random_corpus):
    corpus = random_corpus(12)
    rows = [row for batch in loader(corpus, np.array([3, 7])).epoch_batches(0) for row in rows_of(batch)]
    sequence = [*[token for inputs, _ in rows for token in inputs], rows[-1][1][-1]]
    assert sequence in ([*text_of(corpus, 3), *text_of(corpus, 7)], [*text_of(corpus, 7), *text_of(corpus, 3)])


def test_text_of_less_than_a_row_is_evaluated_but_not_trained_on(loader, memory_corpus):
    small = loader(memory_corpus([[[5, 6, 7]]]))
    (batch,) = small.epoch_batches(0)
    assert len(batch.mlm_labels) == 4
    with pytest.raises(DataError, match=r"5 tokens of running text; a row of data\.max_length = 16 needs 17"):
        small.next_batch({})
