from functools import partial

import pytest
import torch
from torch import nn

from maskloom.layers.attention import SelfAttention
from maskloom.layers.dropout import Dropout
from maskloom.layers.feed_forward import FeedForward
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer, residual


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6)])
def test_norms_stand_behind_or_before(norm, pre_norm):
    torch.manual_seed(0)
    x, block, adapter = torch.randn(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)
    expected = x + adapter(block(norm(x))) if pre_norm else norm(x + adapter(block(x)))
    found = residual(x, block, norm, Dropout(0.0), pre_norm=pre_norm, adapter=adapter)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


NORM = partial(nn.LayerNorm, 12)


def layer_of(norm=NORM):
    torch.manual_seed(0)
    return TransformerLayer(SelfAttention(12, 3, 0.0), FeedForward(12, 24, "gelu"), norm=norm, dropout=0.1).eval()


def test_an_adapter_that_adds_nothing_changes_nothing_and_another_does():
    layer, layout = layer_of(), SequenceLayout.from_lengths([4, 3])
    x = torch.randn(7, 12)
    plain, names = layer(x, layout), list(layer.state_dict())
    layer.attention_adapter, layer.feed_forward_adapter = nn.Identity(), nn.Identity()
    assert torch.equal(layer(x, layout), plain)
    assert list(layer.state_dict()) == names
    layer.feed_forward_adapter = nn.Linear(12, 12)
    assert not torch.equal(layer(x, layout), plain)
    assert "feed_forward_adapter.weight" in layer.state_dict()


def test_a_layer_takes_any_norm():
    layer = layer_of(partial(nn.RMSNorm, 12))
    assert [name for name, _ in layer.named_parameters() if "norm" in name] == [
        "attention_layer_norm.weight",
        "feed_forward_layer_norm.weight",
    ]
