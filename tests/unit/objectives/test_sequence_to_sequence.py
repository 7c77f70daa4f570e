"""The loss of targets: the same for any micro-batches, dropout included."""

import numpy as np
import pytest
import torch

from maskloom.data.batch import SourceTargetBatch
from maskloom.models.assembled import build_model
from maskloom.models.transformer_config import TransformerConfig
from maskloom.objectives.sequence_to_sequence import SequenceToSequence
from maskloom.training.loop import StepDraws, accumulate_gradients


def make_batch(sources, targets):
    draw = np.random.default_rng(0)
    ids, target_ids, labels = (draw.integers(4, 30, sum(lengths)) for lengths in (sources, targets, targets))
    lengths, target_lengths = np.array(sources), np.array(targets)
    marks = np.tile([1, 2], (len(sources), 1))
    return SourceTargetBatch(ids, ids * 0, lengths, target_ids, target_lengths, labels, np.arange(len(sources)), marks)


def make_model():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    dropouts = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    return build_model(TransformerConfig(vocab_size=30, **sizes, **dropouts), ("decoder",), seed=0).train()


@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
def test_micro_batches_are_the_whole_batch(micro_batch_size):
    batch, objective = make_batch([5, 2, 9, 3, 1], [3, 7, 2, 3, 4]), SequenceToSequence(0.1)
    assert objective.target_counts(batch) == {"seq2seq": 19.0}
    assert batch.num_tokens == 39
    whole, parted = make_model(), make_model()
    expected = accumulate_gradients(whole, objective, batch, None, draws=StepDraws(0, 7))
    found = accumulate_gradients(parted, objective, batch, micro_batch_size, draws=StepDraws(0, 7))
    assert found == pytest.approx(expected, rel=1e-6)
    for one, other in zip(parted.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)
    other = accumulate_gradients(make_model(), objective, batch, None, draws=StepDraws(0, 8))
    assert other != pytest.approx(expected, rel=1e-6)
