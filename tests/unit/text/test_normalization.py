"""Google's rules for what a word is, case by case."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.text.normalization import (
    has_words,
    split_chunks,
    words,
    words_with_offsets,
    words_with_sources,
)

ANY_TEXT = st.text(st.characters(exclude_categories=[])) | st.text("aΣσ \t\n\x0b\x1c\x85\u2028\u00ad\u0301'!中한ﬁİß.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\r\n", []),
        ("\x00\x01\x7f\x85\ufffd\u200b\u00ad\ufeff\u200d", []),
        ("a\u00a0b\u3000c\u202fd\u2028e\u2029f", ["a", "b", "c", "d", "e", "f"]),
        ("a\u0085b\u200bc\u00add\x0be\x1cf", ["abcdef"]),
        ("\ufeffhi\u200dthere", ["hithere"]),
        ("\u0301", []),
        ("İIıſ", ["iiıſ"]),
        ("ﬁne ＡＢ", ["ﬁne", "ａｂ"]),
        ("☺\ufe0f", ["☺"]),
        ("ΟΔΟΣ ΟΔΟΣ.", ["οδος", "οδος", "."]),
        ("a$b^c`d|e~f", ["a", "$", "b", "^", "c", "`", "d", "|", "e", "~", "f"]),
        ("½①Ⅳ", ["½①ⅳ"]),
        ("ab中文cd", ["ab", "中", "文", "cd"]),
        ("x\U0002b820y", ["x", "\U0002b820", "y"]),
        ("ひらがな 한", ["ひらかな", "\u1112\u1161\u11ab"]),
        ("Héllo, WÖRLD!", ["hello", ",", "world", "!"]),
        ("##ing", ["#", "#", "ing"]),
        ("\ue000x", ["\ue000x"]),
        ("\ud800x", ["\ud800x"]),
    ],
)
def test_uncased_words(text: str, expected: list[str]) -> None:
    assert words(text, lowercase=True) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Héllo he\u0301llo", ["Héllo", "he\u0301llo"]),
        ("☺\ufe0f", ["☺\ufe0f"]),
        ("\u0301", ["\u0301"]),
        ("İ.Ω", ["İ", ".", "Ω"]),
        ("A\x00B C", ["AB", "C"]),
    ],
)
def test_cased_words_keep_their_characters(text: str, expected: list[str]) -> None:
    assert words(text, lowercase=False) == expected


def test_offsets_point_at_the_source() -> None:
    text = "\ufeffHe\u0301llo,\u00a0İs x\u00ad\u0301y"
    found = words_with_offsets(text, lowercase=True)
    assert [(word, text[start:end]) for word, start, end in found] == [
        ("hello", "He\u0301llo"),
        (",", ","),
        ("is", "İs"),
        ("xy", "x\u00ad\u0301y"),
    ]


def test_decomposed_letters_share_a_source() -> None:
    ((word, sources),) = words_with_sources("한x", lowercase=True)
    assert word == "\u1112\u1161\u11abx"
    assert sources == [0, 0, 0, 1]


@given(ANY_TEXT, st.booleans())
@settings(deadline=None)
def test_words_of_chunks_are_the_words_of_the_text(text: str, lowercase: bool) -> None:
    chunks = split_chunks(text)
    assert [word for chunk in chunks for word in words(chunk, lowercase=lowercase)] == words(text, lowercase=lowercase)
    assert has_words(text) == bool(words(text, lowercase=False))


@given(st.text(st.characters(max_codepoint=127)), st.booleans())
@settings(deadline=None)
def test_the_short_cut_for_ascii_follows_the_rules(text: str, lowercase: bool) -> None:
    assert words(text, lowercase=lowercase) == [w for w, _, _ in words_with_offsets(text, lowercase=lowercase)]


@given(ANY_TEXT, st.booleans())
@settings(deadline=None)
def test_each_character_comes_from_its_source(text: str, lowercase: bool) -> None:
    for word, sources in words_with_sources(text, lowercase=lowercase):
        assert word
        for char, source in zip(word, sources, strict=True):
            origin = unicodedata.normalize("NFD", text[source].lower()) if lowercase else text[source]
            assert char in origin or (char == "ς" and text[source] == "Σ")
