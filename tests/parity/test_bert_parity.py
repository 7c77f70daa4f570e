"""The encoder compared with transformers: real weights and random models of odd sizes, every layer."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertConfig as PeerConfig
from transformers import BertModel

from maskloom.checkpoints.huggingface import load_model
from maskloom.layers.sequence_layout import SequenceLayout

pytestmark = pytest.mark.parity

TEXTS = [
    ("Who was Jim Henson ?", "Jim Henson was a puppeteer"),
    ("The quick brown fox jumps over the lazy dog.", None),
    ("A man is eating food; " * 12, "A man is eating a piece of bread. " * 9),
    ("no", None),
    ("The library's documentation says that a value is returned.", "It does not say which."),
]


def peer_inputs(tokenizer, max_length=512):
    encodings = tokenizer.encode_batch([text if pair is None else (text, pair) for text, pair in TEXTS])
    length = min(max(len(e.ids) for e in encodings), max_length)
    tensors = {}
    for name, field in (("input_ids", "ids"), ("token_type_ids", "type_ids"), ("attention_mask", "attention_mask")):
        rows = [getattr(encoding, field)[:length] for encoding in encodings]
        tensors[name] = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    return tensors


@pytest.fixture(scope="module")
def real(minilm_folder):
    tokenizer = Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    peer = BertModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()
    ours, report = load_model(minilm_folder)
    assert report.new_parameters == ()
    return ours.encoder.eval(), peer, peer_inputs(tokenizer)


def largest_difference(ours, theirs, mask):
    return float((ours - theirs)[mask.bool()].abs().max())


@torch.no_grad()
def test_real_weights_every_layer_and_pooler(real):
    ours, peer, inputs = real
    mask = inputs["attention_mask"]
    expected = peer(**inputs, output_hidden_states=True)
    output = ours(inputs["input_ids"], inputs["token_type_ids"], mask, keep_hidden_states=True)
    assert mask.sum(1).max() > 120
    assert len(output.hidden_states) == len(expected.hidden_states) == 7
    for layer, (state, other) in enumerate(zip(output.hidden_states, expected.hidden_states, strict=True)):
        assert largest_difference(state, other, mask) <= 1e-5, f"hidden state {layer}"
    assert (output.pooled - expected.pooler_output).abs().max() <= 1e-5


@torch.no_grad()
def test_real_weights_packed_without_any_padding(real):
    ours, peer, inputs = real
    mask = inputs["attention_mask"].bool()
    layout = SequenceLayout.from_lengths(mask.sum(1))
    packed = ours.encode_packed(inputs["input_ids"][mask], inputs["token_type_ids"][mask], layout)
    expected = peer(**inputs)
    assert (packed.last_hidden_state - expected.last_hidden_state[mask]).abs().max() <= 1e-5
    assert (packed.pooled - expected.pooler_output).abs().max() <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("change", ["segments", "mask", "epsilon", "tanh-gelu"])
def test_the_comparison_would_catch_each_trap(real, change):
    # A threshold is meaningful only if the errors of known mistakes are far above it.
    ours, peer, inputs = real
    ids, segments, mask = inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"]
    expected = peer(**inputs).last_hidden_state
    if change == "segments":
        wrong = ours(ids, None, mask)
    elif change == "mask":
        wrong = ours(ids, segments)
    else:
        wrong = _with_mistake(ours, change)(ids, segments, mask)
    assert largest_difference(wrong.last_hidden_state, expected, mask) > 1e-4


def _with_mistake(encoder, change):
    update = {"layer_norm_eps": 1e-5} if change == "epsilon" else {"hidden_act": "gelu_new"}
    wrong = type(encoder)(encoder.config.model_copy(update=update)).eval()
    wrong.load_state_dict(encoder.state_dict())
    return wrong


def random_peer(tmp_path, **overrides):
    torch.manual_seed(0)
    values = {
        "vocab_size": 99,
        "hidden_size": 39,
        "num_hidden_layers": 3,
        "num_attention_heads": 13,
        "intermediate_size": 37,
        "max_position_embeddings": 41,
        "type_vocab_size": 7,
        # Ten times the usual spread, so that the nonlinear parts matter.
        "initializer_range": 0.2,
    }
    peer = BertModel(PeerConfig(**(values | overrides)), add_pooling_layer=True).eval()
    for parameter in peer.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    peer.save_pretrained(tmp_path)
    return peer, load_model(tmp_path)[0].encoder.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"hidden_act": "relu"},
        {"hidden_act": "silu"},
        {"layer_norm_eps": 1e-3},
        {"hidden_size": 7, "num_attention_heads": 1, "num_hidden_layers": 1},
        {"hidden_size": 13, "num_attention_heads": 13, "intermediate_size": 99},
    ],
)
def test_random_models_of_odd_sizes(tmp_path, overrides):
    peer, ours = random_peer(tmp_path, **overrides)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 99, (6, 41), generator=generator)
    segments = torch.randint(0, 7, (6, 41), generator=generator)
    mask = (torch.arange(41)[None, :] < torch.tensor([41, 1, 2, 30, 29, 17])[:, None]).long()
    expected = peer(ids, mask, segments, output_hidden_states=True)
    output = ours(ids, segments, mask, keep_hidden_states=True)
    for state, other in zip(output.hidden_states, expected.hidden_states, strict=True):
        assert largest_difference(state, other, mask) <= 2e-5
    assert (output.pooled - expected.pooler_output).abs().max() <= 1e-5


@torch.no_grad()
def test_masks_with_holes_and_left_padding(tmp_path):
    peer, ours = random_peer(tmp_path)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 99, (4, 19), generator=generator)
    mask = (torch.rand(4, 19, generator=generator) < 0.6).long()
    mask[0] = torch.tensor([0] * 6 + [1] * 13)
    mask[1:, 0] = 1
    expected = peer(ids, mask)
    output = ours(ids, attention_mask=mask)
    assert largest_difference(output.last_hidden_state, expected.last_hidden_state, mask) <= 2e-5
    # Column 0 is a real token in all rows except the left-padded one, whose first real token is in column 6.
    assert (output.pooled[1:] - expected.pooler_output[1:]).abs().max() <= 1e-5
    pooled = torch.tanh(peer.pooler.dense(expected.last_hidden_state[0, 6]))
    assert (output.pooled[0] - pooled).abs().max() <= 1e-5


@torch.no_grad()
def test_rows_of_zero_mask_stay_finite_beside_others(tmp_path):
    peer, ours = random_peer(tmp_path)
    ids, mask = torch.randint(0, 99, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[1] = 0
    output = ours(ids, attention_mask=mask)
    expected = peer(ids, mask)
    assert output.last_hidden_state.isfinite().all()
    assert output.pooled.isfinite().all()
    assert largest_difference(output.last_hidden_state, expected.last_hidden_state, mask) <= 2e-5


@torch.no_grad()
def test_a_batch_of_mixed_lengths_equals_its_sequences_alone(real):
    ours, _, inputs = real
    mask = inputs["attention_mask"]
    batch = ours(inputs["input_ids"], inputs["token_type_ids"], mask)
    for row, length in enumerate(np.asarray(mask.sum(1))):
        alone = ours(inputs["input_ids"][row : row + 1, :length], inputs["token_type_ids"][row : row + 1, :length])
        assert (batch.last_hidden_state[row, :length] - alone.last_hidden_state[0]).abs().max() < 1e-5
        assert (batch.pooled[row] - alone.pooled[0]).abs().max() < 1e-6
