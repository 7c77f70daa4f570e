"""T5: sizes, buckets, initial weights, leaks, decoding with a cache, and its convention for targets."""

import numpy as np
import pytest
import torch

from maskloom.errors import ConfigError, DataError
from maskloom.generation.sources import SourceDecoder
from maskloom.layers.attention import PackedMemory, PaddedMemory, PastTokens
from maskloom.layers.dropout import RowDraws, drawing
from maskloom.layers.general_attention import AttentionLayout
from maskloom.layers.relative_attention import RelativeBias, RelativeSelfAttention
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES, published_config
from maskloom.models.assembled import build_model, prepare_blocks
from maskloom.models.t5_config import T5_SIZES, T5Config
from maskloom.training.optimizers import parameter_groups

VERSION_1_1 = {"gated": True, "hidden_act": "gelu_new", "tie_word_embeddings": False}


def config(**keys):
    small = {"vocab_size": 30, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 4, "head_size": 6}
    return T5Config(**{**small, "intermediate_size": 20, "max_position_embeddings": 300, **keys})


def make(**keys):
    return build_model(config(**keys), ("decoder",), seed=3).eval()


def encoded(model, lengths):
    ids = torch.randint(0, 30, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    layout = SequenceLayout.from_lengths(lengths)
    with torch.no_grad():
        return model.encoder.encode_packed(ids, torch.zeros_like(ids), layout).last_hidden_state, layout


def counted(size, **keys):
    with torch.device("meta"):
        model = build_model(T5Config.of_size(size, T5_SIZES, **keys), ("decoder",))
    return sum(parameter.numel() for parameter in model.parameters())


def test_published_sizes_have_the_published_number_of_parameters():
    assert counted("small") == 60_506_624
    assert counted("base") == 222_903_552
    assert counted("large") == 737_668_096
    assert counted("small", num_hidden_layers=8, num_attention_heads=6, head_size=64, intermediate_size=1024,
                   **VERSION_1_1) == 76_961_152  # fmt: skip
    assert T5Config.of_size("small", T5_SIZES) == T5Config()


def test_buckets_are_exact_when_near_and_shared_when_far():
    both, before = (RelativeBias(32, 128, 2, causal=causal) for causal in (False, True))
    assert both.buckets(torch.arange(-8, 9)).tolist() == [8, *range(7, -1, -1), *range(17, 25)]
    assert both.buckets(torch.tensor([-1000, -128, -127, 127, 128, 1000])).tolist() == [15, 15, 15, 31, 31, 31]
    assert before.buckets(torch.tensor([5, 1, 0, -1, -15, -16, -127, -128, -999])).tolist() == (
        [0, 0, 0, 1, 15, 16, 31, 31, 31]
    )
    assert torch.equal(
        before.buckets(-torch.arange(200)).diff().clamp(min=0), before.buckets(-torch.arange(200)).diff()
    )


def test_weights_start_as_wide_as_published():
    model = build_model(
        config(hidden_size=128, head_size=32, intermediate_size=256, vocab_size=2000, initializer_factor=0.5),
        ("decoder",),
    )
    layer = model.heads["decoder"].layers[1]
    q, k, v = (part.std().item() for part in layer.attention.qkv.weight.chunk(3))
    assert [2 * x for x in (q, k, v)] == pytest.approx([(128 * 32) ** -0.5, 128**-0.5, 128**-0.5], rel=0.05)
    assert 2 * layer.cross_attention.query.weight.std().item() == pytest.approx((128 * 32) ** -0.5, rel=0.05)
    assert 2 * layer.cross_attention.key_value.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert 2 * layer.attention.output.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert 2 * layer.feed_forward.up.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert 2 * layer.feed_forward.down.weight.std().item() == pytest.approx(256**-0.5, rel=0.05)
    assert 2 * model.encoder.word_embeddings.std().item() == pytest.approx(1.0, rel=0.05)
    assert 2 * model.encoder.relative_bias.weight.std().item() == pytest.approx(128**-0.5, rel=0.2)
    assert set(layer.attention_layer_norm.weight.tolist()) == {0.5}


def test_nothing_has_an_additive_bias_and_norms_alone_do_not_decay():
    names = dict(make(**VERSION_1_1).named_parameters())
    assert not [name for name in names if name.endswith(".bias")]
    decayed, exempt = parameter_groups(make(), 0.1)
    assert all(parameter.ndim == 1 for parameter in exempt["params"])
    assert all(parameter.ndim == 2 for parameter in decayed["params"])


@pytest.mark.parametrize("keys", [{}, {"num_decoder_layers": 3, **VERSION_1_1}], ids=["1.0", "1.1"])
def test_a_later_token_changes_nothing_before_it_and_sources_are_apart(keys):
    model = make(**keys)
    head, (memory, source) = model.heads["decoder"], encoded(model, [5, 3, 9])
    layout = SequenceLayout.from_lengths([4, 6, 2])
    ids = torch.arange(12) + 5
    with torch.no_grad():
        before = head(ids, layout, memory, source)
        changed = ids.clone()
        changed[9] += 1  # the last token of the second target
        after = head(changed, layout, memory, source)
        other = memory.clone()
        other[5:8] += 1.0  # the second source
        moved = head(ids, layout, other, source)
    assert (before == after).all(1).tolist() == [place != 9 for place in range(12)]
    assert (before == moved).all(1).tolist() == [not 4 <= place < 10 for place in range(12)]


@pytest.mark.parametrize("keys", [{}, {"num_decoder_layers": 3, **VERSION_1_1}], ids=["1.0", "1.1"])
@torch.no_grad()
def test_a_cache_changes_no_logits(keys):
    model = make(**keys)
    head, (memory, source) = model.heads["decoder"], encoded(model, [5, 1, 9])
    ids = torch.randint(0, 30, (3, 150), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = 0
    layout = SequenceLayout.from_lengths([150] * 3)
    whole = head.logits(head(ids.flatten(), layout, memory, source)).view(3, 150, -1)
    decoder = SourceDecoder(model, memory, source, 150)
    steps = [decoder.start([[0]] * 3), *(decoder.step(ids[:, place]) for place in range(1, 150))]
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-5, rtol=0)


@torch.no_grad()
def test_targets_of_unequal_length_have_a_cache_too():
    model = make()
    head, (memory, source) = model.heads["decoder"], encoded(model, [5, 7])
    texts, last = [[0, 4, 5], [0, 9, 8, 7, 6]], torch.tensor([11, 12])
    layout = SequenceLayout.from_lengths([3, 5])
    past = PastTokens(len(head.layers), 4, 6, layout)
    own, packed = head.layer_layout(layout, past.layers[0]), PackedMemory(memory, AttentionLayout(layout, source))
    rows = head.embedded(torch.tensor([token for text in texts for token in text]), layout)
    for layer, key_values in zip(head.layers, past.layers, strict=True):
        rows = layer(rows, own, key_values, packed)
    past.add_token()
    memories = [PaddedMemory.of(layer.cross_attention, memory, source) for layer in head.layers]
    found = head.logits(head.step(last, SequenceLayout.from_lengths([1, 1]), memories, past.layers, head.layers))
    for row, (text, part) in enumerate(zip(texts, memory.split([5, 7]), strict=True)):
        whole, length = torch.tensor([*text, int(last[row])]), SequenceLayout.from_lengths([len(text) + 1])
        alone = head.logits(head(whole, length, part, SequenceLayout.from_lengths([len(part)])))
        torch.testing.assert_close(found[row], alone[-1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_holes_in_a_mask_keep_positions_where_they_are():
    model = make()
    ids = torch.arange(12).view(2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1]], dtype=torch.bool)
    found = model.encoder(ids, attention_mask=mask).last_hidden_state
    together = model.encoder(ids[1:, mask[1]]).last_hidden_state
    assert (found[1, mask[1]] - together[0]).abs().max() > 1e-3
    shifted = torch.cat([torch.zeros(2, 3, dtype=torch.bool), mask], 1)
    moved = model.encoder(torch.cat([ids[:, :3], ids], 1), attention_mask=shifted).last_hidden_state
    assert (moved[:, 3:] - found).abs().max() < 1e-5


def test_dropout_belongs_to_rows_and_micro_batches_and_recomputing_change_nothing():
    model = make(hidden_dropout_prob=0.5).train()
    lengths, targets, ids = [7, 7, 3], [4, 2, 5], torch.arange(17)

    def gradients(*parts, recompute=False):
        model.zero_grad()
        prepare_blocks(model, recompute=recompute, compile_=False)
        for first, last in parts:
            sizes, layouts = (
                slice(first, last),
                [SequenceLayout.from_lengths(x[first:last]) for x in (lengths, targets)],
            )
            source, target = (ids[sum(x[:first]) : sum(x[:last])] for x in (lengths, targets))
            with drawing(RowDraws(7, first, np.array(lengths[sizes]))):
                memory = model.encoder.encode_packed(source, source * 0, layouts[0]).last_hidden_state
                vectors = model.heads["decoder"](target, layouts[1], memory, layouts[0])
                model.heads["decoder"].loss_sum(vectors, target + 3).backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    whole, again, pieces = gradients((0, 3)), gradients((0, 3), recompute=True), gradients((0, 2), (2, 3))
    for name, gradient in whole.items():
        assert torch.equal(gradient, again[name]), name
        torch.testing.assert_close(gradient, pieces[name], atol=1e-4, rtol=1e-4)


def test_dropout_of_attention_is_right_on_average():
    attention = RelativeSelfAttention(8, 2, 4, 0.3)
    torch.manual_seed(0)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    bias = RelativeBias(8, 16, 2, causal=False)
    torch.nn.init.normal_(bias.weight)
    hidden, layout = torch.randn(9, 8), bias.within(SequenceLayout.from_lengths([5, 4]))
    often = bias.within(SequenceLayout.from_lengths([5, 4] * 4000))
    with torch.no_grad():
        mean = attention.train()(hidden.repeat(4000, 1), often).unflatten(0, (4000, 9)).mean(0)
        assert (mean - attention.eval()(hidden, layout)).abs().max() < 0.15


def test_under_autocast_scores_and_their_softmax_are_in_single_precision():
    torch.manual_seed(0)
    attention = RelativeSelfAttention(8, 2, 4, 1e-9).train()
    bias = RelativeBias(8, 16, 2, causal=False)
    for parameter in (*attention.parameters(), *bias.parameters()):
        torch.nn.init.normal_(parameter)
    attention.output = torch.nn.Identity()
    hidden, layout = torch.randn(9, 8), bias.within(SequenceLayout.from_lengths([5, 4]))
    with torch.autocast("cpu", torch.bfloat16):
        found = attention(hidden, layout)
        qkv = attention.qkv(hidden).float()
    attention.qkv = torch.nn.Identity()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, attention(qkv, layout), rtol=1e-5, atol=1e-5)


def test_a_vocabulary_that_grows_keeps_an_output_matrix_of_its_own_in_step():
    model = make(**VERSION_1_1)
    old = model.heads["decoder"].output.weight.detach().clone()
    model.resize_vocabulary(34, seed=0)
    head = model.heads["decoder"]
    assert head.logits(torch.zeros(2, 15)).shape == (2, 34)
    assert torch.equal(head.output.weight[:30], old)
    assert head.decoder is model.encoder.word_embeddings


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"d_model": 0}, "d_model = 0: it must be greater than or equal to 1"),
        ({"num_heads": "8"}, "num_heads = '8'"),
        ({"feed_forward_proj": "gated-maxout"}, "feed_forward_proj = 'maxout': unknown activation 'maxout'"),
        ({"is_decoder": True}, "is_decoder = True: only False is supported"),
        ({"relative_attention_num_buckets": 6}, "relative_attention_num_buckets = 6: it must be a multiple of 4"),
        ({"relative_attention_max_distance": 16}, "relative_attention_max_distance 16 is not above 16"),
        ({"eos_token_id": [1, 2]}, r"eos_token_id = \[1, 2\]"),
        ({"eos_token_id": 32128}, "eos_token_id 32128 is not below vocab_size 32128"),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, "scale_decoder_outputs = True"),
    ],
)
def test_wrong_keys_of_a_file_are_named_as_it_names_them(keys, message):
    with pytest.raises(DataError, match=f"c.json: .*{message}"):
        published_config({"model_type": "t5", **keys}, "c.json")


def test_wrong_keys_of_a_recipe_are_named_as_it_names_them():
    with pytest.raises(ConfigError, match="unknown model size 'medium'; known: tiny, mini, base, large, small"):
        T5Config.of_size("medium", T5_SIZES)
    with pytest.raises(ConfigError, match=r"attention_probs_dropout_prob 0\.2: a T5 has one dropout rate"):
        T5Config.of_size("small", T5_SIZES, attention_probs_dropout_prob=0.2)
    with pytest.raises(ConfigError, match="hidden_act 'gelu' with gated = true: a T5 has 'gelu_new'"):
        T5Config.of_size("small", T5_SIZES, gated=True, hidden_act="gelu")


def test_what_is_written_is_read_again():
    for keys in ({}, VERSION_1_1, {"num_decoder_layers": 3, "hidden_act": "silu", "gated": True, "pad_token_id": 3}):
        one = config(**keys)
        assert published_config(one.as_published(), "c.json") == one
    assert ARCHITECTURES["t5"].config_type is T5Config
    assert config(hidden_size=24, head_size=5).head_size == 5
    assert T5Config(hidden_size=128, num_attention_heads=2).head_size == 64
    assert published_config({"model_type": "t5", "d_model": 20, "num_heads": 4}, "c.json").head_size == 64


def test_ids_of_special_tokens_are_those_of_the_vocabulary():
    own = config().with_marks(5, None, 7)
    assert (own.pad_token_id, own.eos_token_id, own.decoder_start_token_id) == (5, 7, 5)
    assert config(eos_token_id=4).with_marks(5, None, 7).eos_token_id == 4
    assert config(decoder_start_token_id=4).with_marks(5, None, 7).decoder_start_token_id == 4
    assert config().with_marks(None, None, None) == config()
