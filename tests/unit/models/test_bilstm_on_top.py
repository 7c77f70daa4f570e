"""A BiLSTM between a BERT and its head: the last row of the paper's Table 5."""

import json

import pytest
import torch

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import ConfigError
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.runs.export import write_onnx

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def _config(**more):
    return BertConfig(**SIZES, **more, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def _encoded(model, ids, lengths):
    layout = SequenceLayout.from_lengths(lengths, torch.device("cpu"))
    return model.eval().encoder.encode_packed(ids, torch.zeros_like(ids), layout, keep_hidden_states=True)


def test_it_is_the_lstm_of_torch_on_the_last_layer_and_the_pooler_reads_both_ends():
    model = build_model(_config(causal=True, bilstm=True), heads=("span",), seed=0)
    plain = build_model(_config(causal=True), heads=("span",), seed=0)
    ids = torch.randint(40, (9,), generator=torch.Generator().manual_seed(0))
    found, below = _encoded(model, ids, [5, 4]), _encoded(plain, ids, [5, 4])
    for first, last, row in ((0, 5, 0), (5, 9, 1)):
        expected = model.encoder.top.lstm(below.last_hidden_state[first:last])[0]
        torch.testing.assert_close(found.last_hidden_state[first:last], expected, atol=1e-6, rtol=0)
        ends = torch.cat([expected[-1, :8], expected[0, 8:]])
        pooled = torch.tanh(model.encoder.pooler.dense(ends))
        torch.testing.assert_close(found.pooled[row], pooled, atol=1e-6, rtol=0)
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)


def test_tokens_of_a_left_to_right_model_see_those_after_them_through_it():
    model = build_model(_config(causal=True, bilstm=True), heads=("span",), seed=0)
    plain = build_model(_config(causal=True), heads=("span",), seed=0)
    ids = torch.arange(6)
    other = ids.clone()
    other[-1] = 20
    for built, sees in ((model, True), (plain, False)):
        first, second = (_encoded(built, tokens, [6]).last_hidden_state[0] for tokens in (ids, other))
        assert (first - second).abs().max().gt(1e-6) == sees


@pytest.mark.parametrize("causal", [False, True])
def test_a_plain_model_gets_a_fresh_one_that_is_saved_and_read_again(tmp_path, causal):
    plain = build_model(_config(causal=causal), heads=("mlm",), seed=1)
    save_model(plain, tmp_path / "plain")
    model, report = load_model(tmp_path / "plain", heads=("span",), seed=3, added={"bilstm": True})
    assert torch.equal(model.encoder.layers[0].attention.qkv.weight, plain.encoder.layers[0].attention.qkv.weight)
    assert sum("bilstm" in name for name in report.new_parameters) == 8
    save_model(model, tmp_path / "tuned")
    kind = json.loads((tmp_path / "tuned" / "config.json").read_text())["model_type"]
    assert kind == ("maskloom_causal_bert_bilstm" if causal else "maskloom_bert_bilstm")  # transformers knows neither
    again, report = load_model(tmp_path / "tuned")
    assert all("pooler" in name for name in report.new_parameters)  # a span head reads no pooler, so none is written
    for (name, before), (_, after) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(before, after) or "pooler" in name


def test_only_a_bert_takes_one(tmp_path):
    config = GptConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    save_model(build_model(config, heads=("lm",), seed=0), tmp_path)
    with pytest.raises(ConfigError, match=r"bilstm: .* has the layout of GPT, which has no such part"):
        load_model(tmp_path, heads=("classifier",), num_labels=2, added={"bilstm": True})


def test_it_has_no_onnx_graph(tmp_path):
    pytest.importorskip("onnxscript")
    save_model(build_model(_config(bilstm=True), heads=("span",), seed=0), tmp_path)
    with pytest.raises(ConfigError, match=r": a BiLSTM cannot be exported to ONNX"):
        write_onnx(tmp_path)
