from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.device_reads import Reads

from maskloom.data.batch import TokenBatch
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.tagging import CrfTagging, Tagging
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
LENGTHS = np.array([6, 9, 4])
# The first sequence has two chains, the second has one with two tokens of context only, the third has one.
CHAINS = np.array([-1, 0, -1, 0, 1, -1, -1, 2, 2, -1, 2, 2, 2, -1, -1, -1, 3, 3, -1])
LABELS = np.where(CHAINS >= 0, np.arange(19) % 4, -100)
LABELS[[7, 8]] = -100


def batch(labels: np.ndarray | None = LABELS):
    ids = np.random.default_rng(0).integers(5, 37, LENGTHS.sum())
    return TokenBatch(ids, np.zeros_like(ids), LENGTHS, labels, np.arange(3), CHAINS)


def model(seed=1):
    built = build_model(CONFIG, ("tagger", "crf"), 4, seed=seed).eval()
    for parameter in built.heads["crf"].parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(3))
    return built


def test_the_loss_is_that_of_the_chains_alone():
    objective, built = CrfTagging(), model()
    emissions = objective.logits(built, batch())
    crf = built.heads["crf"]
    expected = sum(
        crf.loss_sum(emissions[places], torch.from_numpy(LABELS[places]), SequenceLayout.from_lengths([len(places)]))
        for places in ([1, 3], [4], [10, 11, 12], [16, 17])
    )
    (loss,) = objective.loss_sums(built, batch()).values()
    torch.testing.assert_close(loss, expected)
    assert objective.target_counts(batch()) == {"tagging": 8.0}
    outputs = objective.outputs(built, batch())
    assert outputs.loss_sum is not None
    torch.testing.assert_close(outputs.loss_sum, expected)


@torch.no_grad()
def test_rows_hold_probabilities_and_the_best_path_over_all_words_of_a_chain():
    objective, built = CrfTagging(), model()
    outputs = objective.outputs(built, batch(None))
    assert outputs.loss_sum is None
    assert outputs.rows.shape == (19, 8)
    outside = np.flatnonzero(CHAINS < 0)
    assert (outputs.rows[outside] == 0).all()
    places = np.flatnonzero(CHAINS == 2)
    emissions = objective.logits(built, batch())[places]
    chains = SequenceLayout.from_lengths([len(places)])
    torch.testing.assert_close(outputs.rows[places, :4], built.heads["crf"].log_marginals(emissions, chains))
    assert outputs.rows[places, 4:].argmax(1).tolist() == built.heads["crf"].best_tags(emissions, chains).tolist()
    inside = np.flatnonzero(CHAINS >= 0)
    torch.testing.assert_close(outputs.rows[inside, :4].exp().sum(1), torch.ones(len(inside)))
    # both halves are normalised, so they weigh the same in a softmax
    torch.testing.assert_close(outputs.rows[inside, 4:].exp().sum(1), torch.ones(len(inside)))


@torch.no_grad()
def test_the_loss_of_rows_is_that_of_each_word_alone():
    objective, built = CrfTagging(), model()
    rows = objective.outputs(built, batch()).rows
    inside = np.flatnonzero(LABELS >= 0)
    expected = -rows[inside, LABELS[inside]].sum()
    torch.testing.assert_close(objective.loss_sum_of(rows, batch()), expected)


def test_without_transitions_it_is_cross_entropy():
    built = model()
    for parameter in built.heads["crf"].parameters():
        parameter.data.zero_()
    (ours,) = CrfTagging().loss_sums(built, batch()).values()
    (plain,) = Tagging().loss_sums(built, batch()).values()
    torch.testing.assert_close(ours, plain)


def test_micro_batches_sum_to_the_batch():
    gradients = []
    for size in (3, 1):
        built = model()
        accumulate_gradients(built, CrfTagging(), batch(), micro_batch_size=size)
        gradients.append([p.grad for p in built.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)
    assert model().heads["crf"].transitions.grad is None


def test_missing_labels_are_named():
    with pytest.raises(ValueError, match="no labels"):
        CrfTagging().target_counts(batch(None))


@torch.no_grad()
def test_the_best_path_takes_no_forbidden_step():
    built = model()
    free = CrfTagging().outputs(built, batch(None)).rows
    place = np.flatnonzero(CHAINS == 2)
    first, second = free[place[:2], 4:].argmax(1).tolist()
    bound = CrfTagging(forbidden=((first, second), (-1, (first + 1) % 4), (int(free[place[-1], 4:].argmax()), -1)))
    rows = bound.outputs(built, batch(None)).rows
    taken = [-1, *rows[place, 4:].argmax(1).tolist(), -1]
    assert not set(pairwise(taken)) & set(bound.forbidden)
    torch.testing.assert_close(rows[:, :4], free[:, :4])


def test_no_word_is_taken_by_an_index_that_a_gpu_waits_for(monkeypatch):
    objective, built = CrfTagging(forbidden=((0, 1), (-1, 2))), model()
    logits = objective.logits(built, batch())
    monkeypatch.setattr(CrfTagging, "logits", lambda *_: logits)  # the encoder runs differently on a CPU
    with Reads() as reads:
        objective.loss_sums(built, batch())
        objective.outputs(built, batch())
    assert reads.found == []
