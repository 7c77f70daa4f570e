"""Answers and tags on a GPT: its marks, its pieces of words or bytes, and the characters that they came from."""

from collections.abc import Callable

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from maskloom.errors import ConfigError
from maskloom.tasks.settings import SpanSettings
from maskloom.tasks.span.encoding import encode_questions
from maskloom.tasks.span.reading import Answer, Question
from maskloom.tasks.span.task import TextFinder, decode_answers
from maskloom.tasks.tagging.encoding import encode_sentences
from maskloom.tasks.tagging.features import sentence_words
from maskloom.tasks.tagging.reading import TaggedSentence
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SpecialTokens, Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary

CONTEXT = "The lower river, (1895-1943) was low."
QUESTION = "How low?"


def of_words() -> Tokenizer:
    return train_vocabulary([CONTEXT, QUESTION], VocabularySettings(size=50, min_frequency=1, model="bpe"))[0]


def of_bytes(*, prefix_space: bool = False) -> Tokenizer:
    merges = (("l", "o"), ("lo", "w"), ("Ġ", "low"), ("Ġlow", "er"), ("1", "8"), ("Ġ", "("), ("e", "r"), ("18", "9"))
    merges = (merges[6], *merges[:6], merges[7])
    tokens = [*sorted(ByteLevel.alphabet()), *map("".join, merges), "<|endoftext|>"]
    special = SpecialTokens(begin="<|endoftext|>", end="<|endoftext|>")
    vocabulary = Vocabulary(tokens, special, prefix="")
    return BytePairTokenizer(vocabulary, merges, lowercase=False, prefix_space=prefix_space).with_task_tokens()


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "words": of_words,
    "bytes": of_bytes,
    "bytes behind a space": lambda: of_bytes(prefix_space=True),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def question(*answers: str) -> Question:
    found = tuple(Answer(answer, CONTEXT.index(answer)) for answer in answers)
    return Question("q", QUESTION, CONTEXT, found, 1)


def sentence(text: str) -> TaggedSentence:
    words = tuple(text.split())
    return TaggedSentence(words, tuple("O" for _ in words), 1, columns=tuple((word,) for word in words))


def in_a_text(tokenizer: Tokenizer, words: str) -> list[int]:
    """Return the ids of words inside a text, where a space precedes the first one too."""
    return tokenizer.token_ids(words if tokenizer.cuts_at_white_space else f" {words}")


def test_a_window_is_a_pair_by_the_template(tokenizer: Tokenizer) -> None:
    encoded = encode_questions([question("river")], tokenizer, SpanSettings(), max_length=100)
    batch, template = encoded.batch(np.array([0])), tokenizer.template
    ids = [*tokenizer.token_ids(QUESTION), *template.middle, *in_a_text(tokenizer, CONTEXT)]
    assert batch.token_ids.tolist() == [*template.begin, *ids, *template.end]
    assert not batch.segment_ids.any()
    assert encoded.lengths.tolist() == batch.lengths.tolist() == [len(batch.token_ids)]


@pytest.mark.parametrize("answer", ["lower", "The", "1895", "lower river", "was low", "1895-1943", CONTEXT])
def test_labels_and_answers_are_the_characters_of_the_answer(tokenizer: Tokenizer, answer: str) -> None:
    encoded = encode_questions([question(answer)], tokenizer, SpanSettings(), max_length=100)
    assert encoded.labels is not None
    outputs = np.zeros((int(encoded.lengths[0]), 2), dtype=np.float32)
    outputs[encoded.labels[0], [0, 1]] = 9.0
    settings = SpanSettings(max_answer_length=100)
    (found,) = decode_answers(encoded, [outputs], settings)
    # with a space before every text, an answer inside a word has no pieces of its own: the whole word is returned
    assert isinstance(tokenizer, BytePairTokenizer)
    is_inside = tokenizer.prefix_space and answer in ("1895", "1895-1943")
    assert found.text == ("(1895-1943)" if is_inside else answer)
    assert found.best["start"] is not None
    assert CONTEXT[found.best["start"] : found.best["end"]] == found.text


def test_no_answer_is_the_token_that_has_read_all(tokenizer: Tokenizer) -> None:
    max_length = len(tokenizer.token_ids(QUESTION)) + 3 + 6
    encoded = encode_questions([question()], tokenizer, SpanSettings(stride=5), max_length=max_length)
    assert len(encoded) > 1
    assert encoded.labels is not None
    assert encoded.labels.tolist() == [[length - 1] * 2 for length in encoded.lengths.tolist()]
    assert encoded.account()["num_windows_without_answer"] == len(encoded)
    outputs = [np.zeros((length, 2), dtype=np.float32) for length in encoded.lengths.tolist()]
    for row in outputs:
        row[-1] = 3.0
    outputs[-1][-1] = 2.0
    (found,) = decode_answers(encoded, outputs, SpanSettings(has_unanswerable=True))
    assert (found.text, found.null_odds) == ("", 4.0)


def test_a_question_leaves_room_beside_the_marks(tokenizer: Tokenizer) -> None:
    size = len(tokenizer.token_ids(QUESTION))
    with pytest.raises(ConfigError, match=f"a question of {size} pieces and 3 special tokens leave no room"):
        encode_questions([question()], tokenizer, SpanSettings(), max_length=size + 3)
    assert encode_questions([question()], tokenizer, SpanSettings(), max_length=size + 4).lengths.max() == size + 4


def test_a_tokenizer_without_marks_takes_no_questions() -> None:
    bare = of_bytes()
    bare = BytePairTokenizer(Vocabulary(bare.vocabulary.tokens, SpecialTokens(), prefix=""), (), lowercase=False)
    with pytest.raises(ConfigError, match="cannot encode pairs"):
        encode_questions([question()], bare, SpanSettings(), max_length=100)
    data = encode_sentences([sentence("low")], bare, max_length=10, labels=("O",))
    assert data.batch(np.array([0])).token_ids.tolist() == bare.token_ids(" low")


def test_first_pieces_of_words_stand_between_the_marks(tokenizer: Tokenizer) -> None:
    data = encode_sentences([sentence("The lower river"), sentence("low")], tokenizer, max_length=40, labels=("O",))
    batch, template = data.batch(np.array([1, 0])), tokenizer.template
    assert batch.labels is not None
    sequences = [(*template.begin, *in_a_text(tokenizer, words), *template.end) for words in ("low", "The lower river")]
    assert batch.token_ids.tolist() == [token for ids in sequences for token in ids]
    sizes = [len(in_a_text(tokenizer, word)) for word in ("The", "lower", "river")]
    places = [1, *(len(sequences[0]) + 1 + np.cumsum([0, *sizes[:2]]))]
    assert np.flatnonzero(batch.labels == 0).tolist() == places
    rows = [np.arange(length)[:, None] for length in data.lengths]
    assert data.word_rows(rows)[:, 0].tolist() == [place - len(sequences[0]) for place in places[1:]] + [1]
    _, found, counts = sentence_words(data).positions(np.array([1, 0]))
    assert found.tolist() == places
    assert counts.tolist() == [1, 3]


def test_windows_of_sentences_have_room_for_the_marks(tokenizer: Tokenizer) -> None:
    data = encode_sentences([sentence("The lower river was low " * 4)], tokenizer, max_length=8, labels=("O",))
    assert data.lengths.max() == 8
    batch = data.batch(np.arange(len(data)))
    assert (batch.labels == 0).sum() == data.account()["num_words"] == 20
    with pytest.raises(ConfigError, match="max_length = 2: tagging needs 3 to"):
        encode_sentences([sentence("low")], tokenizer, max_length=2)


@pytest.mark.parametrize(
    ("words", "first", "last", "text"),
    [
        (["(café,"], 2, 5, "afé"),
        (["(café,", "low"], 1, 10, "café, low"),
        (["東京"], 0, 2, "東"),
        (["東京"], 0, 1, "東京"),  # part of a character: all of the words are returned
    ],
)
def test_bytes_lead_back_to_characters(words: list[str], first: int, last: int, text: str) -> None:
    tokenizer = of_bytes()
    plain = BytePairTokenizer(tokenizer.vocabulary, (), lowercase=False)
    ids = plain.token_ids(f" {' '.join(words)}")[1:]  # one piece per byte, without the space before the first word
    found, start, end = TextFinder(plain).find(ids[first : last + 1], words)
    assert found == text
    assert " ".join(words)[start : end + 1] == text
