"""The marks around texts, and the truncation between them, for templates of several families."""

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
    with pytest.raises(ConfigError, match="takes no pairs"):
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
