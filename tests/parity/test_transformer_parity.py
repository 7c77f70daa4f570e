"""The Transformer compared with torch's own layers at the same weights."""

import numpy as np
import pytest
import torch
from tests.moved_weights import moved
from torch import nn

from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.transformer_config import TransformerConfig

pytestmark = pytest.mark.parity

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_decoder_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 31,
    "layer_norm_eps": 1e-5,
}


def copy_attention(ours, theirs, *, cross=False):
    weights, biases = (
        (torch.cat([ours.query.weight, ours.key_value.weight]), torch.cat([ours.query.bias, ours.key_value.bias]))
        if cross
        else (ours.qkv.weight, ours.qkv.bias)
    )
    theirs.in_proj_weight.data.copy_(weights)
    theirs.in_proj_bias.data.copy_(biases)
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(ours, theirs):
    copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_layer_norm, ours.feed_forward_layer_norm]
    if hasattr(ours, "cross_attention"):
        copy_attention(ours.cross_attention, theirs.multihead_attn, cross=True)
        norms.insert(1, ours.cross_attention_layer_norm)
    theirs.linear1.load_state_dict(ours.feed_forward.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.down.state_dict())
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())


def sinusoid(position, index, width):
    angle = position / 10_000 ** (2 * (index // 2) / width)
    return np.sin(angle) if index % 2 == 0 else np.cos(angle)


def embedded(model, ids):
    width = model.config.hidden_size
    table = torch.tensor([[sinusoid(place, i, width) for i in range(width)] for place in range(ids.shape[1])])
    return model.encoder.word_embeddings[ids] * width**0.5 + table.float()


@pytest.mark.parametrize("pre_norm", [False, True])
def test_both_stacks_give_what_those_of_torch_give(pre_norm):
    model = moved(build_model(TransformerConfig(**SIZES, pre_norm=pre_norm), ("decoder",), seed=4).eval())
    head = model.heads["decoder"]
    how = {"dim_feedforward": 31, "dropout": 0.0, "batch_first": True, "norm_first": pre_norm}
    layer = nn.TransformerEncoderLayer(24, 3, **how)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    theirs = nn.Transformer(24, 3, 0, 2, custom_encoder=encoder, **how).eval()
    for norm, stack in ((model.encoder.final_norm, theirs.encoder), (head.final_norm, theirs.decoder)):
        stack.norm = norm if pre_norm else None
    for ours, other in (*zip(model.encoder.layers, theirs.encoder.layers), *zip(head.layers, theirs.decoder.layers)):  # noqa: B905
        copy_layer(ours, other)
    generator = torch.Generator().manual_seed(0)
    sources, targets = [7, 1, 12, 11, 4], [3, 9, 1, 2, 8]
    packed = [torch.randint(0, 50, (sum(lengths),), generator=generator) for lengths in (sources, targets)]
    layouts = [SequenceLayout.from_lengths(lengths) for lengths in (sources, targets)]
    with torch.no_grad():
        memory = model.encoder.encode_packed(packed[0], torch.zeros_like(packed[0]), layouts[0]).last_hidden_state
        hidden = head(packed[1], layouts[1], memory, layouts[0])
        for ids, target, encoded, found in zip(
            packed[0].split(sources),
            packed[1].split(targets),
            memory.split(sources),
            hidden.split(targets),
            strict=True,
        ):
            expected = theirs.encoder(embedded(model, ids[None]))
            torch.testing.assert_close(encoded, expected[0], atol=1e-5, rtol=0)
            mask = nn.Transformer.generate_square_subsequent_mask(len(target))
            expected = theirs.decoder(embedded(model, target[None]), expected, tgt_mask=mask)
            torch.testing.assert_close(found, expected[0], atol=1e-5, rtol=0)
