"""BART: attention visibility, decoding with a cache, what is trained, and configurations that are refused."""

import json

import pytest
import torch

from maskloom.checkpoints.huggingface import load_model, read_model_config, save_model
from maskloom.errors import ConfigError, DataError
from maskloom.generation.sources import SourceDecoder
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model
from maskloom.models.bart_config import BART_SIZES, BartConfig

START = 2


def config_of(**more):
    sizes = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_decoder_layers": 3}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 33, "max_position_embeddings": 16}
    return BartConfig(**{**sizes, "initializer_range": 0.3, **more})


def model_of(*heads, **more):
    return build_model(config_of(**more), heads, num_labels=3, seed=0).eval()


def ids_of(*lengths):
    return torch.randint(3, 50, (sum(lengths),), generator=torch.Generator().manual_seed(1))


def memory_of(model, *lengths):
    ids, layout = ids_of(*lengths), SequenceLayout.from_lengths(lengths)
    return model.encoder.encode_packed(ids, torch.zeros_like(ids), layout).last_hidden_state, layout


@pytest.mark.parametrize(("size", "number"), [("base", 139_420_416), ("large", 406_291_456)])
def test_published_sizes_have_the_published_numbers_of_parameters(size, number):
    config = BartConfig.of_size(size, BART_SIZES)
    with torch.device("meta"):
        for heads in ((), ("decoder",)):
            model = build_model(config, heads)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            assert sum(map(torch.numel, trained)) == number


@torch.no_grad()
def test_a_target_sees_its_own_past_and_all_of_its_source():
    model = model_of("decoder")
    head, (hidden, source) = model.heads["decoder"], memory_of(model, 6, 4)
    ids, layout = ids_of(5, 7), SequenceLayout.from_lengths([5, 7])
    whole = head(ids, layout, hidden, source)
    later = ids.clone()
    later[3] = (ids[3] + 1) % 50
    changed = (head(later, layout, hidden, source) - whole).abs().amax(1) > 1e-6
    assert changed.tolist() == [False] * 3 + [True] * 2 + [False] * 7
    other = hidden.clone()
    other[5] += 1.0
    changed = (head(ids, layout, other, source) - whole).abs().amax(1) > 1e-6
    assert changed.tolist() == [True] * 5 + [False] * 7


@torch.no_grad()
def test_a_text_through_the_decoder_sees_all_of_itself():
    model = model_of("classifier")
    ids = ids_of(6)[None]
    whole = model.encoder(ids)
    for place in range(6):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] + 1) % 50
        output = model.encoder(changed)
        assert ((output.last_hidden_state - whole.last_hidden_state).abs().amax(2) > 1e-6).all()
        assert not torch.equal(model.heads["classifier"](output.pooled), model.heads["classifier"](whole.pooled))


@torch.no_grad()
def test_the_encoder_alone_is_read_beside_a_decoder_that_makes_texts():
    both, alone = model_of("decoder", "classifier"), model_of("classifier")
    assert both.encoder.top is None
    assert alone.encoder.top is not None
    ids = ids_of(6)[None]
    output, through = (part.encoder(ids, keep_hidden_states=True) for part in (both, alone))
    assert torch.equal(output.last_hidden_state, output.hidden_states[-1])
    assert not torch.allclose(output.last_hidden_state, through.last_hidden_state)


def test_of_a_frozen_model_the_decoder_on_top_is_frozen_too():
    model = model_of("classifier")
    model.encoder.freeze()
    learning = [name for name, weights in model.named_parameters() if weights.requires_grad]
    assert learning
    assert all(name.startswith("heads.classifier.") for name in learning)
    assert not model.train().encoder.top.training


@torch.no_grad()
def test_empty_texts_pool_to_zeros():
    model = model_of()
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1]])
    pooled = model.encoder(ids_of(9).view(3, 3), attention_mask=mask).pooled
    assert not pooled[1].any()
    assert pooled[0].any()
    assert pooled[2].any()
    ids, (with_empty, without) = ids_of(9), map(SequenceLayout.from_lengths, ([0, 4, 0, 5, 0], [4, 5]))
    found, expected = (model.encoder.encode_packed(ids, ids * 0, layout) for layout in (with_empty, without))
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)


@torch.no_grad()
def test_steps_with_a_cache_give_the_whole_targets():
    model = model_of("decoder", scale_embedding=True)
    head, (hidden, source) = model.heads["decoder"], memory_of(model, 6, 4)
    texts = torch.cat([torch.full((2, 1), START), ids_of(5, 5).view(2, 5)], 1)
    layout = SequenceLayout.from_lengths([6, 6])
    whole = head.logits(head(texts.flatten(), layout, hidden, source)).view(2, 6, 50)
    decoder = SourceDecoder(model, hidden, source, 8)
    found = [decoder.start(texts[:, :2].tolist())]  # every target begins with two tokens
    found += [decoder.step(texts[:, place]) for place in range(2, 6)]
    torch.testing.assert_close(torch.stack(found, 1), whole[:, 1:], rtol=0, atol=1e-5)


def test_the_bias_counts_and_is_not_trained():
    model = model_of("decoder")
    head, (hidden, source) = model.heads["decoder"], memory_of(model, 6, 4)
    with torch.no_grad():
        head.bias.normal_(generator=torch.Generator().manual_seed(0))
    ids, layout = ids_of(5, 7), SequenceLayout.from_lengths([5, 7])
    vectors, labels = head(ids, layout, hidden, source), ids.roll(-1)
    loss = head.loss_sum(vectors, labels)
    expected = torch.nn.functional.cross_entropy(head.logits(vectors), labels, reduction="sum")
    torch.testing.assert_close(loss, expected)
    loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == ["heads.decoder.bias"]


def test_another_vocabulary_keeps_ties_and_the_bias(tmp_path):
    for heads in (("decoder",), ("classifier",)):
        model = model_of(*heads)
        model.resize_vocabulary(60, seed=1)
        decoder = model.heads["decoder"] if "decoder" in heads else model.encoder.top
        assert decoder.decoder is model.encoder.word_embeddings
        save_model(model, tmp_path / heads[0])
        back, _ = load_model(tmp_path / heads[0])
        assert back.config.vocab_size == 60
        if "decoder" in heads:
            assert back.heads["decoder"].bias.shape == (1, 60)


def test_a_longer_target_than_positions_is_refused():
    model = model_of("decoder")
    hidden, source = memory_of(model, 3)
    ids = ids_of(17)
    with pytest.raises(ValueError, match="a target of 17 tokens exceeds the 16 positions"):
        model.heads["decoder"](ids, SequenceLayout.from_lengths([17]), hidden, source)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "decoder_attention_heads",
            2,
            "decoder_attention_heads = 2: only the value of encoder_attention_heads, 4, is supported",
        ),
        ("decoder_ffn_dim", 34, "decoder_ffn_dim = 34: only the value of encoder_ffn_dim, 33, is supported"),
        ("encoder_layerdrop", 0.1, "encoder_layerdrop = 0.1: only 0.0 is supported"),
        ("normalize_before", True, "normalize_before = True: only False is supported"),
        ("add_final_layer_norm", True, "add_final_layer_norm = True: only False"),
        ("static_position_embeddings", True, "static_position_embeddings = True: only False"),
        ("tie_word_embeddings", False, "tie_word_embeddings = False: only True"),
        ("is_encoder_decoder", False, "is_encoder_decoder = False: only True"),
        ("decoder_start_token_id", 50, "decoder_start_token_id 50 is not below vocab_size 50"),
        ("forced_bos_token_id", 50, "forced_bos_token_id 50 is not below vocab_size 50"),
        ("forced_eos_token_id", 50, "forced_eos_token_id 50 is not below vocab_size 50"),
        ("eos_token_id", 50, "eos_token_id 50 is not below vocab_size 50"),
        ("eos_token_id", [2, 3], r"eos_token_id = \[2, 3\]"),
        ("activation_function", "swoosh", "activation_function = 'swoosh'"),
        ("d_model", 25, "hidden_size 25 is not divisible by num_attention_heads 4"),
    ],
)
def test_what_is_not_computed_is_refused_by_key_and_value(key, value, message, tmp_path):
    content = {**config_of().as_published(), key: value}
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_model_config(tmp_path)


def test_old_keys_of_published_folders_are_read(tmp_path):
    old = {"add_bias_logits": False, "normalize_before": False, "normalize_embedding": True, "num_hidden_layers": 6}
    old |= {
        "activation_dropout": 0.1,
        "attention_dropout": 0.1,
        "classif_dropout": 0.1,
        "gradient_checkpointing": False,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config_of().as_published(), **old}), encoding="utf-8")
    config = read_model_config(tmp_path)
    assert config == config_of(activation_dropout=0.1, attention_probs_dropout_prob=0.1)


def test_marks_of_a_vocabulary_fill_keys_that_were_not_given():
    section = {"vocab_size": 50, "num_hidden_layers": 1, "eos_token_id": 9}
    config = ARCHITECTURES["bart"].config_type.of_size("tiny", **section).with_marks(3, 4, 5)
    assert (config.pad_token_id, config.bos_token_id, config.decoder_start_token_id) == (3, 4, 5)
    assert config.eos_token_id == 9
    with pytest.raises(ConfigError, match="unknown model key 'decoder_ffn_dim'"):
        BartConfig.of_size("tiny", decoder_ffn_dim=3)
