"""The vocabulary and its file."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from maskloom.errors import DataError
from maskloom.text.vocabulary import SPECIAL_TOKENS, SpecialTokens, Vocabulary

_END = SpecialTokens(end="<e>")
TOKENS = ["[MASK]", "a", "##b", "[UNK]", "[PAD]", "##", "[SEP]", "[CLS]", "文"]


def test_ids_are_places_and_special_ids_are_looked_up() -> None:
    vocabulary = Vocabulary(TOKENS)
    assert len(vocabulary) == 9
    assert vocabulary.ids["##b"] == 2
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id) == (4, 3, 7)
    assert (vocabulary.sep_id, vocabulary.mask_id) == (6, 0)
    assert vocabulary.special_ids == {0, 3, 4, 6, 7}
    assert "文" in vocabulary.ids
    assert "##文" not in vocabulary.ids
    # a bare "##" is punctuation of the text, not a continuation
    assert np.flatnonzero(vocabulary.is_continuation).tolist() == [2]


@pytest.mark.parametrize(
    ("vocabulary", "text", "words", "bare"),
    [
        (Vocabulary(["a", "##b", *SPECIAL_TOKENS]), "a ##b ##b a [SEP] ##b", [1, 0, 0, 1, 1, 0], "ab"),
        (
            Vocabulary(["a", "b</w>", "<e>"], _END, prefix="", suffix="</w>"),
            "a b</w> a <e> a b</w>",
            [1, 0, 1, 1, 1, 0],
            "ab",
        ),
        (Vocabulary(["Ġa", "b", "<e>"], _END, prefix=""), "b Ġa b b Ġa <e> b", [0, 1, 0, 0, 1, 1, 0], "ab"),
        (Vocabulary(["▁a", "▁", "<e>"], _END, prefix=""), "▁a ▁ ▁a <e>", [1, 1, 1, 1], "a▁"),
    ],
    ids=["prefix", "suffix", "byte-level", "unigram"],
)
def test_pieces_show_where_words_begin(vocabulary: Vocabulary, text: str, words: list[int], bare: str) -> None:
    ids = np.array([vocabulary.ids[token] for token in text.split()])
    assert vocabulary.begins_words(ids).astype(int).tolist() == words
    assert "".join(map(vocabulary.bare, vocabulary.tokens[:2])) == bare


@pytest.mark.parametrize(
    ("vocabulary", "numbers"),
    [
        (Vocabulary(["ab", "##b", "##", *SPECIAL_TOKENS]), [3, 1, 3, 0, 0, 0, 0, 0]),
        (Vocabulary(["a", "b</w>", "<e>"], _END, prefix="", suffix="</w>"), [1, 2, 0]),
        (Vocabulary(["Ġa", "ĠÃ©", "æĿ", "±", "<e>"], _END, prefix=""), [2, 2, 1, 0, 0]),  # é, and 東 in two pieces
        (Vocabulary(["▁£", "▁", "<e>"], _END, prefix=""), [2, 1, 0]),
    ],
    ids=["prefix", "suffix", "byte-level", "unigram"],
)
def test_the_characters_of_pieces_are_those_of_the_text(vocabulary: Vocabulary, numbers: list[int]) -> None:
    assert vocabulary.num_characters.tolist() == numbers


def test_it_is_immutable_equal_by_value_and_can_be_sent_to_another_process() -> None:
    vocabulary = Vocabulary(TOKENS)
    with pytest.raises(AttributeError):
        vocabulary.tokens = ()  # pyright: ignore[reportAttributeAccessIssue]
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary == Vocabulary(tuple(TOKENS))


@pytest.mark.parametrize("lines", ["\n", "\r\n", "\n "])
def test_load_takes_any_line_ends_and_a_missing_last_one(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(lines.join(TOKENS).encode())
    assert Vocabulary.load(path).tokens == tuple(TOKENS)
    path.write_bytes(lines.join([*TOKENS, ""]).encode())
    assert Vocabulary.load(tmp_path).tokens == tuple(TOKENS)
    path.write_bytes(b"\xef\xbb\xbf" + lines.join(TOKENS).encode())
    assert Vocabulary.load(tmp_path).tokens == tuple(TOKENS)


def test_only_line_feeds_end_a_token(tmp_path: Path) -> None:
    tokens = [*TOKENS, "a\u2028b", "c\x85d"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8", newline="")
    assert Vocabulary.load(tmp_path).tokens == tuple(tokens)


def test_save_and_load(tmp_path: Path) -> None:
    Vocabulary(TOKENS).save(tmp_path / "deep" / "vocab.txt")
    assert (tmp_path / "deep" / "vocab.txt").read_bytes() == "\n".join([*TOKENS, ""]).encode()
    assert Vocabulary.load(tmp_path / "deep") == Vocabulary(TOKENS)
    with pytest.raises(DataError, match=r"line 10: token 'x\\ny'"):
        Vocabulary([*TOKENS, "x\ny"]).save(tmp_path / "vocab.txt")


def test_load_reads_a_tokenizer_json_with_added_tokens(tmp_path: Path) -> None:
    ids = {token: index for index, token in enumerate(TOKENS)}
    added = [{"content": "[MASK]", "id": 0}, {"content": "<new>", "id": 9}]
    values = {"model": {"vocab": dict(sorted(ids.items()))}, "added_tokens": added}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    assert Vocabulary.load(tmp_path).tokens == (*TOKENS, "<new>")
    added[1]["id"] = 11
    (tmp_path / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(DataError, match="without gaps"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="not a WordPiece"):
        Vocabulary.load(tmp_path)


def test_errors_name_file_line_and_rule(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "a", "b", "a"]), encoding="utf-8")
    with pytest.raises(DataError, match=r"vocab\.txt, line 8: token 'a' is already on line 6"):
        Vocabulary.load(path)
    path.write_text("\n".join([*SPECIAL_TOKENS, "a", "  ", "b"]), encoding="utf-8")
    with pytest.raises(DataError, match="line 7: the token is empty"):
        Vocabulary.load(path)
    with pytest.raises(DataError, match=r"vocabulary, line 7: token '\\ud800' contains an unpaired surrogate"):
        Vocabulary([*SPECIAL_TOKENS, "é", "\ud800"])
    path.write_text("[PAD]\n[UNK]\na\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no \[CLS\], \[SEP\], \[MASK\] among"):
        Vocabulary.load(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="0 tokens"):
        Vocabulary.load(path)
    path.write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(DataError, match="byte 7 is not UTF-8"):
        Vocabulary.load(path)
    with pytest.raises(DataError, match="No such file"):
        Vocabulary.load(tmp_path / "absent.txt")
    path.unlink()
    with pytest.raises(DataError, match=r"neither vocab\.txt nor"):
        Vocabulary.load(tmp_path)
