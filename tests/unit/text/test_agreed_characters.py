"""The library splits every character that it is given as Google's rules do."""

import itertools

import pytest
from tokenizers.normalizers import BertNormalizer  # pyright: ignore[reportAttributeAccessIssue]
from tokenizers.pre_tokenizers import BertPreTokenizer  # pyright: ignore[reportAttributeAccessIssue]

from maskloom.text.normalization import agreed_ranges, is_agreed, words


def test_ranges_ascend_and_leave_out_the_known_differences() -> None:
    ranges = agreed_ranges()
    assert all(first <= last for first, last in ranges)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))
    for char in "Σ\ue000\U0002b820\u061d\u09fd\u0898\U0010ffff\ud800\U0003134a":
        assert not is_agreed(f"a{char}b")
    assert is_agreed("Grüße, “naïve” Ελλάδα, дом, 中文, 한국어, ひらがな, שלום, العربية, हिन्दी, ไทย 😀 €5 – 10²\n")


# The ideographs and Hangul syllables of Unicode are many and alike: of ranges of thousands, a part is tried each time.
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_single_one_agrees_in_several_surroundings(lowercase: bool, stride: int) -> None:
    normalizer = BertNormalizer(True, True, None, lowercase)
    splitter = BertPreTokenizer()
    whole = [range(first, last + 1) for first, last in agreed_ranges()]
    assert sum(map(len, whole)) > 90_000
    parts = [codes if len(codes) < 2000 else sorted({*codes[::stride], codes[-1]}) for codes in whole]
    chars = [chr(code) for codes in parts for code in codes]
    for start in range(0, len(chars), 64):
        # spaces separate the characters, so that one difference cannot hide another
        part = chars[start : start + 64]
        # without lowercasing, no character is decomposed and joined to its neighbours
        text = " ".join(f"a{char}b A{char}{char}B 1{char} {char}" if lowercase else f"a{char}B {char}" for char in part)
        assert is_agreed(text)
        cut = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        assert cut == words(text, lowercase=lowercase), f"from U+{ord(chars[start]):04X}"
