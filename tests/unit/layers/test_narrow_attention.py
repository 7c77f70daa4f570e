"""Queries and keys with smaller heads: values and gradients match attention written out with a separate d_k."""

import math

import pytest
import torch

from maskloom.layers.attention import NarrowCrossAttention, NarrowSelfAttention, PackedMemory
from maskloom.layers.general_attention import AttentionLayout
from maskloom.layers.sequence_layout import SequenceLayout

HIDDEN, HEADS, KEY = 12, 3, 2


def written_out(queries, keys, values, *, causal):
    """Attend over one sequence, scores over sqrt(d_k), from (queries, h d_k), (keys, h d_k) and (keys, h d_v)."""
    q, k, v = (part.unflatten(1, (HEADS, -1)).transpose(0, 1) for part in (queries, keys, values))
    scores = q @ k.transpose(1, 2) / math.sqrt(KEY)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_within_a_text(causal, learns):
    torch.manual_seed(0)
    attention, lengths = NarrowSelfAttention(HIDDEN, HEADS, 0.0, key_size=KEY, causal=causal).train(learns), [5, 1, 7]
    hidden, layout = torch.randn(13, HIDDEN), SequenceLayout.from_lengths(lengths)
    parts = attention.qkv(hidden).split([HEADS * KEY, HEADS * KEY, HIDDEN], 1)
    texts = zip(*(part.split(lengths) for part in parts), strict=True)
    expected = attention.output(torch.cat([written_out(*text, causal=causal) for text in texts]))
    with torch.set_grad_enabled(learns):
        found = attention(hidden, layout)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    if learns:
        one, other = (torch.autograd.grad(part.square().sum(), attention.qkv.weight)[0] for part in (found, expected))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("learns", [True, False])
def test_between_texts(learns):
    torch.manual_seed(0)
    attention = NarrowCrossAttention(HIDDEN, HEADS, 0.0, key_size=KEY).train(learns)
    lengths, others = [2, 4], [5, 3]
    hidden, memory = torch.randn(6, HIDDEN), torch.randn(8, HIDDEN)
    keys, values = attention.key_value(memory).split([HEADS * KEY, HIDDEN], 1)
    texts = zip(attention.query(hidden).split(lengths), keys.split(others), values.split(others), strict=True)
    expected = attention.output(torch.cat([written_out(*text, causal=False) for text in texts]))
    layouts = map(SequenceLayout.from_lengths, (lengths, others))
    with torch.set_grad_enabled(learns):
        found = attention(hidden, PackedMemory(memory, AttentionLayout(*layouts)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    if learns:
        for part in (attention.query, attention.key_value):
            one, other = (
                torch.autograd.grad(result.square().sum(), part.weight, retain_graph=True)[0]
                for result in (found, expected)
            )
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
