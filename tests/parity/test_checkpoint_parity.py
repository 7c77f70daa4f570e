"""Our folders open in transformers with equal logits, and its folders open here, bit for bit."""

import pytest
import torch
from tests.unused_tensors import unused_tensors
from transformers import (
    AutoConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.bert_config import OWN_KEYS

pytestmark = pytest.mark.parity

CONFIG = BertConfig(
    vocab_size=99,
    hidden_size=39,
    num_hidden_layers=2,
    num_attention_heads=13,
    intermediate_size=37,
    max_position_embeddings=17,
    initializer_range=0.2,
    hidden_act="gelu_new",
    pad_token_id=3,
)

PEERS = {
    (): BertModel,
    ("mlm",): BertForMaskedLM,
    ("nsp",): BertForNextSentencePrediction,
    ("mlm", "nsp"): BertForPreTraining,
    ("classifier",): BertForSequenceClassification,
}


def inputs():
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(17)[None, :] < torch.tensor([17, 4, 11])[:, None]
    ids, segments = (torch.randint(low, high, mask.shape, generator=generator) for low, high in ((4, 99), (0, 2)))
    return ids, segments, mask


def logits_of(model):
    ids, segments, mask = inputs()
    output = model.encoder(ids, segments, mask)
    found = {"hidden": output.last_hidden_state[mask], "pooled": output.pooled}
    for name, head in model.heads.items():
        found[name] = head(output.last_hidden_state)[mask] if name == "mlm" else head(output.pooled)
    return found


def logits_of_peer(peer, heads):
    ids, segments, mask = inputs()
    output = peer(ids, mask.long(), segments)
    if not heads:
        return {"hidden": output.last_hidden_state[mask], "pooled": output.pooler_output}
    if heads == ("mlm", "nsp"):
        return {"mlm": output.prediction_logits[mask], "nsp": output.seq_relationship_logits}
    return {heads[0]: output.logits[mask] if heads == ("mlm",) else output.logits}


@torch.no_grad()
@pytest.mark.parametrize("heads", PEERS)
def test_export_opens_in_transformers_and_comes_back_to_the_bit(tmp_path, heads):
    ours = build_model(CONFIG, heads, num_labels=5, seed=1).eval()
    for parameter in ours.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.2, std=0.3)
    save_model(ours, tmp_path / "ours")
    peer, info = PEERS[heads].from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all(key.startswith("bert.pooler.") for key in info["unexpected_keys"])
    found = logits_of(ours)
    for name, expected in logits_of_peer(peer.eval(), heads).items():
        assert (found[name] - expected).abs().max() <= 1e-5, name
    peer.save_pretrained(tmp_path / "theirs")
    back, report = load_model(tmp_path / "theirs")
    assert unused_tensors(tmp_path / "theirs", report) == ()
    fresh = set(report.new_parameters)
    assert fresh <= {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    for name, value in ours.state_dict().items():
        assert torch.equal(back.state_dict()[name], value) or (fresh and "pooler" in name), name


def test_config_is_what_transformers_reads(tmp_path):
    names = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}
    model = build_model(CONFIG, ("classifier",), num_labels=3, seed=1)
    save_model(model, tmp_path, extra_config={**names, "problem_type": "single_label_classification"})
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == "bert"
    assert config.architectures == ["BertForSequenceClassification"]
    assert (config.id2label, config.label2id) == (names["id2label"], names["label2id"])
    assert config.problem_type == "single_label_classification"
    assert config.dtype == torch.float32
    for key, value in CONFIG.model_dump(exclude=set(OWN_KEYS)).items():
        assert getattr(config, key) == value, key


@torch.no_grad()
def test_shards_and_half_precision_of_transformers(tmp_path):
    peer = BertForPreTraining(AutoConfig.for_model("bert", **CONFIG.model_dump())).eval()
    peer.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    ours = load_model(tmp_path / "shards")[0].eval()
    expected = logits_of_peer(peer, ("mlm", "nsp"))
    for name, value in expected.items():
        assert (logits_of(ours)[name] - value).abs().max() <= 1e-5
    peer.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    half = load_model(tmp_path / "half")[0].eval()
    assert half.encoder.word_embeddings.dtype == torch.float32
    assert (logits_of(half)["nsp"] - expected["nsp"]).abs().max() <= 0.1


@torch.no_grad()
def test_real_weights_survive_export(tmp_path, minilm_folder):
    ours = load_model(minilm_folder)[0].eval()
    save_model(ours, tmp_path)
    ids = torch.randint(1000, 20_000, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = BertModel.from_pretrained(minilm_folder).eval()(ids)
    peer = BertModel.from_pretrained(tmp_path).eval()
    assert torch.equal(peer(ids).last_hidden_state, expected.last_hidden_state)
    assert torch.equal(peer(ids).pooler_output, expected.pooler_output)
