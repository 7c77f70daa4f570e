from itertools import pairwise

import numpy as np
import pytest

from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.data.spelling import BothWays, SentencesBothWays, spelled_words
from maskloom.errors import ConfigError
from maskloom.text.spelled_tokenizer import BEGIN_SENTENCE, END_SENTENCE, SpelledTokenizer
from maskloom.text.vocabulary import GPT_TOKENS, Vocabulary

DATA = PretrainingData(max_length=7, next_sentence=False)


@pytest.fixture
def loader(random_corpus):
    corpus = random_corpus(12)
    words = [token.replace("##", "in") for token in corpus.vocabulary.tokens]
    stream = SentencesBothWays(corpus, np.arange(10), DATA, seed=1, batch_size=3)
    return corpus, Loader(stream, BothWays(Vocabulary(words), DATA, 1), batch_size=3)


def tracks_of(loader, num_batches):
    """Return, for each row, the tokens that each direction reads and predicts over consecutive batches."""
    position, tracks = {}, [([], [], [], []) for _ in range(3)]
    for _ in range(num_batches):
        batch, position = loader.next_batch(position)
        columns = (batch.token_ids, batch.mlm_labels, batch.backward_ids, batch.backward_labels)
        for row, track in enumerate(tracks):
            for column, found in zip(columns, track, strict=True):
                found += column.reshape(3, -1)[row].tolist()
    return tracks


def test_predictions_are_counted_in_both_directions(loader):
    _, batches = loader
    account, batch = batches.account(), batches.next_batch({})[0]
    assert account.predictions_per_instance == 2 * account.tokens_per_instance == 2 * DATA.max_length
    assert len(batch.mlm_labels) + len(batch.backward_labels) == 3 * account.predictions_per_instance


def test_one_way_reads_sentences_and_the_other_the_same_ones_reversed_at_the_same_places(loader):
    corpus, batches = loader
    begin, end = (marks[0] for marks in (corpus.tokenizer.running_text.begin, corpus.tokenizer.running_text.end))
    known = {tuple(corpus.sentence(index).tolist()) for index in range(corpus.num_sentences)}
    num_whole = 0
    for read, labels, backward, backward_labels in tracks_of(batches, 15):
        assert read[1:] == labels[:-1]
        assert backward[1:] == backward_labels[:-1]
        starts = [place for place, index in enumerate(read) if index == begin]
        for first, last in pairwise(starts):
            assert backward[first:last] == read[first:last][::-1]
            assert read[last - 1] == end
            assert tuple(read[first + 1 : last - 1]) in known
            num_whole += 1
    assert num_whole > 10


def test_sentences_of_other_documents_are_left_out_and_an_epoch_has_each_once(random_corpus):
    corpus, documents = random_corpus(12), np.array([1, 4])
    stream = SentencesBothWays(corpus, documents, DATA, seed=1, batch_size=2)
    spans = [range(corpus.document_offsets[d], corpus.document_offsets[d + 1]) for d in documents]
    wanted = sorted(tuple(corpus.sentence(index).tolist()) for span in spans for index in span)
    stretches = list(stream.epoch(0))
    order = np.argsort(np.concatenate([part.first for part in stretches]))
    rows = stretches[0].join(stretches).take(order)
    text = stream.gather(rows)[0]
    (begin,), (end,) = corpus.tokenizer.running_text.begin, corpus.tokenizer.running_text.end
    tokens = [*text.token_ids.tolist(), int(text.following[-1])]
    starts = [place for place, index in enumerate(tokens) if index == begin]
    found = [
        tuple(tokens[first + 1 : last - 1]) for first, last in zip(starts, [*starts[1:], len(tokens)], strict=True)
    ]
    assert sorted(found) == wanted
    assert tokens.count(end) == len(wanted)


def test_a_part_of_a_batch_keeps_the_spelling(loader):
    _, batches = loader
    batch, _ = batches.next_batch({})
    parts = batch.split(2)
    assert [part.num_sequences for part in parts] == [2, 1]
    assert all(part.spelling is batch.spelling for part in parts)
    assert np.array_equal(np.concatenate([part.backward_ids for part in parts]), batch.backward_ids)


def test_words_are_spelled_and_marks_are_those_of_sentences():
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "é"])
    found = spelled_words(vocabulary).take(np.array([6, 2, 5, 3, 6]))
    assert np.diff(found.edges).tolist() == [2, 1, 3, 1, 2]
    words = [word.tolist() for word in np.split(found.flat, found.edges[1:-1])]
    spelled = SpelledTokenizer.of().chunk_ids_batch(["é", "cat"])
    assert words == [spelled[0], [BEGIN_SENTENCE], spelled[1], [END_SENTENCE], spelled[0]]


@pytest.mark.parametrize(
    "vocabulary",
    [
        Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "##s"]),
        Vocabulary([*GPT_TOKENS.tokens, "a</w>"], GPT_TOKENS, prefix="", suffix="</w>"),
    ],
)
def test_pieces_of_words_are_refused(vocabulary):
    with pytest.raises(ConfigError, match=r"vocab train TEXT\.\.\. --model words"):
        BothWays(vocabulary, DATA, 1)
