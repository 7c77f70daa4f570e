"""Sentence splitting loses nothing."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.errors import ConfigError
from maskloom.text import sentences as sentences_module
from maskloom.text.normalization import words
from maskloom.text.sentences import MAX_SENTENCE_LENGTH, check_language, sentences_of_long_text, split_sentences


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


def novel() -> str:
    rng = random.Random(0)
    words = [
        "the",
        "river",
        "Mr. Bell",
        "said,",
        "“It",
        "ran.”",
        '"Yes,"',
        "under",
        "stone.",
        "bridges!",
        "\n",
        "so",
        "slept",
    ]
    return " ".join(rng.choices(words, k=6000))


@pytest.mark.parametrize("separator", [" ", "\n\n"])
def test_a_long_text_is_split_window_by_window_as_at_once(separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences_module, "_PIECE_BYTES", 500)
    monkeypatch.setattr(sentences_module, "_WINDOW_BYTES", 6000)
    monkeypatch.setattr(sentences_module, "_MARGIN", 1500)
    # every part closes its quotation marks, as paragraphs do
    text = separator.join(f"“Yes, {line} now.” He left." for line in re.sub('[“”"]', "", novel()).split("\n"))
    assert list(sentences_of_long_text(text.encode())) == split_sentences(text)


@pytest.mark.parametrize("text", ["word " * 3000, "é" * 3000, "“" + "One. " * 3000, novel()])
def test_no_word_of_a_long_text_is_lost(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences_module, "_PIECE_BYTES", 100)
    monkeypatch.setattr(sentences_module, "_WINDOW_BYTES", 1000)
    monkeypatch.setattr(sentences_module, "_MARGIN", 100)
    found = list(sentences_of_long_text(text.encode()))
    assert "".join(found).replace(" ", "") == "".join(text.split())
    assert len(found) > 5


@pytest.mark.parametrize("language", ["german", "de_DE", "EN", "zz", "sv"])
def test_a_language_without_rules_is_refused_with_those_that_have_some(language: str) -> None:
    with pytest.raises(ConfigError, match=rf"language is '{language}', which has no sentence rules; .* fr, "):
        check_language(language)


def test_every_language_that_is_offered_is_accepted() -> None:
    for language in ("en", "de", "pt", "zh", "ja"):
        check_language(language)


@given(st.text("aB .!?\n\t\"'()\x0c\x1c\x85\xa0\u3000\u00ad\u2028“”。😀é") | st.text())
@settings(deadline=None)
def test_no_word_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert [w for s in sentences for w in words(s, lowercase=False)] == words(text, lowercase=False)
    assert all(sentence == sentence.strip() and "\n" not in sentence for sentence in sentences)
