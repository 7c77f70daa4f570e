"""Heads, losses and gradients compared with transformers, which scores every position of a padded batch."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.unused_tensors import unused_tensors
from transformers import (
    AutoModel,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
)
from transformers import BertConfig as PeerConfig

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.checkpoints.published.bert import BERT_FORMAT
from maskloom.data.batch import ChoiceBatch, ClassificationBatch, PretrainingBatch, TokenBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.bert_config import CAUSAL_MODEL_TYPE
from maskloom.objectives.classification import MultipleChoice, SpanPrediction
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.objectives.tagging import Tagging
from maskloom.training.loop import accumulate_gradients

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 99,
    "hidden_size": 39,
    "num_hidden_layers": 2,
    "num_attention_heads": 13,
    "intermediate_size": 37,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}


def pair_of_models(peer_type, folder, **overrides):
    torch.manual_seed(0)
    peer = peer_type(PeerConfig(**SIZES, **overrides))
    for parameter in peer.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    peer.save_pretrained(folder)
    ours, report = load_model(folder)
    assert report.new_parameters == unused_tensors(folder, report) == ()
    return ours.train(), peer.train()


def test_a_causal_bert_is_the_decoder_without_cross_attention(tmp_path):
    torch.manual_seed(0)
    peer = BertLMHeadModel(PeerConfig(**SIZES, is_decoder=True)).eval()
    peer.save_pretrained(tmp_path)
    published = json.loads((tmp_path / "config.json").read_text())
    published |= {"model_type": CAUSAL_MODEL_TYPE, "causal": True, "is_decoder": False}
    (tmp_path / "config.json").write_text(json.dumps(published))
    ours, report = load_model(tmp_path, heads=("mlm",))
    assert all("pooler" in name for name in report.new_parameters)
    ids, segments, mask, *_ = padded_batch([17, 2, 9])
    with torch.no_grad():
        expected = peer(ids, token_type_ids=segments, attention_mask=mask.long()).logits
        output = ours.eval().encoder(ids, segments, mask)
        found = ours.heads["mlm"](output.last_hidden_state)
        last = output.last_hidden_state[torch.arange(3), torch.tensor([16, 1, 8])]
        pooled = torch.tanh(ours.encoder.pooler.dense(last))
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-5)
    torch.testing.assert_close(output.pooled, pooled)
    save_model(ours, tmp_path / "again")
    again, _ = load_model(tmp_path / "again")
    assert again.config.causal
    with pytest.raises(ValueError, match=CAUSAL_MODEL_TYPE):
        AutoModel.from_pretrained(tmp_path / "again")


def padded_batch(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    length = max(lengths)
    mask = torch.arange(length)[None, :] < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 99, mask.shape, generator=generator) * mask
    segments = torch.randint(0, 2, mask.shape, generator=generator) * mask
    is_predicted = (torch.rand(mask.shape, generator=generator) < 0.15) & mask
    is_predicted[0, 1] = True
    labels = torch.where(is_predicted, torch.randint(0, 99, mask.shape, generator=generator), -100)
    next_labels = torch.randint(0, 2, (len(lengths),), generator=generator)
    return ids, segments, mask, labels, next_labels


def add_our_gradients(model, ids, segments, mask, labels, next_labels):
    """Add gradients as the training loop does, packed and with logits only at predicted positions; return the loss."""
    packed_labels = labels[mask].numpy()
    positions = np.flatnonzero(packed_labels != -100)
    batch = PretrainingBatch(
        token_ids=ids[mask].numpy(),
        segment_ids=segments[mask].numpy(),
        lengths=mask.sum(1).numpy(),
        mlm_positions=positions,
        mlm_labels=packed_labels[positions],
        nsp_labels=next_labels.numpy(),
    )
    return sum(accumulate_gradients(model, MaskedLanguageModeling(), batch, None).values())


@torch.no_grad()
def test_pretraining_logits(tmp_path):
    ours, peer = pair_of_models(BertForPreTraining, tmp_path)
    ids, segments, mask, _, _ = padded_batch([37, 13, 2, 99])
    expected = peer(ids, mask.long(), segments)
    output = ours.encoder(ids, segments, mask)
    logits = ours.heads["mlm"](output.last_hidden_state)
    assert (logits - expected.prediction_logits)[mask].abs().max() <= 1e-4
    assert (ours.heads["nsp"](output.pooled) - expected.seq_relationship_logits).abs().max() <= 1e-5


LENGTHS = [[37, 13, 2, 99], [2, 512, 128], [64, 64, 64], [2], [7, 7, 8, 6, 30, 31]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("seed", [0, 1])
def test_losses_and_gradients_equal_the_padded_model_that_scores_all_positions(tmp_path, lengths, seed):
    # In double precision, where every parameter's gradient is far above rounding error.
    ours, theirs = gradients_of_both(tmp_path, padded_batch(lengths, seed), torch.float64)
    for name, expected in theirs.items():
        error = (ours[name] - expected).norm() / expected.norm().clamp_min(1e-6)
        assert error <= 1e-8, f"{name}: {error}"


@pytest.mark.parametrize("lengths", LENGTHS)
def test_gradients_in_single_precision(tmp_path, lengths):
    ours, theirs = gradients_of_both(tmp_path, padded_batch(lengths), torch.float32)
    total = torch.cat([gradient.flatten() for gradient in theirs.values()]).norm()
    error = torch.cat([(ours[name] - gradient).flatten() for name, gradient in theirs.items()]).norm()
    assert error <= 1e-5 * total


def gradients_of_both(folder, batch, dtype):
    ours, peer = pair_of_models(BertForPreTraining, folder)
    ours, peer = ours.to(dtype), peer.to(dtype)
    ids, segments, mask, labels, next_labels = batch
    loss = add_our_gradients(ours, *batch)
    expected = peer(ids, mask.long(), segments, labels=labels, next_sentence_label=next_labels)
    assert loss == pytest.approx(float(expected.loss.detach()), rel=1e-5)
    expected.loss.backward()
    found = published_gradients(ours)
    wanted = {name: parameter.grad for name, parameter in peer.named_parameters()}
    # transformers gives the padding embedding no gradient; ours trains it like any other.
    for gradients in (found, wanted):
        words = "bert.embeddings.word_embeddings.weight"
        gradients[words] = gradients[words][1:]
    return found, wanted


def published_gradients(model):
    parameters = dict(model.named_parameters())
    gradients = {}
    for row in BERT_FORMAT.rows(model.config, tuple(model.heads)):
        gradient = parameters[row.ours].grad
        gradients[row.huggingface] = gradient if row.part is None else gradient.chunk(3)[row.part]
    return gradients


def test_one_step_leaves_equal_weights_and_the_tie(tmp_path):
    ours, peer = pair_of_models(BertForPreTraining, tmp_path)
    batch = padded_batch([37, 13, 22, 99])
    ids, segments, mask, labels, next_labels = batch
    add_our_gradients(ours, *batch)
    peer(ids, mask.long(), segments, labels=labels, next_sentence_label=next_labels).loss.backward()
    for model in (ours, peer):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert ours.heads["mlm"].decoder is ours.encoder.word_embeddings
    theirs = peer.bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(ours.encoder.word_embeddings[1:], theirs[1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_labels", [1, 3])
@torch.no_grad()
def test_classifier_logits(tmp_path, num_labels):
    ours, peer = pair_of_models(BertForSequenceClassification, tmp_path, num_labels=num_labels)
    ids, segments, mask, _, _ = padded_batch([37, 13, 2, 99])
    logits = ours.heads["classifier"](ours.encoder(ids, segments, mask).pooled)
    assert (logits - peer(ids, mask.long(), segments).logits).abs().max() <= 1e-5


def packed(ids, segments, mask):
    is_real = mask.bool()
    arrays = {"token_ids": ids[is_real], "segment_ids": segments[is_real], "lengths": is_real.sum(1)}
    return {name: values.numpy() for name, values in arrays.items()}


def saved_pair(peer_type, folder, heads, num_labels=None):
    """Return our model with random weights, and the model that transformers opens from our folder."""
    config = BertConfig(**{**SIZES, "initializer_range": 0.3})
    ours = build_model(config, heads, num_labels, seed=1).eval()
    save_model(ours, folder)
    peer, loading = peer_type.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return ours, peer.eval()


@torch.no_grad()
def test_spans_of_answers(tmp_path):
    ours, peer = saved_pair(BertForQuestionAnswering, tmp_path, ("span",))
    lengths = [37, 37, 37]  # without padding, which the peer's loss would include
    ids, segments, mask, _, _ = padded_batch(lengths)
    labels = torch.tensor([[3, 9], [0, 0], [36, 36]])
    expected = peer(ids, mask.long(), segments, start_positions=labels[:, 0], end_positions=labels[:, 1])
    batch = ClassificationBatch(**packed(ids, segments, mask), labels=labels.numpy(), indices=None)
    objective = SpanPrediction()
    logits = objective.logits(ours, batch).view(3, 37, 2)
    assert (logits[..., 0] - expected.start_logits).abs().max() <= 1e-5
    assert (logits[..., 1] - expected.end_logits).abs().max() <= 1e-5
    (total,), (count,) = objective.loss_sums(ours, batch).values(), objective.target_counts(batch).values()
    torch.testing.assert_close(total / count, expected.loss, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_tags_of_words(tmp_path):
    ours, peer = saved_pair(BertForTokenClassification, tmp_path, ("tagger",), num_labels=7)
    ids, segments, mask, _, _ = padded_batch([37, 13, 2, 99])
    labels = torch.randint(0, 7, ids.shape)
    labels[(torch.rand(ids.shape) < 0.4) | ~mask.bool()] = -100
    expected = peer(ids, mask.long(), segments, labels=labels)
    scored = labels[mask.bool()].numpy()
    batch = TokenBatch(**packed(ids, segments, mask), labels=scored, indices=None, chains=np.full(len(scored), -1))
    objective = Tagging()
    assert (objective.logits(ours, batch) - expected.logits[mask.bool()]).abs().max() <= 1e-5
    (total,), (count,) = objective.loss_sums(ours, batch).values(), objective.target_counts(batch).values()
    torch.testing.assert_close(total / count, expected.loss, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_scores_of_choices(tmp_path):
    ours, peer = saved_pair(BertForMultipleChoice, tmp_path, ("choice",))
    ids, segments, mask, _, _ = padded_batch([37, 13, 2, 99, 14, 20])
    labels = torch.tensor([2, 0])
    shaped = [tensor.view(2, 3, -1) for tensor in (ids, mask.long(), segments)]
    expected = peer(*shaped, labels=labels)
    batch = ChoiceBatch(
        **packed(ids, segments, mask), labels=labels.numpy(), indices=np.arange(2), num_choices=np.full(2, 3)
    )
    objective = MultipleChoice()
    assert (objective.logits(ours, batch).view(2, 3) - expected.logits).abs().max() <= 1e-5
    (total,), (count,) = objective.loss_sums(ours, batch).values(), objective.target_counts(batch).values()
    torch.testing.assert_close(total / count, expected.loss, rtol=1e-5, atol=1e-6)


def test_next_sentence_class_zero_means_next(tmp_path):
    # transformers documents label 0 as "B continues A"; an imported head must preserve that order.
    ours, peer = pair_of_models(BertForPreTraining, tmp_path)
    with torch.no_grad():
        peer.cls.seq_relationship.bias.copy_(torch.tensor([5.0, -5.0]))
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)[0].eval()
    logits = ours.heads["nsp"](ours.encoder(torch.randint(5, 99, (2, 9))).pooled)
    assert logits.argmax(-1).tolist() == [0, 0]
    assert F.cross_entropy(logits, torch.zeros(2, dtype=torch.long)) < 0.1
