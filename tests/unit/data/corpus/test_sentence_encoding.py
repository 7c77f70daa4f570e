"""The cached encoder compared with the tokenizer, sentence by sentence."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoded_texts import encode_all

from maskloom.data.corpus import sentence_encoding
from maskloom.data.corpus.sentence_encoding import EncodedDocuments, SentenceEncoder, token_type
from maskloom.text import sentences as text_sentences
from maskloom.text.sentences import split_sentences
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnoprstuvwyz"
VOCABULARY = Vocabulary(
    [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "##ing", "é", ".", ",", "!", "[", "]", "中"]
)
# any character, with a preference for those with special rules
CHARACTERS = st.one_of(
    st.characters(codec="utf-8"), st.sampled_from("aA1. [],\t\r\x0b\x85\u00a0\u2028\u0301éΣσİ中\0\ufffd\u200b")
)
TEXTS = [
    "The cat sat, reading. The dog ran!\n\nThe end.",
    "Été élan\u0301 e\u0301 Ünknown 中国 the\u00adthe a\x85b a\x1cb \x01 the",
    "[MASK] the[MASK]the http://" + "long" * 40 + " the.",
    "\x01\n\x02",
    "one\ntwo\n\nthree",
    "the\0 the a\0 \0the",
]


def decoded(encoded: EncodedDocuments, dtype: str = "<u2") -> list[list[list[int]]]:
    flat = iter(np.frombuffer(encoded.tokens, dtype).tolist())
    lengths = iter(encoded.sentence_lengths.tolist())
    found = [[[next(flat) for _ in range(next(lengths))] for _ in range(n)] for n in encoded.document_lengths.tolist()]
    assert next(flat, None) is next(lengths, None) is None
    return found


def expected(tokenizer: Tokenizer, texts: list[str], sentences: str) -> list[list[list[int]]]:
    split = split_sentences if sentences == "split" else lambda text: text.split("\n")
    found = [[tokenizer.token_ids(sentence) for sentence in split(text)] for text in texts]
    return [kept for document in found if (kept := [ids for ids in document if ids])]


@pytest.mark.parametrize("sentences", ["split", "lines"])
@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("compatibility", ["google", "hf"])
def test_the_ids_are_those_of_the_tokenizer(sentences, lowercase: bool, compatibility) -> None:
    tokenizer = WordPieceTokenizer(VOCABULARY, lowercase=lowercase, compatibility=compatibility)
    encoder = SentenceEncoder(tokenizer, sentences=sentences)
    for _ in range(2):  # with an empty cache, then with a filled one
        encoded = encode_all(encoder, TEXTS)
        assert decoded(encoded) == expected(tokenizer, TEXTS, sentences)
        assert encoded.num_empty_documents == 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(CHARACTERS, max_size=40), min_size=1, max_size=4), st.booleans(), st.sampled_from(["google", "hf"])
)
def test_any_text_gives_the_ids_of_the_tokenizer(texts: list[str], lowercase: bool, compatibility) -> None:
    tokenizer = WordPieceTokenizer(VOCABULARY, lowercase=lowercase, compatibility=compatibility)
    encoded = encode_all(SentenceEncoder(tokenizer, sentences="lines"), texts)
    assert decoded(encoded) == expected(tokenizer, texts, "lines")
    num_lines = sum(text.count("\n") + 1 for text in texts)
    assert encoded.num_empty_sentences + len(encoded.sentence_lengths) == num_lines


def test_a_full_cache_and_small_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = WordPieceTokenizer(VOCABULARY)
    monkeypatch.setattr(sentence_encoding, "MAX_CACHED_WORDS", 12)
    monkeypatch.setattr(sentence_encoding, "_BLOCK_BYTES", 10)
    encoder = SentenceEncoder(tokenizer, sentences="split")
    assert decoded(encode_all(encoder, TEXTS * 3)) == expected(tokenizer, TEXTS * 3, "split")
    assert len(encoder._known) <= 12 + 5  # words of a block


def test_documents_are_taken_from_the_list_while_they_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_encoding, "_BLOCK_BYTES", 3)
    documents = [b"the a", b"a", b"the"]
    left = [len(documents) for _ in SentenceEncoder(WordPieceTokenizer(VOCABULARY), sentences="lines").parts(documents)]
    assert left == [2, 0, 0]  # the beginning of the long document; its end and the others; the last count


@pytest.mark.parametrize("sentences", ["split", "lines"])
@pytest.mark.parametrize("compatibility", ["google", "hf"])
def test_long_documents_and_lines_are_encoded_piece_by_piece(
    sentences, compatibility, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_encoding, "_BLOCK_BYTES", 20)
    monkeypatch.setattr(sentence_encoding, "_LONGEST_RUN", 400)
    texts = [
        "The cat sat, reading. " * 9 + "\n\n" + "the dog [MASK] ran!\n" * 9,
        "the,the,the(the)the" * 9 + "ΑΣ.Α,ΑΣ," * 9 + "中国the[MASK]" * 9,
        "\n\n\x01" * 30,
        "x" * 300 + " the",
    ]
    tokenizer = WordPieceTokenizer(VOCABULARY, compatibility=compatibility)
    encoder = SentenceEncoder(tokenizer, sentences=sentences)
    parts = list(encoder.parts([text.encode() for text in texts]))
    assert len(parts) > 40
    assert decoded(encode_all(encoder, texts)) == expected(tokenizer, texts, sentences)
    assert encode_all(encoder, texts).num_empty_documents == 1


@pytest.mark.parametrize("unit", ["a\n", "a ", "A b. ", "x", ".", "é ", "😀", "中", "A b.\n\n"])
@pytest.mark.parametrize("sentences", ["split", "lines"])
def test_memory_does_not_hang_on_the_shape_of_a_text(sentences, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_encoding, "_BLOCK_BYTES", 1 << 11)
    monkeypatch.setattr(sentence_encoding, "_LONGEST_RUN", 1 << 11)
    monkeypatch.setattr(text_sentences, "_PIECE_BYTES", 1 << 11)
    monkeypatch.setattr(text_sentences, "_WINDOW_BYTES", 1 << 13)
    monkeypatch.setattr(text_sentences, "_MARGIN", 1 << 6)
    size = 1 << (17 if unit == "😀" else 16)  # few tokens take little memory
    content = (unit * (size // len(unit.encode()))).encode()
    encoder = SentenceEncoder(WordPieceTokenizer(VOCABULARY), sentences=sentences)
    encode_all(encoder, ["a"])
    tracemalloc.start()
    try:
        num_tokens = sum(len(part.tokens) for part in encoder.parts([content]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_tokens
    # encoding the whole document in one call takes about sixty times its bytes
    assert peak < 1 << 20


def test_a_run_without_any_end_of_a_word_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_encoding, "_BLOCK_BYTES", 20)
    monkeypatch.setattr(sentence_encoding, "_LONGEST_RUN", 400)
    tokenizer = WordPieceTokenizer(VOCABULARY, lowercase=False)
    encoded = encode_all(SentenceEncoder(tokenizer, sentences="lines"), ["é" * 1000 + " the\nthe"])
    the = VOCABULARY.ids["the"]
    assert decoded(encoded) == [[[VOCABULARY.unk_id] * 5 + [the], [the]]]


def test_long_words_are_not_kept() -> None:
    encoder = SentenceEncoder(WordPieceTokenizer(VOCABULARY), sentences="lines")
    encode_all(encoder, ["the " + "é" * 80 + " " + "x" * 300 + " a"])
    assert len(encoder._known) == 2


def test_ids_take_two_bytes_while_they_fit() -> None:
    assert token_type(65_536) == np.dtype("<u2")
    assert token_type(65_537) == np.dtype("<u4")
    large = WordPieceTokenizer(Vocabulary([*SPECIALS, *(f"w{index}" for index in range(70_000))]))
    encoded = encode_all(SentenceEncoder(large, sentences="lines"), ["w69999 w1"])
    assert decoded(encoded, "<u4") == [[[70_004, 6]]]
