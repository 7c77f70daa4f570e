import numpy as np
import pytest
import torch
import torch.nn.functional as F

from maskloom.data.batch import PretrainingBatch
from maskloom.errors import DataError
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.loop import accumulate_gradients

CONFIG = BertConfig(
    vocab_size=41, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=13,
    max_position_embeddings=23, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def batch_of(lengths, num_predictions, has_pairs=True, seed=0):
    rng = np.random.default_rng(seed)
    num_tokens = int(np.sum(lengths))
    return PretrainingBatch(
        token_ids=rng.integers(0, 41, num_tokens),
        segment_ids=rng.integers(0, 2, num_tokens),
        lengths=np.array(lengths),
        mlm_positions=np.sort(rng.choice(num_tokens, num_predictions, replace=False)),
        mlm_labels=rng.integers(0, 41, num_predictions),
        nsp_labels=rng.integers(0, 2, len(lengths)) if has_pairs else None,
    )


def plain_loss(model, batch):
    """Score all positions, then select the predicted ones: mean MLM + mean NSP loss."""
    output = model.encoder.encode_packed(
        torch.from_numpy(batch.token_ids), torch.from_numpy(batch.segment_ids),
        SequenceLayout.from_lengths(batch.lengths),
    )  # fmt: skip
    logits = model.heads["mlm"](output.last_hidden_state)[torch.from_numpy(batch.mlm_positions)]
    next_sentence = F.cross_entropy(model.heads["nsp"](output.pooled), torch.from_numpy(batch.nsp_labels))
    return F.cross_entropy(logits, torch.from_numpy(batch.mlm_labels)) + next_sentence


@pytest.mark.parametrize("seed", range(4))
def test_loss_and_every_gradient_are_those_of_the_plain_computation(seed):
    model = build_model(CONFIG, seed=seed)
    batch = batch_of([2, 20, 9, 20, 5], 3 + 4 * seed, seed=seed)
    losses = accumulate_gradients(model, MaskedLanguageModeling(), batch, None)
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected = plain_loss(model, batch)
    expected.backward()
    assert sum(losses.values()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_micro_batches_add_up_to_the_whole():
    model, batch = build_model(CONFIG, seed=1), batch_of([7, 3, 12, 4, 6], 9)
    results = []
    for size in (None, 2, 1):
        losses = accumulate_gradients(model, MaskedLanguageModeling(), batch, size)
        results.append((losses, [parameter.grad.clone() for parameter in model.parameters()]))
        model.zero_grad()
    for losses, gradients in results[1:]:
        assert losses == pytest.approx(results[0][0], rel=1e-5)
        for gradient, whole in zip(gradients, results[0][1], strict=True):
            torch.testing.assert_close(gradient, whole, rtol=1e-4, atol=1e-6)


def test_evaluation_agrees_with_training_and_counts_what_is_right():
    model, batch, objective = build_model(CONFIG, seed=2).eval(), batch_of([8, 11], 6), MaskedLanguageModeling()
    with torch.no_grad():
        sums = objective.evaluation_sums(model, batch)
    losses = objective.loss_sums(model, batch)
    assert sums["mlm_loss"] == pytest.approx(float(losses["mlm"].detach()), rel=1e-5)
    assert sums["nsp_loss"] == pytest.approx(float(losses["nsp"].detach()), rel=1e-5)
    assert (sums["mlm_count"], sums["nsp_count"]) == (6.0, 2.0)
    metrics = objective.evaluation_metrics(sums)
    assert metrics["mlm_loss"] == pytest.approx(sums["mlm_loss"] / 6)
    assert metrics["loss"] == pytest.approx(sums["mlm_loss"] / 6 + sums["nsp_loss"] / 2)


def test_a_batch_without_predictions_has_a_loss_of_zero():
    model, batch = build_model(CONFIG, seed=3), batch_of([5, 6], 0)
    losses = accumulate_gradients(model, MaskedLanguageModeling(), batch, None)
    assert losses["mlm"] == 0.0
    assert losses["nsp"] > 0.0


def test_next_sentence_can_be_left_out_but_not_missed():
    model, batch = build_model(CONFIG, heads=("mlm",), seed=4), batch_of([5, 6], 3, has_pairs=False)
    assert set(MaskedLanguageModeling(pair_part=None).loss_sums(model, batch)) == {"mlm"}
    assert set(MaskedLanguageModeling(pair_part=None).target_counts(batch)) == {"mlm"}
    with pytest.raises(ValueError, match="nsp needs a batch with pair labels"):
        MaskedLanguageModeling().loss_sums(model, batch)


@pytest.mark.parametrize(("wrong", "message"), [(-1, "id -1"), (60, "id 60")])
@pytest.mark.parametrize("name", ["token", "segment", "label"])
def test_an_id_that_the_model_has_not_is_named(name, wrong, message):
    """GPU kernels would read beyond the ends of their tables."""
    field = {"token": "token_ids", "segment": "segment_ids", "label": "mlm_labels"}[name]
    batch = PretrainingBatch(
        token_ids=np.array([2, 7, 8]),
        segment_ids=np.zeros(3, dtype=np.int64),
        lengths=np.array([3]),
        mlm_positions=np.array([1]),
        mlm_labels=np.array([7]),
        nsp_labels=None,
    )
    getattr(batch, field)[0] = wrong
    model = build_model(BertConfig.of_size("tiny", vocab_size=60), heads=("mlm",), seed=0)
    with pytest.raises(DataError, match=f"{name} {message}: the model has ids 0 to {1 if name == 'segment' else 59}"):
        MaskedLanguageModeling(pair_part=None).loss_sums(model, batch)
