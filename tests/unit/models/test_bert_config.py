import pytest
from pydantic import ValidationError

from maskloom.errors import ConfigError, DataError
from maskloom.models.architectures import published_config
from maskloom.models.bert import BertConfig
from maskloom.models.bert_config import OWN_KEYS
from maskloom.models.gpt_config import GptConfig

GOOGLE = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "type_vocab_size": 2,
    "vocab_size": 30522,
}


def test_googles_file_is_read_with_its_epsilon():
    config = BertConfig.from_published(GOOGLE, "bert_config.json")
    assert config == BertConfig()
    assert config.layer_norm_eps == 1e-12


def test_bookkeeping_of_other_programs_is_ignored():
    extra = {
        "architectures": ["BertModel"],
        "torch_dtype": "float32",
        "use_cache": True,
        "gradient_checkpointing": False,
    }
    extra |= {"model_type": "bert", "position_embedding_type": "absolute"}
    extra |= {"id2label": {"0": "a"}, "is_decoder": False}
    assert BertConfig.from_published(GOOGLE | extra, "x") == BertConfig()


def test_what_is_written_reads_back():
    config = BertConfig(hidden_size=26, num_attention_heads=13, classifier_dropout=0.25, pad_token_id=None)
    assert BertConfig.from_published(config.as_published(), "x") == config


def test_embeddings_as_wide_as_the_layers_are_no_option():
    assert BertConfig(hidden_size=24, embedding_size=24) == BertConfig(hidden_size=24)
    assert BertConfig(embedding_size=768).as_published()["model_type"] == "bert"


@pytest.mark.parametrize(
    ("options", "model_type"),
    [
        ({}, "bert"),
        ({"pre_norm": True}, "maskloom_bert"),
        ({"gated": True}, "maskloom_bert"),
        ({"rotary": True}, "maskloom_bert"),
        ({"embedding_size": 128}, "maskloom_bert"),
        ({"pre_norm": True, "bilstm": True}, "maskloom_bert_bilstm"),
        ({"causal": True}, "maskloom_causal_bert"),
        ({"causal": True, "pre_norm": True}, "maskloom_causal_bert"),
    ],
)
def test_what_no_other_program_computes_has_a_type_of_its_own(options, model_type):
    config = BertConfig(**options)
    published = config.as_published()
    assert published["model_type"] == model_type
    assert {key: published[key] for key in published if key in OWN_KEYS} == options
    assert published_config(published, "x") == config
    assert (
        published_config({**published, "model_type": f"maskloom_{model_type.removeprefix('maskloom_')}_crf"}, "x")
        == config
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "roberta"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("tie_word_embeddings", False),
        ("hidden_size", "768"),
        ("hidden_size", 768.5),
        ("hidden_size", 770),
        ("hidden_size", 10**9),
        ("vocab_size", 0),
        ("vocab_size", -5),
        ("vocab_size", True),
        ("vocab_size", None),
        ("num_hidden_layers", 10**6),
        ("max_position_embeddings", [512]),
        ("hidden_dropout_prob", 1.5),
        ("hidden_dropout_prob", float("nan")),
        ("layer_norm_eps", 0.0),
        ("hidden_act", "gleu"),
        ("hidden_act", 3),
        ("pad_token_id", 30522),
    ],
)
def test_a_wrong_value_names_file_and_key(key, value):
    with pytest.raises(DataError, match=f"(?s)model/config.json.*{key}"):
        BertConfig.from_published({"model_type": "bert", **GOOGLE, key: value}, "model/config.json")


def test_all_wrong_values_are_reported_at_once():
    with pytest.raises(DataError) as caught:
        BertConfig.from_published({"model_type": "gpt2", "vocab_size": "many", "hidden_act": "step"}, "c.json")
    assert [line.split()[1] for line in str(caught.value).splitlines()] == ["model_type", "vocab_size", "hidden_act"]


@pytest.mark.parametrize(("model_type", "key"), [("bart", "d_model"), ("gpt2", "n_embd"), ("t5", "d_model")])
def test_a_wrong_value_is_named_by_the_key_of_its_file(model_type, key):
    with pytest.raises(DataError, match=rf"c\.json: {key} = -1: it must be greater"):
        published_config({"model_type": model_type, key: -1}, "c.json")


def test_a_model_type_chooses_the_architecture():
    assert isinstance(published_config({"model_type": "openai-gpt"}, "c.json"), GptConfig)
    assert isinstance(published_config({}, "c.json"), BertConfig)
    with pytest.raises(DataError, match=r"c\.json: model_type = 'opt': only these are supported: bert, "):
        published_config({"model_type": "opt"}, "c.json")


def test_sizes_take_overrides():
    config = BertConfig.of_size("tiny", vocab_size=77, hidden_size=64, max_position_embeddings=32)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (77, 64, 256)
    assert BertConfig.of_size("tiny", intermediate_size=99).intermediate_size == 99


@pytest.mark.parametrize(
    ("size", "overrides", "message"),
    [
        ("huge", {}, "unknown model size 'huge'; known: tiny"),
        ("tiny", {"num_layers": 3}, "unknown model key 'num_layers'; did you mean 'num_hidden_layers'"),
        ("tiny", {"num_attention_heads": 3}, "hidden_size 128 is not divisible by num_attention_heads 3"),
        ("tiny", {"hidden_act": 3}, "hidden_act = 3"),
        (
            "tiny",
            {"rotary": True, "num_attention_heads": 128},
            r"\[model.config\] rotary = true needs heads of even size; hidden_size / num_attention_heads is 1",
        ),
        (
            "tiny",
            {"bilstm": True, "hidden_size": 9, "num_attention_heads": 3},
            r"\[model.config\] bilstm = true: hidden_size 9 must be even: two directions share it",
        ),
        ("tiny", {"forget_bias": 1.0}, "'forget_bias'; it is a key of the architecture lstm and gru"),
        ("tiny", {"pooling": "max"}, "'pooling'; it is a key of the architecture rnn and lstm and gru"),
        ("tiny", {"hidden_size": "128"}, "hidden_size = '128'"),
        ("tiny", {"name": "huge"}, "unknown model key 'name'"),
    ],
)
def test_wrong_size_or_override(size, overrides, message):
    with pytest.raises(ConfigError, match=message):
        BertConfig.of_size(size, **overrides)


def test_is_frozen():
    with pytest.raises(ValidationError):
        BertConfig().hidden_size = 3


def test_classifier_dropout_falls_back_on_hidden_dropout():
    assert BertConfig(hidden_dropout_prob=0.2).head_dropout == 0.2
    assert BertConfig(hidden_dropout_prob=0.2, classifier_dropout=0.0).head_dropout == 0.0
