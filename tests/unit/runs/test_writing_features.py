import json
import sys

import numpy as np
import pytest
import torch

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import main
from maskloom.data.feature_files import FeatureFile
from maskloom.errors import ConfigError, DataError
from maskloom.layers.layer_mix import LayerCombination
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs import features as module
from maskloom.runs.features import Activations, features, write_features
from maskloom.runs.info import describe_folder
from maskloom.tasks.encoding import encode_examples
from maskloom.tasks.examples import Example
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.tagging.features import all_tokens
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["the", "cat", "sat", "on", "a", "mat"]
TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]), max_length=16)
CONFIG = BertConfig(
    vocab_size=11, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=16, initializer_range=0.3,
)  # fmt: skip
LAST = LayerCombination.of("last", 4)


@pytest.fixture(scope="module")
def model():
    return build_model(CONFIG, (), seed=1)


@pytest.fixture
def units():
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, size=draw.integers(1, 12))) for _ in range(40)]
    examples = [Example(text, None, None, line) for line, text in enumerate(texts, start=1)]
    return all_tokens(encode_examples(examples, TOKENIZER, max_length=16))


@pytest.fixture
def model_folder(model, tmp_path):
    save_model(model, tmp_path / "model")
    TOKENIZER.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_stopped_call_goes_on_where_it_was(model, units, tmp_path, monkeypatch):
    whole = write_features(tmp_path / "whole", model, LAST, units, model_sum="m")
    monkeypatch.setattr(module, "PROCESSOR_TOKENS", 60)
    monkeypatch.setattr(module, "_BATCHES_BETWEEN_MARKS", 2)
    calls = []
    forward = module.frozen_vectors

    def stopping(model, batch, *others):
        calls.append(len(batch.lengths))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return forward(model, batch, *others)

    monkeypatch.setattr(module, "frozen_vectors", stopping)
    with pytest.raises(KeyboardInterrupt):
        write_features(tmp_path / "parts", model, LAST, units, model_sum="m")
    assert not (tmp_path / "parts").exists()
    num_kept = sum(calls[:4])  # the fifth batch was written but not marked
    parts = write_features(tmp_path / "parts", model, LAST, units, model_sum="m")
    assert sum(calls[6:]) == 40 - num_kept
    np.testing.assert_allclose(parts.array, whole.array, atol=1e-5)
    assert np.array_equal(parts.offsets, whole.offsets)
    num_calls = len(calls)
    write_features(tmp_path / "parts", model, LAST, units, model_sum="m")
    assert len(calls) == num_calls


def test_features_of_another_model_are_refused(model, units, tmp_path):
    write_features(tmp_path / "out", model, LAST, units, model_sum="m")
    with pytest.raises(DataError, match=r"manifest\.json: these features are from another model"):
        write_features(tmp_path / "out", model, LAST, units, model_sum="n")


def test_broken_weights_are_named(units, tmp_path):
    broken = build_model(CONFIG, (), seed=1)
    with torch.no_grad():
        broken.encoder.word_embeddings.fill_(float("nan"))
    with pytest.raises(DataError, match="out: activations are not finite in precision"):
        write_features(tmp_path / "out", broken, LAST, units, model_sum="m")


@pytest.mark.parametrize(("units", "num_rows"), [(None, 5 + 4), ("words", 3 + 2)])
def test_texts_by_token_or_word(model_folder, tmp_path, units, num_rows):
    path = tmp_path / "texts.txt"
    path.write_text("The cat sat\na mat\n")
    result = features(model_folder, path, tmp_path / "out", wanted=Activations(units=units, layers="sum_last_four"))
    assert (result["num_units"], result["num_rows"], result["vectors"]) == (2, num_rows, ["sum_last_four"])
    names = [json.loads(line) for line in (tmp_path / "out" / "tokens.jsonl").read_text().splitlines()]
    assert [name["line"] for name in names] == [1, 2]
    words = {"words": ["a", "mat"]} if units else {"tokens": ["[CLS]", "a", "mat", "[SEP]"]}
    assert names[1] == {"index": 1, "line": 2, **words}


def test_a_folder_of_features_is_described(model_folder, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat sat\n")
    features(model_folder, tmp_path / "texts.txt", tmp_path / "out", wanted=Activations("last"))
    found = describe_folder(tmp_path / "out")
    assert (found["kind"], found["vectors"], found["num_rows"]) == ("features", ["4"], 5)


def test_long_texts_are_cut_and_counted(model_folder, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the cat sat on a mat\na\n")
    result = features(model_folder, path, tmp_path / "out", max_length=5)
    assert (result["num_rows"], result["num_truncated_examples"]) == (5 + 3, 1)


def test_skipped_sentences_are_counted(model_folder, tmp_path):
    """Regression: nothing told that they were missing."""
    path = tmp_path / "words.jsonl"
    path.write_text('{"tokens": ["the", "cat"]}\n{"tokens": []}\n{"tokens": ["mat"]}\n')
    wanted, reading = Activations("last"), ReadingOptions(on_bad_rows="skip")
    result = features(model_folder, path, tmp_path / "out", wanted=wanted, reading=reading)
    assert (result["num_units"], result["data"]["num_kept"]) == (2, 2)
    assert result["data"]["dropped"] == {"a sentence without words": 1}


def test_an_empty_choice_of_layers_is_refused(model_folder, tmp_path):
    (tmp_path / "words.conll").write_text("the O\n")
    with pytest.raises(ConfigError, match="layers = '': neither layer numbers nor one of"):
        features(model_folder, tmp_path / "words.conll", tmp_path / "out", wanted=Activations(layers=""))


def test_the_command_writes_the_same(model_folder, tmp_path, monkeypatch, capsys):
    path = tmp_path / "words.conll"
    path.write_text("the O\ncat O\n\nmat O\n")
    features(model_folder, path, tmp_path / "direct", wanted=Activations(layers="-1,0"))
    arguments = ["--model", str(model_folder), "--input", str(path), "--out", str(tmp_path / "out"), "--layers", "-1,0"]
    monkeypatch.setattr(sys, "argv", ["maskloom", "features", *arguments, "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["num_rows"], printed["vectors"]) == (3, ["4", "0"])
    assert np.array_equal(FeatureFile.open(tmp_path / "out").array, FeatureFile.open(tmp_path / "direct").array)
    rows = [json.loads(line) for line in (tmp_path / "out" / "tokens.jsonl").read_text().splitlines()]
    assert [row["words"] for row in rows] == [["the", "cat"], ["mat"]]


def test_a_file_in_half_precision_is_half_as_large(model_folder, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("the cat sat\n")
    sizes = [
        features(model_folder, path, tmp_path / precision, wanted=Activations(precision=precision))["num_bytes"]
        for precision in ("float32", "float16")
    ]
    assert sizes == [5 * 4 * 8 * 4, 5 * 4 * 8 * 2]
