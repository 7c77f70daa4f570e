"""Vocabularies that several tests of text use."""

import pytest

from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary


@pytest.fixture(scope="session")
def paper_vocabulary() -> Vocabulary:
    """The eleven tokens of Google's own tokenizer test, with the two special tokens that it lacks."""
    return Vocabulary(
        ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "[PAD]", "[MASK]"]
    )


@pytest.fixture(scope="session")
def letters_vocabulary() -> Vocabulary:
    """Letters of some scripts and some pieces, so that most random words are split rather than unknown."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEéßıʼnαβγδοςσдж한中文🙂한0123456789" + "".join(map(chr, range(33, 48)))
    pieces = ["ab", "abc", "##bc", "the", "##ing", "##e\u0301", "αβ", "##δος"]
    bare = dict.fromkeys(letters)
    return Vocabulary([*SPECIAL_TOKENS, *bare, *(f"##{char}" for char in bare), *pieces])
