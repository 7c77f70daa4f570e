"""ONNX Runtime gives the outputs of the model, for every head, batch size and length."""

import logging

import numpy as np
import onnxruntime
import pytest
import torch

from maskloom.checkpoints.huggingface import save_model
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.models.heads import HEADS as HEAD_ROWS
from maskloom.runs.export import ONNX_FILE, write_onnx

HEADS = {
    ("mlm", "nsp"): ["pooler_output", "mlm", "nsp"],
    ("classifier",): ["pooler_output", "logits"],
    ("tagger", "crf"): ["logits"],  # published taggers have no pooler
    ("lm", "classifier"): ["pooler_output", "lm", "logits"],
    ("span",): ["logits"],
    ("choice",): ["pooler_output", "logits"],
}
OPTIONS = {"layers": "last", "lstm_size": 8}

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # from torch's exporter
]


def _model(heads, options):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "initializer_range": 0.3}
    sizes["num_hidden_layers"] = 2 if "mlm" in heads else 1  # an export takes seconds for each layer
    config = GptConfig.of_size("tiny", **sizes) if "lm" in heads else BertConfig.of_size("tiny", **sizes, **options)
    has_labels = {"classifier", "tagger"} & set(heads)
    return build_model(config, heads, num_labels=3 if has_labels else None, seed=1).eval()


@pytest.fixture(autouse=True)
def _quietly(caplog):
    with caplog.at_level(logging.ERROR):  # pytest would record each step of the exporter
        yield


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        (("classifier",), {"pre_norm": True, "gated": True, "rotary": True, "embedding_size": 20}),
        pytest.param(("mlm", "nsp"), {}, marks=pytest.mark.slow),
        pytest.param(("lm", "classifier"), {}, marks=pytest.mark.slow),
        pytest.param(("classifier",), {}, marks=pytest.mark.slow),
        pytest.param(("tagger", "crf"), {}, marks=pytest.mark.slow),
        pytest.param(("span",), {}, marks=pytest.mark.slow),
        pytest.param(("choice",), {}, marks=pytest.mark.slow),
    ],
)
def test_every_head_gives_the_same_for_any_batch_and_length(heads, options, tmp_path):
    model = _model(heads, options)
    save_model(model, tmp_path)
    assert write_onnx(tmp_path) == ["last_hidden_state", *HEADS[heads]]
    session = onnxruntime.InferenceSession(tmp_path / ONNX_FILE, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(2)
    for batch, length in ((1, 1), (2, 7), (5, 33)):
        ids = torch.randint(1, 50, (batch, length), generator=generator)
        segments = torch.randint(0, 2, (batch, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[-1, length - length // 3 :] = 0
        fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, {k: v.numpy() for k, v in fed.items()}), strict=True))
        with torch.no_grad():
            output = model.encoder(ids, segments, mask)
            expected = {"last_hidden_state": output.last_hidden_state}
            if "pooler_output" in names:
                expected["pooler_output"] = output.pooled
            for name in (name for name in heads if name != "crf"):
                read = {"tokens": output.last_hidden_state, "pooled": output.pooled}[HEAD_ROWS[name].reads]
                expected[name if name in ("mlm", "lm", "nsp") else "logits"] = model.heads[name](read)
        assert expected.keys() == found.keys()
        for name, wanted in expected.items():
            real = mask[..., None].numpy() if wanted.ndim == 3 else 1  # outputs at padding are meaningless
            np.testing.assert_allclose(found[name] * real, wanted.numpy() * real, atol=1e-5, rtol=1e-5)


def test_a_bilstm_head_is_refused(tmp_path):
    config = BertConfig.of_size("tiny", vocab_size=50, hidden_size=16, num_attention_heads=2, intermediate_size=24)
    options = {"bilstm_tagger": OPTIONS}
    model = build_model(config, ("bilstm_tagger",), num_labels=3, seed=1, head_options=options)
    save_model(model, tmp_path, extra_config={"maskloom_heads": options})
    with pytest.raises(ConfigError, match="a BiLSTM cannot be exported to ONNX"):
        write_onnx(tmp_path)
