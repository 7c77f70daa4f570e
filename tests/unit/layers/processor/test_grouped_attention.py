import math

import numpy as np
import pytest
import torch

from maskloom.layers.attention import attend
from maskloom.layers.dropout import RowDraws, drawing
from maskloom.layers.general_attention import AttentionLayout, attend_between
from maskloom.layers.processor import grouped_attention as module
from maskloom.layers.processor.grouped_attention import grouped_attention, paired_attention, prefers_paired
from maskloom.layers.sequence_layout import SequenceLayout

MIXES = [[4], [3, 3], [5, 4, 1], [2, 9, 9, 17, 3, 8], [1, 40, 0, 33, 2]]


def packed(lengths, width, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(sum(lengths), width, dtype=dtype, generator=generator, requires_grad=True)


def through_groups(qkv, layout, num_heads, dropout):
    return layout.from_slots(grouped_attention(layout.to_slots(qkv), layout, num_heads, dropout))


def one_by_one(qkv, lengths, num_heads, factors):
    """Attend sequence by sequence, with the same dropout factor for a (head, query, key) in every sequence."""
    contexts = []
    for part in qkv.split([length for length in lengths if length > 0]):
        q, k, v = part.view(len(part), 3, num_heads, -1).permute(1, 2, 0, 3)
        probabilities = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1)
        kept = probabilities * factors[: len(part), : len(part)]
        contexts.append((kept @ v).transpose(0, 1).reshape(len(part), -1))
    return torch.cat(contexts)


@pytest.mark.parametrize("lengths", MIXES)
def test_values_and_gradients_are_those_of_the_plain_computation(lengths, monkeypatch):
    factors = (torch.rand(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) > 0.3) / 0.7
    factors = factors.double()
    monkeypatch.setattr(
        module, "dropout_factors", lambda like, *_: factors[: like.shape[1], : like.shape[2]].expand_as(like)
    )
    layout, qkv = SequenceLayout.from_lengths(np.array(lengths)), packed(lengths, 3 * 2 * 4)
    ours, plain = through_groups(qkv, layout, 2, 0.3), one_by_one(qkv, lengths, 2, factors)
    torch.testing.assert_close(ours, plain)
    weights = torch.randn_like(plain)
    torch.testing.assert_close(*(torch.autograd.grad((out * weights).sum(), qkv)[0] for out in (ours, plain)))


@pytest.mark.parametrize("lengths", MIXES)
def test_without_dropout_it_is_scaled_dot_product_attention(lengths):
    layout, qkv = SequenceLayout.from_lengths(np.array(lengths)), packed(lengths, 3 * 3 * 2)
    ours, torchs = through_groups(qkv, layout, 3, 0.0), attend(qkv, layout, 3, 0.0)
    torch.testing.assert_close(ours, torchs)
    torch.testing.assert_close(*(torch.autograd.grad(out.sin().sum(), qkv)[0] for out in (ours, torchs)))


@pytest.mark.parametrize("lengths", [[3, 3], [5, 4, 1]])
def test_written_out_gradient_passes_gradcheck(lengths):
    layout = SequenceLayout.from_lengths(np.array(lengths))

    def seeded(qkv):
        torch.manual_seed(7)
        return through_groups(qkv, layout, 2, 0.2)

    assert torch.autograd.gradcheck(seeded, (packed(lengths, 3 * 2 * 2),))


def test_dropout_on_probabilities_keeps_their_mean():
    torch.manual_seed(0)
    lengths = [6, 5]
    layout, qkv = SequenceLayout.from_lengths(np.array(lengths)), packed(lengths, 3 * 2 * 4)
    often = SequenceLayout.from_lengths(np.array(lengths * 2000))
    with torch.no_grad():
        mean = attend(qkv.repeat(2000, 1), often, 2, 0.1).unflatten(0, (2000, 11)).mean(0)
        torch.testing.assert_close(mean, attend(qkv, layout, 2, 0.0), rtol=0, atol=0.03)


@pytest.mark.parametrize("num_keys", [[4, 2], [5, 30]])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_queries_of_another_text_read_as_the_plain_computation_does_with_the_same_dropout(num_keys, rate):
    num_queries = [9, 3]
    queries, key_values = packed(num_queries, 2 * 4), packed(num_keys, 2 * 2 * 4)
    layout = AttentionLayout(*map(SequenceLayout.from_lengths, (num_queries, num_keys)))
    found = []
    for paired in (True, False):
        with drawing(RowDraws(5, 0, np.array(num_queries))):
            if paired:
                assert prefers_paired(queries, layout)
                context = paired_attention(queries, key_values, layout, 2, rate)
            else:
                context = attend_between(queries, *key_values.chunk(2, 1), layout, 2, dropout=rate)
        found.append((context, *torch.autograd.grad(context.sin().sum(), (queries, key_values))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_where_a_query_has_nothing_to_read_the_plain_computation_serves():
    def layout(num_queries, num_keys):
        return AttentionLayout(*map(SequenceLayout.from_lengths, (num_queries, num_keys)))

    queries = packed([3, 2], 8)
    assert prefers_paired(queries, layout([3, 2], [1, 4]))
    assert not prefers_paired(queries, layout([3, 2], [0, 4]))


def test_texts_without_queries_are_no_matter():
    queries, key_values = packed([0, 5], 2 * 4), packed([30, 5], 2 * 2 * 4)
    layout = AttentionLayout(*map(SequenceLayout.from_lengths, ([0, 5], [30, 5])))
    expected = attend_between(queries, *key_values.chunk(2, 1), layout, 2)
    torch.testing.assert_close(paired_attention(queries, key_values, layout, 2, 0.0), expected)


def test_under_autocast_attention_is_computed_in_fp32():
    own, read = SequenceLayout.from_lengths([5, 9, 3]), SequenceLayout.from_lengths([4, 6, 7])
    pair, qkv, key_values = AttentionLayout(own, read), packed([17], 24).bfloat16(), packed([17], 16).bfloat16()

    def contexts(qkv, key_values):
        return attend(qkv, own, 2, 0.0), paired_attention(qkv[:, :8].contiguous(), key_values, pair, 2, 0.0)

    with torch.autocast("cpu", torch.bfloat16):
        found = contexts(qkv, key_values)
    for one, other in zip(found, contexts(qkv.float(), key_values.float()), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


def test_masks_are_made_once_for_all_layers(monkeypatch):
    made, excluded = [], module._excluded
    monkeypatch.setattr(module, "_excluded", lambda *given: made.append(0) or excluded(*given))
    own, read = SequenceLayout.from_lengths([5, 9, 3, 30]), SequenceLayout.from_lengths([4, 6, 7, 2])
    pair, qkv, key_values = AttentionLayout(own, read), packed([47], 24), packed([19], 16)
    for _ in range(3):
        first = attend(qkv, own, 2, 0.0)
        assert torch.equal(attend(qkv, own, 2, 0.0), first)
        assert not torch.equal(attend(qkv, own, 2, 0.0, causal=True), first)
        paired_attention(qkv[:, :8].contiguous(), key_values, pair, 2, 0.0)
    assert len(made) == 2 * len(own.groups) + len(pair.groups)
