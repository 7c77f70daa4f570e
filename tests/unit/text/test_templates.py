"""The marks around texts, and truncation between them, for the templates of several model families."""

import numpy as np
import pytest

from maskloom.errors import ConfigError
from maskloom.text.templates import BERT_TEXTS, GPT_TEXTS, ONE_TEXT, RUNNING_TEXT, SequenceTemplate
from maskloom.text.vocabulary import GPT_TOKENS, SPECIAL_TOKENS, SpecialTokens, Vocabulary

BERT = Vocabulary([*SPECIAL_TOKENS, "a"])
GPT = Vocabulary([*GPT_TOKENS.tokens, "a</w>"], GPT_TOKENS, prefix="", suffix="</w>")


@pytest.mark.parametrize(
    ("pattern", "vocabulary", "marks"),
    [
        (BERT_TEXTS, BERT, (["[CLS]"], ["[SEP]"], ["[SEP]"])),
        (GPT_TEXTS, GPT, (["<start>"], ["<delimiter>"], ["<extract>"])),
        (RUNNING_TEXT, GPT, ([], [], ["<end>"])),
        (RUNNING_TEXT, BERT, ([], [], [])),
        ("A separator B separator classify", BERT, ([], ["[SEP]"], ["[SEP]", "[CLS]"])),
    ],
)
def test_a_pattern_of_roles_becomes_ids(pattern: str, vocabulary: Vocabulary, marks: tuple[list[str], ...]) -> None:
    found = SequenceTemplate.of(pattern, vocabulary)
    assert (found.begin, found.middle, found.end) == tuple(tuple(vocabulary.ids[t] for t in part) for part in marks)


def test_marks_are_counted_and_pairs_without_a_mark_between_refused() -> None:
    assert [SequenceTemplate.of(BERT_TEXTS, BERT).num_marks(number) for number in (1, 2)] == [2, 3]
    with pytest.raises(ConfigError, match="cannot encode pairs"):
        SequenceTemplate.of(ONE_TEXT, GPT).num_marks(2)


def test_roles_may_be_shared_or_absent() -> None:
    one = Vocabulary(["x", "<|endoftext|>"], SpecialTokens(begin="<|endoftext|>", end="<|endoftext|>"), prefix="")
    assert one.special.tokens == ("<|endoftext|>",)
    assert (one.begin_id, one.end_id, one.special_ids) == (1, 1, {1})
    assert one.is_mark.tolist() == [False, True]
    with pytest.raises(ConfigError, match=r"no 'mask' token; its special tokens: <.endoftext.>"):
        _ = one.mask_id


def test_a_token_is_bare_without_the_mark_of_its_place_in_a_word() -> None:
    assert [BERT.bare(token) for token in ("##ed", "##", "a", "a</w>")] == ["ed", "##", "a", "a</w>"]
    assert [GPT.bare(token) for token in ("##ed", "a</w>", "a")] == ["##ed", "a", "a"]
    assert not GPT.is_continuation.any()


@pytest.mark.parametrize(("pattern", "vocabulary"), [(BERT_TEXTS, BERT), (GPT_TEXTS, GPT), (RUNNING_TEXT, GPT)])
@pytest.mark.parametrize("num_texts", [1, 2])
def test_frames_have_the_marks_and_room_for_the_texts(pattern: str, vocabulary: Vocabulary, num_texts: int) -> None:
    template = SequenceTemplate.of(pattern, vocabulary, has_segments=vocabulary is BERT)
    if num_texts == 2 and not template.middle:
        return
    first, second, text = np.array([2, 0, 1]), np.array([1, 3, 0]), len(vocabulary) - 1
    frames = template.frames(first, second if num_texts == 2 else None)
    expected_ids, expected_segments, lengths = [], [], []
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        behind = [] if num_texts == 1 else [*template.middle, *[text] * b]
        ids = [*template.begin, *[text] * a, *behind, *template.end]
        num_b = 0 if num_texts == 1 else b + len(template.end)
        expected_ids += ids
        expected_segments += [0] * (len(ids) - num_b) + [int(template.has_segments)] * num_b
        lengths.append(len(ids))
    for places, sizes in ((frames.first, first), (frames.second, second))[:num_texts]:
        for place, size in zip(places.tolist(), sizes.tolist(), strict=True):
            frames.token_ids[place : place + size] = text
    assert frames.token_ids.tolist() == expected_ids
    assert frames.segment_ids.tolist() == expected_segments
    assert frames.lengths.tolist() == lengths
    if num_texts == 2:
        starts = np.cumsum(frames.lengths) - frames.lengths
        assert (template.second_places(first) == frames.second - starts).all()
        assert (frames.lengths - first - second == template.num_marks(2)).all()


def test_the_whole_of_a_sequence_is_where_it_is_classified() -> None:
    lengths = np.array([5, 3])
    assert SequenceTemplate.of(BERT_TEXTS, BERT).whole_places(lengths).tolist() == [0, 0]
    assert SequenceTemplate.of(GPT_TEXTS, GPT).whole_places(lengths).tolist() == [4, 2]
