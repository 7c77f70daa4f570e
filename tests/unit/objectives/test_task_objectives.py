"""Objectives with several rows per unit: which rows belong to which unit, and losses that split into micro-batches."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.device_reads import WaitsInBackward

from maskloom.data.batch import ChoiceBatch, ClassificationBatch, PackedBatch, TokenBatch
from maskloom.errors import DataError
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.classification import MultipleChoice, SpanPrediction
from maskloom.objectives.objective import encode_batch
from maskloom.objectives.tagging import Tagging
from maskloom.training.loop import accumulate_gradients

CONFIG = BertConfig(
    vocab_size=37,
    hidden_size=14,
    num_hidden_layers=2,
    num_attention_heads=7,
    intermediate_size=13,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.5,
)
LENGTHS = np.array([3, 9, 4, 7, 2, 5])


def tokens():
    draw = np.random.default_rng(0)
    ids, segments = draw.integers(5, 37, LENGTHS.sum()), draw.integers(0, 2, LENGTHS.sum())
    return {"token_ids": ids, "segment_ids": segments, "lengths": LENGTHS}


def span_batch():
    labels = np.array([[1, 2], [0, 0], [3, 3], [2, 6], [1, 1], [0, 4]])
    return ClassificationBatch(**tokens(), labels=labels, indices=np.arange(6))


def tag_batch():
    labels = np.random.default_rng(1).integers(0, 5, LENGTHS.sum())
    labels[::3] = -100
    return TokenBatch(**tokens(), labels=labels, indices=np.arange(6), chains=np.full(LENGTHS.sum(), -1))


def choice_batch():
    return ChoiceBatch(**tokens(), labels=np.array([1, 0, 1]), indices=np.arange(3), num_choices=np.full(3, 2))


def uneven_choice_batch():
    return ChoiceBatch(**tokens(), labels=np.array([0, 2]), indices=np.arange(2), num_choices=np.array([2, 4]))


CASES = {
    "span": (SpanPrediction(), span_batch, LENGTHS.tolist(), 6, 2),
    "tagger": (Tagging(), tag_batch, LENGTHS.tolist(), 20, 5),
    "choice": (MultipleChoice(), choice_batch, [2, 2, 2], 3, 1),
    "choice of 2 or 4": (MultipleChoice(), uneven_choice_batch, [2, 4], 2, 1),
}


@pytest.mark.parametrize("head", CASES)
def test_rows_of_units(head):
    objective, batch, rows, num_targets, width = CASES[head]
    model = build_model(CONFIG, (head.split()[0],), 5, seed=1).eval()
    outputs = objective.outputs(model, batch())
    assert objective.row_counts(batch()).tolist() == rows
    assert outputs.rows.shape == (sum(rows), width)
    assert list(objective.target_counts(batch()).values()) == [num_targets]


@pytest.mark.parametrize("head", CASES)
@pytest.mark.parametrize("micro_batch_size", [1, 2])
def test_micro_batches_add_up_to_the_batch(head, micro_batch_size):
    objective, batch, *_ = CASES[head]
    found = []
    for size in (None, micro_batch_size):
        model = build_model(CONFIG, (head.split()[0],), 5, seed=1).train()
        loss = sum(accumulate_gradients(model, objective, batch(), size).values())
        flat = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        found.append((loss, torch.cat(flat)))
    (whole_loss, whole), (loss, parts) = found
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", CASES)
def test_no_gradient_waits_for_a_gpu(head):
    objective, batch, *_ = CASES[head]
    model = build_model(CONFIG, (head.split()[0],), 5, seed=1)
    with WaitsInBackward() as waits:
        objective.loss_sums(model, batch())[objective.name].backward()
    assert waits.found == []


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_token_that_an_architecture_has_not_is_named(name):
    """GPU kernels would end with an assertion that names nothing, and leave the process without its GPU."""
    row = ARCHITECTURES[name]
    sizes = {} if row.has_state else {"num_attention_heads": 2, "intermediate_size": 64}
    config = row.config_type(vocab_size=37, hidden_size=16, num_hidden_layers=1, **sizes)
    model = build_model(config, ("classifier",), 2, seed=0)
    ids, number = np.array([2, 7, 8]), 515 if row.reads_spelling else 37
    for wrong in (-1, number):
        ids[1] = wrong
        with pytest.raises(DataError, match=f"token id {wrong}: the model has ids 0 to {number - 1}"):
            encode_batch(model, PackedBatch(ids, ids * 0, np.array([3])))
    ids[1] = number - 1
    assert encode_batch(model, PackedBatch(ids, ids * 0, np.array([3]))).last_hidden_state.shape == (3, 16)


def test_examples_of_differing_numbers_of_choices_lose_what_they_lose_alone():
    logits = torch.randn(6, 1, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = MultipleChoice().loss_sum_of(logits, uneven_choice_batch())
    parts = [
        F.cross_entropy(logits[rows, 0][None], torch.tensor([label]))
        for rows, label in ((slice(2), 0), (slice(2, 6), 2))
    ]
    torch.testing.assert_close(loss, sum(parts))
    (ours,), (theirs,) = torch.autograd.grad(loss, logits), torch.autograd.grad(sum(parts), logits)
    torch.testing.assert_close(ours, theirs)


def test_weights_of_tags_are_those_of_torch():
    weights, batch = (0.5, 2.0, 3.0, 1.0, 0.25), tag_batch()
    logits = torch.randn(len(batch.token_ids), 5, generator=torch.Generator().manual_seed(0))
    expected = F.cross_entropy(logits, torch.from_numpy(batch.labels), weight=torch.tensor(weights))
    objective = Tagging(weights)
    mean = objective.loss_sum_of(logits, batch) / objective.target_counts(batch)["tagging"]
    torch.testing.assert_close(mean, expected)


def test_a_span_is_sought_in_its_own_window_only():
    logits = torch.randn(int(LENGTHS.sum()), 2, generator=torch.Generator().manual_seed(0))
    batch = span_batch()
    expected, first = 0.0, 0
    for length, (start, end) in zip(LENGTHS, batch.labels, strict=True):
        rows = logits[first : first + length].log_softmax(0)
        expected -= float(rows[start, 0] + rows[end, 1]) / 2
        first += length
    assert float(SpanPrediction().loss_sum_of(logits, batch)) == pytest.approx(expected, rel=1e-5)


def test_scores_follow_their_choices():
    model = build_model(CONFIG, ("choice",), seed=1).eval()
    batch = choice_batch()
    ends = np.cumsum(LENGTHS)
    order = [1, 0, 3, 2, 5, 4]
    swapped = ChoiceBatch(
        *(
            np.concatenate([values[ends[i] - LENGTHS[i] : ends[i]] for i in order])
            for values in (batch.token_ids, batch.segment_ids)
        ),
        lengths=LENGTHS[order],
        labels=1 - batch.labels,
        indices=batch.indices,
        num_choices=batch.num_choices,
    )
    one, other = (MultipleChoice().outputs(model, chosen) for chosen in (batch, swapped))
    torch.testing.assert_close(other.rows, one.rows[order])
    torch.testing.assert_close(other.loss_sum, one.loss_sum)
