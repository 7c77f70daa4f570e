"""Self-attention restricted to a neighborhood (Vaswani et al. 2017, 4): values, visibility, decoding, folders."""

import math

import pytest
import torch

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError
from maskloom.generation.sources import SourceDecoder
from maskloom.layers.attention import PastTokens, SelfAttention, attend
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.transformer_config import TransformerConfig

LENGTHS = [9, 2, 14, 1, 8]


def make(neighborhood, **more):
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = TransformerConfig(**sizes, intermediate_size=20, attention_neighborhood=neighborhood, **more)
    return build_model(config, ("decoder",), seed=3).eval()


def dense(qkv, lengths, num_heads, neighborhood, *, causal):
    """Attend sequence by sequence over all scores, with minus infinity for those outside the neighborhood."""
    contexts = []
    for part in qkv.split(lengths):
        q, k, v = part.view(len(part), 3, num_heads, -1).permute(1, 2, 0, 3)
        distances = torch.arange(len(part)) - torch.arange(len(part))[:, None]
        is_near = (distances.abs() <= neighborhood) & ((distances <= 0) if causal else True)
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[2])).masked_fill(~is_near, -math.inf)
        contexts.append((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
    return torch.cat(contexts)


@pytest.mark.parametrize("lengths", [LENGTHS, [7, 7], [6, 5]], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 1e-9], ids=["fused", "by groups"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("neighborhood", [1, 3, 50])
def test_contexts_and_gradients_are_those_of_masked_scores(neighborhood, causal, dropout, lengths):
    layout = SequenceLayout.from_lengths(lengths).within(neighborhood)
    qkv = torch.randn(sum(lengths), 36, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    qkv.requires_grad_()
    expected = dense(qkv, lengths, 3, neighborhood, causal=causal)
    found = attend(layout.filled_up(qkv), layout, 3, dropout, causal=causal)[: sum(lengths)]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    one, other = (torch.autograd.grad((part * weights).sum(), qkv)[0] for part in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("causal", [False, True])
def test_probabilities_to_look_at_are_those_of_a_neighborhood(causal):
    attention, layout = SelfAttention(12, 3, 0.0, causal=causal).eval(), SequenceLayout.from_lengths([9])
    hidden = torch.randn(9, 12, generator=torch.Generator().manual_seed(0))
    found = attention.probabilities(hidden, layout.within(2))
    distances = torch.arange(9) - torch.arange(9)[:, None]
    is_near = (distances.abs() <= 2) & ((distances <= 0) if causal else True)
    assert torch.equal(found > 0, is_near.expand(3, 9, 9))
    values = attention.qkv(hidden)[:, 24:].view(9, 3, 4).transpose(0, 1)
    torch.testing.assert_close(
        attention.output((found @ values).transpose(0, 1).flatten(1)), attention(hidden, layout.within(2))
    )


def test_no_kernel_for_whole_sequences_takes_a_restricted_batch():
    layout = SequenceLayout.from_lengths([9, 7])
    assert layout.is_packed
    assert layout.within(8) is layout.within(0) is layout
    assert not layout.within(7).is_packed


@pytest.mark.parametrize("part", ["encoder", "decoder"])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_what_a_token_depends_on_grows_by_a_neighborhood_a_layer(part, pre_norm):
    model, lengths = make(2, pre_norm=pre_norm), [8, 3, 7]
    layout, ids = SequenceLayout.from_lengths(lengths), torch.arange(18)
    kept = []
    with torch.no_grad():
        memory = model.encoder.encode_packed(ids, ids, layout).last_hidden_state
    embeddings = model.encoder.embeddings if part == "encoder" else model.heads["decoder"].dropout
    embeddings.register_forward_hook(lambda module, inputs, output: kept.append(output.requires_grad_()) or output)
    if part == "encoder":
        vectors = model.encoder.encode_packed(ids, ids, layout).last_hidden_state
    else:
        vectors = model.heads["decoder"](ids, layout, memory, layout)
    owners, places = torch.tensor(lengths).repeat_interleave(torch.tensor(lengths)), layout.position_ids
    weights = torch.randn(16, generator=torch.Generator().manual_seed(0))
    for token in range(18):
        (gradient,) = torch.autograd.grad(vectors[token] @ weights, kept[0], retain_graph=True)
        behind = places[token] - places
        is_near = (behind.abs() <= 4) & (owners == owners[token])  # two layers that reach two tokens on either side
        is_near &= (behind >= 0) | (part == "encoder")
        assert torch.equal(gradient.abs().amax(1) > 0, is_near), token


@pytest.mark.parametrize("keys", [{}, {"pre_norm": True, "learned_positions": True, "num_decoder_layers": 3}], ids=str)
def test_a_cache_changes_no_logits(keys):
    model, (source, layout) = make(2, **keys), map(SequenceLayout.from_lengths, ([5, 1, 9], [7, 7, 7]))
    head, ids = model.heads["decoder"], torch.randint(0, 30, (3, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        memory = model.encoder.encode_packed(torch.arange(15), torch.arange(15), source).last_hidden_state
        whole = head.logits(head(ids.flatten(), layout, memory, source)).view(3, 7, -1)
        decoder = SourceDecoder(model, memory, source, 9)
        steps = [decoder.start(ids[:, :1].tolist()), *(decoder.step(ids[:, place]) for place in range(1, 7))]
        full = make(0, **keys).heads["decoder"](ids.flatten(), layout, memory, source)
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-5, rtol=0)
    assert not torch.allclose(head.logits(full).view(3, 7, -1)[:, 3:], whole[:, 3:], atol=1e-3)


@torch.no_grad()
def test_sequences_of_unequal_length_have_a_cache_too():
    torch.manual_seed(0)
    attention, lengths = SelfAttention(12, 3, 0.0, causal=True).eval(), [6, 2, 4]
    rows = torch.randn(3, 9, 12)
    layout = SequenceLayout.from_lengths(lengths)
    past = PastTokens(1, 3, 9, layout, 2)
    first = torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])
    attention(layout.filled_up(first), layout.within(2), past.layers[0])
    for step in range(3):
        past.add_token()
        newest = rows[torch.arange(3), torch.tensor(lengths) + step]
        found = attention(newest, layout, past.layers[0])
        for number, length in enumerate(lengths):
            whole = SequenceLayout.from_lengths([length + step + 1])
            expected = attention(rows[number, : length + step + 1], whole.within(2))[-1]
            torch.testing.assert_close(found[number], expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_distances_are_those_of_positions_where_tokens_are_left_out():
    """Distances count columns of padded input: with every second token masked, 2 reaches one token on either side."""
    ids = torch.randint(0, 30, (2, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, 1::2] = 0
    near, narrow = (make(size) for size in (2, 3))
    found, expected = (model.encoder(ids, attention_mask=mask).last_hidden_state for model in (near, narrow))
    assert torch.equal(found, expected)
    assert not torch.allclose(found, make(4).encoder(ids, attention_mask=mask).last_hidden_state, atol=1e-3)


def test_the_key_is_kept_with_the_model_and_checked(tmp_path):
    save_model(make(2), tmp_path)
    assert load_model(tmp_path)[0].config == make(2).config
    with pytest.raises(ConfigError, match="attention_neighborhood = -1"):
        TransformerConfig.of_size("tiny", attention_neighborhood=-1)
