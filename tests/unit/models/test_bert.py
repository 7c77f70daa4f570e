import numpy as np
import pytest
import torch
from tests.moved_weights import moved

from maskloom.layers import dropout, sequence_layout
from maskloom.layers.dropout import RowDraws, drawing
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig

CONFIG = BertConfig(
    vocab_size=99,
    hidden_size=28,
    num_hidden_layers=3,
    num_attention_heads=7,
    intermediate_size=37,
    max_position_embeddings=13,
)

# Computed by hand from the paper's sizes: encoder with pooler, then with both pre-training heads.
PUBLISHED_COUNTS = {
    "tiny": (4_385_920, 4_433_468),
    "mini": (11_170_560, 11_267_900),
    "small": (28_763_648, 29_058_876),
    "medium": (41_373_184, 41_668_412),
    "base": (109_482_240, 110_106_428),
    "large": (335_141_888, 336_226_108),
}
OTHER_COUNTS = [
    ({"hidden_size": 768, "num_hidden_layers": 3}, 30_522, 45_691_392, 46_315_580),
    ({"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 3}, 30_522, 66_955_008, 67_579_196),
    ({"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16}, 30_522, 183_987_200, 185_071_420),
    ({}, 28_996, 108_310_272, 108_932_934),
    ({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}, 28_996, 333_579_264, 334_661_958),
    ({}, 119_547, 177_853_440, 178_566_653),
    ({}, 21_128, 102_267_648, 102_882_442),
]


@pytest.fixture(scope="module")
def encoder():
    return build_model(CONFIG, heads=(), seed=1).encoder.eval()


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("size", PUBLISHED_COUNTS)
def test_published_sizes_have_the_published_number_of_parameters(size):
    with torch.device("meta"):
        model = build_model(BertConfig.of_size(size))
    assert (count(model.encoder), count(model)) == PUBLISHED_COUNTS[size]


@pytest.mark.parametrize(("overrides", "vocab_size", "encoder_count", "full_count"), OTHER_COUNTS)
def test_other_published_shapes(overrides, vocab_size, encoder_count, full_count):
    with torch.device("meta"):
        model = build_model(BertConfig.of_size("base", vocab_size=vocab_size, **overrides))
    assert (count(model.encoder), count(model)) == (encoder_count, full_count)


def test_every_norm_has_the_configured_epsilon():
    norms = [m for m in build_model(CONFIG, seed=0).modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 1 + 2 * 3 + 1
    assert {norm.eps for norm in norms} == {1e-12}


def test_a_bare_encoder_has_published_initial_weights():
    encoder = build_model(CONFIG, (), seed=0).encoder
    word = encoder.word_embeddings
    assert word.abs().max() <= 0.04
    assert word[CONFIG.pad_token_id].any()
    assert not encoder.layers[0].attention.qkv.bias.any()


def test_hidden_states_count_embeddings_and_layers(encoder):
    ids = torch.randint(0, 99, (2, 5))
    output = encoder(ids, keep_hidden_states=True)
    assert len(output.hidden_states) == CONFIG.num_hidden_layers + 1
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)
    assert encoder(ids).hidden_states is None


def test_embeddings_are_normed(encoder):
    embeddings = encoder(torch.randint(0, 99, (2, 5)), keep_hidden_states=True).hidden_states[0]
    torch.testing.assert_close(embeddings.mean(-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    torch.testing.assert_close(embeddings.var(-1, correction=0), torch.ones(2, 5), atol=1e-3, rtol=0)


def test_embeddings_have_dropout_in_training():
    encoder = build_model(CONFIG, heads=(), seed=1).encoder
    embeddings = encoder(torch.randint(0, 99, (8, 13)), keep_hidden_states=True).hidden_states[0]
    assert 0.05 < (embeddings == 0).float().mean() < 0.15


def test_pooled_is_tanh_of_a_dense_layer_on_the_first_token(encoder):
    output = encoder(torch.randint(0, 99, (4, 6)))
    assert output.pooled.abs().max() < 1
    expected = torch.tanh(encoder.pooler.dense(output.last_hidden_state[:, 0]))
    torch.testing.assert_close(output.pooled, expected)


def test_a_single_token(encoder):
    output = encoder(torch.tensor([[7]]))
    assert output.last_hidden_state.shape == (1, 1, 28)
    assert output.pooled.isfinite().all()


def test_padding_does_not_change_real_tokens(encoder):
    torch.manual_seed(0)
    ids, segments = torch.randint(0, 99, (5, 13)), torch.randint(0, 2, (5, 13))
    lengths = [13, 1, 6, 5, 2]
    mask = torch.arange(13)[None, :] < torch.tensor(lengths)[:, None]
    batch = encoder(ids, segments, mask)
    for row, length in enumerate(lengths):
        alone = encoder(ids[row : row + 1, :length], segments[row : row + 1, :length])
        torch.testing.assert_close(batch.last_hidden_state[row, :length], alone.last_hidden_state[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(batch.pooled[row], alone.pooled[0], atol=1e-6, rtol=0)
    assert not batch.last_hidden_state[~mask].any()


def test_rows_without_real_tokens_are_zero_and_finite_gradients_flow(encoder):
    ids = torch.randint(0, 99, (3, 4))
    mask = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    output = encoder(ids, attention_mask=mask)
    assert not output.pooled[[0, 2]].any()
    assert output.pooled[1].any()
    gradients = torch.autograd.grad(output.pooled.sum(), list(encoder.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    empty = encoder(ids, attention_mask=torch.zeros(3, 4), keep_hidden_states=True)
    assert not empty.pooled.any()
    assert not empty.last_hidden_state.any()


def test_packed_equals_padded(encoder):
    ids, segments = torch.randint(0, 99, (2, 4)), torch.randint(0, 2, (2, 4))
    padded = encoder(ids, segments)
    packed = encoder.encode_packed(ids.flatten(), segments.flatten(), SequenceLayout.from_lengths([4, 4]))
    assert torch.equal(padded.last_hidden_state.view(8, -1), packed.last_hidden_state)


@pytest.mark.parametrize("mask", [None, torch.ones(1, 14)])
def test_too_long_sequences_are_refused(encoder, mask):
    ids = torch.zeros(1, 14, dtype=torch.long)
    with pytest.raises(ValueError, match=r"length 14 exceed.* max_position_embeddings 13"):
        encoder(ids, attention_mask=mask)


def test_too_long_packed_sequences_are_refused(encoder):
    ids = torch.zeros(14, dtype=torch.long)
    with pytest.raises(ValueError, match=r"length 14 exceed.* max_position_embeddings 13"):
        encoder.encode_packed(ids, ids, SequenceLayout.from_lengths([14]))


@pytest.mark.parametrize(
    ("ids", "segments", "mask", "message"),
    [
        (torch.zeros(3, dtype=torch.long), None, None, r"\(batch, length\) is needed"),
        (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2, dtype=torch.long), None, "segment ids: shape"),
        (torch.zeros(2, 3, dtype=torch.long), None, torch.ones(3, 2), "attention mask: shape"),
        (torch.zeros(2, 3, dtype=torch.long), None, torch.full((2, 3), -10000.0), "other than 0 and 1"),
    ],
)
def test_wrong_shapes_are_refused(encoder, ids, segments, mask, message):
    with pytest.raises(ValueError, match=message):
        encoder(ids, segments, mask)


@pytest.mark.parametrize(("num_ids", "num_segments"), [(3, 3), (3, 4), (4, 3)])
def test_a_layout_of_other_tokens_is_refused(encoder, num_ids, num_segments):
    ids, segments = (torch.zeros(number, dtype=torch.long) for number in (num_ids, num_segments))
    with pytest.raises(ValueError, match="do not fit a layout of 4 tokens"):
        encoder.encode_packed(ids, segments, SequenceLayout.from_lengths([4]))


@pytest.mark.parametrize("embedding_size", [None, 12])
def test_autocast_keeps_norms_and_softmax_in_single_precision(embedding_size):
    config = CONFIG.model_copy(update={"embedding_size": embedding_size})
    encoder = build_model(config, heads=(), seed=1).encoder.eval()
    kinds = {}
    for name, module in encoder.named_modules():
        module.register_forward_hook(lambda m, _, out, name=name: kinds.__setitem__(name, getattr(out, "dtype", None)))
    ids = torch.randint(0, 99, (3, 9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = encoder(ids)
    assert kinds["layers.0.attention.qkv"] == torch.bfloat16
    assert kinds["layers.0.attention_layer_norm"] == torch.float32
    torch.testing.assert_close(mixed.last_hidden_state.float(), encoder(ids).last_hidden_state, atol=0.05, rtol=0)


@torch.no_grad()
def test_norms_before_the_blocks_and_one_at_the_end():
    config = CONFIG.model_copy(update={"pre_norm": True})
    encoder = build_model(config, heads=(), seed=1).encoder.eval()
    for number, weight in enumerate(weight for name, weight in encoder.named_parameters() if "norm" in name):
        weight.add_(torch.linspace(-0.5, 0.5, len(weight)) * (1 + number / 8))
    ids = torch.randint(0, 99, (2, 5))
    hidden = encoder.embeddings(ids.flatten(), torch.zeros(10, dtype=torch.long), torch.arange(5).repeat(2))
    layout = SequenceLayout.from_lengths([5, 5])
    for layer in encoder.layers:
        hidden = hidden + layer.attention(layer.attention_layer_norm(hidden), layout)
        hidden = hidden + layer.feed_forward(layer.feed_forward_layer_norm(hidden))
    expected = torch.nn.functional.layer_norm(hidden, (28,), encoder.final_norm.weight, encoder.final_norm.bias, 1e-12)
    torch.testing.assert_close(encoder(ids).last_hidden_state.view(10, 28), expected, rtol=0, atol=1e-6)


def test_rows_that_fill_up_change_neither_vectors_nor_draws_nor_gradients(monkeypatch):
    lengths = np.array([9, 3, 13, 12])
    ids = torch.arange(int(lengths.sum())) % CONFIG.vocab_size
    found = []
    for num_filled in (0, 11):
        for module in (dropout, sequence_layout):
            monkeypatch.setattr(module, "filled_number", lambda rows, _, num_filled=num_filled: rows + num_filled)
        model = moved(build_model(CONFIG, heads=(), seed=1).encoder.double().train())  # biases fill those rows too
        layout = SequenceLayout.from_lengths(lengths)
        assert layout.num_rows == layout.num_tokens + num_filled
        with drawing(RowDraws(3, 0, lengths)):
            output = model.encode_packed(ids, ids % 2, layout, keep_hidden_states=True)
        assert [len(state) for state in output.hidden_states] == [layout.num_tokens] * 4
        (output.last_hidden_state.sin().sum() + output.pooled.sum()).backward()
        found.append((*output.hidden_states, output.pooled, *(weight.grad for weight in model.parameters())))
    for plain, filled in zip(*found, strict=True):
        torch.testing.assert_close(filled, plain, rtol=1e-12, atol=1e-12)
