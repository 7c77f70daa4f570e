"""The case of converted models whose tokenizer is not BERT's."""

import json
from pathlib import Path

import pytest
from tests.unit.inference.generators import SIZES

from maskloom.checkpoints.huggingface import save_model
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.gpt_config import GptConfig
from maskloom.runs.convert import conversion_lines, convert
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.unigram_tokenizer import UnigramTokenizer
from maskloom.text.vocabulary import SpecialTokens, Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary


def _trained(**settings):
    return train_vocabulary(["one two three"] * 9, VocabularySettings(size=300, **settings))[0]


def unigram():
    pieces = ["<pad>", "</s>", "<unk>", "▁one", "▁two"]
    special = SpecialTokens(pad="<pad>", unknown="<unk>", end="</s>")
    model = {"type": "Unigram", "unk_id": 2, "byte_fallback": False}
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    rules = json.dumps({"normalizer": None, "pre_tokenizer": space, "decoder": space, "model": model})
    scores = tuple(float(-place) for place in range(len(pieces)))
    return UnigramTokenizer(Vocabulary(pieces, special, prefix=""), lowercase=False, scores=scores, rules=rules)


@pytest.mark.parametrize(
    ("make", "keeps_case"),
    [
        (lambda: _trained(model="byte-bpe", lowercase=False), True),
        (unigram, True),
        (lambda: _trained(model="bpe", lowercase=False), False),
    ],
)
def test_a_tokenizer_that_keeps_case_is_never_called_uncased(tmp_path, make, keeps_case):
    """Regression: --uncased was accepted and reported, but the tokenizer kept the case."""
    tokenizer, source, out = make(), tmp_path / "source", tmp_path / "out"
    config = GptConfig(vocab_size=len(tokenizer.vocabulary), max_position_embeddings=32, **SIZES)
    save_model(build_model(config, ("lm",), seed=3), source)
    tokenizer.save(source)
    if keeps_case:
        with pytest.raises(ConfigError, match=f"--uncased: the tokenizer of {source} keeps the case"):
            convert(source, out, lowercase=True)
        assert not out.exists()
        assert ", cased (" in conversion_lines(convert(source, out))[0]
    else:
        assert ", uncased (as given)" in conversion_lines(convert(source, out, lowercase=True))[0]
    assert Tokenizer.load(out).lowercase is not keeps_case
    assert convert(source, tmp_path / "cased", lowercase=False)["lowercase"] is False


def test_the_working_directory_can_be_converted_but_not_replaced(tmp_path, monkeypatch):
    """Regression: both ended with a traceback."""
    source, tokenizer = tmp_path / "source", _trained(model="bpe", lowercase=False)
    config = GptConfig(vocab_size=len(tokenizer.vocabulary), max_position_embeddings=32, **SIZES)
    save_model(build_model(config, ("lm",), seed=3), source)
    tokenizer.save(source)
    monkeypatch.chdir(source)
    assert convert(Path("."), tmp_path / "out", lowercase=False)["heads"] == ["lm"]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ConfigError, match="this folder is replaced as a whole, so it needs a name"):
        convert(source, Path("."), lowercase=False)
    assert not list((tmp_path / "empty").iterdir())


def test_an_elmo_cannot_be_made_uncased(tmp_path):
    (tmp_path / "options.json").write_text("{}")
    with pytest.raises(ConfigError, match="--uncased: an ELMo reads words as they are spelled"):
        convert(tmp_path, tmp_path / "out", lowercase=True)
