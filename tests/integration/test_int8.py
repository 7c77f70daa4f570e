"""Eight-bit inference from Python and from the command line."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import maskloom
from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import app
from maskloom.errors import ConfigError
from maskloom.inference import Predictor
from maskloom.layers.processor import int8
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


@pytest.fixture(autouse=True)
def supported():
    try:
        int8.largest_weight()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=24, initializer_range=0.1,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "classifier"), 3, seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=24).save(folder)
    return folder


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(4)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 30))) for _ in range(40)]


def test_every_kind_of_prediction_takes_it(folder, texts):
    plain, quantised = maskloom.load(str(folder)), maskloom.load(str(folder), int8=True)
    expected, found = plain.encode(texts, normalize=True), quantised.encode(texts, normalize=True)
    assert float((expected * found).sum(1).min()) > 0.99
    assert not np.array_equal(expected, found)
    for one, other in zip(plain.predict(texts), quantised.predict(texts), strict=True):
        assert list(one["probabilities"].values()) == pytest.approx(list(other["probabilities"].values()), abs=0.02)
    one, other = (each.fill_mask("alpha [MASK] beta", top_k=13) for each in (plain, quantised))
    by_token = {entry["token"]: entry["probability"] for entry in other[0]}
    assert all(by_token[entry["token"]] == pytest.approx(entry["probability"], abs=0.02) for entry in one[0])


def test_company_does_not_change_a_vector(folder, texts):
    predictor = Predictor.load(folder, int8=True)
    together = predictor.encode(texts)
    alone = np.concatenate([predictor.encode([text]) for text in texts])
    similarity = (together * alone).sum(1) / np.linalg.norm(together, axis=1) / np.linalg.norm(alone, axis=1)
    assert similarity.min() > 0.9999


def test_the_command_writes_what_python_gives(folder, texts, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    command = ["embed", "--model", str(folder), "--input", str(tmp_path / "in.txt"), "--json"]
    vectors = []
    for options, precision, loaded in (
        ([], "fp32", {}),
        (["--int8"], "int8", {"int8": True}),
        (["--bf16"], "bf16", {"precision": "bf16"}),
    ):
        result = CliRunner().invoke(app, [*command, *options, "--output", str(tmp_path / "out.npy")])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["precision"] == precision
        vectors.append(np.load(tmp_path / "out.npy"))
        np.testing.assert_array_equal(vectors[-1], Predictor.load(folder, **loaded).encode(texts))
    assert not any(np.array_equal(vectors[0], others) for others in vectors[1:])
    result = CliRunner().invoke(app, [*command, "--int8", "--bf16", "--output", str(tmp_path / "both.npy")])
    assert "--int8 or --bf16, not both" in f"{result.exception}{result.output}"
    assert not (tmp_path / "both.npy").exists()


def test_the_command_says_what_the_processor_lacks(folder, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("alpha\n")
    monkeypatch.setattr(int8, "_is_exact", lambda largest: False)
    int8.largest_weight.cache_clear()
    try:
        with pytest.raises(ConfigError, match="int8: eight-bit inference needs an x86 processor"):
            maskloom.load(str(folder), int8=True)
        command = ["embed", "--model", str(folder), "--input", str(tmp_path / "in.txt"), "--int8"]
        result = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "out.npy")])
        assert result.exit_code != 0
        assert not (tmp_path / "out.npy").exists()
    finally:
        int8.largest_weight.cache_clear()
