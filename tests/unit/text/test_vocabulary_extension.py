"""New pieces compared with the definition: try every candidate, split every word again, take the best."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.word_pieces import wordpiece

from maskloom.errors import ConfigError
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.vocabulary_extension import choose_pieces

CHARACTERS = [*"abc", "##a", "##b", "##c"]


def vocabulary(*tokens: str) -> Vocabulary:
    return Vocabulary([*SPECIAL_TOKENS, *CHARACTERS, *tokens])


def total(counts: dict[str, int], known: Vocabulary) -> int:
    return sum(count * len(wordpiece(word, known)) for word, count in counts.items())


def candidates(counts: dict[str, int], known: Vocabulary, min_frequency: int) -> dict[str, int]:
    """Return how many pieces each candidate saves where its own pieces are adjacent."""
    found: Counter[str] = Counter()
    joined: Counter[str] = Counter()
    for word, count in counts.items():
        cut = wordpiece(word, known)
        for first in range(len(cut)):
            for last in range(first + 1, len(cut)):
                token = cut[first] + "".join(piece[2:] for piece in cut[first + 1 : last + 1])
                found[token] += count
                joined[token] += count * (last - first)
    return {token: joined[token] for token, count in found.items() if count >= min_frequency}


WORDS = st.dictionaries(st.text("abc", min_size=1, max_size=6), st.integers(1, 9), min_size=1, max_size=12)


@given(counts=WORDS, min_frequency=st.integers(1, 3))
@settings(max_examples=50)
def test_the_first_piece_is_the_best_one_and_every_one_saves_what_it_says(
    counts: dict[str, int], min_frequency: int
) -> None:
    known = vocabulary("ab", "##bc")
    chosen = choose_pieces(counts, known, num_pieces=4, min_frequency=min_frequency)
    saved = {
        token: min(joined, total(counts, known) - total(counts, vocabulary("ab", "##bc", token)))
        for token, joined in candidates(counts, known, min_frequency).items()
    }
    # a piece may save more than that where its pieces are not adjacent, which is not searched for
    assert (chosen[0].num_saved if chosen else 0) >= max(saved.values(), default=0)
    assert bool(chosen) == (max(saved.values(), default=0) > 0)
    for piece in chosen:
        grown = Vocabulary([*known.tokens, piece.token])
        assert piece.num_saved == total(counts, known) - total(counts, grown) > 0
        assert list(piece.old_pieces) == _cut_by(vocabulary("ab", "##bc"), piece.token)
        known = grown


def _cut_by(known: Vocabulary, token: str) -> list[str]:
    if not token.startswith("##"):
        return wordpiece(token, known)
    # a one-piece word before the token puts it inside a word
    grown = Vocabulary([*known.tokens, "X"])
    return wordpiece(f"X{token[2:]}", grown)[1:]


def test_what_saves_most_comes_first() -> None:
    # abcabc has five pieces after "a"; bcc occurs less often
    counts = {"abcabc": 10, "bcc": 9, "c": 1000}
    chosen = choose_pieces(counts, vocabulary(), num_pieces=3, min_frequency=1)
    assert [(piece.token, piece.num_saved) for piece in chosen] == [("abcabc", 50), ("bcc", 18)]
    assert chosen[0].old_pieces == ("a", "##b", "##c", "##a", "##b", "##c")


def test_a_part_that_many_words_share_beats_each_of_them() -> None:
    counts = {"abca": 5, "abcb": 5, "abcc": 5, "aabc": 4, "babc": 4, "cabc": 4}
    first, second = choose_pieces(counts, vocabulary(), num_pieces=2, min_frequency=1)
    assert (first.token, first.num_saved) == ("abc", 30)
    assert (second.token, second.num_saved, second.old_pieces) == ("##abc", 24, ("##a", "##b", "##c"))


def test_a_piece_that_would_make_a_word_unknown_is_not_taken() -> None:
    # with "abx", abxy could not be split any more: there is no ##y
    known = Vocabulary([*SPECIAL_TOKENS, "a", "##b", "##x", "##xy"])
    assert wordpiece("abxy", known) == ["a", "##b", "##xy"]
    chosen = choose_pieces({"abx": 100, "abxy": 1}, known, num_pieces=5, min_frequency=2)
    assert "abx" not in [piece.token for piece in chosen]
    assert [piece.token for piece in chosen] == ["ab"]


def test_rare_and_unknown_words_give_nothing() -> None:
    assert choose_pieces({"abc": 2, "zzz": 50}, vocabulary(), num_pieces=5, min_frequency=3) == []
    assert choose_pieces({}, vocabulary(), num_pieces=5, min_frequency=1) == []
    with pytest.raises(ConfigError, match="num_pieces = 0: it must be at least 1"):
        choose_pieces({}, vocabulary(), num_pieces=0, min_frequency=1)
