import dataclasses

import numpy as np
import pytest
import torch

from maskloom.data.batch import FeatureBatch, TokenBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.tagging import FeatureCrfTagging, FeatureTagging, frozen_vectors
from maskloom.training.loop import accumulate_gradients

CONFIG = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=16, initializer_range=0.3,
)  # fmt: skip
LENGTHS = [6, 4, 8]
# the first token of each word, by sentence: 0-based positions within each sequence
FIRST = [[1, 2, 4], [1, 2], [1, 3, 4, 5, 6]]


@pytest.fixture
def model():
    options = {"bilstm_tagger": {"layers": "scalar_mix", "lstm_size": 6, "dropout": 0.0}}
    return build_model(CONFIG, ("bilstm_tagger", "crf"), num_labels=3, seed=2, head_options=options)


def token_batch():
    starts = np.cumsum([0, *LENGTHS[:-1]])
    chains = np.full(sum(LENGTHS), -1, dtype=np.int64)
    labels = np.full(sum(LENGTHS), -100, dtype=np.int64)
    draw = np.random.default_rng(0)
    for number, (start, places) in enumerate(zip(starts, FIRST, strict=True)):
        chains[start + np.array(places)] = number
        labels[start + np.array(places)] = draw.integers(3, size=len(places))
    return TokenBatch(
        token_ids=draw.integers(5, 20, size=sum(LENGTHS)),
        segment_ids=np.zeros(sum(LENGTHS), dtype=np.int64),
        lengths=np.array(LENGTHS),
        labels=labels,
        indices=np.arange(3),
        chains=chains,
    )


def with_vectors(model, batch):
    places = np.flatnonzero(batch.chains >= 0)
    vectors = frozen_vectors(model, batch, places, model.heads["bilstm_tagger"].combination)
    return FeatureBatch(**vars(batch), features=vectors.numpy())


@pytest.mark.parametrize("objective", [FeatureTagging(), FeatureCrfTagging()])
def test_vectors_at_hand_give_what_the_encoder_gives(model, objective):
    batch = token_batch()
    alone, joined = objective.outputs(model, batch), objective.outputs(model, with_vectors(model, batch))
    torch.testing.assert_close(alone.rows, joined.rows, rtol=0, atol=1e-6)
    torch.testing.assert_close(alone.loss_sum, joined.loss_sum)


def test_the_encoder_gets_no_gradient_and_no_dropout(model):
    batch, objective = token_batch(), FeatureTagging()
    model.train()
    first, second = (objective.logits(model, batch) for _ in range(2))
    assert torch.equal(first, second)
    objective.loss_sums(model, batch)["tagging"].backward()
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    assert all(parameter.grad is not None for parameter in model.heads["bilstm_tagger"].parameters())


def test_tokens_outside_chains_have_zeros_and_sentences_do_not_meet(model):
    batch = token_batch()
    rows = FeatureTagging().logits(model.eval(), batch)
    assert not rows[torch.from_numpy(batch.chains < 0)].any()
    ids = batch.token_ids.copy()
    ids[sum(LENGTHS[:2]) :] = 7
    changed = FeatureTagging().logits(model, dataclasses.replace(batch, token_ids=ids))
    torch.testing.assert_close(changed[: sum(LENGTHS[:2])], rows[: sum(LENGTHS[:2])], rtol=0, atol=1e-6)
    assert not torch.allclose(changed, rows)


def test_micro_batches_add_to_the_whole(model):
    batch = with_vectors(model, token_batch())
    gradients = []
    for size in (None, 1, 2):
        model.zero_grad(set_to_none=True)
        accumulate_gradients(model, FeatureTagging(), batch, size)
        head = model.heads["bilstm_tagger"]
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in head.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients[2], gradients[0], rtol=1e-4, atol=1e-6)
