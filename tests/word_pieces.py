"""WordPiece pieces of a word, as strings."""

from maskloom.text.vocabulary import Vocabulary, longest_pieces


def wordpiece(word: str, vocabulary: Vocabulary) -> list[str]:
    pieces = longest_pieces(word, vocabulary.ids)
    return ["[UNK]"] if pieces is None else [piece for piece, _, _ in pieces]
