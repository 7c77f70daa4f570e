import numpy as np
import pytest
from tests.batches import rows_of

from maskloom.data.corruption import Masking, NextTokens
from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.data.streams.running_text import Contiguous, RunningText
from maskloom.errors import DataError


@pytest.fixture
def loader(random_corpus):
    def make(corpus=None, documents=None, *, max_length=16, batch_size=4, seed=1, corruption=NextTokens, **how):
        data = PretrainingData(max_length=max_length, next_sentence=False)
        corpus = corpus or random_corpus(12)
        stream = Contiguous(corpus, documents, data, seed=seed, batch_size=batch_size)
        return Loader(stream, corruption(corpus.vocabulary, data, seed), batch_size=batch_size, **how)

    return make


def text_of_epoch(corpus, epoch, *, seed=1):
    """Return the text that the running-text stream reads, in order."""
    data = PretrainingData(max_length=16, next_sentence=False)
    stream = RunningText(corpus, None, data, seed=seed)
    (rows,) = stream.epoch(epoch)
    texts = stream.gather(rows)
    return [*texts.token_ids.tolist(), int(texts.following[-1])]


def training_batches(loader, num_batches, position=None):
    batches, position = [], position or {}
    for _ in range(num_batches):
        batch, position = loader.next_batch(position)
        batches.append(batch)
    return batches, position


def test_every_row_goes_on_where_it_stopped_in_the_batch_before(loader, random_corpus):
    one = loader()
    steps, left = divmod(one.account().num_instances, 4)
    assert steps > 20
    assert left == 0
    batches, _ = training_batches(one, 2 * steps)
    for epoch in (0, 1):
        text = text_of_epoch(random_corpus(12), epoch)
        size, tracks = (len(text) - 1) // 4, [[], [], [], []]
        assert steps == size // 16
        for step, batch in enumerate(batches[epoch * steps : (epoch + 1) * steps]):
            assert batch.begins.tolist() == [step == 0] * 4
            assert batch.lengths.tolist() == [16] * 4
            for track, (inputs, targets) in zip(tracks, rows_of(batch), strict=True):
                assert inputs[1:] == targets[:-1]
                assert step == 0 or inputs[0] == track[-1]
                track += targets
        assert tracks == [text[size * place + 1 :][: 16 * steps] for place in range(4)]
    assert rows_of(batches[0]) != rows_of(batches[steps])


@pytest.mark.parametrize("batch_size", [1, 3, 4, 64, 4000])
def test_an_epoch_of_evaluation_has_every_token_once(loader, random_corpus, batch_size):
    text = text_of_epoch(random_corpus(12), 2)
    size, batches = (len(text) - 1) // batch_size, list(loader(batch_size=batch_size).epoch_batches(2))
    tracks = [[] for _ in range(batch_size)]
    *on, last = batches if (len(text) - 1) % batch_size else [*batches, None]
    for step, batch in enumerate(on):
        assert batch.begins.tolist() == [step == 0] * batch_size
        for track, (_, targets) in zip(tracks, rows_of(batch), strict=True):
            track += targets
    assert {len(track) for track in tracks} == {size}
    targets = [token for track in tracks for token in track]
    if last is not None:
        assert last.begins.all()
        assert last.num_tokens < batch_size
        targets += last.mlm_labels.tolist()
    assert targets == text[1:]


def test_the_account_tells_what_training_leaves_out(loader, random_corpus):
    num_targets = len(text_of_epoch(random_corpus(12), 0)) - 1
    account = loader().account()
    assert account.tokens_per_instance == account.predictions_per_instance == 16
    assert account.cut_fraction == 0
    assert 0 < account.num_dropped_tokens < 4 * 16
    assert 16 * account.num_instances + account.num_dropped_tokens == num_targets


def test_a_position_is_a_place_in_an_endless_stream(loader):
    batches, position = training_batches(loader(), 90)
    assert position == {"row": 360}
    assert sum(batch.begins.all() for batch in batches) > 1
    later, _ = training_batches(loader(), 50, {"row": 160})
    assert [rows_of(batch) for batch in later] == [rows_of(batch) for batch in batches[40:]]
    assert [batch.begins.all() for batch in later] == [batch.begins.all() for batch in batches[40:]]
    assert rows_of(training_batches(loader(seed=2), 1)[0][0]) != rows_of(batches[0])
    with pytest.raises(DataError, match=r"data position \{'block': 0\}: expected whole numbers from 0 for row"):
        loader().next_batch({"block": 0})


def test_ranks_have_tracks_of_their_own(loader):
    whole, _ = training_batches(loader(), 40)
    halves = [training_batches(loader(rows=slice(first, first + 2)), 40)[0] for first in (0, 2)]
    for batch, *parts in zip(whole, *halves, strict=True):
        assert [row for part in parts for row in rows_of(part)] == rows_of(batch)
        assert np.concatenate([part.begins for part in parts]).tolist() == batch.begins.tolist()


def test_rows_can_be_masked_and_begin_after_a_split(loader, random_corpus):
    batch, _ = loader(corruption=Masking).next_batch({})
    plain, _ = loader().next_batch({})
    restored = batch.token_ids.copy()
    restored[batch.mlm_positions] = batch.mlm_labels
    assert restored.tolist() == plain.token_ids.tolist()
    assert len(batch.mlm_labels) == 4 * 2
    assert [part.begins.tolist() for part in batch.split(3)] == [[True] * 3, [True]]


def test_text_too_short_for_a_batch_is_evaluated_but_not_trained_on(loader, memory_corpus):
    small = loader(memory_corpus([[[5, 6, 7]] * 10]))
    tracks, left = small.epoch_batches(0)
    assert tracks.lengths.tolist() == [7] * 4
    assert left.lengths.tolist() == [3]
    message = r"memory: 32 tokens of running text; a batch of 4 rows of data\.max_length = 16 needs 65"
    with pytest.raises(DataError, match=message):
        small.next_batch({})
