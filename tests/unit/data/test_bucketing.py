import numpy as np

from maskloom.data.batch import sorted_batches

LENGTHS = np.random.default_rng(0).integers(3, 129, 5003)


def test_sorted_batches_begin_with_the_longest() -> None:
    batches = sorted_batches(LENGTHS, 700)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))
    ordered = LENGTHS[np.concatenate(batches)]
    assert (np.diff(ordered) <= 0).all()
    assert max(int(LENGTHS[batch].sum()) for batch in batches) <= 700
    assert len(batches) < 1.2 * LENGTHS.sum() / 700


def test_an_example_beyond_the_budget_is_alone() -> None:
    assert [batch.tolist() for batch in sorted_batches(np.array([3, 900, 4]), 10)] == [[1], [2, 0]]


def test_no_examples_no_batches() -> None:
    assert sorted_batches(np.array([], dtype=np.int64), 5) == []
