"""WordPiece matching: a word into the longest pieces that the vocabulary holds, from left to right."""

from __future__ import annotations

from maskloom.text.vocabulary import CONTINUATION_PREFIX, Vocabulary

MAX_WORD_LENGTH = 200


def wordpiece(word: str, vocabulary: Vocabulary, *, max_word_length: int = MAX_WORD_LENGTH) -> list[str]:
    """Cut a word into pieces, greedy longest match first (paper 3.2; Google's rule).

    A word that is longer than `max_word_length` characters, or that cannot be matched to its end, is one [UNK].
    """
    pieces = wordpiece_spans(word, vocabulary, max_word_length=max_word_length)
    return ["[UNK]"] if pieces is None else [vocabulary.tokens[index] for index, _, _ in pieces]


def wordpiece_spans(
    word: str, vocabulary: Vocabulary, *, max_word_length: int = MAX_WORD_LENGTH
) -> list[tuple[int, int, int]] | None:
    """Cut a word into (token id, first character, end character) triples, or None where the word is unknown."""
    if len(word) > max_word_length:
        return None
    ids = vocabulary.ids
    pieces = []
    start = 0
    while start < len(word):
        prefix = CONTINUATION_PREFIX if start else ""
        for end in range(len(word), start, -1):
            index = ids.get(prefix + word[start:end])
            if index is not None:
                pieces.append((index, start, end))
                start = end
                break
        else:
            return None
    return pieces
