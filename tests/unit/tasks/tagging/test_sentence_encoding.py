from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.errors import ConfigError, DataError
from maskloom.tasks.encoding import ShuffledBatches, batches_by_length
from maskloom.tasks.kinds import TAGGING
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tagging.encoding import NOT_SCORED, encode_sentences
from maskloom.tasks.tagging.reading import TaggedSentence
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), "."]
TOKENIZER = WordPieceTokenizer(Vocabulary(VOCABULARY), max_length=64)
LABELS = ("O", "B-X", "I-X")


def sentence(text, tags=None, number=1, document=0):
    words = tuple(text.split(" "))
    columns, lines = tuple((word,) for word in words), tuple(range(number, number + len(words)))
    found = None if tags is None else tuple(tags.split())
    return TaggedSentence(words, found, number, document, columns, lines=lines)


def tokens(ids):
    return [VOCABULARY[index] for index in ids]


def test_first_pieces_carry_the_labels_and_all_else_is_not_scored():
    data = encode_sentences([sentence("abc d. ef", "B-X I-X O")], TOKENIZER, max_length=20, labels=LABELS)
    batch = data.batch(np.array([0]))
    assert tokens(batch.token_ids) == ["[CLS]", "a", "##b", "##c", "d", ".", "e", "##f", "[SEP]"]
    assert batch.labels is not None
    assert batch.labels.tolist() == [-100, 1, -100, -100, 2, -100, 0, -100, -100]
    assert batch.chains.tolist() == [-1, 0, -1, -1, 0, -1, 0, -1, -1]
    assert batch.segment_ids.tolist() == [0] * 9


@pytest.mark.parametrize("word", ["\x01", "\u200b", "\ufffd", "\u0301"])
def test_a_word_whose_pieces_vanish_is_unknown_and_keeps_words_and_tags_in_step(word):
    data = encode_sentences([sentence(f"a {word} b", "O B-X O")], TOKENIZER, max_length=20, labels=LABELS)
    batch = data.batch(np.array([0]))
    assert tokens(batch.token_ids) == ["[CLS]", "a", "[UNK]", "b", "[SEP]"]
    assert batch.labels is not None
    assert batch.labels.tolist() == [-100, 0, 1, 0, -100]
    assert data.account()["num_vanished_words"] == 1


def test_batches_pack_windows_in_the_order_asked_for():
    data = encode_sentences([sentence("a b", "O B-X"), sentence("c", "O")], TOKENIZER, max_length=20, labels=LABELS)
    batch = data.batch(np.array([1, 0]))
    assert tokens(batch.token_ids) == ["[CLS]", "c", "[SEP]", "[CLS]", "a", "b", "[SEP]"]
    assert batch.lengths.tolist() == [3, 4]
    assert batch.indices.tolist() == [1, 0]
    assert batch.chains.tolist() == [-1, 0, -1, -1, 1, 1, -1]
    second = batch.split(1)[1]
    assert second.chains.tolist() == [-1, 1, 1, -1]


@st.composite
def corpora(draw):
    word = st.sampled_from(["a", "b", "abc", "d.", "abcdefgh" * 4, "\x01"])
    number_of_words = draw(st.sampled_from([2, 10, 50]))
    found = []
    for document in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 5))):
            words = draw(st.lists(word, min_size=1, max_size=number_of_words))
            tags = draw(st.lists(st.sampled_from(LABELS), min_size=len(words), max_size=len(words)))
            found.append(sentence(" ".join(words), " ".join(tags), len(found) + 1, document))
    return found


@settings(max_examples=50)
@given(corpora(), st.integers(3, 64), st.sampled_from(["sentence", "document"]))
def test_no_word_is_ever_lost(sentences, max_length, context):
    data = encode_sentences(sentences, TOKENIZER, max_length=max_length, labels=LABELS, context=context)
    num_words = sum(len(s.words) for s in sentences)
    assert data.account()["num_words"] == num_words
    assert data.lengths.max() <= max_length
    scored, rows = 0, [np.empty(0)] * len(data)
    for batch in batches_by_length(data, max_tokens=100):
        scored += int((batch.labels != NOT_SCORED).sum())
        # every label of a batch is on a token of a chain
        assert (batch.chains[batch.labels != NOT_SCORED] >= 0).all()
        known = batch.chains[batch.chains >= 0]
        assert (np.diff(known) >= 0).all()
        one_hot = np.where(batch.labels[:, None] == np.arange(3), 1.0, 0.0)
        for index, part in zip(batch.indices, np.split(one_hot, np.cumsum(batch.lengths)[:-1]), strict=True):
            rows[index] = part
    assert scored == num_words
    # the labels sent out with the batches come back word by word
    ids = data.word_rows(rows).argmax(axis=1)
    assert [[LABELS[i] for i in part] for part in data.by_sentence(ids)] == [list(s.tags) for s in sentences]


@settings(max_examples=40)
@given(corpora(), st.integers(3, 64), st.sampled_from(["sentence", "document"]))
def test_chains_hold_no_word_of_another_sentence(sentences, max_length, context):
    data = encode_sentences(sentences, TOKENIZER, max_length=max_length, context=context)
    sentence_of_word = np.repeat(np.arange(len(sentences)), [len(s.words) for s in sentences])
    sentence_of_piece = {int(place): s for place, s in zip(data.word_starts[:-1], sentence_of_word, strict=True)}
    for index, (first, _, first_word, end_word) in enumerate(data.windows.tolist()):
        batch = data.batch(np.array([index]))
        assert batch.labels is None
        places = np.flatnonzero(batch.chains >= 0)
        owners = [sentence_of_piece[place - 1 + first] for place in places.tolist()]
        assert len(set(zip(owners, batch.chains[places].tolist(), strict=True))) == len(set(owners))
        assert set(owners) == set(sentence_of_word[first_word:end_word])


@settings(max_examples=40)
@given(corpora(), st.integers(3, 64), st.sampled_from(["sentence", "document"]), st.randoms())
def test_a_batch_is_that_of_its_windows_one_by_one(sentences, max_length, context, random):
    data = encode_sentences(sentences, TOKENIZER, max_length=max_length, labels=LABELS, context=context)
    num_words = sum(len(s.words) for s in sentences)
    data = replace(data, vectors=(np.arange(10, dtype=np.float32)[:, None], np.arange(num_words) % 11 - 1))
    order = np.array(random.sample(range(len(data)), len(data)))
    batch, parts = data.batch(order), [data.batch(order[place : place + 1]) for place in range(len(order))]
    before = np.cumsum([0, *(part.chains.max() + 1 for part in parts)])
    parts = [
        replace(part, chains=np.where(part.chains < 0, -1, part.chains + first))
        for part, first in zip(parts, before[:-1], strict=True)
    ]
    for name, values in vars(batch).items():
        assert np.array_equal(values, np.concatenate([vars(part)[name] for part in parts]))
    for index, part in zip(order.tolist(), parts, strict=True):
        first, end, first_word, end_word = data.windows[index].tolist()
        assert part.token_ids[1:-1].tolist() == data.pieces[first:end].tolist()
        places = np.flatnonzero(part.labels != NOT_SCORED)
        assert np.array_equal(places, data.word_places(index))
        assert np.array_equal(part.labels[places], data.labels[first_word:end_word])


def test_document_context_shows_the_neighbours_and_scores_each_sentence_once():
    sentences = [sentence("a b", "O O", 1, 0), sentence("c", "B-X", 2, 0), sentence("d", "O", 3, 1)]
    data = encode_sentences(sentences, TOKENIZER, max_length=20, labels=LABELS, context="document")
    assert len(data) == 2
    batch = data.batch(np.array([0]))
    assert tokens(batch.token_ids) == ["[CLS]", "a", "b", "c", "[SEP]"]
    assert batch.labels is not None
    assert batch.labels.tolist() == [-100, 0, 0, 1, -100]
    assert batch.chains.tolist() == [-1, 0, 0, 1, -1]


def test_split_sentences_are_counted():
    data = encode_sentences(
        [sentence("a b c d e f g h"), sentence("a b"), sentence("h g f e d c b a")], TOKENIZER, max_length=5
    )
    assert data.account()["num_split_sentences"] == 2
    assert data.account()["num_truncated_examples"] == 0
    assert data.notes(Path("dev.txt")) == [
        "dev.txt: 2 of 3 sentences exceed 5 tokens and are split into windows; every word is scored"
    ]
    whole = encode_sentences([sentence("a b")], TOKENIZER, max_length=5)
    assert whole.notes(Path("dev.txt")) == []
    assert whole.labels is None


def test_shuffled_batches_take_windows():
    data = encode_sentences([sentence("a b c d e f g h", "O " * 8)] * 5, TOKENIZER, max_length=6, labels=LABELS)
    batch, position = ShuffledBatches(data, 4, seed=0).next_batch({})
    assert position == {"batch": 1}
    assert batch.num_sequences == 4


def test_a_tag_that_training_lacks_is_refused_with_its_line():
    with pytest.raises(DataError, match=r"dev: line 4: the label 'B-Y' is not one of the task's labels: 'O', 'B-X'"):
        encode_sentences([sentence("a b", "O B-Y", 3)], TOKENIZER, max_length=9, labels=LABELS, path="dev")


def test_a_refused_tag_from_another_scheme_is_shown_as_written(tmp_path):
    (tmp_path / "dev.conll").write_text("a O\nb I-Y\na I-Y\n")
    as_trained = TaggingSettings(scheme="auto", trained_scheme="iob2")
    examples = TAGGING.read(tmp_path / "dev.conll", None, as_trained).examples
    with pytest.raises(DataError, match=r"line 2, 'b I-Y' in the file: the label 'B-Y' is not one of the task's"):
        encode_sentences(examples, TOKENIZER, max_length=9, labels=LABELS, path="dev.conll")


@pytest.mark.parametrize("max_length", [2, 65])
def test_lengths_that_the_model_does_not_have_are_refused(max_length):
    with pytest.raises(ConfigError, match=f"max_length = {max_length}: tagging needs 3 to 64 tokens"):
        encode_sentences([sentence("a")], TOKENIZER, max_length=max_length)


@pytest.fixture(scope="module")
def conll_2003(data_folder, minilm_folder):
    """The sentences of the development set and a published tokenizer."""
    return TAGGING.read(data_folder / "conll2003" / "valid.txt").examples, Tokenizer.load(minilm_folder)


@pytest.mark.realdata
@pytest.mark.parametrize("context", ["sentence", "document"])
@pytest.mark.parametrize("max_length", [16, pytest.param(128, marks=pytest.mark.slow)])
def test_conll_2003_keeps_all_its_words(conll_2003, context, max_length):
    encoded = encode_sentences(*conll_2003, max_length=max_length, context=context)
    assert encoded.account()["num_words"] == int((encoded.windows[:, 3] - encoded.windows[:, 2]).sum()) == 51_362
    assert encoded.lengths.max() <= max_length
