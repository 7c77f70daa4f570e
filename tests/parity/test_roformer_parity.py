"""BERT with rotary positions equals transformers' RoFormer to 1e-5, in both directions."""

import json

import pytest
import torch
from tests.moved_weights import moved
from transformers import (
    AutoModel,
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForMultipleChoice,
    RoFormerForQuestionAnswering,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.errors import DataError
from maskloom.models.assembled import build_model
from maskloom.models.bert_config import BertConfig

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 80}
IDS = torch.arange(1, 27).view(2, 13)
SEGMENTS = torch.tensor([[0] * 6 + [1] * 7] * 2)
MASK = torch.tensor([[1] * 13, [1] * 9 + [0] * 4])
INPUTS = {"input_ids": IDS, "token_type_ids": SEGMENTS, "attention_mask": MASK}


def ours(model):
    """Return the hidden states (26, hidden) of the inputs, zero at padding."""
    with torch.no_grad():
        return model.eval().encoder(IDS, SEGMENTS, MASK).last_hidden_state.flatten(0, 1)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (None, AutoModel),
        ("mlm", RoFormerForMaskedLM),
        ("mlm+nsp", RoFormerForMaskedLM),
        ("tagger", RoFormerForTokenClassification),
        ("span", RoFormerForQuestionAnswering),
    ],
)
@pytest.mark.parametrize("embedding_size", [None, 20, 48])
@pytest.mark.filterwarnings("ignore")
def test_a_rotary_bert_opens_as_a_roformer(tmp_path, head, kind, embedding_size):
    heads = head.split("+") if head else []
    config = BertConfig(vocab_size=40, initializer_range=0.1, rotary=True, embedding_size=embedding_size, **SIZES)
    model = moved(build_model(config, heads, 2 if head == "tagger" else None, seed=3))
    save_model(model, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "roformer"
    peer, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert all("embed_positions" in name for name in report["missing_keys"])  # sinusoids, which it computes itself
    assert all("pooler" in name or "seq_relationship" in name for name in report["unexpected_keys"])
    real = MASK.flatten() == 1
    with torch.no_grad():
        found = peer.eval()(**INPUTS)
        states, hidden = ours(model), ours(model).view(2, 13, -1)
        if head is None:
            expected, got = states, found.last_hidden_state.flatten(0, 1)
        elif head == "span":
            expected = model.heads["span"](hidden.flatten(0, 1))
            got = torch.stack((found.start_logits, found.end_logits), 2).flatten(0, 1)
        else:
            expected, got = model.heads[heads[0]](states), found.logits.flatten(0, 1)
    torch.testing.assert_close(got[real], expected[real], rtol=0, atol=1e-5)
    again, _ = load_model(tmp_path)
    assert again.config == config
    torch.testing.assert_close(ours(again), states, rtol=0, atol=0)


@pytest.mark.parametrize("embedding_size", [None, 20, 60])
@pytest.mark.filterwarnings("ignore")
def test_a_roformer_of_transformers_is_read(tmp_path, embedding_size):
    torch.manual_seed(0)
    sizes = {**SIZES, "embedding_size": embedding_size}
    peer = RoFormerForMaskedLM(RoFormerConfig(vocab_size=40, initializer_range=0.1, **sizes)).eval()
    peer.save_pretrained(tmp_path)
    model, report = load_model(tmp_path)
    assert list(model.heads) == ["mlm"]
    assert all("pooler" in name for name in report.new_parameters)
    with torch.no_grad():
        logits = model.heads["mlm"](ours(model))
        expected = peer(**INPUTS).logits.flatten(0, 1)
    real = MASK.flatten() == 1
    torch.testing.assert_close(logits[real], expected[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "kind"), [("classifier", RoFormerForSequenceClassification), ("choice", RoFormerForMultipleChoice)]
)
@pytest.mark.filterwarnings("ignore")
def test_our_pooler_is_a_part_of_its_classifiers(tmp_path, head, kind):
    config = BertConfig(vocab_size=40, initializer_range=0.1, rotary=True, **SIZES)
    model = moved(build_model(config, [head], 3 if head == "classifier" else None, seed=4).eval())
    save_model(model, tmp_path)
    peer, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert all("embed_positions" in name for name in report["missing_keys"])
    assert not report["unexpected_keys"]
    with torch.no_grad():
        expected = model.heads[head](model.encoder(IDS, SEGMENTS, MASK).pooled)
        inputs = {name: values.unsqueeze(0) for name, values in INPUTS.items()} if head == "choice" else INPUTS
        found = peer.eval()(**inputs).logits
    torch.testing.assert_close(found.flatten(), expected.flatten(), rtol=0, atol=1e-5)
    assert expected.std() > 1e-2
    again, read = load_model(tmp_path)
    assert list(again.heads) == [head]
    assert not read.new_parameters
    assert again.config == config
    with torch.no_grad():
        torch.testing.assert_close(again.eval().heads[head](again.encoder(IDS, SEGMENTS, MASK).pooled), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_classifier_of_transformers_is_read(tmp_path):
    torch.manual_seed(0)
    config = RoFormerConfig(vocab_size=40, initializer_range=0.1, num_labels=3, **SIZES)
    peer = RoFormerForSequenceClassification(config).eval()
    peer.save_pretrained(tmp_path)
    model, report = load_model(tmp_path)
    assert list(model.heads) == ["classifier"]
    assert not report.new_parameters
    with torch.no_grad():
        found = model.eval().heads["classifier"](model.encoder(IDS, SEGMENTS, MASK).pooled)
        torch.testing.assert_close(found, peer(**INPUTS).logits, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_choice_of_transformers_that_reads_the_last_token_is_refused(tmp_path):
    RoFormerForMultipleChoice(RoFormerConfig(vocab_size=40, **SIZES)).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"bert\.pooler\.dense\.weight: missing"):
        load_model(tmp_path)


def test_turned_values_and_other_own_keys_are_no_roformer(tmp_path):
    for own in ({"pre_norm": True}, {"gated": True}, {"causal": True}):
        save_model(build_model(BertConfig(vocab_size=40, rotary=True, **own, **SIZES), ["mlm"]), tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["model_type"].startswith("maskloom")
