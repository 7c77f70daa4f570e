"""Every dropout rate acts at each of its places, and only in training."""

import pytest
import torch

from maskloom.layers.dropout import Dropout
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig
from maskloom.models.transformer_config import TransformerConfig

SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "initializer_range": 0.3,
}
RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout")
STACKS = ("encoder", "heads.decoder")
HIDDEN = ["encoder.embeddings.dropout", "heads.decoder.dropout", *(f"{stack}.layers.0.dropout" for stack in STACKS)]
ATTENTION = [*(f"{stack}.layers.0.attention" for stack in STACKS), "heads.decoder.layers.0.cross_attention"]
ACTIVATION = [f"{stack}.layers.0.feed_forward.dropout" for stack in STACKS]


def make(kind, **rates):
    none = {name: 0.0 for name in RATES if name in kind.model_fields}
    return build_model(kind(**{**SIZES, **none, **rates}), ("decoder",), seed=0)


def vectors(model):
    torch.manual_seed(0)
    ids, source, layout = torch.arange(9) + 4, SequenceLayout.from_lengths([5, 4]), SequenceLayout.from_lengths([3, 6])
    with torch.no_grad():
        hidden = model.encoder.encode_packed(ids, ids * 0, source).last_hidden_state
        return model.heads["decoder"](ids, layout, hidden, source)


@pytest.mark.parametrize(
    ("kind", "rate", "place"),
    [
        *((kind, "hidden_dropout_prob", place) for kind in (TransformerConfig, BartConfig) for place in HIDDEN),
        *(
            (kind, "attention_probs_dropout_prob", place)
            for kind in (TransformerConfig, BartConfig)
            for place in ATTENTION
        ),
        *((BartConfig, "activation_dropout", place) for place in ACTIVATION),
    ],
)
def test_a_rate_acts_at_each_place_in_training_alone(kind, rate, place):
    model, plain = make(kind, **{rate: 0.4}), make(kind)
    for name, module in model.named_modules():
        if name == place:
            assert getattr(module, "p", None) == 0.4 or module.dropout == 0.4
        elif isinstance(module, Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    expected = vectors(plain.eval())
    assert torch.equal(vectors(model.eval()), expected)
    assert torch.equal(vectors(plain.train()), expected)
    assert not torch.allclose(vectors(model.train()), expected, atol=1e-3)
