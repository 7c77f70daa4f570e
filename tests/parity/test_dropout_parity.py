"""Dropout has the same places and rates as in transformers: outputs at equal weights have equal mean and spread."""

import pytest
import torch
from transformers import BertConfig as PeerConfig
from transformers import BertForSequenceClassification

from maskloom.checkpoints.huggingface import load_model

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 99, "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 16, "initializer_range": 0.2, "num_labels": 6,
}  # fmt: skip
RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
NUM_DRAWS = 8192
# The relative standard error of a spread is 1 / sqrt(2 n), of a ratio of two 1 / sqrt(n); four of the latter.
BOUND = 4 * NUM_DRAWS**-0.5


@pytest.mark.parametrize("rates", [(0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.3), (0.1, 0.1, None)])
def test_outputs_have_the_same_mean_and_spread(tmp_path, rates):
    torch.manual_seed(0)
    peer = BertForSequenceClassification(PeerConfig(**SIZES, **dict(zip(RATES, rates, strict=True)))).train()
    peer.save_pretrained(tmp_path)
    model = load_model(tmp_path)[0].train()
    ids, segments = torch.tensor([[2, 31, 98, 3]]), torch.tensor([[0, 0, 1, 1]])
    ids, segments = (tensor.expand(NUM_DRAWS, -1).contiguous() for tensor in (ids, segments))
    with torch.no_grad():
        found = model.heads["classifier"](model.encoder(ids, segments).pooled)
        expected = peer(ids, token_type_ids=segments).logits
    gap = (found.mean(0) - expected.mean(0)) / (found.var(0) + expected.var(0)).div(NUM_DRAWS).sqrt()
    assert gap.abs().max() < 4
    assert float(expected.std(0).min()) > 1e-3
    assert (found.std(0) / expected.std(0) - 1).abs().max() < BOUND
