from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from maskloom.generation.search import Decoder
from maskloom.layers.attention import PastTokens
from maskloom.layers.decoding import next_token_step, width_of_runs
from maskloom.layers.processor import onednn
from maskloom.layers.processor.onednn import pack_for_inference
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BartConfig
from maskloom.models.bert_config import BertConfig
from maskloom.models.gpt_config import GptConfig


def gpt(*, pre_norm=False, **more):
    config = GptConfig(
        vocab_size=40, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
        max_position_embeddings=24, pre_norm=pre_norm, initializer_range=0.3, **more,
    )  # fmt: skip
    return build_model(config, ("lm",), seed=3).eval()


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize("library", ["mkl", "onednn"])
@pytest.mark.parametrize("is_packed", [False, True])
@torch.no_grad()
def test_a_step_is_what_the_layer_computes(monkeypatch, pre_norm, number, library, is_packed):
    model = gpt(pre_norm=pre_norm, hidden_act="gelu_new")
    with mock.patch.object(onednn, "_library", library):
        if is_packed:
            monkeypatch.setattr("maskloom.layers.processor.onednn._SMALLEST_DECODING", 0)
            pack_for_inference(model, decodes=True)
        found = []
        for uses_steps in (True, False):
            if not uses_steps:
                monkeypatch.setattr("maskloom.generation.search.next_token_step", lambda layer, rows: layer)
            decoder = Decoder(model, room=10)
            decoder.start([[4, 5, 6][: 1 + row % 3] for row in range(number)])
            found.append(torch.stack([decoder.step(torch.arange(number) + step) for step in range(4)]))
    assert found[0].abs().max() > 1
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_rotary_positions_go_on_after_a_prompt(gated):
    config = BertConfig.of_size(
        "tiny", vocab_size=40, causal=True, rotary=True, pre_norm=gated, gated=gated, initializer_range=0.3
    )
    model, texts = build_model(config, ("mlm",), seed=3).eval(), [[4, 5, 6, 7, 8, 9], [9, 4, 4, 6, 5]]
    decoder = Decoder(model, room=10)
    decoder.start([text[:-2] for text in texts])
    found = [decoder.step(torch.tensor([text[place] for text in texts])) for place in (-2, -1)][-1]
    for logits, text in zip(found, texts, strict=True):
        whole = model.heads["mlm"](model.encoder(torch.tensor([text])).last_hidden_state)
        torch.testing.assert_close(logits, whole[0, -1], rtol=0, atol=1e-4)


def test_known_layers_have_a_step_of_their_own():
    config = BartConfig.of_size("tiny", vocab_size=40, activation_dropout=0.1)
    decoder = build_model(config, ("decoder",), seed=3).eval().heads["decoder"]
    for layer in (*gpt().encoder.layers, *decoder.layers):
        assert next_token_step(layer, torch.empty(1, 128)) is not layer


def with_adapter(layer):
    layer.attention_adapter = nn.Identity()


def with_another_norm(layer):
    layer.attention_layer_norm = nn.RMSNorm(128)


@pytest.mark.parametrize("change", [nn.Module.train, with_adapter, with_another_norm])
def test_a_layer_with_other_parts_or_in_training_is_its_own_step(change):
    layer = gpt().encoder.layers[0]
    change(layer)
    assert next_token_step(layer, torch.empty(1, 128)) is layer


@pytest.mark.parametrize("draws", [0, 1, 2])
def test_runs_that_share_their_tokens_give_what_copies_give(draws):
    """Beams move within their runs, then a run ends, and finally the rows form no runs."""
    rng, num_heads, hidden, width = np.random.default_rng(draws), 2, 8, 3
    torch.manual_seed(draws)
    layout = SequenceLayout.from_lengths([2] * 4, "cpu")
    pasts = [PastTokens(1, num_heads, 12, layout, width=width_given) for width_given in (1, width)]
    first = torch.randn(8, 3 * hidden)
    for past in pasts:
        past.layers[0].begin(first, layout)
    ways = [
        np.repeat(np.arange(4), width),
        *(np.sort(rng.integers(0, width, (4, width)), 1) + width * np.arange(4)[:, None] for _ in range(3)),
        rng.integers(0, width, (3, width)) + width * np.array([[0], [2], [3]]),
        rng.integers(0, width, (3, width)) + width * np.arange(3)[:, None],
        np.array([0, 4, 5, 8]),
        np.array([3, 0, 1, 2]),
    ]
    runs = []
    for rows in ways:
        newest = torch.randn(rows.size, 3 * hidden)
        contexts = []
        for past in pasts:
            past.take(rows.flatten())
            past.add_token()
            contexts.append(past.layers[0].attend(newest))
        torch.testing.assert_close(contexts[1], contexts[0], atol=1e-6, rtol=1e-5)
        runs.append(pasts[1].run)
    assert runs == [width] * 6 + [1, 1]
    assert pasts[0].run == 1


def test_wide_beams_and_other_kinds_of_attention_keep_their_tokens_alone():
    layers = gpt().encoder.layers
    assert [width_of_runs(layers, width) for width in (1, 4, 8, 9)] == [1, 4, 8, 1]
    assert width_of_runs([*layers, nn.Linear(2, 2)], 4) == 1
