import math

import pytest
import torch

from maskloom.layers.attention import CrossAttention, SelfAttention, attend
from maskloom.layers.sequence_layout import SequenceLayout

LENGTHS = [5, 1, 13, 12, 0, 5, 2]


def naive(qkv, lengths, num_heads, *, causal=False):
    contexts = []
    for rows in qkv.split(lengths):
        size = qkv.shape[1] // (3 * num_heads)
        query, key, value = (part.view(len(rows), num_heads, size).transpose(0, 1) for part in rows.chunk(3, dim=1))
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones(len(rows), len(rows), dtype=torch.bool).triu(1), -math.inf)
        contexts.append((scores.softmax(-1) @ value).transpose(0, 1).flatten(1))
    return torch.cat(contexts)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [6, 6, 6], [1], [40, 3]])
def test_equals_attention_of_each_sequence_alone(lengths, causal):
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3 * 21, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(sum(lengths), 21, dtype=torch.float64)
    context = attend(qkv, SequenceLayout.from_lengths(lengths), 7, 0.0, causal=causal)
    (gradient,) = torch.autograd.grad((context * weights).sum(), qkv)
    expected = naive(qkv, lengths, 7, causal=causal)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), qkv)
    torch.testing.assert_close(context, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [[64, 64], [64, 63, 9]])
def test_dropout_falls_on_probabilities(lengths):
    # With values of one, a context is the sum of the kept probabilities over 1 - p: 1 only on average.
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3 * 64)
    qkv[:, 128:] = 1.0
    layout = SequenceLayout.from_lengths(lengths)
    context = attend(qkv, layout, 4, 0.1)
    assert context.std() > 0.01
    assert context.mean() == pytest.approx(1.0, abs=0.01)
    # All dimensions of a head share a query's draws.
    heads = context.view(len(context), 4, 16)
    torch.testing.assert_close(heads.std(dim=2), torch.zeros(len(context), 4), rtol=0, atol=1e-5)


def test_dropout_is_on_in_training_only():
    torch.manual_seed(0)
    block = SelfAttention(12, 3, 0.5)
    hidden, layout = torch.randn(7, 12), SequenceLayout.from_lengths([4, 3])
    assert not torch.equal(block(hidden, layout), block(hidden, layout))
    block.eval()
    assert torch.equal(block(hidden, layout), block(hidden, layout))


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_has_the_gradient_of_its_own_mask(causal):
    # With the same draws twice, a finite difference along a direction equals the gradient's projection.
    lengths = [9, 8, 3]
    layout = SequenceLayout.from_lengths(lengths)
    qkv = torch.randn(20, 3 * 12, dtype=torch.float64, requires_grad=True)
    weights, direction = torch.randn(20, 12, dtype=torch.float64), torch.randn(20, 36, dtype=torch.float64)

    def loss(values):
        torch.manual_seed(5)
        return (attend(values, layout, 3, 0.3, causal=causal) * weights).sum()

    (gradient,) = torch.autograd.grad(loss(qkv), qkv)
    with torch.no_grad():
        slope = (loss(qkv + 1e-6 * direction) - loss(qkv - 1e-6 * direction)) / 2e-6
    assert float((gradient * direction).sum()) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize("lengths", [[8, 8], [8, 7, 3]])
def test_causal_tokens_see_nothing_of_those_after_them(lengths, dropout):
    torch.manual_seed(0)
    qkv, layout = torch.randn(sum(lengths), 3 * 12), SequenceLayout.from_lengths(lengths)
    changed = qkv.clone()
    changed[lengths[0] - 1] += 1.0
    found = [attend(values, layout, 3, dropout, causal=True) for values in (qkv, changed)]
    is_equal = (found[0] == found[1]).all(1)
    assert is_equal.tolist() == [place != lengths[0] - 1 for place in range(sum(lengths))]


def test_causal_rows_with_padding_anywhere():
    # as in an exported model: padding before and between tokens, too
    torch.manual_seed(0)
    is_real = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    qkv = torch.randn(int(is_real.sum()), 3 * 12, dtype=torch.float64)
    padded = torch.randn(15, 36, dtype=torch.float64)
    padded[is_real.flatten()] = qkv
    layout = SequenceLayout.of_padded(is_real)
    context = attend(padded, layout, 3, 0.0, causal=True)
    assert bool(context.isfinite().all())
    torch.testing.assert_close(context[is_real.flatten()], naive(qkv, [3, 3, 0], 3, causal=True))
    assert layout.last_positions[:2].tolist() == [4, 8]


def masked_by_a_large_number(query, key, value, mask):
    """Attention as it is often taught: masked scores become -1e9, and the weights are returned too."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(mask == 0, -1e9).softmax(-1)
    return weights @ value, weights


@pytest.mark.parametrize("causal", [False, True])
def test_equals_attention_with_scores_masked_by_a_large_number(causal):
    lengths, heads, size = [7, 3, 1], 2, 5
    attention, hidden = SelfAttention(10, heads, 0.0, causal=causal), torch.randn(11, 10)
    qkv, layout = attention.projected(hidden), SequenceLayout.from_lengths(lengths)
    found = attend(qkv, layout, heads, 0.0, causal=causal)
    padded = layout.padded(qkv[:11]).view(3, 7, 3, heads, size).permute(2, 0, 3, 1, 4)
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None])[:, None, None].expand(3, 1, 7, 7)
    expected, weights = masked_by_a_large_number(*padded, mask & torch.ones(7, 7).tril().bool() if causal else mask)
    rows = expected.transpose(1, 2).flatten(2)
    for number, (length, own) in enumerate(zip(lengths, found[:11].split(lengths), strict=True)):
        torch.testing.assert_close(own, rows[number, :length], rtol=0, atol=1e-6)
        start = sum(lengths[:number])
        shown = attention.probabilities(hidden[start : start + length], SequenceLayout.from_lengths([length]))
        torch.testing.assert_close(shown, weights[number, :, :length, :length], rtol=0, atol=1e-6)


def test_a_row_that_may_attend_to_nothing_is_zero_and_not_a_mean():
    """If all scores are -1e9, their softmax is uniform: a padding row becomes the mean of values it must not see."""
    taught, weights = masked_by_a_large_number(*torch.randn(3, 1, 4, 5), torch.zeros(1, 4, 4))
    torch.testing.assert_close(weights, torch.full((1, 4, 4), 0.25))
    assert taught.any()
    layout = SequenceLayout.from_lengths([0, 2])
    assert attend(torch.randn(2, 30), layout, 2, 0.0).shape == (2, 10)  # padding rows are not computed at all


def test_heads_must_divide_the_hidden_size():
    for layer in (SelfAttention, CrossAttention):
        with pytest.raises(ValueError, match="hidden size 10 is not divisible by 3 heads"):
            layer(10, 3, 0.1)
