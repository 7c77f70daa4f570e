from pathlib import Path

import numpy as np
import pytest

from maskloom.tasks.choices import ChoiceExample
from maskloom.tasks.classification import encode_choices
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ran"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]), max_length=32)


def example(context: str, *choices: str, stem: str = "", label: int | None = 0, line: int = 1):
    return ChoiceExample(context, stem, choices, label, line)


EXAMPLES = [
    example("the cat", "sat", "ran on a mat", stem="and", label=1),
    example("a mat", "and a cat", "the", label=0, line=2),
    example("the", "cat sat on the mat", "a", label=1, line=3),
]


def test_a_batch_holds_the_pairs_of_its_examples_in_order(tokenizer):
    encoded = encode_choices(EXAMPLES, tokenizer, max_length=32)
    batch = encoded.batch(np.array([2, 0]))
    expected = [tokenizer.encode(*pair) for index in (2, 0) for pair in EXAMPLES[index].pairs()]
    assert batch.token_ids.tolist() == [token for encoding in expected for token in encoding.ids]
    assert batch.segment_ids.tolist() == [segment for encoding in expected for segment in encoding.segments]
    assert batch.lengths.tolist() == [len(encoding.ids) for encoding in expected]
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 1]
    assert (batch.indices.tolist(), batch.num_choices.tolist()) == ([2, 0], [2, 2])
    assert {array.dtype for array in (batch.token_ids, batch.segment_ids, batch.lengths)} == {np.dtype(np.int64)}


def test_units_are_examples(tokenizer):
    encoded = encode_choices(EXAMPLES, tokenizer, max_length=32)
    sizes = [sum(len(tokenizer.encode(*pair).ids) for pair in one.pairs()) for one in EXAMPLES]
    assert encoded.lengths.tolist() == sizes
    assert len(encoded) == encoded.num_examples == 3


def test_splitting_a_batch_counts_examples(tokenizer):
    encoded = encode_choices(EXAMPLES, tokenizer, max_length=32)
    parts = encoded.batch(np.arange(3)).split(2)
    assert [part.indices.tolist() for part in parts] == [[0, 1], [2]]
    assert parts[1].token_ids.tolist() == encoded.batch(np.array([2])).token_ids.tolist()


def test_what_does_not_fit_is_cut_and_counted(tokenizer):
    encoded = encode_choices(EXAMPLES, tokenizer, max_length=7)
    assert np.diff(encoded.offsets).max() == 7
    account = encoded.account()
    # "the cat" with "and ran on a mat" has 10 tokens, "the" with "cat sat on the mat" 9; "a mat", "and a cat" has 8
    assert (account["num_truncated_examples"], account["num_truncated_tokens"]) == (3, 3 + 1 + 2)
    assert "3 of 3 examples exceed 7 tokens and lose 6 tokens" in encoded.notes(Path("f.csv"))[0]
    assert encode_choices(EXAMPLES, tokenizer, max_length=32).notes(Path("f.csv")) == []


def test_examples_without_labels_have_none(tokenizer):
    encoded = encode_choices([example("the cat", "a", "on", label=None)], tokenizer, max_length=9)
    assert encoded.labels is None
    assert encoded.batch(np.array([0])).labels is None


def test_examples_of_differing_numbers_of_choices_stand_together(tokenizer):
    mixed = [EXAMPLES[0], example("a", "a", "on", "cat", "mat ran on", label=3), EXAMPLES[2]]
    encoded = encode_choices(mixed, tokenizer, max_length=32)
    assert encoded.account()["num_choices"] == 2 + 4 + 2
    batch = encoded.batch(np.array([1, 0, 2]))
    assert batch.num_choices.tolist() == [4, 2, 2]
    alone = [encode_choices([one], tokenizer, max_length=32) for one in mixed]
    assert encoded.lengths.tolist() == [int(one.lengths[0]) for one in alone]
    for index, part in zip((1, 0, 2), batch.split(1), strict=True):
        expected = alone[index].batch(np.array([0]))
        assert part.token_ids.tolist() == expected.token_ids.tolist()
        assert part.lengths.tolist() == expected.lengths.tolist()
        assert (part.labels.tolist(), part.num_choices.tolist()) == (expected.labels.tolist(), [len(expected.lengths)])
    assert encode_choices(mixed, tokenizer, max_length=6).account()["num_truncated_examples"] == 3


def test_nothing_encodes_to_nothing(tokenizer):
    assert len(encode_choices([], tokenizer, max_length=9)) == 0
