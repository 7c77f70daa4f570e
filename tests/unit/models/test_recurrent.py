import itertools

import pytest
import torch
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.attention import LayerState
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.architectures import ARCHITECTURES
from maskloom.models.assembled import build_model, prepare_blocks
from maskloom.models.recurrent_config import GruConfig, LstmConfig, RnnConfig

SMALL = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "max_position_embeddings": 40}
LENGTHS = [5, 1, 0, 9]
POOLINGS = ["last", "max", "mean", "sum", "attention"]
ENERGIES = ["dot", "scaled_dot", "mlp", "bilinear"]


def encoder(config_type=LstmConfig, **keys):
    return build_model(config_type(**{**SMALL, **keys}), ("classifier",), 2, seed=1).eval().encoder


def batch():
    layout = SequenceLayout.from_lengths(LENGTHS)
    return torch.arange(layout.num_tokens) % 30, torch.zeros(layout.num_tokens, dtype=torch.int64), layout


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pooling", ["last", "max", "mean", "sum"])
def test_poolings_are_what_they_say(pooling, causal):
    model = encoder(pooling=pooling, causal=causal)
    past = [LayerState(torch.empty(0)) for _ in model.layers]
    output = model.encode_packed(*batch(), past=past)
    for row, part in enumerate(output.last_hidden_state.split(LENGTHS)):
        if not len(part):
            assert not output.pooled[row].any()
            continue
        read = {"last": past[-1].tensor[row, 0], "max": part.max(0).values, "mean": part.mean(0), "sum": part.sum(0)}
        torch.testing.assert_close(output.pooled[row], read[pooling])


@pytest.mark.parametrize("query", ["h", "c", "learned"])
def test_the_query_of_attention_is_the_last_state_or_learned(query):
    model = encoder(pooling="attention", attention_query=query, attention_energy="dot")
    past = [LayerState(torch.empty(0)) for _ in model.layers]
    output = model.encode_packed(*batch(), past=past)
    assert torch.equal(output.pooled, model.encode_packed(*batch()).pooled)
    for row, part in enumerate(output.last_hidden_state.split(LENGTHS)):
        queries = {"h": past[-1].tensor[row, 0], "c": past[-1].tensor[row, 1], "learned": model.pooler.query}
        expected = (part @ queries[query].flatten()).softmax(0) @ part
        torch.testing.assert_close(output.pooled[row], expected)
    nothing = model(torch.zeros(2, 3, dtype=torch.int64), attention_mask=torch.zeros(2, 3))
    assert not nothing.pooled.any()


@torch.no_grad()
def test_without_layers_the_head_reads_word_vectors():
    model = encoder(num_hidden_layers=0, pooling="mean")
    ids, segments, layout = batch()
    output = model.encode_packed(ids, segments, layout)
    words = model.word_embeddings[ids]
    assert torch.equal(output.last_hidden_state, words)
    torch.testing.assert_close(output.pooled[3], words[-LENGTHS[3] :].mean(0))
    assert not output.pooled[2].any()


@pytest.mark.parametrize("keys", [{"causal": True}, {"attention_query": "c"}])
def test_without_layers_there_is_no_state(keys):
    with pytest.raises(DataError, match="num_hidden_layers 0"):
        LstmConfig.from_published({"model_type": "maskloom_lstm", "num_hidden_layers": 0, **keys}, "config.json")
    with pytest.raises(ConfigError, match="num_hidden_layers = 0: a decoder"):
        build_model(LstmConfig(**{**SMALL, "num_hidden_layers": 0}), ("decoder",), 2, seed=1)


@pytest.mark.parametrize("heads", [("classifier",), ("decoder",), ("document",), ("lm",), ("lm", "classifier"), ()])
def test_a_folder_has_the_heads_that_were_saved(heads, tmp_path):
    save_model(build_model(GruConfig(**SMALL), heads, 2, seed=1), tmp_path)
    assert tuple(load_model(tmp_path)[0].heads) == heads


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("config_type", "keys"),
    [
        *((LstmConfig, {"pooling": pooling}) for pooling in POOLINGS),
        *((kind, {"pooling": pooling}) for kind in (RnnConfig, GruConfig) for pooling in ("last", "attention")),
        (GruConfig, {"reset": "before"}),
        (RnnConfig, {"nonlinearity": "sigmoid"}),
        *((LstmConfig, {"pooling": "attention", "attention_query": query}) for query in ("h", "c")),
        *((GruConfig, {"pooling": "attention", "attention_energy": energy}) for energy in ENERGIES),
    ],
)
def test_padding_changes_nothing(config_type, keys, causal):
    model = encoder(config_type, **keys, causal=causal)
    ids, mask = torch.randint(0, 30, (4, 9)), torch.zeros(4, 9)
    mask[0, :9] = mask[1, :2] = mask[2, 3:7] = mask[3, 1:9:2] = 1  # padding: none, at the end, at both ends, in between
    found = model(ids, attention_mask=mask)
    for row, (own, real) in enumerate(zip(ids, mask.bool(), strict=True)):
        alone = model(own[real][None])
        torch.testing.assert_close(found.pooled[row], alone.pooled[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(found.last_hidden_state[row][real], alone.last_hidden_state[0], rtol=0, atol=1e-6)
        assert not found.last_hidden_state[row][~real].any()


@pytest.mark.parametrize("pooling", ["max", "mean", "sum", "attention"])
def test_pooling_with_a_constant_query_does_not_see_the_order(pooling):
    model = encoder(pooling=pooling, attention_energy="mlp")
    layout = SequenceLayout.from_lengths([7])
    vectors, order = torch.randn(7, 12), torch.randperm(7)
    one, other = (model.pooled(part, layout, None) for part in (vectors, vectors[order]))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("config_type", [LstmConfig, GruConfig])
def test_the_forget_bias_is_where_gates_start(config_type):
    for bias in (1.0, -2.5):
        layer = encoder(config_type, forget_bias=bias).layers[1]
        for rnn in (layer.forwards, layer.backwards):
            assert rnn.bias_ih_l0[6:12].tolist() == [bias] * 6
            assert not rnn.bias_ih_l0[:6].any()
            assert not rnn.bias_ih_l0[12:].any()
            assert not rnn.bias_hh_l0.any()
            for weights in (rnn.weight_ih_l0, rnn.weight_hh_l0):  # uniform up to 1 / sqrt(6) on either side
                assert -(6**-0.5) <= weights.min() < -0.3
                assert 0.3 < weights.max() <= 6**-0.5
    assert (LstmConfig().forget_bias, GruConfig().forget_bias) == (1.0, 0.0)


def test_every_key_changes_what_is_computed():
    plain = encoder(GruConfig)(batch()[0][None]).pooled
    assert not torch.equal(plain, encoder(GruConfig, reset="before")(batch()[0][None]).pooled)
    tanh, sigmoid = (encoder(RnnConfig, nonlinearity=kind)(batch()[0][None]).pooled for kind in ("tanh", "sigmoid"))
    assert tanh.min() < 0 < sigmoid.min()
    poolings = [{"pooling": pooling} for pooling in POOLINGS[:-1]]
    poolings += [{"pooling": "attention", "attention_energy": energy} for energy in ENERGIES]
    found = [encoder(**keys)(batch()[0][None]).pooled for keys in poolings]
    assert not any(torch.allclose(one, other) for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("lstm", {"hidden_size": 7}, "hidden_size 7 must be even: two directions share it"),
        ("gru", {"attention_query": "c"}, "attention_query 'c': only an LSTM has this state"),
        ("lstm", {"attention_query": "h"}, "attention_query: a recurrent network with pooling 'last' does not read it"),
        (
            "gru",
            {"attention_energy": "dot", "pooling": "max"},
            "attention_energy: a recurrent network with pooling 'max'",
        ),
        ("rnn", {"num_attention_heads": 2}, "num_attention_heads: a recurrent network with"),
        ("lstm", {"hidden_act": "relu"}, "hidden_act: a recurrent network with"),
        ("gru", {"intermediate_size": 3, "layer_norm_eps": 0.5}, "layer_norm_eps, intermediate_size: a recurrent"),
        ("rnn", {"pooling": "first"}, "pooling = 'first'"),
        ("rnn", {"forget_bias": 1.0}, "unknown model key 'forget_bias'; it is a key of the architecture lstm and gru"),
        ("lstm", {"nonlinearity": "sigmoid"}, "unknown model key 'nonlinearity'; it is a key of the architecture rnn"),
        ("lstm", {"nonlineary": "tanh"}, "unknown model key 'nonlineary'; known: attention_energy, "),
    ],
)
def test_wrong_keys_are_refused(name, keys, message):
    row = ARCHITECTURES[name]
    with pytest.raises(ConfigError, match=message):
        row.config_type.of_size("tiny", row.sizes, **keys)


def test_medium_and_large_are_zarembas():
    for size, hidden in (("medium", 650), ("large", 1500)):
        config = LstmConfig.of_size(size, ARCHITECTURES["lstm"].sizes)
        assert (config.num_hidden_layers, config.hidden_size) == (2, hidden)


def test_recomputation_changes_no_gradient():
    found = []
    for recompute in (False, True):
        model = build_model(GruConfig(**SMALL, pooling="max"), ("classifier",), 2, seed=1).train()
        prepare_blocks(model, recompute=recompute, compile_=False)
        torch.manual_seed(3)
        model.encoder.encode_packed(*batch()).pooled.sum().backward()
        found.append([parameter.grad for parameter in model.encoder.parameters()])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_nothing_is_compiled_where_every_batch_has_steps_of_its_own():
    model = build_model(GruConfig(**SMALL), ("classifier",), 2, seed=1).eval()
    plain = model.encoder.encode_packed(*batch()).pooled
    prepare_blocks(model, recompute=False, compile_=True)
    assert torch.equal(model.encoder.encode_packed(*batch()).pooled, plain)


ATTENTIONS = ["none", *ENERGIES]


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("config_type", [RnnConfig, LstmConfig, GruConfig])
def test_decoding_step_by_step_equals_reading_the_target_at_once(config_type, attention):
    model = build_model(config_type(**SMALL, decoder_attention=attention), ("decoder",), seed=1).eval()
    head, (ids, segments, source) = model.heads["decoder"], batch()
    hidden = model.encoder.encode_packed(ids, segments, source).last_hidden_state
    for beam in (None, 3):
        settings = Generation(max_tokens=6, temperature=1.0 if beam else 0.0, beam=beam)
        texts = decode_sources(model, hidden, source, settings, begin=[7], end=3)
        read = [[7, *text.token_ids] for text in texts]
        target = SequenceLayout.from_lengths([len(part) for part in read])
        vectors = head(torch.tensor([token for part in read for token in part]), target, hidden, source)
        chosen = head.logits(vectors).log_softmax(-1).split(target.sizes.tolist())
        for text, rows in zip(texts, chosen, strict=True):
            tokens = [*text.token_ids, *([3] if text.is_ended else [])]
            summed = sum(float(rows[place, token]) for place, token in enumerate(tokens))
            assert text.log_probability == pytest.approx(summed, abs=1e-4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_reach_every_parameter_of_a_decoder(attention):
    model = build_model(LstmConfig(**SMALL, decoder_attention=attention), ("decoder",), seed=1)
    head, (ids, segments, source) = model.heads["decoder"], batch()
    hidden = model.encoder.encode_packed(ids, segments, source).last_hidden_state
    target = SequenceLayout.from_lengths([3, 2, 1, 4])
    head.loss_sum(head(torch.arange(10), target, hidden, source), torch.arange(10)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@torch.no_grad()
def test_dropout_falls_on_what_predicts_the_next_word():
    for keys, thins in (({"causal": True}, True), ({"causal": True, "hidden_dropout_prob": 0.0}, False), ({}, False)):
        found = encoder(**keys).train().encode_packed(*batch()).last_hidden_state
        assert bool((found == 0).any()) == thins
    for attention in ("none", "dot"):
        model = build_model(LstmConfig(**SMALL, decoder_attention=attention), ("decoder",), seed=1)
        target, source = SequenceLayout.from_lengths([20]), SequenceLayout.from_lengths([5])
        given = (torch.arange(20), target, torch.randn(5, 12), source)
        assert bool((model.train().heads["decoder"](*given) == 0).any())
        assert not bool((model.eval().heads["decoder"](*given) == 0).any())


def test_without_attention_a_decoder_knows_the_ends_of_a_source_alone():
    found = []
    for attention in ("none", "dot"):
        model = build_model(LstmConfig(**SMALL, decoder_attention=attention), ("decoder",), seed=1).eval()
        head, source, target = (
            model.heads["decoder"],
            SequenceLayout.from_lengths([5]),
            SequenceLayout.from_lengths([2]),
        )
        hidden = torch.randn(5, 12)
        changed = hidden.clone()
        changed[2] += 1.0
        one, other = (head(torch.tensor([1, 2]), target, part, source) for part in (hidden, changed))
        found.append(torch.equal(one, other))
    assert found == [True, False]


def test_a_target_beyond_the_limit_is_refused():
    model = build_model(LstmConfig(**{**SMALL, "max_position_embeddings": 3}), ("decoder",), seed=1)
    source, target = SequenceLayout.from_lengths([2]), SequenceLayout.from_lengths([4])
    with pytest.raises(ValueError, match="a target of 4 tokens exceeds the 3 positions"):
        model.heads["decoder"](torch.zeros(4, dtype=torch.int64), target, torch.zeros(2, 12), source)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["none", "mlp", "bilinear"])
def test_a_folder_keeps_the_decoder(tmp_path, attention):
    model = build_model(GruConfig(**SMALL, reset="before", decoder_attention=attention), ("decoder",), seed=1)
    save_model(model, tmp_path)
    back, report = load_model(tmp_path, heads=("decoder",))
    assert not report.new_parameters
    assert not unused_tensors(tmp_path, report)
    for name, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    assert "decoder" in load_model(tmp_path)[0].heads


@pytest.mark.parametrize("config", [LstmConfig(causal=True), GruConfig(), GruConfig(causal=True), RnnConfig()])
def test_the_weights_of_a_layer_are_those_of_its_matrices(config):
    with torch.device("meta"):
        layer = build_model(config, ()).encoder.layers[0]
    assert config.weights_of_layer == sum(value.numel() for value in layer.parameters() if value.dim() == 2)
