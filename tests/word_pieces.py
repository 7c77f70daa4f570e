"""WordPiece pieces of a word, as strings."""

from maskloom.text.vocabulary import MAX_WORD_LENGTH, Vocabulary, wordpiece_spans


def wordpiece(word: str, vocabulary: Vocabulary, *, max_word_length: int = MAX_WORD_LENGTH) -> list[str]:
    pieces = wordpiece_spans(word, vocabulary, max_word_length=max_word_length)
    return ["[UNK]"] if pieces is None else [vocabulary.tokens[index] for index, _, _ in pieces]
