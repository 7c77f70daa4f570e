"""The loss of a decoder that restores texts: computed by hand, and the same in micro-batches and across ranks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.unit.data.test_restoring import VOCABULARY, noised, random_documents

from maskloom.data.batch import SourceTargetBatch
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.transformer_config import TransformerConfig
from maskloom.objectives.sequence_to_sequence import Restoration
from maskloom.training.loop import StepDraws, accumulate_gradients, evaluate
from maskloom.training.ranks.ranks import Ranks

OBJECTIVE = Restoration("denoising", None)


def _model(dropout=0.0):
    config = TransformerConfig(
        vocab_size=len(VOCABULARY), hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return build_model(config, ("decoder",), seed=0)


def _batch():
    """Return sources and targets of different lengths."""
    settings = {"delete_rate": 0.2, "infill_rate": 0.3, "permute_sentences": 1.0, "rotate_rate": 0.5}
    return noised(random_documents(8, seed=4), **settings)


def _loss_of_each(model, batch):
    losses = []
    for row in batch.split(1):
        hidden = model.encoder(torch.from_numpy(row.token_ids)[None]).last_hidden_state[0]
        layouts = [SequenceLayout.from_lengths(lengths, "cpu") for lengths in (row.target_lengths, row.lengths)]
        vectors = model.heads["decoder"](torch.from_numpy(row.target_ids), layouts[0], hidden, layouts[1])
        logits = vectors @ model.encoder.word_embeddings.T
        losses.append(float(F.cross_entropy(logits, torch.from_numpy(row.labels), reduction="sum").detach()))
    return losses


def test_loss_accuracy_and_perplexity_are_of_all_tokens_of_targets():
    model, batch = _model().eval(), _batch()
    assert OBJECTIVE.target_counts(batch) == {"denoising": float(len(batch.labels))}
    expected = sum(_loss_of_each(model, batch))
    assert OBJECTIVE.loss_sums(model, batch)["denoising"].item() == pytest.approx(expected, rel=1e-5)
    metrics = evaluate(model, OBJECTIVE, batch.split(3))
    assert metrics["denoising_loss"] == metrics["loss"] == pytest.approx(expected / len(batch.labels), rel=1e-5)
    assert metrics["denoising_perplexity"] == pytest.approx(np.exp(expected / len(batch.labels)), rel=1e-4)
    assert 0.0 <= metrics["denoising_accuracy"] < 0.1


def test_tokens_are_right_where_the_decoder_gives_them_the_highest_score(monkeypatch):
    model, batch = _model().eval(), _batch()
    half = np.arange(len(batch.labels)) % 2 == 0
    guesses = iter(np.split(np.where(half, batch.labels, 0), range(100, len(half), 100)))
    monkeypatch.setattr("maskloom.objectives.masked_lm._ROWS", 100)
    monkeypatch.setattr(
        model.heads["decoder"], "logits",
        lambda rows: F.one_hot(torch.from_numpy(next(guesses)), len(VOCABULARY)),
    )  # fmt: skip
    with torch.no_grad():
        assert OBJECTIVE.evaluation_sums(model, batch)["denoising_correct"] == half.sum()


@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 1), (1, 3), (2, None), (2, 3)])
def test_micro_batches_and_ranks_draw_and_learn_what_one_batch_does(world_size, micro_batch_size):
    batch = _batch()
    counts, parts = OBJECTIVE.target_counts(batch), batch.split(8 // world_size)

    class Part(Ranks):
        def sum_(self, values):
            return values | counts | {f"sequences of rank {rank}": len(part.lengths) for rank, part in enumerate(parts)}

    loss, model = 0.0, _model(dropout=0.3)
    for rank, part in enumerate(parts):
        ranks = Part()
        ranks.rank, ranks.world_size = rank, world_size
        draws = StepDraws(0, 7)
        loss += accumulate_gradients(model, OBJECTIVE, part, micro_batch_size, draws=draws, ranks=ranks)["denoising"]
    alone = _model(dropout=0.3)
    expected = accumulate_gradients(alone, OBJECTIVE, batch, None, draws=StepDraws(0, 7))["denoising"]
    assert loss == pytest.approx(expected, rel=1e-6)
    assert loss != pytest.approx(sum(_loss_of_each(alone.eval(), batch)) / len(batch.labels), rel=1e-3)  # dropout is on
    for (name, ours), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-5, atol=1e-6, msg=name)


def test_parts_of_a_batch_hold_all_of_it():
    batch = _batch()
    parts = batch.split(3)
    assert [part.num_sequences for part in parts] == [3, 3, 2]
    for name in vars(batch):
        assert np.concatenate([getattr(part, name) for part in parts]).tolist() == getattr(batch, name).tolist()
    assert all(isinstance(part, SourceTargetBatch) for part in parts)
