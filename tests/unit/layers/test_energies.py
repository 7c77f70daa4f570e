import math
from unittest import mock

import pytest
import torch

from maskloom.layers.general_attention import AttentionLayout, EnergyAttention, attend_between
from maskloom.layers.processor import onednn
from maskloom.layers.sequence_layout import SequenceLayout

QUERIES, KEYS = [2, 0, 1, 1], [5, 3, 0, 12]


def attention(energy, size=6):
    torch.manual_seed(0)
    return EnergyAttention(energy, size).double()


def texts(size=6):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(sum(lengths), size, dtype=torch.float64, generator=generator) for lengths in (QUERIES, KEYS)]


def layout():
    return AttentionLayout(SequenceLayout.from_lengths(QUERIES), SequenceLayout.from_lengths(KEYS))


def energy_of(module, q, k):
    if module.energy == "mlp":
        return module.score.weight[0] @ torch.tanh(module.query.weight @ q + module.key.weight @ k + module.key.bias)
    if module.energy == "bilinear":
        return (module.query.weight @ q) @ k
    return q @ k / (math.sqrt(len(k)) if module.energy == "scaled_dot" else 1.0)


@pytest.mark.parametrize("energy", ["dot", "scaled_dot", "mlp", "bilinear"])
def test_attention_equals_a_loop_and_no_key_gives_zeros(energy):
    module, (queries, keys) = attention(energy), texts()
    found = module(queries, keys, layout())
    expected = []
    for own, read in zip(queries.split(QUERIES), keys.split(KEYS), strict=True):
        for q in own:
            if not len(read):
                expected.append(torch.zeros_like(q))
                continue
            weights = torch.stack([energy_of(module, q, k) for k in read]).softmax(0)
            assert float(weights.detach().sum()) == pytest.approx(1.0)
            expected.append(weights @ read)
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-12)


def test_bilinear_with_the_identity_is_the_dot_product_and_scaled_dot_is_torchs():
    queries, keys = texts()
    bilinear = attention("bilinear")
    torch.nn.init.eye_(bilinear.query.weight)
    dot = attention("dot")(queries, keys, layout())
    torch.testing.assert_close(bilinear(queries, keys, layout()), dot, rtol=0, atol=1e-12)
    scaled = attention("scaled_dot")(queries, keys, layout())
    assert (scaled - dot).abs().max() > 1e-3
    theirs = torch.nn.functional.scaled_dot_product_attention(queries[:2], keys[:5], keys[:5])
    torch.testing.assert_close(scaled[:2], theirs, rtol=0, atol=1e-12)


def test_scaling_keeps_the_softmax_of_wide_vectors_soft():
    """For 512 values of variance 1 and 20 keys, the largest of the weights is .93 unscaled, and .22 scaled."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(500, number, 512, generator=generator) for number in (1, 20))
    unscaled, scaled = (EnergyAttention(energy, 512) for energy in ("dot", "scaled_dot"))
    assert float(scaled.scores(queries, keys).var()) == pytest.approx(1.0, abs=0.05)
    assert float(scaled.weights(queries, keys).amax(2).mean()) == pytest.approx(0.22, abs=0.015)
    assert float(unscaled.weights(queries, keys).amax(2).mean()) == pytest.approx(0.93, abs=0.015)


@pytest.mark.parametrize("energy", ["dot", "scaled_dot", "mlp", "bilinear"])
def test_the_order_of_keys_changes_nothing(energy):
    module, (queries, keys) = attention(energy), texts()
    generator = torch.Generator().manual_seed(2)
    shuffled = torch.cat([own[torch.randperm(len(own), generator=generator)] for own in keys.split(KEYS)])
    assert not torch.equal(shuffled, keys)
    expected = module(queries, keys, layout())
    torch.testing.assert_close(module(queries, shuffled, layout()), expected, rtol=0, atol=1e-12)


def test_padded_keys_are_not_read():
    module, (queries, keys) = attention("mlp"), texts()
    allowed = torch.tensor([[[True, True, False]], [[False, False, False]]])
    read = module.weights(queries[:2, None], keys[:6].view(2, 3, 6), allowed)
    assert read[0, 0, 2] == 0
    assert float(read[0].detach().sum()) == pytest.approx(1.0)
    assert not read[1].any()


def test_gradients_are_those_of_differences():
    module, (queries, keys) = attention("mlp", 3), texts(3)
    plan = layout()
    assert torch.autograd.gradcheck(lambda q, k: module(q, k, plan), (queries.requires_grad_(), keys.requires_grad_()))


def test_a_batch_whose_rows_would_be_filled_up_gets_a_context_for_every_query():
    lengths = [301, 302]
    with mock.patch.object(onednn, "_library", "onednn"):
        queries, keys = SequenceLayout.from_lengths(lengths), SequenceLayout.from_lengths([3, 40])
        rows, sources = torch.randn(sum(lengths), 4).double(), torch.randn(43, 4).double()
        found = attention("dot", 4)(rows, sources, AttentionLayout(queries, keys))
        plain = attend_between(rows, sources, sources, AttentionLayout(queries, keys), 1)
    assert len(found) == len(plain) == sum(lengths)
    torch.testing.assert_close(found[:301], ((rows[:301] @ sources[:3].T).softmax(1)) @ sources[:3])
