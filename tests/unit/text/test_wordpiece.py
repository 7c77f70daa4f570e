"""Greedy longest match first."""

import pytest
from tests.word_pieces import wordpiece

from maskloom.text.vocabulary import Vocabulary, wordpiece_spans


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
    assert wordpiece_spans("abc", vocabulary) == [(6, 0, 2), (8, 2, 3)]


def test_the_limit_counts_characters() -> None:
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"])
    assert len(wordpiece("a" * 200, vocabulary)) == 200
    assert wordpiece("a" * 201, vocabulary) == ["[UNK]"]
    assert wordpiece("a" * 101, vocabulary, max_word_length=100) == ["[UNK]"]
