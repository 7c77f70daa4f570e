"""Encoding: special tokens, segments, truncation, offsets, and the same result on both paths."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.errors import ConfigError
from maskloom.text.normalization import agreed_ranges, is_agreed, split_chunks
from maskloom.text.tokenizer import Encoding, Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

FAST_CHARACTERS = st.one_of(*(st.characters(min_codepoint=a, max_codepoint=b) for a, b in agreed_ranges()))
FAST_TEXT = st.text(st.one_of(FAST_CHARACTERS, st.sampled_from("ab cdeABCé\u0301\u00ad\u2028\x0b中한αβδ.,'")))
ANY_TEXT = st.text(st.characters(exclude_categories=[]) | st.sampled_from("abcABCΣσ \x1c\x85\u2028.[]ßİ한"))


@pytest.fixture(scope="module")
def tokenizer(letters_vocabulary: Vocabulary) -> Tokenizer:
    return WordPieceTokenizer(letters_vocabulary)


def ids_of(tokenizer: Tokenizer, tokens: str) -> list[int]:
    return [tokenizer.vocabulary.ids[token] for token in tokens.split()]


def test_single_text_and_pair(tokenizer: Tokenizer) -> None:
    single = tokenizer.encode("ABC the.")
    assert single.ids == ids_of(tokenizer, "[CLS] abc the . [SEP]")
    assert single.segments == [0] * 5
    assert single.words == [None, 0, 1, 2, None]
    assert single.offsets == [(0, 0), (0, 3), (4, 7), (7, 8), (0, 0)]
    assert single.num_truncated == 0
    pair = tokenizer.encode("the", "x Abbc")
    assert pair.ids == ids_of(tokenizer, "[CLS] the [SEP] x ab ##bc [SEP]")
    assert pair.segments == [0, 0, 0, 1, 1, 1, 1]
    assert pair.words == [None, 0, None, 0, 1, 1, None]
    assert pair.offsets == [(0, 0), (0, 3), (0, 0), (0, 1), (2, 4), (4, 6), (0, 0)]


@pytest.mark.parametrize("pair", [None, "", "  ", "\x00"])
def test_a_pair_without_tokens_is_none(tokenizer: Tokenizer, pair: str | None) -> None:
    assert tokenizer.encode("the x", pair) == tokenizer.encode("the x")


def test_empty_first_texts(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").ids == ids_of(tokenizer, "[CLS] [SEP]")
    assert tokenizer.encode("", "x").segments == [0, 0, 1, 1]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.token_ids("") == []


def pop_one_by_one(first: list[str], second: list[str], room: int) -> None:
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()


@pytest.mark.parametrize("num_first", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("num_second", [1, 2, 5, 8])
@pytest.mark.parametrize("limit", [3, 4, 5, 8, 9, 13, 40])
def test_pairs_lose_the_last_token_of_the_longer_side(
    tokenizer: Tokenizer, num_first: int, num_second: int, limit: int
) -> None:
    first, second = list("abcdefghi"[:num_first]), list("jklmnopq"[:num_second])
    encoding = tokenizer.encode(" ".join(first), " ".join(second), max_length=limit)
    pop_one_by_one(first, second, limit - 3)
    ends = [*second, "[SEP]"] if second else []
    assert encoding.ids == ids_of(tokenizer, " ".join(["[CLS]", *first, "[SEP]", *ends]))
    assert encoding.num_truncated == num_first + num_second - len(first) - len(second)
    assert encoding.segments == [0] * (len(first) + 2) + [1] * len(ends)


def test_a_single_text_keeps_its_start(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a b c", max_length=5).num_truncated == 0
    cut = tokenizer.encode("a b c", max_length=4)
    assert (cut.ids, cut.num_truncated) == (ids_of(tokenizer, "[CLS] a b [SEP]"), 1)
    assert len(cut.words) == len(cut.offsets) == len(cut.segments) == 4


def test_limits_are_checked(letters_vocabulary: Vocabulary) -> None:
    small = WordPieceTokenizer(letters_vocabulary, max_length=16)
    assert small.encode("a " * 40).num_truncated == 26
    with pytest.raises(ConfigError, match="max_length = 17: the model's limit is 16"):
        small.encode("a", max_length=17)
    with pytest.raises(ConfigError, match="take 3"):
        small.encode("a", "b", max_length=2)
    with pytest.raises(ConfigError, match="max_length = 2"):
        WordPieceTokenizer(letters_vocabulary, max_length=2)
    with pytest.raises(ConfigError, match="'google', 'hf'"):
        WordPieceTokenizer(letters_vocabulary, compatibility="bert")  # pyright: ignore[reportArgumentType]


def test_special_tokens_in_a_text_are_plain_text_unless_asked(letters_vocabulary: Vocabulary) -> None:
    tokenizer = WordPieceTokenizer(letters_vocabulary)
    assert "[MASK]" not in tokenizer.tokens("a [MASK] b")
    parsed = tokenizer.encode("the[MASK]Σ [SEP]", parse_special_tokens=True)
    assert parsed.ids == ids_of(tokenizer, "[CLS] the [MASK] σ [SEP] [SEP]")
    assert parsed.words == [None, 0, 1, 2, 3, None]
    assert parsed.offsets == [(0, 0), (0, 3), (3, 9), (9, 10), (11, 16), (0, 0)]
    kept = WordPieceTokenizer(letters_vocabulary, compatibility="hf")
    assert kept.tokens("the[MASK]") == ["the", "[MASK]"]
    assert kept.encode_batch([("the[MASK]", None), ("a", "[PAD] b")])[1].ids == ids_of(
        kept, "[CLS] a [SEP] [PAD] b [SEP]"
    )


@pytest.mark.parametrize(("compatibility", "limit"), [("google", 200), ("hf", 100)])
def test_word_length_limits(letters_vocabulary: Vocabulary, compatibility, limit: int) -> None:
    tokenizer = WordPieceTokenizer(letters_vocabulary, compatibility=compatibility)
    for odd in ("", "Σ"):
        assert "[UNK]" not in tokenizer.tokens("x" * (limit - len(odd)) + odd)
        assert tokenizer.tokens("x" * (limit + 1 - len(odd)) + odd) == ["[UNK]"]


def test_cased_keeps_accents_and_uncased_drops_them(letters_vocabulary: Vocabulary) -> None:
    assert WordPieceTokenizer(letters_vocabulary, lowercase=False).tokens("Éé") == ["[UNK]"]
    assert WordPieceTokenizer(letters_vocabulary, lowercase=False).tokens("Aé") == ["A", "##é"]
    assert WordPieceTokenizer(letters_vocabulary, lowercase=True).tokens("Aé") == ["a", "##e"]


def test_odd_input(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("x", "y").segments == [0, 0, 0, 1, 1]
    assert tokenizer.tokens("x \ud800 y") == ["x", "[UNK]", "y"]
    assert WordPieceTokenizer(tokenizer.vocabulary, compatibility="hf").tokens("x \ud800") == ["x", "[UNK]"]


@given(text=FAST_TEXT, lowercase=st.booleans())
@settings(deadline=None)
def test_library_and_rules_agree_on_ids_words_and_offsets(
    letters_vocabulary: Vocabulary, text: str, lowercase: bool
) -> None:
    tokenizer = WordPieceTokenizer(letters_vocabulary, lowercase=lowercase)
    assert is_agreed(text)
    assert tokenizer._pieces([text], False)[0] == tokenizer._pieces_by_rules(text)


def by_rules(tokenizer: Tokenizer, *texts: str | None) -> Encoding:
    """Return [CLS] A [SEP] B [SEP] of the pieces that the published rule gives for each text separately."""
    rows: list[tuple] = [(tokenizer.vocabulary.cls_id, 0, None, (0, 0))]
    for segment, text in enumerate(texts):
        found = tokenizer._pieces_by_rules(text or "")
        if found.ids or segment == 0:
            pieces = zip(found.ids, found.words, found.offsets, strict=True)
            rows += [(index, segment, word, offset) for index, word, offset in pieces]
            rows.append((tokenizer.vocabulary.sep_id, segment, None, (0, 0)))
    return Encoding(*map(list, zip(*rows, strict=True)), 0)


@given(texts=st.lists(ANY_TEXT | FAST_TEXT, max_size=4), lowercase=st.booleans())
@settings(deadline=None, max_examples=70)
def test_batches_chunks_and_single_texts_follow_the_published_rule(
    letters_vocabulary: Vocabulary, texts: list[str], lowercase: bool
) -> None:
    tokenizer = WordPieceTokenizer(letters_vocabulary, lowercase=lowercase, max_length=10_000)
    pairs = [(text, other) for text, other in zip(texts, [*texts[1:], None], strict=False)]
    expected = [by_rules(tokenizer, *pair) for pair in pairs]
    assert tokenizer.encode_batch(pairs) == expected
    assert [tokenizer.encode(*pair) for pair in pairs] == expected
    ids = [tokenizer._pieces_by_rules(text).ids for text in texts]
    assert tokenizer.token_ids_batch(texts) == ids
    for text, expected_ids in zip(texts, ids, strict=True):
        assert tokenizer.token_ids(text) == expected_ids
        assert [i for part in tokenizer.token_ids_batch(split_chunks(text)) for i in part] == expected_ids


@given(text=ANY_TEXT)
@settings(deadline=None)
def test_offsets_lie_in_the_text_and_words_ascend(letters_vocabulary: Vocabulary, text: str) -> None:
    encoding = WordPieceTokenizer(letters_vocabulary).encode(text)
    words = [word for word in encoding.words if word is not None]
    assert words == sorted(words)
    assert set(words) == set(range(len(set(words))))
    assert all(0 <= start < end <= len(text) for start, end in encoding.offsets[1:-1])
    assert isinstance(encoding, Encoding)


def test_decode(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "[CLS] abc ##bc , the ##ing [MASK] [SEP]")
    assert tokenizer.decode(ids) == "abcbc , theing"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "[CLS] abcbc , theing [MASK] [SEP]"
    assert tokenizer.decode(ids_of(tokenizer, "##bc a")) == "bc a"  # as a generated text may begin
    assert tokenizer.decode([]) == ""


def test_it_can_be_sent_to_another_process(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.token_ids("warm up the library")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy == tokenizer
    assert copy.encode("the x, Σ") == tokenizer.encode("the x, Σ")


# runs of one or two characters, long enough to be shortened
LONG_WORD = st.builds(
    lambda unit, number: unit * number,
    st.sampled_from(
        ["a", "É", "e\u0301", "\u0301", "ก", "\u0e31", "🙂", "\u00ad", "\u200d", "。", "İ", "ﬁ", "각", "\x7f"]
    ),
    st.integers(250, 1600),
)


@settings(max_examples=50, deadline=None)
@given(
    text=st.lists(FAST_TEXT | ANY_TEXT | LONG_WORD, max_size=6).map("".join), size=st.integers(1, 12), hf=st.booleans()
)
def test_a_text_in_parts_is_the_text_in_one(letters_vocabulary: Vocabulary, text: str, size: int, hf: bool) -> None:
    tokenizer = WordPieceTokenizer(letters_vocabulary, max_length=10_000, compatibility="hf" if hf else "google")
    whole = tokenizer.encode(text, parse_special_tokens=True), tokenizer.token_ids(text)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("tokenizer", "wordpiece_tokenizer"):
            patch.setattr(f"maskloom.text.{module}.LONGEST_PART", size)
        assert (tokenizer.encode(text, parse_special_tokens=True), tokenizer.token_ids(text)) == whole
        assert tokenizer.encode_batch([(text, text), ("a b", None)])[0].ids == tokenizer.encode(text, text).ids


def test_a_long_text_keeps_the_places_of_its_words(tokenizer: Tokenizer) -> None:
    text = "The abc, 中 x. " * 5000
    encoding = WordPieceTokenizer(tokenizer.vocabulary, max_length=10**6).encode(text)
    assert tokenizer.token_ids(text) == encoding.ids[1:-1] == tokenizer.token_ids("The abc, 中 x. ") * 5000
    assert [text[start:end] for start, end in encoding.offsets[-7:-1]] == ["The", "abc", ",", "中", "x", "."]
    assert encoding.words[-2] == 5000 * 6 - 1
