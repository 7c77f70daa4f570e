import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from maskloom.errors import ConfigError
from maskloom.tasks.kinds import SPAN
from maskloom.tasks.settings import SpanSettings
from maskloom.tasks.span import encoding
from maskloom.tasks.span.encoding import encode_questions
from maskloom.tasks.span.reading import Answer, Question
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

read_questions = SPAN.read
TOKENS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("who", "?", "john", "##ny", "smith", "(", ")", "-", "1895", "1943", ".", "japan", "##ese", "the", "'", "s", "a"),
]  # fmt: skip
QUESTION = "who?"


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(Vocabulary(TOKENS))


def question(context, *answers, number=1, text=QUESTION):
    spans = tuple(Answer(answer, context.index(answer)) for answer in answers)
    return Question(id=f"q{number}", question=text, context=context, answers=spans, line=number)


def labels_of(encoded):
    assert encoded.labels is not None
    return encoded.labels.tolist()


def label_tokens(encoded, window=0):
    """Return the tokens from the start label to the end label of a window."""
    batch = encoded.batch(np.array([window]))
    start, end = batch.labels[0]
    return [TOKENS[index] for index in batch.token_ids[start : end + 1]]


@pytest.mark.parametrize(
    ("context", "answer", "expected"),
    [
        ("the john smith (1895-1943).", "1895", ["1895"]),
        ("the john smith (1895-1943).", "smith (1895", ["smith", "(", "1895"]),
        ("a japanese a", "japan", ["japan"]),
        ("a johnny a", "hnny", ["john", "##ny"]),
        ("smith's smith's", "smith", ["smith"]),
        ("a\u202fJohn", "John", ["john"]),
        ("a\u00a0john smith", "john", ["john"]),
        ("Jóhn smith", "Jóhn smith", ["john", "smith"]),
    ],
)
def test_labels_are_the_pieces_of_the_answer(tokenizer, context, answer, expected):
    assert (
        label_tokens(encode_questions([question(context, answer)], tokenizer, SpanSettings(), max_length=40))
        == expected
    )


def test_the_first_equal_span_of_the_answer_s_words_is_taken(tokenizer):
    # both 1895 are in one word, and the search is within that word
    context = "a 1895-1895 a"
    answers = (Answer("1895", 7),)
    encoded = encode_questions([Question("q", QUESTION, context, answers, 1)], tokenizer, SpanSettings(), max_length=40)
    assert labels_of(encoded) == [[5, 5]]


def test_only_the_five_blanks_part_words(tokenizer):
    texts = (" a\u00a0b\tc\u202fd\u3000e\u2028f\r\ng\vh ", "ab  cd")
    questions = [Question(text, QUESTION, text, None, 1) for text in texts]
    found, where = encode_questions(questions, tokenizer, SpanSettings(), max_length=40).contexts
    assert found.words(0, len(found.starts) - 1) == ["a\u00a0b", "c", "d\u3000e\u2028f", "g\vh"]
    assert [where.word_at(place) for place in range(6)] == [0, 0, 0, 0, 1, 1]
    assert where.place_in_context(0, 4) == 5
    assert where.place_in_context(1, 0) == 4


def test_a_batch_is_cls_question_sep_context_sep(tokenizer):
    encoded = encode_questions([question("the john", "john")], tokenizer, SpanSettings(), max_length=20)
    batch = encoded.batch(np.array([0]))
    tokens = [TOKENS[index] for index in batch.token_ids]
    assert tokens == ["[CLS]", "who", "?", "[SEP]", "the", "john", "[SEP]"]
    assert batch.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[5, 5]]
    assert encoded.lengths.tolist() == [7]


def test_windows_without_the_whole_answer_point_at_cls(tokenizer):
    context = "a " * 20 + "john smith " + "the " * 5
    encoded = encode_questions([question(context, "john smith")], tokenizer, SpanSettings(stride=4), max_length=15)
    _, starts, lengths = encoded.windows.T
    assert starts.tolist() == [0, 4, 8, 12, 16, 20]
    for window, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        inside = start <= 20 and start + length >= 22
        assert labels_of(encoded)[window] == ([20 - start + 4, 21 - start + 4] if inside else [0, 0])
    assert encoded.account()["num_windows_without_answer"] == 3
    assert len(encoded) == 6
    assert encoded.num_examples == 1


def test_questions_are_cut_and_must_leave_room(tokenizer):
    long = question("the john", "john", text="who? " * 10)
    encoded = encode_questions(
        [long, question("a john", "john", number=2)], tokenizer, SpanSettings(max_question_length=5), max_length=20
    )
    assert [len(ids) for ids in encoded.question_ids] == [5, 2]
    assert encoded.account()["num_cut_questions"] == 1
    assert "1 question truncated" in encoded.notes(Path("x"))[0]
    with pytest.raises(ConfigError, match="max_length 8: a question of 5 pieces and 3 special tokens leave no room"):
        encode_questions([long], tokenizer, SpanSettings(max_question_length=5), max_length=8)
    assert len(encode_questions([long], tokenizer, SpanSettings(max_question_length=5), max_length=9)) == 2


def test_answers_that_cannot_be_aligned_are_left_out_of_training_and_listed(tokenizer):
    questions = [
        question("the john", "john", number=1),
        question("a\u00a0john smith", "a\u00a0john", number=2),
        question("\u200b john", "\u200b", number=3),
        Question("q4", QUESTION, "the john", (), 4),
    ]
    training = encode_questions(questions, tokenizer, SpanSettings(), max_length=20, for_training=True)
    assert [kept.id for kept in training.questions] == ["q1", "q4"]
    assert training.unaligned == training.account()["unaligned"] == ["q2", "q3"]
    assert "answers of 2 of 4 questions" in training.notes(Path("x"))[0]
    assert "left out of training: q2, q3" in training.notes(Path("x"))[0]
    assert labels_of(training) == [[5, 5], [0, 0]]
    scored = encode_questions(questions, tokenizer, SpanSettings(), max_length=20)
    assert [kept.id for kept in scored.questions] == ["q1", "q2", "q3", "q4"]
    assert labels_of(scored) == [[5, 5], [0, 0], [0, 0], [0, 0]]
    assert "scored by their text" in scored.notes(Path("x"))[0]


def test_without_answers_there_are_no_labels(tokenizer):
    questions = [question("the john", "john"), Question("q2", QUESTION, "the john", None, 2)]
    encoded = encode_questions(questions, tokenizer, SpanSettings(), max_length=20)
    assert encoded.labels is None
    assert encoded.batch(np.array([1, 0])).labels is None
    assert "num_windows_without_answer" not in encoded.account()


def test_a_context_without_pieces_has_one_empty_window(tokenizer):
    encoded = encode_questions(
        [Question("q", QUESTION, "\u200b \x01", (), 1)], tokenizer, SpanSettings(), max_length=20
    )
    assert encoded.lengths.tolist() == [5]
    assert labels_of(encoded) == [[0, 0]]


def test_each_context_is_tokenised_once_for_its_questions(tokenizer, monkeypatch):
    seen = []
    encode = encoding._encode_context
    monkeypatch.setattr(encoding, "_encode_context", lambda text, *how: seen.append(text) or encode(text, *how))
    contexts = ["the john", "a smith", "the john"]
    questions = [question(text, text.split()[1], number=number) for number, text in enumerate(contexts)]
    encoded = encode_questions(questions, tokenizer, SpanSettings(), max_length=20)
    assert len(seen) == encoded.account()["num_contexts"] == 2
    assert encoded.contexts[0] is encoded.contexts[2] is not encoded.contexts[1]


def test_parts_are_the_whole_in_order(tokenizer):
    questions = [question("a " * size + "john", "john", number=size) for size in (3, 30, 1, 12, 40)]
    encoded = encode_questions(questions, tokenizer, SpanSettings(stride=4), max_length=15)
    for limit in (1, 3, 8, 1000):
        parts = list(encoded.parts(limit))
        assert [kept.id for part in parts for kept in part.questions] == [kept.id for kept in questions]
        assert all(len(part) <= limit or part.num_examples == 1 for part in parts)
        batches = [part.batch(np.arange(len(part))) for part in parts]
        whole = encoded.batch(np.arange(len(encoded)))
        for name in ("token_ids", "segment_ids", "lengths", "labels"):
            assert np.concatenate([getattr(batch, name) for batch in batches]).tolist() == getattr(whole, name).tolist()


def test_memory_does_not_grow_with_the_windows_of_a_long_context(tokenizer):
    context = "the john smith " * 40_000
    questions = [Question(f"q{number}", QUESTION, context, None, number) for number in range(20)]
    tracemalloc.start()
    encoded = encode_questions(questions, tokenizer, SpanSettings(), max_length=384)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(encoded) > 18_000
    # 120,000 words at 24 bytes each; as 32-bit numbers, the windows' ids alone would take over 25 MB
    assert held < 5 * 2**20


@pytest.mark.slow
@pytest.mark.realdata
def test_windows_of_the_whole_dev_set(data_folder, minilm_folder):
    data = read_questions(data_folder / "qa" / "squad" / "dev-v1.1.json")
    encoded = encode_questions(data.examples, Tokenizer.load(minilm_folder), SpanSettings(), max_length=384)
    assert len(encoded) == 10_833  # 10,784 if 128 is taken as the overlap
    assert encoded.account()["num_contexts"] == 2_067
    assert encoded.unaligned == []
    assert encoded.lengths.max() == 384
