"""BART's noises and T5's missing spans, compared with plain implementations of their rules, and statistically."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from maskloom.config import PretrainRecipe
from maskloom.data.batch import Texts
from maskloom.data.corruption import Masking, NextTokens
from maskloom.data.loader import Loader
from maskloom.data.restoring import Denoising, SpanCorruption
from maskloom.data.settings import DenoisingData, PretrainingData, SpanCorruptionData
from maskloom.data.streams.sentence_pairs import Passages
from maskloom.errors import ConfigError
from maskloom.text.vocabulary import SPECIAL_TOKENS, SpecialTokens, Vocabulary, sentinel

WORDS = [f"w{number}" for number in range(3000)]
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *WORDS, *(sentinel(number) for number in reversed(range(100)))])
CLS, SEP, MASK = VOCABULARY.cls_id, VOCABULARY.sep_id, VOCABULARY.mask_id
QUIET = {"permute_sentences": 0.0, "infill_rate": 0.0, "random_rate": 0.0, "max_length": 1000}
NOISES = {
    "nothing": {},
    "mask": {"mask_rate": 0.3},
    "delete": {"delete_rate": 0.3},
    "infill": {"infill_rate": 0.3},
    "permute": {"permute_sentences": 1.0},
    "rotate": {"rotate_rate": 1.0},
    "all": {
        "permute_sentences": 0.7, "mask_rate": 0.1, "delete_rate": 0.1, "infill_rate": 0.2, "random_rate": 0.2,
        "insert_rate": 0.1, "rotate_rate": 0.5,
    },
}  # fmt: skip


def texts_of(documents, begin=(CLS,), end=(SEP,), epoch=0):
    """Return documents of sentences of ids, with marks, as a stream gathers them."""
    rows = [[*begin, *(token for sentence in document for token in sentence), *end] for document in documents]
    lengths = np.array([len(row) for row in rows])
    starts = np.repeat(np.cumsum(lengths) - lengths + len(begin), [len(document) for document in documents])
    sizes = [[len(sentence) for sentence in document] for document in documents]
    starts += np.concatenate([np.cumsum([0, *part[:-1]]) for part in sizes])
    ids = np.concatenate(rows).astype(np.int64)
    keys, epochs = np.arange(len(rows)).astype(np.uint64), np.full(len(rows), epoch)
    return Texts(
        ids, np.zeros_like(ids), lengths, keys, epochs, sentence_starts=starts, sentence_lengths=np.concatenate(sizes)
    )


def random_documents(number, size=None, *, seed=0, sentence=12):
    """Return documents in which no token occurs twice."""
    draw = np.random.default_rng(seed)
    documents = []
    for _ in range(number):
        ids = len(SPECIAL_TOKENS) + draw.permutation(len(WORDS))[: size or draw.integers(1, 90)]
        documents.append([part.tolist() for part in np.split(ids, np.arange(sentence, len(ids), sentence))])
    return documents


def rows(ids, lengths):
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def flat(document):
    return [token for sentence in document for token in sentence]


def noised(documents, seed=1, epoch=0, vocabulary=VOCABULARY, **settings):
    data = DenoisingData(**{**QUIET, **settings})
    return Denoising(vocabulary, data, seed)(texts_of(documents, epoch=epoch))


def sources(batch):
    """Return the sources without their marks, after checking that the marks are in place."""
    found = rows(batch.token_ids, batch.lengths)
    assert all((row[0], row[-1]) == (CLS, SEP) for row in found)
    return [row[1:-1] for row in found]


@pytest.mark.parametrize("noise", NOISES)
def test_a_target_is_the_whole_text_whatever_the_noise(noise):
    documents = random_documents(40)
    batch = noised(documents, **NOISES[noise])
    assert rows(batch.labels, batch.target_lengths) == [[*flat(document), SEP] for document in documents]
    assert rows(batch.target_ids, batch.target_lengths) == [[CLS, *flat(document)] for document in documents]
    assert (batch.marks == [CLS, SEP]).all()
    assert batch.indices.tolist() == list(range(40))
    assert batch.lengths.sum() == len(batch.token_ids) == len(batch.segment_ids)


@pytest.mark.parametrize("noise", NOISES)
def test_noise_depends_on_seed_epoch_key_and_text_alone(noise):
    documents = random_documents(30)
    data = DenoisingData(**{**QUIET, **NOISES[noise]})
    texts, corrupt = texts_of(documents), Denoising(VOCABULARY, data, 1)
    whole = rows(corrupt(texts).token_ids, corrupt(texts).lengths)
    alone = replace(texts_of(documents[7:8]), keys=texts.keys[7:8])
    assert corrupt(alone).token_ids.tolist() == whole[7]
    if noise != "nothing":
        for other in (Denoising(VOCABULARY, data, 2)(texts), corrupt(texts_of(documents, epoch=1))):
            differing = [a != b for a, b in zip(whole, rows(other.token_ids, other.lengths), strict=True)]
            assert np.mean(differing) > 0.4
    else:
        assert corrupt(texts).token_ids.tolist() == texts.token_ids.tolist()


def test_bert_and_gpt_are_special_cases_of_the_noises():
    """Masking 15% of tokens yields BERT's input; deleting the whole source leaves GPT's inputs and labels."""
    documents = random_documents(50, 38)
    texts, denoised = texts_of(documents), noised(documents, mask_rate=0.15, random_rate=0.1)
    masked = Masking(VOCABULARY, PretrainingData(max_length=1000, mask_prob=0.9, keep_prob=0.0), 1)(texts)
    for batch in (denoised, masked):
        assert batch.lengths.tolist() == [40] * 50
        changed = (batch.token_ids != texts.token_ids).reshape(50, 40).sum(1)
        assert set(changed.tolist()) == {6}
        assert 0.8 < np.mean(batch.token_ids[batch.token_ids != texts.token_ids] == MASK) < 0.97  # and random tokens
    emptied = noised(documents, delete_rate=1.0)
    assert sources(emptied) == [[]] * 50
    left_to_right = NextTokens(VOCABULARY, PretrainingData(max_length=1000), 1)(texts)
    before = rows(texts.token_ids[left_to_right.mlm_positions], [38] * 50)
    after = rows(left_to_right.mlm_labels, [38] * 50)
    assert [row[:-1] for row in rows(emptied.target_ids, emptied.target_lengths)] == before
    assert rows(emptied.labels, emptied.target_lengths) == [[*row, SEP] for row in after]


def test_masking_keeps_the_length_and_deletion_leaves_no_mask():
    documents = random_documents(300, 50)
    masked = sources(noised(documents, mask_rate=0.3))
    assert all(row.count(MASK) == math.ceil(0.3 * 50) for row in masked)
    assert all(
        all(got in (MASK, was) for got, was in zip(row, flat(document), strict=True))
        for row, document in zip(masked, documents, strict=True)
    )
    at = np.mean([[token == MASK for token in row] for row in masked], axis=0)
    assert stats.chisquare(300 * at).pvalue > 1e-3  # all positions are equally likely
    for row, document in zip(sources(noised(documents, delete_rate=0.3)), documents, strict=True):
        assert MASK not in row
        assert len(row) == 50 - 15
        assert [token for token in flat(document) if token in row] == row  # in order


def test_a_share_of_masks_is_random_tokens():
    batch = noised(random_documents(400, 50), mask_rate=0.3, random_rate=0.1)
    is_mask = (batch.token_ids == MASK).sum()
    assert is_mask / (400 * 15) == pytest.approx(0.9, abs=0.015)


@pytest.mark.parametrize(
    ("size", "mean", "lost", "masks", "length", "empty", "spans"),
    [
        (510, 3.0, 0.268, 0.0836, 0.816, 0.050, 51.6),
        (510, 3.5, 0.266, 0.0704, 0.804, 0.030, 44.3),
        (128, 3.0, 0.2705, 0.0869, 0.816, 0.050, None),
        (128, 3.5, 0.2701, 0.0746, 0.8045, 0.030, None),
    ],
)
def test_infilling_has_the_numbers_of_the_published_code(size, mean, lost, masks, length, empty, spans):
    number = 1500
    batch = noised(random_documents(number, size, sentence=size), infill_rate=0.3, span_length=mean)
    num_masks, sizes = (batch.token_ids == MASK).sum() / number / size, (batch.lengths - 2) / size
    assert num_masks == pytest.approx(masks, abs=0.0015)
    assert sizes.mean() == pytest.approx(length, abs=0.0015)
    assert 1 - (sizes.mean() - num_masks) == pytest.approx(lost, abs=0.002)
    corrupt = Denoising(VOCABULARY, DenoisingData(**{**QUIET, "span_length": mean}), 1)
    budget = np.full(number, math.ceil(0.3 * size))
    drawn = corrupt._spans(budget, np.arange(number).astype(np.uint64))
    assert (np.bincount(drawn.owners, drawn.ids) == budget).all()
    assert (drawn.ids == 0).mean() == pytest.approx(empty, abs=0.004)
    if spans:
        assert drawn.sizes.mean() == pytest.approx(spans, abs=0.3)


def test_lengths_of_spans_are_poisson():
    corrupt = Denoising(VOCABULARY, DenoisingData(**{**QUIET, "span_length": 3.0}), 5)
    spans = corrupt._spans(np.full(50, 3000), np.arange(50).astype(np.uint64))
    lengths = np.bincount(spans.ids, minlength=13)
    expected = stats.poisson.pmf(np.arange(12), 3.0) * len(spans.ids)
    assert (np.abs(lengths[:12] - expected) < 5 * np.sqrt(expected) + 50).all()  # the last span of each text is cut


def test_infilling_leaves_the_rest_in_order_and_one_mask_for_each_run():
    documents = random_documents(200, 60)
    for row, document in zip(sources(noised(documents, infill_rate=0.3)), documents, strict=True):
        left = [token for token in row if token != MASK]
        assert [token for token in flat(document) if token in set(left)] == left
        assert row.count(MASK) >= 1


def test_whole_words_are_masked_with_all_their_pieces():
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *WORDS[:50], *(f"##{word}" for word in WORDS[:50])])
    draw = np.random.default_rng(0)
    documents = [[draw.integers(5, 105, 12).tolist() for _ in range(4)] for _ in range(100)]
    batch = noised(documents, vocabulary=vocabulary, whole_word_masking=True, mask_rate=0.4)
    for row, document in zip(sources(batch), documents, strict=True):
        heads = [
            place == 0 or not vocabulary.is_continuation[token]
            for sentence in document
            for place, token in enumerate(sentence)
        ]
        starts = [*np.flatnonzero(heads), 48]
        pieces = [flat(document)[first:last] for first, last in pairwise(starts)]
        assert row.count(MASK) == math.ceil(0.4 * len(pieces))
        place = 0
        for piece in pieces:
            if row[place] == MASK:
                place += 1
            else:
                assert row[place : place + len(piece)] == piece
                place += len(piece)
        assert place == len(row)


def test_random_tokens_are_drawn_from_the_whole_vocabulary_alike():
    batch = noised(random_documents(1000, 50), mask_rate=1.0, random_rate=1.0)
    found = np.concatenate(sources(batch))
    counts = np.bincount(found, minlength=len(VOCABULARY))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_noises_follow_one_another_sentences_first_and_rotation_last():
    """Rotation comes last, so sentences are contiguous modulo the length; each mask replaces exactly one token."""
    documents = random_documents(300, 48, sentence=6)
    found = sources(noised(documents, permute_sentences=1.0, mask_rate=0.25, rotate_rate=1.0))
    num_cut = 0
    for row, document in zip(found, documents, strict=True):
        place = {token: (number, at) for number, part in enumerate(document) for at, token in enumerate(part)}
        known = [(at, *place[token]) for at, token in enumerate(row) if token != MASK]
        starts = {}
        for at, number, within in known:
            starts.setdefault(number, set()).add((at - within) % 48)
        assert all(len(start) == 1 for start in starts.values())
        assert len({min(start) % 6 for start in starts.values()}) == 1
        num_cut += min(starts[0]) % 6 > 0
    assert num_cut / 300 == pytest.approx(40 / 47, abs=0.08)  # 40 of 47 offsets cut a sentence


def test_masks_are_inserted_anywhere_with_the_ends_as_likely():
    found = sources(noised(random_documents(2000, 18), insert_rate=0.1))  # two masks in twenty positions
    at = np.sum([[token == MASK for token in row] for row in found], axis=0)
    assert at.sum() == 4000
    assert stats.chisquare(at).pvalue > 1e-3


def test_spans_are_of_whole_words_where_words_are_masked():
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *WORDS[:50], *(f"##{word}" for word in WORDS[:50])])
    documents = [[[5 + n % 50 if n % 3 == 0 else 55 + n % 50 for n in range(first, first + 60)]] for first in range(99)]
    batch = noised(documents, vocabulary=vocabulary, whole_word_masking=True, infill_rate=0.5)
    for row, document in zip(sources(batch), documents, strict=True):
        heads = [n for n, token in enumerate(document[0]) if n == 0 or token < 55]
        known = [document[0][a:b] for a, b in pairwise([*heads, 60])]
        left = [token for token in row if token != MASK]
        assert len(left) < 60
        while left:
            word = next(word for word in known if left[: len(word)] == word)
            left = left[len(word) :]


def test_permutation_keeps_sentences_whole_and_changes_their_order():
    documents = random_documents(400, 72, sentence=9)
    found, orders = sources(noised(documents, permute_sentences=1.0)), []
    for row, document in zip(found, documents, strict=True):
        parts = [row[first : first + 9] for first in range(0, 72, 9)]
        assert sorted(parts) == sorted(document)
        orders.append([document.index(part) for part in parts])
    assert np.mean([order != sorted(order) for order in orders]) > 0.99
    counts = np.bincount([order[0] for order in orders], minlength=8)
    assert stats.chisquare(counts).pvalue > 1e-3
    moved = [row != flat(document) for row, document in zip(found, documents, strict=True)]
    some = sources(noised(documents, permute_sentences=0.25))  # two of eight sentences: unchanged half of the time
    assert np.mean(moved) > 0.99
    assert np.mean([row != flat(d) for row, d in zip(some, documents, strict=True)]) == pytest.approx(0.5, abs=0.1)


def test_permutation_changes_the_order_of_four_sentences_nearly_always():
    documents = random_documents(500, 20, sentence=5)
    found = sources(noised(documents, permute_sentences=1.0))
    changed = np.mean([row != flat(document) for row, document in zip(found, documents, strict=True)])
    assert changed == pytest.approx(23 / 24, abs=0.03)


def test_rotation_is_cyclic_with_every_offset_as_likely():
    documents = random_documents(1200, 13)
    offsets = []
    for row, document in zip(sources(noised(documents, rotate_rate=1.0)), documents, strict=True):
        offset = row.index(flat(document)[0])
        assert row[offset:] + row[:offset] == flat(document)
        offsets.append(offset)
    counts = np.bincount(offsets, minlength=13)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 1e-3
    half = sources(noised(documents, rotate_rate=0.5))
    assert np.mean([r != flat(d) for r, d in zip(half, documents, strict=True)]) == pytest.approx(0.5, abs=0.06)


def test_insertion_adds_masks_and_sources_stay_within_max_length():
    documents = random_documents(200, 50)
    found = sources(noised(documents, insert_rate=0.1))
    assert all(row.count(MASK) == 5 and len(row) == 55 for row in found)
    assert all([t for t in row if t != MASK] == flat(d) for row, d in zip(found, documents, strict=True))
    assert noised(documents, insert_rate=0.5, max_length=60).lengths.max() == 60
    assert noised(documents, infill_rate=0.9, span_length=1.0, max_length=52).lengths.max() <= 52


@pytest.mark.parametrize("settings", [{"delete_rate": 1.0}, {"mask_rate": 1.0}, {"infill_rate": 1.0}])
def test_rates_of_one_and_texts_of_one_token(settings):
    documents = [[[7]], [[8, 9], [10]], [[11]] * 3]
    found = sources(noised(documents, permute_sentences=1.0, rotate_rate=1.0, **settings))
    for row, document in zip(found, documents, strict=True):  # spans overlap or are cut at the end, so tokens remain
        assert {*row} <= {MASK, *(flat(document) if "infill_rate" in settings else ())}
    if "mask_rate" in settings:
        assert [len(row) for row in found] == [1, 3, 3]


# --- missing spans


def corrupted(documents, epoch=0, **settings):
    data = SpanCorruptionData(max_length=700, **settings)
    return SpanCorruption(VOCABULARY, data, 1)(texts_of(documents, epoch=epoch))


def rebuilt(source, target):
    """Substitute the spans for their sentinels."""
    spans, sentinels = {}, VOCABULARY.sentinel_ids.tolist()
    for token in target:
        if token in sentinels:
            assert token == sentinels[len(spans)]  # in order, from <extra_id_0>
            spans[token] = []
        else:
            [*spans.values()][-1].append(token)
    assert [token for token in source if token in sentinels] == [*spans]
    return [token for place in source for token in spans.get(place, [place])], [len(span) for span in spans.values()]


def test_source_and_target_together_are_the_text():
    documents = random_documents(300)
    batch = corrupted(documents)
    labels, lengths = rows(batch.labels, batch.target_lengths), []
    for source, target, document in zip(sources(batch), labels, documents, strict=True):
        size = len(flat(document))
        assert target[-1] == SEP
        text, spans = rebuilt(source, target[:-1])
        assert text == flat(document)
        missing = min(max(round(0.15 * size), 1), size - 1)
        assert sum(spans) == missing
        assert len(spans) == min(max(round(missing / 3), 1), missing)
        assert not spans or min(spans) > 0
        if spans:
            sentinels = VOCABULARY.sentinel_ids.tolist()
            assert source[0] not in sentinels  # begins with kept text, ends with a missing span
            assert source[-1] == sentinels[len(spans) - 1]
            assert not any(a in sentinels and b in sentinels for a, b in pairwise(source))
        lengths += spans
    read = rows(batch.target_ids, batch.target_lengths)
    assert [row[1:] for row in read] == [row[:-1] for row in labels]
    assert all(row[0] == CLS for row in read)


def test_512_tokens_come_of_568_with_114_to_write():
    batch = corrupted(random_documents(20, 568, sentence=40))
    assert (batch.lengths - 1 == 512).all()  # our texts have one mark more than T5's, at the start
    assert (batch.target_lengths == 114).all()


def test_partitions_are_uniform():
    documents = random_documents(2000, 20)
    batch = corrupted(documents, noise_density=0.25, mean_span_length=2.5)  # five tokens in two spans
    cuts, begins = np.zeros(6), np.zeros(16)
    for source, target in zip(sources(batch), rows(batch.labels, batch.target_lengths), strict=True):
        _, spans = rebuilt(source, target[:-1])
        cuts[spans[0]] += 1
        begins[source.index(VOCABULARY.sentinel_ids[0])] += 1
    assert stats.chisquare(cuts[1:5]).pvalue > 1e-3
    assert stats.chisquare(begins[1:15]).pvalue > 1e-3


def test_missing_spans_depend_on_epoch_and_key_alone():
    documents = random_documents(20, 60)
    one, again, later = corrupted(documents), corrupted(documents), corrupted(documents, epoch=1)
    assert one.token_ids.tolist() == again.token_ids.tolist()
    assert one.token_ids.tolist() != later.token_ids.tolist()


def test_where_no_mark_begins_a_text_the_decoder_reads_padding_first():
    names = ["<pad>", "</s>", "<unk>", *WORDS[:100], sentinel(1), sentinel(0)]
    vocabulary = Vocabulary(names, SpecialTokens(pad="<pad>", unknown="<unk>", end="</s>"), prefix="")
    texts = texts_of([[[5, 6, 7], [8, 9]]], begin=(), end=(1,))
    batch = SpanCorruption(vocabulary, SpanCorruptionData(max_length=8), 0)(texts)
    assert batch.target_ids[0] == 0
    assert batch.target_ids[1:].tolist() == batch.labels[:-1].tolist()
    assert batch.labels[0] == vocabulary.ids[sentinel(0)]
    assert batch.token_ids[-1] == batch.labels[-1] == 1
    assert batch.marks.tolist() == [[0, 1]]


@pytest.mark.parametrize("kind", [Denoising, SpanCorruption])
def test_a_token_that_begins_all_targets_is_read_before_the_mark_of_a_text(kind):
    """BART's decoder reads the end mark first, and then what it predicts: the begin mark and the text."""
    documents, plain = random_documents(9), {"max_length": 100}
    data = (DenoisingData if kind is Denoising else SpanCorruptionData)(**plain)
    usual = kind(VOCABULARY, data, 1)(texts_of(documents))
    corrupt = kind(VOCABULARY, data.model_copy(update={"decoder_start": SEP}), 1)
    batch = corrupt(texts_of(documents))
    read, predicted = (rows(ids, batch.target_lengths) for ids in (batch.target_ids, batch.labels))
    assert all(row[:2] == [SEP, CLS] for row in read)
    assert [row[1:] for row in read] == [row[:-1] for row in predicted]
    assert [row[1:] for row in predicted] == rows(usual.labels, usual.target_lengths)
    assert batch.token_ids.tolist() == usual.token_ids.tolist()
    assert batch.marks.tolist() == [[SEP, CLS, SEP]] * 9
    assert corrupt.counts(texts_of(documents).lengths, 2)[0].tolist() == batch.target_lengths.tolist()


@pytest.mark.parametrize("names", [[], [sentinel(1), sentinel(2)]])
def test_missing_sentinels_are_told(names):
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *WORDS[:10], *names])
    with pytest.raises(ConfigError) as told:
        SpanCorruption(vocabulary, SpanCorruptionData(), 0)
    said = "data.max_length = 128 needs 6 sentinels, <extra_id_0> to <extra_id_5>; the vocabulary has none"
    assert said in str(told.value)
    assert "--sentinels 100" in str(told.value)


# --- the stream


def test_passages_tell_sentences_apart(random_corpus):
    corpus = random_corpus(60, most_tokens=60)
    stream = Passages(corpus, None, DenoisingData(max_length=42, next_sentence=False, short_seq_prob=0.0), seed=0)
    texts = stream.gather(next(stream.epoch(0)))
    parts = [
        texts.token_ids[start : start + length].tolist()
        for start, length in zip(texts.sentence_starts, texts.sentence_lengths, strict=True)
    ]
    assert min(map(len, parts)) > 0
    assert sum(map(len, parts)) == texts.num_tokens - 2 * texts.num_sequences == corpus.num_tokens
    known = [corpus.sentence(index).tolist() for index in range(corpus.num_sentences)]
    cut = [part for part in parts if part not in known]
    assert sum(len(part) for part in cut) == sum(len(sentence) for sentence in known if len(sentence) > 40)
    assert sorted(part for part in parts if part in known) == sorted(part for part in known if len(part) <= 40)


@pytest.mark.parametrize("kind", [Denoising, SpanCorruption])
def test_ranks_make_the_batch_that_one_makes(kind, random_corpus):
    corpus = random_corpus(60)
    vocabulary = Vocabulary([*corpus.vocabulary.tokens, *(sentinel(number) for number in range(9))])
    data = (DenoisingData if kind is Denoising else SpanCorruptionData)(max_length=64, next_sentence=False)
    stream = Passages(corpus, None, data, seed=3)
    whole, first, second = (
        Loader(stream, kind(vocabulary, data, 3), batch_size=8, rows=part).next_batch({})[0]
        for part in (slice(None), slice(0, 4), slice(4, 8))
    )
    for name in ("token_ids", "lengths", "target_ids", "target_lengths", "labels", "marks"):
        parts = [getattr(batch, name) for batch in (first, second)]
        assert np.concatenate(parts).tolist() == getattr(whole, name).tolist()
    account = Loader(stream, kind(vocabulary, data, 3), batch_size=8).account()
    batches = [*Loader(stream, kind(vocabulary, data, 3), batch_size=8).epoch_batches(0)]
    counted = sum(len(batch.labels) for batch in batches) / sum(batch.num_sequences for batch in batches)
    assert account.predictions_per_instance == pytest.approx(counted)


# --- recipes


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"denoising": {"mask_rate": 1.5}}, "denoising.mask_rate"),
        ({"denoising": {"rotate_rate": -0.1}}, "denoising.rotate_rate"),
        ({"denoising": {"span_length": 0.5}}, "denoising.span_length"),
        ({"denoising": {"mask_rate": 0.5, "delete_rate": 0.4}}, "mask_rate + delete_rate + infill_rate = 1.2"),
        ({"span_corruption": {"noise_density": 1.0}}, "span_corruption.noise_density"),
        ({"objective": "denoising", "data": {"next_sentence": True}}, "leave out data.next_sentence = true"),
        ({"objective": "denoising", "data": {"mask_prob": 0.5}}, "leave out data.mask_prob"),
        ({"objective": "span_corruption", "data": {"whole_word_masking": True}}, "leave out data.whole_word_masking"),
    ],
)
def test_wrong_recipes_are_refused(values, said):
    with pytest.raises(ValidationError) as told:
        PretrainRecipe.model_validate(values)
    assert all(part in str(told.value) for part in said.split("\n"))


def test_an_objective_of_a_decoder_takes_the_transformer_where_nothing_else_is_said():
    assert PretrainRecipe.model_validate({"objective": "denoising"}).model.architecture == "transformer"
    sized = PretrainRecipe.model_validate({"objective": "span_corruption", "model": {"size": "tiny"}})
    assert (sized.model.architecture, sized.model.size) == ("transformer", "tiny")
    given = {"objective": "denoising", "model": {"architecture": "bert"}}
    assert PretrainRecipe.model_validate(given).model.architecture == "bert"
    assert PretrainRecipe.model_validate({}).model.architecture == "bert"
