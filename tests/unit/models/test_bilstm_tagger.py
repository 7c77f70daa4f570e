import pytest
import torch
from tests.unused_tensors import unused_tensors

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.heads import BiLSTMTagger

CONFIG = BertConfig(
    vocab_size=9, hidden_size=4, num_hidden_layers=4, num_attention_heads=2, intermediate_size=6,
    max_position_embeddings=12,
)  # fmt: skip
HEADS = ("bilstm_tagger",)


@pytest.mark.parametrize(
    ("layers", "shape", "inputs"),
    [
        ("last", (7, 1, 4), 4),
        ("concat_last_four", (7, 1, 16), 16),
        ("sum_all", (7, 1, 4), 4),
        ("1,3", (7, 2, 4), 8),
        ("scalar_mix", (7, 5, 4), 4),
    ],
)
def test_the_lstm_is_as_wide_as_what_it_reads(layers, shape, inputs):
    head = BiLSTMTagger(CONFIG, 3, layers=layers, lstm_size=6).eval()
    logits = head(torch.randn(shape), SequenceLayout.from_lengths([3, 4]))
    assert logits.shape == (7, 3)
    assert head.bilstm.lstm.weight_ih_l0.shape == (4 * 3, inputs)
    assert head.dense.weight.shape == (3, 6)


def test_vectors_that_are_kept_apart_are_joined_in_order():
    head = BiLSTMTagger(CONFIG, 3, layers="1,3", lstm_size=6).eval()
    vectors, layout = torch.randn(5, 2, 4), SequenceLayout.from_lengths([5])
    expected = head.dense(head.bilstm(torch.cat([vectors[:, 0], vectors[:, 1]], dim=1), layout))
    assert torch.equal(head(vectors, layout), expected)


@pytest.mark.parametrize(("layers", "lstm_layers"), [("scalar_mix", 1), ("concat_last_four", 3)])
def test_a_saved_tagger_comes_back_with_its_options(tmp_path, layers, lstm_layers):
    options = {"bilstm_tagger": {"layers": layers, "lstm_size": 6, "lstm_layers": lstm_layers, "dropout": 0.25}}
    model = build_model(CONFIG, HEADS, num_labels=3, seed=1, head_options=options).eval()
    save_model(model, tmp_path, extra_config={"maskloom_heads": options})
    loaded, report = load_model(tmp_path)
    assert (report.new_parameters, unused_tensors(tmp_path, report)) == ((), ())
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    head = loaded.heads["bilstm_tagger"]
    assert isinstance(head, BiLSTMTagger)
    assert (head.combination.name, head.dropout.p, head.num_labels) == (layers, 0.25, 3)
    assert head.bilstm.lstm.num_layers == lstm_layers


def test_its_weights_depend_on_the_seed_and_start_as_those_of_torch():
    options = {"bilstm_tagger": {"layers": "scalar_mix", "lstm_size": 200}}
    model = build_model(CONFIG, HEADS, num_labels=3, seed=1, head_options=options)
    again = build_model(CONFIG, (*HEADS, "mlm"), num_labels=3, seed=1, head_options=options)
    head, same = model.heads["bilstm_tagger"], again.heads["bilstm_tagger"]
    assert isinstance(head, BiLSTMTagger)
    assert all(torch.equal(one, other) for one, other in zip(head.parameters(), same.parameters(), strict=True))
    for parameter in head.bilstm.parameters():
        assert float(parameter.detach().abs().max()) == pytest.approx(0.1, rel=0.03)
        assert abs(float(parameter.detach().mean())) < 0.02
    assert head.mix is not None
    assert head.mix.weights.tolist() == [0.0] * 5
    assert head.mix.scale.tolist() == [1.0]


def test_wrong_options_are_refused():
    with pytest.raises(ConfigError, match="lstm_size = 7 must be even"):
        BiLSTMTagger(CONFIG, 3, lstm_size=7)
    with pytest.raises(ConfigError, match="layer 9"):
        BiLSTMTagger(CONFIG, 3, layers="9")
