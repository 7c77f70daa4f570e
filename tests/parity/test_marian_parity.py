"""Marian, which is the original Transformer, compared with transformers: weights in both directions, and decoding."""

import json

import pytest
import torch
import transformers
from tests.moved_weights import moved

from maskloom.checkpoints.huggingface import load_model, read_model_config, save_model
from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import MarianConfig
from maskloom.models.model_config import ModelSection

pytestmark = pytest.mark.parity

END, PAD = 0, 98
SIZES = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 50}
SIZES |= {"num_hidden_layers": 3, "num_decoder_layers": 2, "max_position_embeddings": 40}


def texts(lengths, seed):
    """Return texts with Marian's end token and right padding, and their mask."""
    ids = torch.randint(1, PAD, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return torch.where(mask, ids, PAD), mask


def read(model, ids, mask):
    layout = SequenceLayout.from_lengths(mask.sum(1))
    return model.encoder.encode_packed(ids[mask], torch.zeros_like(ids[mask]), layout).last_hidden_state, layout


@torch.no_grad()
def agree(model, peer):
    (ids, mask), (targets, target_mask) = texts((20, 7, 2), 0), texts((9, 5, 12), 1)
    targets[:, 0] = PAD
    hidden, source = read(model, ids, mask)
    head, layout = model.heads["decoder"], SequenceLayout.from_lengths(target_mask.sum(1))
    ours = head.logits(head(targets[target_mask], layout, hidden, source))
    given = {"input_ids": ids, "attention_mask": mask.long(), "decoder_input_ids": targets}
    theirs = peer(**given, decoder_attention_mask=target_mask.long()).logits[target_mask]
    assert ours.std() > 0.1
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("more", [{}, {"scale_embedding": False, "hidden_act": "silu"}])
def test_ours_opens_there_and_comes_back(tmp_path, more):
    config = MarianConfig(**SIZES, pad_token_id=PAD, decoder_start_token_id=PAD, initializer_range=0.2, **more)
    model = moved(build_model(config, ("decoder",), seed=1).eval())
    save_model(model, tmp_path)
    peer, report = transformers.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    agree(model, peer.eval())
    again, report = load_model(tmp_path)
    assert not report.new_parameters
    assert read_model_config(tmp_path) == config
    agree(again.eval(), peer)


def test_theirs_opens_here_and_writes_the_same(tmp_path):
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=99,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        max_position_embeddings=40,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=50,
        decoder_ffn_dim=50,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=END,
        activation_function="swish",
        scale_embedding=True,
        init_std=0.3,
    )
    peer = transformers.MarianMTModel(config).eval()
    peer.final_logits_bias.normal_().sub_(20)
    with torch.no_grad():  # as in published models, in which padding has a logit of 0 and is forbidden
        peer.model.shared.weight[PAD] = peer.final_logits_bias[0, PAD] = 0
    peer.save_pretrained(tmp_path)
    content = {**json.loads((tmp_path / "config.json").read_text()), "extra_pos_embeddings": 99}
    (tmp_path / "config.json").write_text(json.dumps(content))
    model, _ = load_model(tmp_path)
    agree(model.eval(), peer)
    ids, mask = texts((20, 7, 2), 3)
    with torch.inference_mode():
        hidden, layout = read(model, ids, mask)
        found = decode_sources(model, hidden, layout, Generation(temperature=0.0, max_tokens=15), begin=[PAD], end=END)
    how = {"max_new_tokens": 15, "num_beams": 1, "do_sample": False, "bad_words_ids": [[PAD]]}
    theirs = peer.generate(input_ids=ids, attention_mask=mask.long(), **how)
    for text, row in zip(found, theirs.tolist(), strict=True):
        assert text.token_ids == row[1 : row.index(END)]
    assert [text.finish for text in found].count("length") > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share_encoder_decoder_embeddings", False),
        ("decoder_vocab_size", 50),
        ("normalize_embedding", True),
        ("static_position_embeddings", False),
        ("d_model", 33),
    ],
)
def test_what_is_another_model_is_refused_by_its_key(tmp_path, key, value):
    content = {**MarianConfig(**SIZES).as_published(), key: value}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="hidden_size|divisible" if key == "d_model" else f"{key} = {value}"):
        read_model_config(tmp_path)


def test_absent_keys_are_the_published_ones(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    config, theirs = read_model_config(tmp_path), transformers.MarianConfig()
    assert (config.scale_embedding, config.pad_token_id, config.decoder_start_token_id) == (False, 58100, 58100)
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (1024, 12, 58101)
    assert (theirs.scale_embedding, theirs.pad_token_id, theirs.decoder_start_token_id) == (False, 58100, 58100)
    with pytest.raises(ConfigError, match="separate source vocabulary"):
        config.with_sources(10)


def test_a_recipe_names_it():
    from maskloom.models.architectures import config_of

    config = config_of(ModelSection(architecture="marian", size="tiny"), vocab_size=99).with_marks(0, 1, 2)
    assert (config.hidden_size, config.pad_token_id, config.decoder_start_token_id) == (128, 0, 2)
