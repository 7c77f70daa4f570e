"""Long texts are processed in parts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.text import long_texts
from maskloom.text.long_texts import LONGEST_PART, Part, parts_of


def _split(text: str) -> list[str]:
    """Split at spaces and around ideographic full stops, dropping soft hyphens."""
    return text.replace("\u00ad", "").replace("。", " 。 ").split()


def test_what_is_common_to_cut_at_is_cut_at() -> None:
    text = "word " * LONGEST_PART
    parts = list(parts_of(text, lambda _: pytest.fail("nothing is to be asked")))
    assert "".join(part.text for part in parts) == text
    assert all(LONGEST_PART <= len(part.text) < LONGEST_PART + 5 for part in parts[:-1])


def test_where_nothing_common_comes_the_kinds_of_characters_tell() -> None:
    text = "wörd。" * LONGEST_PART
    parts = list(parts_of(text, _split))
    assert "".join(part.text for part in parts) == text
    assert all(part.text[0] == "。" and len(part.text) < LONGEST_PART + 5 for part in parts[1:])


@pytest.mark.parametrize(("before", "after"), [("", ""), ("x。", "。y"), ("\u00ad" * 3000, "\u00ad" * 3000)])
def test_the_middle_of_a_word_too_long_to_be_known_is_left_out(before: str, after: str) -> None:
    text = before + "a\u00adb" * 100_000 + after
    parts = list(parts_of(text, _split))
    assert sum(len(part.text) for part in parts) < 10_000
    words = [word for part in parts for word in _split(part.text) if len(word) > 1]
    assert len(words) == 1
    assert len(words[0]) == 257
    assert parts[0].place_in_text(0) == 0
    assert parts[-1].place_in_text(len(parts[-1].text)) == len(text)


def test_a_part_knows_where_its_places_were() -> None:
    part = Part(10, "x abc y", ((4, 100), (6, 5)))
    assert [part.place_in_text(offset) for offset in (0, 2, 4, 5, 6, 7)] == [10, 12, 14, 115, 116, 122]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(str.__mul__, st.sampled_from(["a", "\u00ad", "。", "ab\u00ad", " ", "a。"]), st.integers(1, 1500)),
        max_size=8,
    ).map("".join)
)
def test_words_stay_but_for_the_middles_of_long_ones(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "LONGEST_PART", 300)
        found = [word for part in parts_of(text, _split) for word in _split(part.text)]
    expected = _split(text)
    assert [len(word) for word in found if len(word) < 257] == [len(word) for word in expected if len(word) < 257]
    assert [min(len(word), 257) for word in found] == [min(len(word), 257) for word in expected]
