"""Folders with added tokens, encoded exactly as by transformers' BertTokenizerFast."""

import json
import random
from dataclasses import replace
from itertools import chain, pairwise

import pytest
from tokenizers import AddedToken
from transformers import BertTokenizerFast

from maskloom.data.corpus.sentence_encoding import SentenceEncoder
from maskloom.errors import ConfigError, DataError
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS

pytestmark = pytest.mark.parity
PIECES = [
    *SPECIAL_TOKENS,
    "a",
    "covid",
    "##covid",
    "the",
    "##19",
    "19",
    "-",
    "drug",
    "##s",
    "!",
    "[",
    "]",
    "中",
    "[unused1]",
]
ADDED = [
    AddedToken("covid", single_word=True),
    AddedToken("COVID-19", normalized=False),
    AddedToken("[DRUG]", special=True, normalized=False),
    AddedToken("<e>", lstrip=True),
    AddedToken("</e>", rstrip=True, special=True),
    AddedToken("c++", lstrip=True, rstrip=True, single_word=True),
    AddedToken("Ångström", normalized=True),
    AddedToken("Straße", normalized=False, lstrip=True),
    AddedToken("[unused1]", special=True),
    AddedToken("##x"),
    AddedToken("中文"),
    AddedToken("##19", normalized=False, single_word=True),
]  # fmt: skip
PARTS = [
    *(token.content for token in ADDED), *(token.content.swapcase() for token in ADDED), *SPECIAL_TOKENS, *PIECES,
    " ", "  ", "\t", "\n", "\u00a0", "\u200b", "ANGSTROM", "Ångstro\u0308m", "x", "é", "_", "9",
    "c+", "\x00", "\U0001f600", "a" * 101,
]  # fmt: skip


def texts(number=150):
    draw = random.Random(5)
    return ["", " ", *("".join(draw.choices(PARTS, k=draw.randint(1, 9))) for _ in range(number))]


@pytest.fixture(params=["tokenizer.json", "added_tokens_decoder", "added_tokens.json", "special_tokens_map.json"])
def folder(request, tmp_path):
    """A folder in each of the layouts that transformers has used."""
    tokenizer = BertTokenizerFast(dict(zip(PIECES, range(len(PIECES)), strict=True)), do_lower_case=True)
    tokenizer.add_tokens(ADDED)
    if request.param == "tokenizer.json":
        tokenizer.save_pretrained(tmp_path)
        return tmp_path
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    known = {token: number for number, token in tokenizer.added_tokens_decoder.items()}
    if request.param == "added_tokens_decoder":
        config["added_tokens_decoder"] = {str(number): token.__getstate__() for token, number in known.items()}
    else:
        numbers = {token.content: number for token, number in known.items() if number >= len(PIECES)}
        (tmp_path / "added_tokens.json").write_text(json.dumps(numbers), encoding="utf-8")
        marks = {"additional_special_tokens": ["[DRUG]", "</e>", "[unused1]"]}
        if request.param == "special_tokens_map.json":
            (tmp_path / request.param).write_text(json.dumps(marks), encoding="utf-8")
        else:
            config |= marks
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def assert_equal(ours: Tokenizer, theirs: BertTokenizerFast) -> None:
    found = texts()
    pairs = [(text, pair) for text, pair in pairwise(found) if ours.token_ids(pair)]  # a pair without tokens is none
    for text, pair in [*((text, None) for text in found), *pairs]:
        limit = 24 if pair is None else 512  # of two texts of equal length, another one is cut
        encoding = ours.encode(text, pair, max_length=limit)
        expected = theirs(text, pair, truncation=True, max_length=limit, return_offsets_mapping=True)
        assert encoding.ids == expected["input_ids"], (text, pair)
        if pair is None:
            assert encoding.offsets == expected["offset_mapping"], text
    long = " ".join(found * 8)
    assert ours.token_ids(long) == theirs(long, add_special_tokens=False, verbose=False)["input_ids"]


def test_added_tokens_are_found_as_by_transformers_and_kept(folder, tmp_path):
    """Regression: such folders were refused."""
    ours, theirs = Tokenizer.load(folder), BertTokenizerFast.from_pretrained(folder)
    assert len(ours.vocabulary) == len(theirs)
    for number, token in theirs.added_tokens_decoder.items():
        assert ours.vocabulary.tokens[number] == token.content
    assert_equal(ours, theirs)
    ours.save(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again") == ours
    assert_equal(Tokenizer.load(tmp_path / "again"), BertTokenizerFast.from_pretrained(tmp_path / "again"))


def test_a_corpus_has_the_ids_of_its_lines(folder):
    ours = Tokenizer.load(folder)
    lines = [" ".join(text.split()) for text in texts()]
    (part,) = SentenceEncoder(ours, sentences="lines").parts(["\n".join(lines).encode()])
    expected = [ids for ids in ours.token_ids_batch(lines) if ids]
    assert part.sentence_lengths.tolist() == [*map(len, expected)]
    assert part.tokens == b"".join(number.to_bytes(2, "little") for ids in expected for number in ids)
    chunks = ["the", "c++", "[DRUG]covid,", "Ångström!"]
    assert [*chain(*ours.chunk_ids_batch(chunks))] == ours.token_ids("the c++ [DRUG]covid, Ångström!")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"content": "new york", "id": 19},
            "the added token 'new york' is not supported: it must be text without white",
        ),
        ({"content": "new", "id": 20}, "the added token 'new' has the id 20; its place in the vocabulary is 19"),
        ({"content": "new", "id": 19, "lstrip": "yes"}, "the added token 'new': lstrip is 'yes'; it must be true or"),
        ({"content": 5, "id": 19}, "the added token 5 is not supported"),
        ({"content": "new", "id": "19"}, "is not an added token with content and id"),
        (["new"], "is not an added token with content and id"),
    ],
)
def test_damaged_added_tokens_are_named(tmp_path, values, message):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [values]}), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path)


def test_googles_rules_have_no_added_tokens(folder):
    with pytest.raises(ConfigError, match="Google's rules have no added tokens, but this vocabulary does"):
        replace(Tokenizer.load(folder), compatibility="google")
