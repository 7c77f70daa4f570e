import numpy as np
import pytest

from maskloom.config import PretrainingData
from maskloom.data.next_tokens import next_tokens, num_next_tokens
from maskloom.data.pretraining_loader import NEXT_TOKENS, PretrainingLoader
from maskloom.data.sampling import DataPosition


def test_every_token_of_text_is_predicted_from_the_one_before(toy_vocabulary):
    cls, sep = toy_vocabulary.cls_id, toy_vocabulary.sep_id
    ids = np.array([cls, 9, 8, sep, cls, 7, sep, 6, sep], dtype=np.int64)
    data = PretrainingData(next_sentence=False)
    kept, positions, labels = next_tokens(ids, np.array([4, 5]), np.zeros(2), toy_vocabulary, data)
    assert kept.tolist() == ids.tolist()
    assert positions.tolist() == [0, 1, 4, 6]
    assert labels.tolist() == [9, 8, 7, 6]


@pytest.mark.parametrize("length", [16, 64])
def test_the_loader_predicts_what_it_counts(random_corpus, length):
    data = PretrainingData(max_length=length, next_sentence=False)
    loader = PretrainingLoader(random_corpus(30), None, data, batch_size=16, seed=1, corruption=NEXT_TOKENS)
    batch, _ = loader.batch(DataPosition())
    assert (batch.token_ids[batch.mlm_positions + 1] == batch.mlm_labels).all()
    assert len(batch.mlm_labels) == num_next_tokens(batch.lengths, data).sum() == batch.num_tokens - 2 * 16
    account = loader.account()
    assert account.cut_fraction == 0.0
    assert account.predictions_per_instance == pytest.approx(account.tokens_per_instance - 2)
