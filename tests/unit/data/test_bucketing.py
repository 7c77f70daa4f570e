import numpy as np
import pytest

from maskloom.data.bucketing import length_batches, sorted_batches

LENGTHS = np.random.default_rng(0).integers(3, 129, 5003)


def _once(batches: list[np.ndarray], num_examples: int) -> bool:
    return sorted(np.concatenate(batches).tolist()) == list(range(num_examples))


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_example_comes_once_in_full_batches(shuffle: bool) -> None:
    batches = length_batches(LENGTHS, batch_size=32, seed=1, epoch=0, shuffle=shuffle)
    assert _once(batches, len(LENGTHS))
    sizes = sorted(len(batch) for batch in batches)
    assert sizes == [5003 % 32] + [32] * (5003 // 32)


def test_batches_hold_similar_lengths() -> None:
    batches = length_batches(LENGTHS, batch_size=32, seed=1, epoch=0)
    spread = np.mean([LENGTHS[batch].max() - LENGTHS[batch].min() for batch in batches])
    assert spread < 8
    means = [LENGTHS[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3


def test_token_budget_holds() -> None:
    batches = length_batches(LENGTHS, max_tokens=1000, seed=1, epoch=0)
    assert _once(batches, len(LENGTHS))
    assert max(int(LENGTHS[batch].sum()) for batch in batches) <= 1000
    assert len(batches) < 1.2 * LENGTHS.sum() / 1000


def test_same_key_same_batches_other_epoch_other_batches() -> None:
    first, again, second = (
        [batch.tolist() for batch in length_batches(LENGTHS, batch_size=16, seed=3, epoch=epoch)] for epoch in (0, 0, 1)
    )
    assert first == again
    assert first != second
    assert sorted(map(sorted, first)) != sorted(map(sorted, second))


def test_sorted_batches_begin_with_the_longest() -> None:
    batches = sorted_batches(LENGTHS, 700)
    assert _once(batches, len(LENGTHS))
    ordered = LENGTHS[np.concatenate(batches)]
    assert (np.diff(ordered) <= 0).all()
    assert max(int(LENGTHS[batch].sum()) for batch in batches) <= 700


def test_an_example_beyond_the_budget_is_alone() -> None:
    assert [batch.tolist() for batch in sorted_batches(np.array([3, 900, 4]), 10)] == [[1], [2, 0]]
    found = length_batches(np.array([3, 900, 4]), max_tokens=10, seed=0, epoch=0, shuffle=False)
    assert [batch.tolist() for batch in found] == [[0, 2], [1]]


def test_no_examples_no_batches() -> None:
    empty = np.array([], dtype=np.int64)
    assert sorted_batches(empty, 5) == []
    assert length_batches(empty, batch_size=4, seed=0, epoch=0) == []
    assert length_batches(empty, max_tokens=4, seed=0, epoch=0) == []


def test_exactly_one_size_is_needed() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        length_batches(LENGTHS, seed=0, epoch=0)
    with pytest.raises(ValueError, match="exactly one"):
        length_batches(LENGTHS, batch_size=1, max_tokens=1, seed=0, epoch=0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        length_batches(LENGTHS, batch_size=0, seed=0, epoch=0)
    with pytest.raises(ValueError, match="max_tokens is 0"):
        sorted_batches(LENGTHS, 0)
