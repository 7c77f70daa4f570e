import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.google_instances import _Generator as StaticGenerator
from tests.google_instances import google_instances

from maskloom.data.batch import PretrainingBatch
from maskloom.data.corruption import Masking
from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.data.streams import sentence_pairs
from maskloom.data.streams.sentence_pairs import Instances, SentencePairs
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.loop import accumulate_gradients
from maskloom.training.optimizers import AdamW


def google_batches(instances, vocabulary, *, batch_size):
    def ids(tokens):
        return np.array([vocabulary.ids[token] for token in tokens], dtype=np.int64)

    for first in range(0, len(instances), batch_size):
        group = instances[first : first + batch_size]
        lengths = np.array([len(instance.tokens) for instance in group], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        positions = [
            np.array(instance.masked_positions, dtype=np.int64) + start
            for instance, start in zip(group, starts.tolist(), strict=True)
        ]
        yield PretrainingBatch(
            token_ids=ids([token for instance in group for token in instance.tokens]),
            segment_ids=np.array([side for instance in group for side in instance.segment_ids], dtype=np.int64),
            lengths=lengths,
            mlm_positions=np.concatenate(positions),
            mlm_labels=ids([label for instance in group for label in instance.masked_labels]),
            nsp_labels=np.array([instance.is_random_next for instance in group], dtype=np.int64),
        )


def _loader(corpus, documents=None, *, batch_size=16, seed=1, max_length=64, **settings):
    data = PretrainingData(max_length=max_length, max_predictions_per_seq=10, **settings)
    return _of_recipe(corpus, data, documents, batch_size=batch_size, seed=seed)


def _of_recipe(corpus, data: PretrainingData, documents=None, *, batch_size=16, seed=1) -> Loader[PretrainingBatch]:
    stream = SentencePairs(corpus, documents, data, seed=seed)
    return Loader(stream, Masking(corpus.vocabulary, data, seed), batch_size=batch_size)


def _restored(batch: PretrainingBatch) -> np.ndarray:
    """Return the token ids before masking."""
    ids = batch.token_ids.copy()
    ids[batch.mlm_positions] = batch.mlm_labels
    return ids


def _texts(batch: PretrainingBatch, vocabulary) -> list[tuple[list[int], ...]]:
    """Return the unmasked texts of every sequence, after checking its special tokens and segments."""
    texts, start = [], 0
    ids = _restored(batch)
    for length in batch.lengths.tolist():
        own, segments = ids[start : start + length], batch.segment_ids[start : start + length]
        start += length
        assert own[0] == vocabulary.cls_id
        (separators,) = np.nonzero(own == vocabulary.sep_id)
        assert separators[-1] == length - 1
        assert not (own[1:] == vocabulary.cls_id).any()
        assert segments.tolist() == [0] * (separators[0] + 1) + [1] * (length - separators[0] - 1)
        cuts = [0, *separators.tolist()]
        texts.append(tuple(own[a + 1 : b].tolist() for a, b in pairwise(cuts)))
    return texts


def _same(a: PretrainingBatch, b: PretrainingBatch) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


def _epoch(loader: Loader, epoch: int = 0) -> list[PretrainingBatch]:
    return [part for batch in loader.epoch_batches(epoch) for part in batch.split(1)]


def test_batches_hold_framed_pairs_of_the_right_documents(memory_corpus) -> None:
    """Every token of document d is the ordinary token d + 5, so a token identifies its document."""
    corpus = memory_corpus([[[d + 5] * (1 + (d + s) % 9) for s in range(1 + d % 12)] for d in range(60)])
    loader = _loader(corpus, batch_size=8)
    num_random = num_pairs = 0
    for batch in loader.epoch_batches(0):
        assert batch.nsp_labels is not None
        assert (batch.lengths <= 64).all()
        assert batch.begins is None
        assert all(array.dtype == np.int64 for name, array in vars(batch).items() if name != "begins")
        for texts, label in zip(_texts(batch, corpus.vocabulary), batch.nsp_labels.tolist(), strict=True):
            a, b = (set(text) for text in texts)
            assert len(a) == len(b) == 1
            assert (a != b) == bool(label)
            num_random, num_pairs = num_random + label, num_pairs + 1
    assert num_random / num_pairs >= 0.5


def test_segments_have_no_second_side(random_corpus) -> None:
    corpus = random_corpus(30)
    tokens: list[int] = []
    for batch in _loader(corpus, next_sentence=False).epoch_batches(0):
        assert batch.nsp_labels is None
        for texts in _texts(batch, corpus.vocabulary):
            assert len(texts) == 1
            tokens += texts[0]
    assert sorted(tokens) == sorted(corpus.sentences(0, corpus.num_sentences).tolist())


def test_texts_are_runs_of_the_corpus(random_corpus) -> None:
    corpus = random_corpus(20, most_tokens=60)
    whole = " ".join(map(str, corpus.sentences(0, corpus.num_sentences).tolist()))
    for batch in _loader(corpus, max_length=32).epoch_batches(0):
        for texts in _texts(batch, corpus.vocabulary):
            assert all(" ".join(map(str, text)) in whole for text in texts)


def test_a_batch_is_a_function_of_its_position(random_corpus) -> None:
    corpus = random_corpus(20)
    loader = _loader(corpus)
    position, stream = {}, []
    for _ in range(80):
        batch, after = loader.next_batch(position)
        stream.append((position, batch))
        position = after
    assert position["epoch"] >= 2
    assert {batch.num_sequences for _, batch in stream} == {16}
    for start in (37, 5, 59, 0):
        fresh = _loader(corpus)
        for place, batch in stream[start : start + 4]:
            again, _ = fresh.next_batch(place)
            assert _same(again, batch)


def test_batches_run_over_the_ends_of_epochs(random_corpus) -> None:
    corpus = random_corpus(20)
    loader = _loader(corpus, batch_size=7)
    singles = [*_epoch(loader, 0), *_epoch(loader, 1)]
    position, streamed = {}, []
    while len(streamed) < len(singles) - 7:
        batch, position = loader.next_batch(position)
        streamed += batch.split(1)
    assert all(_same(a, b) for a, b in zip(streamed, singles, strict=False))


def test_epoch_batches_hold_each_instance_once_and_stay_the_same(random_corpus) -> None:
    corpus = random_corpus(20)
    by_five, by_all = _epoch(_loader(corpus, batch_size=5)), _epoch(_loader(corpus, batch_size=10_000))
    assert len(by_five) == len(by_all)
    assert all(_same(a, b) for a, b in zip(by_five, by_all, strict=True))
    sizes = [batch.num_sequences for batch in _loader(corpus, batch_size=5).epoch_batches(0)]
    assert set(sizes[:-1]) == {5}
    assert sum(sizes) == len(by_all)


def test_batches_run_over_the_ends_of_blocks(random_corpus, monkeypatch) -> None:
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 40)
    corpus, data = random_corpus(20), PretrainingData(max_length=64)
    stream = SentencePairs(corpus, None, data, seed=1)
    assert stream.num_blocks > 3
    corrupt = Masking(corpus.vocabulary, data, 1)
    batches = list(Loader(stream, corrupt, batch_size=7).epoch_batches(0))
    instances = Instances.join([*stream.epoch(0)])
    assert [batch.num_sequences for batch in batches[:-1]] == [7] * (len(instances) // 7)
    whole = corrupt(stream.gather(instances)).split(7)
    assert len(batches) == len(whole)
    assert all(_same(a, b) for a, b in zip(batches, whole, strict=True))


def test_masks_and_pairs_are_new_in_every_epoch(memory_corpus) -> None:
    """With one sentence per document, A is the same in both epochs, and only its mask can change."""
    rng = np.random.default_rng(0)
    corpus = memory_corpus([[rng.integers(5, 400, 20)] for _ in range(40)])
    vocabulary = corpus.vocabulary
    epochs = []
    for epoch in (0, 1):
        masked = {}
        for batch in _epoch(_loader(corpus), epoch):
            ((a, _),) = _texts(batch, vocabulary)
            masked[tuple(a)] = batch.mlm_positions[batch.mlm_positions <= 20].tolist()
        epochs.append(masked)
    assert epochs[0].keys() == epochs[1].keys()
    assert sum(epochs[0][text] == epochs[1][text] for text in epochs[0]) < 6


def test_static_masks_repeat_in_another_order(random_corpus) -> None:
    corpus = random_corpus(20)

    def rows(static_masks: bool, epoch: int) -> list[tuple]:
        singles = _epoch(_loader(corpus, static_masks=static_masks), epoch)
        return [(*batch.token_ids.tolist(), -1, *batch.mlm_positions.tolist()) for batch in singles]

    first, second = rows(True, 0), rows(True, 1)
    assert first != second
    assert sorted(first) == sorted(second)
    assert first == rows(False, 0)
    assert len(set(second) & set(rows(False, 1))) == 0


def test_seeds_and_held_out_documents_matter(random_corpus) -> None:
    corpus = random_corpus(20)
    base, _ = _loader(corpus).next_batch({})
    other, _ = _loader(corpus, seed=2).next_batch({})
    assert not _same(base, other)
    held_out = np.array([4, 9])
    allowed = {
        token
        for document in held_out
        for token in corpus.sentences(*corpus.document_offsets[document : document + 2]).tolist()
    }
    for batch in _loader(corpus, held_out).epoch_batches(0):
        for texts in _texts(batch, corpus.vocabulary):
            assert allowed.issuperset(token for text in texts for token in text)


def test_instances_are_distributed_as_those_of_the_static_generator(random_corpus) -> None:
    corpus = random_corpus(300)
    vocabulary = corpus.vocabulary
    offsets = corpus.document_offsets.tolist()
    documents = [
        [[vocabulary.tokens[i] for i in corpus.sentence(s)] for s in range(first, last)]
        for first, last in pairwise(offsets)
    ]
    instances = google_instances(
        documents,
        vocabulary.tokens,
        rng=random.Random(0),
        max_length=64,
        dupe_factor=4,
        short_seq_prob=0.1,
        masked_lm_prob=0.15,
        max_predictions_per_seq=10,
    )
    static = list(google_batches(instances, vocabulary, batch_size=500))
    loader = _loader(corpus, batch_size=500)
    dynamic = [batch for epoch in range(4) for batch in loader.epoch_batches(epoch)]

    def summary(batches: list[PretrainingBatch]) -> list[float]:
        lengths = np.concatenate([batch.lengths for batch in batches])
        return [
            len(lengths),
            float(np.concatenate([batch.nsp_labels for batch in batches if batch.nsp_labels is not None]).mean()),
            float(lengths.mean()),
            float((lengths == 64).mean()),
            float(np.quantile(lengths, 0.1)),
            sum(float(batch.segment_ids.sum()) for batch in batches) / lengths.sum(),
            sum(len(batch.mlm_labels) for batch in batches) / lengths.sum(),
        ]

    np.testing.assert_allclose(summary(dynamic), summary(static), rtol=0.06)


class Replay:
    """Stands for the generator's random numbers: it gives what is needed to make a pair of ours."""

    def __init__(self, corpus, room: int) -> None:
        self._corpus, self._room = corpus, room

    def take(self, row: Instances) -> None:
        """Prepare the numbers for one instance, in columns of one row."""
        first, last, skip, kept = (column[0].tolist() for column in (row.first, row.last, row.skip, row.length))
        self.a_end, self.is_random = last[0] - first[0], bool(row.is_random[0])
        document = int(np.searchsorted(self._corpus.document_offsets, first[1], side="right")) - 1
        self._of_b = [document, first[1] - int(self._corpus.document_offsets[document])]
        whole = [len(self._corpus.sentences(*ends)) for ends in zip(first, last, strict=True)]
        self._floats = []
        while sum(whole) > self._room:  # from the longer side, B in a tie, and its front first
            side = int(whole[0] <= whole[1])
            self._floats.append(0.0 if skip[side] else 0.9)
            whole[side], skip[side] = whole[side] - 1, max(skip[side] - 1, 0)
        assert whole == kept

    def randint(self, low: int, high: int) -> int:
        if low == 1:  # the number of sentences of A; whether B is random is asked next
            self._floats.insert(0, 0.0 if self.is_random else 0.9)
        number = self.a_end if low == 1 else self._of_b.pop(0)
        assert low <= number <= high
        return number

    def random(self) -> float:
        return self._floats.pop(0) if self._floats else 0.0  # then all predicted tokens become [MASK]

    def shuffle(self, items: list) -> None:
        """Leave the order of what may be masked."""


@pytest.mark.parametrize("most_tokens", [9, 90])
def test_pairs_are_those_of_the_static_generator_for_the_same_draws(random_corpus, most_tokens: int) -> None:
    corpus = random_corpus(40, most_tokens=most_tokens)
    vocabulary, offsets = corpus.vocabulary, corpus.document_offsets
    stream = SentencePairs(corpus, None, PretrainingData(max_length=64, short_seq_prob=0.0), seed=5)
    rows = Instances.join([*stream.epoch(0)])
    rows = rows.take(np.argsort(rows.first[:, 0]))
    documents = [
        [[vocabulary.tokens[i] for i in corpus.sentence(number)] for number in range(*ends)]
        for ends in pairwise(offsets.tolist())
    ]
    replay = Replay(corpus, 61)
    generator = StaticGenerator(documents, vocabulary.tokens, replay, 61, 0.0, 0.15, 10, whole_word_masking=False)
    owners = np.searchsorted(offsets, rows.first[:, 0], side="right") - 1
    for document in range(40):
        replay._floats = []  # whether the document is cut short: no, whatever the number
        walk = generator.document_instances(document)
        for number in np.flatnonzero(owners == document):
            row = rows.take(slice(number, number + 1))
            replay.take(row)
            if number == np.flatnonzero(owners == document)[0]:
                replay._floats.insert(0, 0.5)
            found, texts = next(walk), stream.gather(row)
            tokens = list(found.tokens)
            for place, label in zip(found.masked_positions, found.masked_labels, strict=True):
                tokens[place] = label
            assert tokens == [vocabulary.tokens[i] for i in texts.token_ids]
            assert found.segment_ids == texts.segment_ids.tolist()
            assert found.is_random_next == texts.pair_labels[0]
        assert next(walk, None) is None


@pytest.mark.parametrize("whole_word_masking", [False, True])
def test_a_rate_above_the_published_one_is_predicted_in_full(random_corpus, whole_word_masking: bool) -> None:
    data = PretrainingData(masked_lm_prob=0.3, max_length=64, whole_word_masking=whole_word_masking)
    loader = _of_recipe(random_corpus(80), data)
    batches = list(loader.epoch_batches(0))
    share = sum(len(batch.mlm_labels) for batch in batches) / sum(batch.num_tokens for batch in batches)
    assert share == pytest.approx(0.3, abs=0.01)
    account = loader.account()
    assert account.cut_fraction == 0.0
    assert account.num_instances == sum(batch.num_sequences for batch in batches)


def test_the_account_tells_what_a_cap_cuts_off(random_corpus) -> None:
    loader = _of_recipe(random_corpus(80), PretrainingData(max_length=64, max_predictions_per_seq=4))
    batches = list(loader.epoch_batches(0))
    lengths = np.concatenate([batch.lengths for batch in batches])
    wanted = np.maximum(1, np.rint(0.15 * lengths)).sum()
    found = sum(len(batch.mlm_labels) for batch in batches)
    account = loader.account()
    assert account.cut_fraction == pytest.approx(1 - found / wanted)
    assert account.cut_fraction > 0.3
    assert account.predictions_per_instance == pytest.approx(found / len(lengths))
    assert account.tokens_per_instance == pytest.approx(lengths.mean())


def test_whether_a_text_follows_is_learnt_from_pairs(memory_corpus) -> None:
    """All sentences of a document consist of one of six tokens; next-sentence prediction then compares two texts."""
    corpus = memory_corpus([[[6 + d % 6] * 3] * 9 for d in range(90)])
    corpus.vocabulary = Vocabulary([*SPECIAL_TOKENS, *map(str, range(8))])
    corpus.tokenizer = WordPieceTokenizer(corpus.vocabulary)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    config = BertConfig(vocab_size=len(corpus.vocabulary), max_position_embeddings=24, **sizes)
    model, objective = build_model(config, ("mlm", "nsp"), seed=0), MaskedLanguageModeling()
    loader, position = _loader(corpus, batch_size=48, max_length=14), {}
    optimizer = AdamW(model.parameters(), 1e-2, (0.9, 0.999), 1e-8)
    for _ in range(50):
        batch, position = loader.next_batch(position)
        optimizer.zero_grad()
        accumulate_gradients(model, objective, batch, None)
        optimizer.step()
    batch, _ = loader.next_batch({"epoch": 99, "block": 0, "instance": 0})
    with torch.no_grad():
        found = objective.evaluation_metrics(objective.evaluation_sums(model.eval(), batch))
    assert 0.5 <= batch.nsp_labels.mean() < 0.6  # the accuracy of a constant answer
    assert found["nsp_accuracy"] > 0.7
