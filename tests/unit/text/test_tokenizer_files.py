"""A tokenizer folder: what is written, and what is accepted from folders made elsewhere."""

import json
from pathlib import Path

import pytest
import tokenizers

from maskloom.errors import DataError
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

UNCASED = Vocabulary([*SPECIAL_TOKENS, "a", "##b"])
CASED = Vocabulary([*SPECIAL_TOKENS, "A", "##b"])


def write(folder: Path, name: str, values: object) -> None:
    (folder / name).write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("compatibility", ["google", "hf"])
def test_a_saved_tokenizer_opens_as_it_was(tmp_path: Path, lowercase: bool, compatibility) -> None:
    tokenizer = WordPieceTokenizer(UNCASED, lowercase=lowercase, max_length=99, compatibility=compatibility)
    tokenizer.save(tmp_path / "t")
    names = {"vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
    assert {path.name for path in (tmp_path / "t").iterdir()} == names
    assert Tokenizer.load(tmp_path / "t") == tokenizer
    first = {name: (tmp_path / "t" / name).read_bytes() for name in names}
    tokenizer.token_ids("use it")
    tokenizer.save(tmp_path / "t")
    assert first == {name: (tmp_path / "t" / name).read_bytes() for name in names}
    (tmp_path / "t" / "vocab.txt").unlink()
    assert Tokenizer.load(tmp_path / "t") == tokenizer


def test_saving_leaves_raw_text_without_special_tokens(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer(UNCASED)
    tokenizer.save(tmp_path)
    assert tokenizer.tokens("[MASK]") == ["[UNK]"] * 3


@pytest.mark.parametrize(("vocabulary", "lowercase"), [(UNCASED, True), (CASED, False)])
def test_case_is_read_off_a_bare_vocabulary(tmp_path: Path, vocabulary: Vocabulary, lowercase: bool) -> None:
    vocabulary.save(tmp_path / "vocab.txt")
    found = Tokenizer.load(tmp_path)
    assert (found.lowercase, found.max_length, found.compatibility) == (lowercase, 512, "google")


def test_settings_come_from_the_first_file_that_has_them(tmp_path: Path) -> None:
    UNCASED.save(tmp_path / "vocab.txt")
    write(tmp_path, "config.json", {"max_position_embeddings": 77})
    write(tmp_path, "tokenizer.json", {"normalizer": {"type": "BertNormalizer", "lowercase": False}})
    assert not Tokenizer.load(tmp_path).lowercase
    write(tmp_path, "tokenizer_config.json", {"do_lower_case": True, "model_max_length": 1e30})
    found = Tokenizer.load(tmp_path)
    assert (found.lowercase, found.max_length) == (True, 77)
    write(tmp_path, "tokenizer_config.json", {"model_max_length": 64, "strip_accents": None})
    assert Tokenizer.load(tmp_path).max_length == 64


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tokenizer_config.json", {"do_lower_case": "yes"}, "must be true or false"),
        ("tokenizer_config.json", {"do_lower_case": True, "strip_accents": False}, "strip_accents is False"),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, "tokenize_chinese_chars is false"),
        ("tokenizer_config.json", {"maskloom_compatibility": "x"}, "maskloom_compatibility is 'x'"),
        ("tokenizer_config.json", {"maskloom_compatibility": {"a": 1}}, "maskloom_compatibility is {'a': 1}"),
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class is 'BertJapaneseTok"),
        ("tokenizer_config.json", {"tokenizer_class": "RoFormerTokenizerFast"}, "tokenizer_class is 'RoFormerToken"),
        ("tokenizer_config.json", [1], "expected a JSON object"),
        ("tokenizer.json", {"normalizer": {"type": "NFKC"}}, "the normalizer of tokenizer.json is 'NFKC'"),
    ],
)
def test_rules_that_are_not_those_of_bert_are_refused(tmp_path: Path, name: str, values: object, message: str) -> None:
    UNCASED.save(tmp_path / "vocab.txt")
    write(tmp_path, name, values)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    UNCASED.save(tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower', encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer_config\.json: line 1, column 2: not valid JSON"):
        Tokenizer.load(tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        Tokenizer.load(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"neither vocab\.txt nor"):
        Tokenizer.load(tmp_path / "empty")


def only_json(folder, **changes):
    """Reduce a folder of ours to tokenizer.json, with changes, and without the files that identify it as ours."""
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "a", "##a", "b"])
    WordPieceTokenizer(vocabulary, max_length=512, compatibility="hf").save(folder)
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    values["model"].update(changes.pop("model", {}))
    values["model"] = {key: value for key, value in values["model"].items() if value is not None}
    write(folder, "tokenizer.json", {**values, **changes})
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink()
    return folder


@pytest.mark.parametrize(("longest", "compatibility"), [(100, "hf"), (200, "google")])
def test_a_tokenizer_json_alone_is_followed(tmp_path, longest, compatibility):
    folder = only_json(tmp_path, model={"max_input_chars_per_word": longest})
    tokenizer, library = Tokenizer.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.compatibility == compatibility
    for text in ["a" * 100, "a" * 101, "a" * 200, "a" * 201, "ab", "a b", "a" * 100 + " a"]:
        assert tokenizer.encode(text).ids == library.encode(text).ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "WordLevel"}}, "the model's type is 'WordLevel'; BERT's is 'WordPiece'"),
        ({"model": {"continuing_subword_prefix": "@@"}}, "continuing_subword_prefix is '@@'; BERT's is '##'"),
        ({"model": {"unk_token": "<unk>"}}, "unk_token is '<unk>'"),
        (
            {"model": {"max_input_chars_per_word": 50}},
            r"max_input_chars_per_word is 50; expected 100 \(hf\) or 200 \(google\)",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer is 'Whitespace'"),
        (
            {"model": {"type": None, "continuing_subword_prefix": None}},
            "no type and no continuing_subword_prefix, so the tokenizers library splits no words",
        ),
    ],
)
def test_a_tokenizer_json_alone_with_rules_that_are_not_berts_is_refused(tmp_path, changes, message):
    folder = only_json(tmp_path, **changes)
    with pytest.raises(DataError, match=rf"tokenizer\.json: .*{message}"):
        Tokenizer.load(folder)
    Vocabulary([*SPECIAL_TOKENS, "a"]).save(folder / "vocab.txt")
    assert len(Tokenizer.load(folder).vocabulary) == 6  # a vocab.txt next to it takes precedence
