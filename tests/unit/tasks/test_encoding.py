import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from maskloom.data.counter_random import Permutation
from maskloom.tasks import encoding
from maskloom.tasks.encoding import ShuffledBatches, batches_by_length, encode_both_orders, encode_examples
from maskloom.tasks.examples import Example
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]), max_length=64)


def encoded(num_examples=101, max_length=20):
    rng = np.random.default_rng(1)
    texts = [" ".join("abcdefgh"[number] for number in rng.integers(0, 8, rng.integers(1, 30))) for _ in range(101)]
    examples = [Example(text, None, None, number) for number, text in enumerate(texts[:num_examples], 1)]
    return encode_examples(examples, TOKENIZER, max_length=max_length, labels=np.arange(num_examples))


def test_batches_are_slices_of_the_encodings():
    data = encode_examples(
        [Example("a b", "c", None, 1), Example("d", None, None, 2)], TOKENIZER, max_length=9, labels=np.array([1, 0])
    )
    batch = data.batch(np.array([1, 0]))
    assert batch.token_ids.tolist() == [2, 8, 3, 2, 5, 6, 3, 7, 3]
    assert batch.segment_ids.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert batch.lengths.tolist() == [3, 6]
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 1]
    assert batch.indices.tolist() == [1, 0]


@pytest.mark.parametrize("num_sequences", [1, 2])
def test_a_batch_is_that_of_its_examples_one_by_one(num_sequences):
    data = encoded()
    if num_sequences == 2:
        examples = [Example("a b"[: 1 + number % 3], "c d e"[: number % 6], None, 1) for number in range(101)]
        data = encode_both_orders(examples, TOKENIZER, max_length=6, labels=np.arange(101))
    order = np.random.default_rng(0).permutation(101)
    batch, parts = data.batch(order), [data.batch(order[place : place + 1]) for place in range(101)]
    for name, values in vars(batch).items():
        assert values.dtype == np.int64
        assert np.array_equal(values, np.concatenate([vars(part)[name] for part in parts]))
    ids = [data.token_ids[slice(*data.offsets[data.first[number : number + 2]])] for number in order]
    assert np.array_equal(batch.token_ids, np.concatenate(ids))
    assert replace(data, labels=None).batch(order[:0]).num_sequences == 0


def test_truncation_is_counted():
    examples = [Example("a b c d e", None, None, 1), Example("a", None, None, 2), Example("a b c", "d e f g", None, 3)]
    data = encode_examples(examples, TOKENIZER, max_length=6)
    assert data.lengths.tolist() == [6, 3, 6]
    assert (data.num_truncated_examples, data.num_truncated_tokens) == (2, 1 + 4)
    assert data.account()["truncated_fraction"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("batch_size", [1, 7, 32, 101])
def test_each_epoch_holds_every_example_once(batch_size):
    data = encoded()
    batches = ShuffledBatches(data, batch_size, seed=5)
    seen = np.concatenate([batches.indices(number) for number in range(101)])
    epochs = seen.reshape(batch_size, 101)
    assert (np.sort(epochs, axis=1) == np.arange(101)).all()


def test_batches_do_not_depend_on_length_and_change_with_seed_and_epoch():
    data = encoded()
    batches = ShuffledBatches(data, 6, seed=5)
    first = [batches.indices(number) for number in range(16)]
    spread = np.mean([np.ptp(data.lengths[indices]) for indices in first])
    at_random = np.random.default_rng(0).permuted(np.tile(data.lengths, (200, 1)), axis=1)[:, :6]
    assert spread == pytest.approx(np.ptp(at_random, axis=1).mean(), rel=0.25)
    assert len({tuple(ShuffledBatches(data, 6, seed).indices(0)) for seed in range(5)}) == 5
    assert not np.array_equal(ShuffledBatches(data, 101, 5).indices(0), ShuffledBatches(data, 101, 5).indices(1))


@pytest.mark.parametrize("batch_size", [1, 7, 101])
def test_grouped_batches_hold_like_lengths_and_every_example_as_often(batch_size):
    data = encoded()
    batches = ShuffledBatches(data, batch_size, seed=5, group_by_length=True)
    times = 16 * 101 // math.gcd(101, batch_size)  # up to where a window and an epoch end together
    found = [batches.indices(number) for number in range(times)]
    assert (np.bincount(np.concatenate(found), minlength=101) == times * batch_size // 101).all()
    assert np.mean([np.ptp(data.lengths[indices]) for indices in found]) < 4 < np.ptp(data.lengths)
    assert [data.lengths[indices].max() for indices in found[:16]] != sorted(
        data.lengths[indices].max() for indices in found[:16]
    )
    assert not np.array_equal(batches.indices(0), batches.indices(16))


@pytest.mark.parametrize("batch_size", [7, 250])
def test_the_stream_joins_the_epochs_in_the_order_of_their_permutations(batch_size):
    batches = ShuffledBatches(encoded(), batch_size, seed=5)
    orders = [Permutation(101, 5, encoding._ORDER_STREAM, epoch)[np.arange(101)] for epoch in range(12)]
    found = np.concatenate([batches.indices(number) for number in range(4)])
    assert np.array_equal(found, np.concatenate(orders)[: len(found)])


def test_batches_of_a_window_are_sorted_once(monkeypatch):
    data, counted = encoded(), []
    lengths = data.lengths
    monkeypatch.setattr(type(data), "lengths", property(lambda _: counted.append(0) or lengths))
    batches = ShuffledBatches(data, 6, seed=5, group_by_length=True)
    for number in range(32):
        batches.indices(number)
    assert len(counted) == 2


@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_position_is_all_that_is_needed(is_grouped):
    batches = ShuffledBatches(encoded(), 8, seed=2, group_by_length=is_grouped)
    position: dict[str, int] = {}
    walked = []
    for _ in range(20):
        batch, position = batches.next_batch(position)
        walked.append(batch.indices)
    for number in (0, 7, 19):
        jumped, after = batches.next_batch({"batch": number})
        assert np.array_equal(jumped.indices, walked[number])
        assert after == {"batch": number + 1}


def test_evaluation_covers_each_example_once():
    data = encoded()
    batches = list(batches_by_length(data, max_tokens=64))
    assert sorted(np.concatenate([batch.indices for batch in batches])) == list(range(101))
    assert all(batch.num_tokens <= 64 or batch.num_sequences == 1 for batch in batches)


def test_counts_of_truncated_examples_have_separators() -> None:
    """Regression: "1778 of 2,490 examples exceed 64 tokens and lose 102,285 tokens"."""
    data = MagicMock(num_truncated_examples=1778, max_length=64, num_truncated_tokens=102_285)
    data.__len__.return_value = 2490
    (note,) = encoding.EncodedExamples.notes(data, Path("train.tsv"))
    assert note == "train.tsv: 1,778 of 2,490 examples exceed 64 tokens and lose 102,285 tokens"
