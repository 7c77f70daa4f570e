import numpy as np
import pytest

from maskloom.data.batch import PretrainingBatch, pack_encodings


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


def test_pack_and_split_encodings() -> None:
    batch = pack_encodings(
        [([2, 7, 3], [0, 0, 0]), ([2, 8, 3, 9, 3], [0, 0, 0, 1, 1])], np.array([1, 0]), np.array([5, 4])
    )
    assert batch.token_ids.tolist() == [2, 7, 3, 2, 8, 3, 9, 3]
    assert batch.segment_ids.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert batch.lengths.tolist() == [3, 5]
    assert batch.token_ids.dtype == batch.segment_ids.dtype == batch.lengths.dtype == batch.indices.dtype == np.int64
    last = batch.split(1)[1]
    assert last.token_ids.tolist() == [2, 8, 3, 9, 3]
    assert last.labels is not None
    assert last.labels.tolist() == [0]
    assert last.indices.tolist() == [4]


def test_multi_label_targets_and_missing_labels() -> None:
    targets = np.array([[0.0, 1.0], [1.0, 1.0]], dtype=np.float32)
    batch = pack_encodings([([2, 3], [0, 0]), ([2, 3], [0, 0])], targets, [0, 1])
    assert batch.split(1)[1].labels is not None
    assert batch.split(1)[1].labels.tolist() == [[1.0, 1.0]]
    assert pack_encodings([([2, 3], [0, 0])], None, [0]).split(1)[0].labels is None
    assert pack_encodings([], None, []).num_tokens == 0


def test_pack_names_what_does_not_agree() -> None:
    with pytest.raises(ValueError, match="1 encodings, 2 labels and 1 indices"):
        pack_encodings([([2, 3], [0, 0])], np.array([0, 1]), [0])
    with pytest.raises(ValueError, match="encoding 0 has 2 ids and 1 segments"):
        pack_encodings([([2, 3], [0])], None, [0])
