import numpy as np
import pytest

from maskloom.data.batch import ClassificationBatch, PretrainingBatch, ranges


def _batch() -> PretrainingBatch:
    lengths = np.array([3, 5, 2, 4])
    return PretrainingBatch(
        token_ids=np.arange(14),
        segment_ids=np.arange(14) % 2,
        lengths=lengths,
        mlm_positions=np.array([1, 4, 6, 11]),
        mlm_labels=np.array([10, 40, 60, 110]),
        nsp_labels=np.array([0, 1, 0, 1]),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_split_keeps_every_token_and_prediction(size: int) -> None:
    batch = _batch()
    parts = batch.split(size)
    assert [part.num_sequences for part in parts] == [min(size, 4 - first) for first in range(0, 4, size)]
    for name in ("token_ids", "segment_ids", "lengths", "mlm_labels", "nsp_labels"):
        assert np.concatenate([getattr(part, name) for part in parts]).tolist() == getattr(batch, name).tolist()
    predicted = np.concatenate([part.token_ids[part.mlm_positions] for part in parts])
    assert predicted.tolist() == batch.token_ids[batch.mlm_positions].tolist()
    assert sum(part.num_tokens for part in parts) == 14


def test_split_refuses_empty_parts() -> None:
    with pytest.raises(ValueError, match="num_sequences is 0"):
        _batch().split(0)


def _labelled(labels: np.ndarray | None) -> ClassificationBatch:
    token_ids, segment_ids = np.array([2, 7, 3, 2, 8, 3, 9, 3]), np.array([0, 0, 0, 0, 0, 0, 1, 1])
    return ClassificationBatch(token_ids, segment_ids, np.array([3, 5]), labels, np.array([5, 4]))


@pytest.mark.parametrize("labels", [[1, 0], [[0.0, 1.0], [1.0, 1.0]], None])
def test_split_keeps_labels_and_places(labels: list | None) -> None:
    last = _labelled(None if labels is None else np.array(labels)).split(1)[1]
    assert last.token_ids.tolist() == [2, 8, 3, 9, 3]
    assert last.segment_ids.tolist() == [0, 0, 0, 1, 1]
    assert last.indices.tolist() == [4]
    assert (None if last.labels is None else last.labels.tolist()) == (None if labels is None else labels[1:])


def test_ranges_are_concatenated_consecutive_numbers() -> None:
    assert ranges(np.array([5, 2, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ranges(0, np.array([2, 1], dtype=np.int32)).tolist() == [0, 1, 0]
    assert ranges(np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == []
