"""Sentence splitting loses nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.text.normalization import words
from maskloom.text.sentences import MAX_SENTENCE_LENGTH, split_sentences


def test_abbreviations_line_breaks_and_paragraphs() -> None:
    text = "Hello Mr. Smith. How are\nyou? \r\n\r\nA title\n\n\u201cOne. Two.\u201d he said.  \n"
    assert split_sentences(text) == ["Hello Mr. Smith.", "How are you?", "A title", "“One. Two.” he said."]


def test_nothing_comes_of_nothing() -> None:
    assert split_sentences("") == []
    assert split_sentences(" \n\n\x00\n\u00ad ") == []


def test_an_unmatched_quotation_mark_does_not_swallow_a_chapter() -> None:
    text = '"All right, he said. ' + "The evening was long and nobody came. " * 100 + 'Well," she said.'
    sentences = split_sentences(text)
    assert max(map(len, sentences)) < MAX_SENTENCE_LENGTH
    assert len(sentences) > 90


def test_other_languages_and_unknown_ones() -> None:
    assert split_sentences("Das ist z. B. gut. Ja.", language="de") == ["Das ist z. B. gut.", "Ja."]
    assert split_sentences("これは猫です。あれは犬です。", language="ja") == ["これは猫です。", "あれは犬です。"]
    assert split_sentences("One here. Two here.", language="xx") == ["One here.", "Two here."]


@pytest.mark.parametrize("space", ["\u2028", "\x85", "\xa0", "\u3000"])
def test_a_wide_space_before_a_full_stop(space: str) -> None:
    assert split_sentences(f"Plan B{space}. It works.")[-1] == "It works."


@given(st.text("aB .!?\n\t\"'()\x0c\x1c\x85\xa0\u3000\u00ad\u2028“”。😀é") | st.text())
@settings(deadline=None)
def test_no_word_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert [w for s in sentences for w in words(s, lowercase=False)] == words(text, lowercase=False)
    assert all(sentence == sentence.strip() and "\n" not in sentence for sentence in sentences)
