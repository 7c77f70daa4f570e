import numpy as np
import pytest
import torch
import torch.nn.functional as F

from maskloom.data.batch import BothOrdersBatch, ClassificationBatch
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.gpt_config import GptConfig
from maskloom.objectives.classification import Regression, SingleLabelClassification
from maskloom.objectives.masked_lm import WithLanguageModel

CONFIG = GptConfig(
    vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=12, initializer_range=0.3,
)  # fmt: skip


def batch_of(lengths, labels):
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 30, sum(lengths))
    lengths = np.array(lengths)
    return ClassificationBatch(ids, np.zeros_like(ids), lengths, np.array(labels), np.arange(len(labels)))


def model_with(*heads):
    return build_model(CONFIG, heads, num_labels=3, seed=2).eval()


@torch.no_grad()
def test_the_second_loss_is_the_mean_over_sequences_of_their_means():
    model, batch = model_with("classifier", "lm"), batch_of([7, 1, 4], [0, 2, 1])
    objective = WithLanguageModel(SingleLabelClassification(), 0.5)
    counts, sums = objective.target_counts(batch), objective.loss_sums(model, batch)
    assert counts == {"classification": 3.0, "lm": 2.0}  # one sequence has no next token
    means, start = [], 0
    for length in batch.lengths:
        ids = torch.from_numpy(batch.token_ids[start : start + length])[None]
        start += length
        if length > 1:
            logits = model.heads["lm"](model.encoder(ids).last_hidden_state)
            means.append(F.cross_entropy(logits[0, :-1], ids[0, 1:]))
    assert float(sums["lm"] / counts["lm"]) == pytest.approx(0.5 * float(sum(means)) / 2, rel=1e-5)
    alone = SingleLabelClassification().loss_sums(model, batch)["classification"]
    assert float(sums["classification"]) == pytest.approx(float(alone), rel=1e-6)


def test_its_gradient_is_that_of_the_plain_sum():
    batch, objective = batch_of([7, 1, 4], [0, 2, 1]), WithLanguageModel(SingleLabelClassification(), 0.3)
    gradients = []
    for is_plain in (False, True):
        model = model_with("classifier", "lm")
        if is_plain:
            logits = model.heads["lm"](model.encoder(torch.from_numpy(batch.token_ids)[None, :7]).last_hidden_state)[0]
            first = F.cross_entropy(logits[:-1], torch.from_numpy(batch.token_ids[1:7]))
            logits = model.heads["lm"](model.encoder(torch.from_numpy(batch.token_ids)[None, 8:]).last_hidden_state)[0]
            (0.3 * (first + F.cross_entropy(logits[:-1], torch.from_numpy(batch.token_ids[9:])))).backward()
        else:
            objective.loss_sums(model, batch)["lm"].backward()
        gradients.append(model.encoder.word_embeddings.grad)
    assert (gradients[0] - gradients[1]).abs().max() < 1e-5


@torch.no_grad()
def test_vectors_of_both_orders_are_added():
    model, plain = model_with("classifier"), batch_of([5, 3, 4, 6], [1.0, 2.0])
    both = BothOrdersBatch(
        plain.token_ids, plain.segment_ids, plain.lengths, plain.labels.astype(np.float32), np.arange(2), np.full(2, 2)
    )
    objective = Regression()
    pooled = objective.logits(model, batch_of([5, 3, 4, 6], [0] * 4))
    assert objective.row_counts(both).tolist() == [1, 1]
    # the head has no bias, so the logit of a sum is the sum of the logits
    assert torch.allclose(objective.logits(model, both), pooled.view(2, 2, -1).sum(1), atol=1e-5)
    parts = both.split(1)
    assert torch.allclose(torch.cat([objective.logits(model, part) for part in parts]), objective.logits(model, both))


def test_a_model_without_a_head_over_the_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="a head over the vocabulary; this one has classifier"):
        WithLanguageModel(SingleLabelClassification(), 0.5).loss_sums(model_with("classifier"), batch_of([4], [0]))
