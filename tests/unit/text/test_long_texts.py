"""Long texts are processed in parts."""

from maskloom.text.tokenizer import LONGEST_PART, parts_of


def test_a_text_is_cut_where_common_characters_end_words() -> None:
    text = "word " * LONGEST_PART
    parts = list(parts_of(text))
    assert "".join(part for _, part in parts) == text
    assert all(text.startswith(part, position) for position, part in parts)
    assert all(part[0] == " " and LONGEST_PART <= len(part) < LONGEST_PART + 5 for _, part in parts[1:-1])


def test_without_such_characters_a_text_stays_whole() -> None:
    text = "wörd。" * LONGEST_PART
    assert list(parts_of(text)) == [(0, text)]
    assert list(parts_of("")) == []
