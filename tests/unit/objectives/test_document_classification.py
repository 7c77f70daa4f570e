"""The regularisers of document labels compared with explicit sums over pairs."""

import numpy as np
import pytest
import torch
from tests.device_reads import Reads

from maskloom.data.batch import ChoiceBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.classification import DocumentClassification, MultiLabelClassification
from maskloom.training.loop import accumulate_gradients

LENGTHS = np.array([3, 4, 2, 6, 2, 5, 3])
LABELS = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=np.float32)
SIMILAR, IMPLIED = ((0, 1, 0.8), (1, 2, 0.3)), ((0, 2), (2, 1))


def batch():
    ids = np.random.default_rng(0).integers(5, 20, LENGTHS.sum())
    counts = np.array([2, 3, 2])
    return ChoiceBatch(ids, ids * 0, lengths=LENGTHS, labels=LABELS, indices=np.arange(3), num_choices=counts)


@pytest.fixture
def logits():
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)


def more(logits, **weights):
    objective = DocumentClassification(similar=SIMILAR, implied=IMPLIED, **weights)
    return objective.loss_sum_of(logits, batch()) - MultiLabelClassification().loss_sum_of(logits, batch())


def test_labels_that_stand_together_get_like_probabilities(logits):
    scores = logits.sigmoid()
    expected = sum(
        alike * (scores[row, j] - scores[row, k]) ** 2
        for row, true in enumerate(LABELS)
        for j, k, alike in SIMILAR
        if true[j] and true[k]
    )
    found = more(logits, similarity=0.7)
    torch.testing.assert_close(found, 0.7 * expected)
    (gradient,) = torch.autograd.grad(found, logits)
    assert not gradient[2].any()  # this document has only one label
    assert gradient[0, 0] * gradient[0, 1] < 0
    assert not gradient[0, 2].any()


def test_a_label_raises_what_it_implies(logits):
    scores = logits.sigmoid()
    expected = sum(scores[row, j] * (1 - scores[row, k]) / 2 for row in range(3) for j, k in IMPLIED)
    found = more(logits, implication=0.7)
    torch.testing.assert_close(found, 0.7 * expected)
    (gradient,) = torch.autograd.grad(found, logits)
    assert (gradient[:, 0] > 0).all()  # it implies another label and is not implied
    assert (gradient[:, 1] < 0).all()


def test_probabilities_that_are_rounded_teach_nothing(logits):
    """Why the second regulariser differs from the paper, which rounds them."""
    scores = logits.sigmoid().round()
    rounded = sum(scores[row, j] * (1 - scores[row, k]) / 2 for row in range(3) for j, k in IMPLIED)
    (of_rounded,) = torch.autograd.grad(rounded, logits)
    (found,) = torch.autograd.grad(more(logits, implication=0.7), logits)
    assert not of_rounded.any()
    assert found.all()


def test_without_weights_or_relations_the_loss_is_that_of_labels_alone(logits):
    assert more(logits) == 0
    plain = MultiLabelClassification().loss_sum_of(logits, batch())
    assert DocumentClassification(similarity=1.0, implication=1.0).loss_sum_of(logits, batch()) == plain


def test_no_loss_waits_for_a_copy_of_weights_or_relations(logits):
    objective = DocumentClassification(
        (0.5, 2.0, 3.0), similarity=1.0, implication=1.0, similar=SIMILAR, implied=IMPLIED
    )
    with Reads() as reads:
        objective.loss_sum_of(logits, batch())
    assert reads.found == []


def test_micro_batches_add_up_to_the_batch():
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.5,
    )  # fmt: skip
    objective, found = DocumentClassification(similarity=1.0, implication=1.0, similar=SIMILAR, implied=IMPLIED), []
    for size in (None, 1, 2):
        model = build_model(config, ("document",), 3, seed=1).train()
        loss = sum(accumulate_gradients(model, objective, batch(), size).values())
        assert all(parameter.grad is not None for parameter in model.heads.parameters())
        grads = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        found.append((torch.tensor(loss), torch.cat(grads)))
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-6)
