"""Greedy longest match first."""

import pytest
from tests.word_pieces import wordpiece

from maskloom.text.vocabulary import Vocabulary, longest_pieces
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("unwanted", ["un", "##want", "##ed"]),
        ("running", ["runn", "##ing"]),
        ("unwantedx", ["[UNK]"]),
        ("want", ["want"]),
        ("", []),
        ("edwant", ["[UNK]"]),
    ],
)
def test_words_of_the_published_test(word: str, expected: list[str], paper_vocabulary: Vocabulary) -> None:
    assert wordpiece(word, paper_vocabulary) == expected


def test_longest_match_wins_even_where_it_leads_nowhere() -> None:
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "ab", "##b", "##c", "##bcd"])
    assert wordpiece("abcd", vocabulary) == ["[UNK]"]
    assert longest_pieces("abc", vocabulary.ids) == [("ab", 0, 2), ("##c", 2, 3)]


def test_the_limit_counts_characters() -> None:
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"])
    for compatibility, limit in (("google", 200), ("hf", 100)):
        tokenizer = WordPieceTokenizer(vocabulary, compatibility=compatibility)
        assert len(tokenizer._pieces_by_rules("a" * limit).ids) == limit
        assert tokenizer._pieces_by_rules("a" * (limit + 1)).ids == [1]
