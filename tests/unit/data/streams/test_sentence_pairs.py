import numpy as np
import pytest

from maskloom.config import PretrainRecipe
from maskloom.data.corruption import Masking
from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.data.streams import sentence_pairs
from maskloom.data.streams.sentence_pairs import (
    Instances,
    SentencePairs,
    _num_heads,
    truncated_lengths,
)
from maskloom.errors import ConfigError, DataError
from maskloom.runs.pretraining_plan import check_corpus
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.vocabulary import BART_TOKENS, Vocabulary


def _epoch(stream: SentencePairs, epoch: int = 0) -> Instances:
    return Instances.join([stream.block(epoch, block) for block in range(stream.num_blocks)])


def _position(epoch: int, block: int, instance: int) -> dict[str, int]:
    return {"epoch": epoch, "block": block, "instance": instance}


def _rows(instances: Instances) -> list[tuple]:
    columns = [part for column in vars(instances).values() for part in np.atleast_2d(column.T)]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _documents(corpus, sentences: np.ndarray) -> np.ndarray:
    return np.searchsorted(corpus.document_offsets, sentences, side="right") - 1


@pytest.mark.parametrize("max_length", [5, 16, 64, 512])
@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_pairs_fit_and_use_every_sentence(random_corpus, monkeypatch, max_length: int, rate: float) -> None:
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 100)
    corpus = random_corpus(30)
    stream = SentencePairs(corpus, None, PretrainingData(max_length=max_length, short_seq_prob=rate), seed=1)
    assert stream.num_blocks > 3
    instances = _epoch(stream)
    assert (instances.length[:, 0] >= 1).all()
    assert (instances.length[:, 1] >= 1).all()
    assert (instances.length[:, 0] + instances.length[:, 1] <= max_length - 3).all()
    used = np.zeros(corpus.num_sentences, dtype=np.int64)
    for first, middle, end, is_random in zip(
        instances.first[:, 0], instances.last[:, 0], instances.last[:, 1], instances.is_random, strict=True
    ):
        used[first:middle] += 1
        if not is_random:
            used[middle:end] += 1
    assert (used == 1).all(), "random B aside, every sentence is used exactly once in an epoch"


def test_sides_stay_inside_a_document_and_random_ones_are_of_another(random_corpus) -> None:
    corpus = random_corpus(40)
    instances = _epoch(SentencePairs(corpus, None, PretrainingData(max_length=64), seed=2))
    a_document, b_document = _documents(corpus, instances.first[:, 0]), _documents(corpus, instances.first[:, 1])
    assert (a_document == _documents(corpus, instances.last[:, 0] - 1)).all()
    assert (b_document == _documents(corpus, instances.last[:, 1] - 1)).all()
    is_random = instances.is_random == 1
    assert (a_document[is_random] != b_document[is_random]).all()
    assert (a_document[~is_random] == b_document[~is_random]).all()
    assert (instances.first[:, 1][~is_random] == instances.last[:, 0][~is_random]).all()
    assert 0.5 <= is_random.mean() < 0.75
    assert len(np.unique(instances.keys)) == len(instances)


def test_kept_tokens_lie_inside_the_sentences(random_corpus) -> None:
    corpus = random_corpus(40, most_tokens=90)
    instances = _epoch(SentencePairs(corpus, None, PretrainingData(max_length=32), seed=2))
    for side in range(2):
        first, last, skip, length = (
            column[:, side] for column in (instances.first, instances.last, instances.skip, instances.length)
        )
        whole = np.array([len(corpus.sentences(f, e)) for f, e in zip(first, last, strict=True)])
        assert (skip >= 0).all()
        assert (skip + length <= whole).all()
        cut = whole - length > 20
        assert 0.4 < (skip[cut] / (whole - length)[cut]).mean() < 0.6


def test_random_texts_reach_what_is_left_of_the_target(random_corpus) -> None:
    corpus = random_corpus(40, most_tokens=9)
    instances = _epoch(SentencePairs(corpus, None, PretrainingData(max_length=64, short_seq_prob=0.0), seed=3))
    ends = corpus.document_offsets[1:]
    for row in np.nonzero(instances.is_random)[0]:
        a_whole = len(corpus.sentences(instances.first[:, 0][row], instances.last[:, 0][row]))
        first, last = instances.first[:, 1][row], instances.last[:, 1][row]
        assert last - first == 1 or len(corpus.sentences(first, last - 1)) < 61 - a_whole
        assert last in ends or len(corpus.sentences(first, last)) >= 61 - a_whole


def test_chunks_grow_to_the_target_or_the_end_of_the_document(random_corpus) -> None:
    corpus = random_corpus(40, most_tokens=9)
    instances = _epoch(SentencePairs(corpus, None, PretrainingData(max_length=64, short_seq_prob=0.0), seed=3))
    for row in np.nonzero(instances.is_random == 0)[0]:
        first, last = instances.first[:, 0][row], instances.last[:, 1][row]
        assert len(corpus.sentences(first, last - 1)) < 61
        assert last in corpus.document_offsets or len(corpus.sentences(first, last)) >= 61


def test_short_targets_are_drawn_once_a_document(memory_corpus) -> None:
    """With one-token sentences, the lengths of a document's instances reveal its target."""
    corpus = memory_corpus([[[7]] * 300 for _ in range(400)])
    instances = _epoch(SentencePairs(corpus, None, PretrainingData(max_length=35, short_seq_prob=0.5), seed=4))
    actual = instances.is_random == 0
    documents = _documents(corpus, instances.first[:, 0])
    full = instances.last[:, 1] - instances.first[:, 0]
    is_last = np.isin(instances.last[:, 1], corpus.document_offsets)
    targets = {}
    for document, length in zip(documents[actual & ~is_last], full[actual & ~is_last], strict=True):
        assert targets.setdefault(document, length) == length
    drawn = np.array(list(targets.values()))
    assert drawn.min() >= 2
    assert drawn.max() == 32
    assert 0.4 < (drawn < 32).mean() < 0.6
    assert len(set(drawn.tolist())) > 25


def test_documents_of_one_sentence_are_all_random(memory_corpus) -> None:
    corpus = memory_corpus([[[9] * 5] for _ in range(30)])
    instances = _epoch(SentencePairs(corpus, None, PretrainingData(max_length=16), seed=0))
    assert len(instances) == 30
    assert instances.is_random.all()


@pytest.mark.parametrize("next_sentence", [True, False])
@pytest.mark.parametrize("sentences", [[[5]], [[5], [6, 7]], [[5] * 100] * 3])
def test_a_single_document_works(memory_corpus, sentences, next_sentence: bool) -> None:
    corpus = memory_corpus([sentences])
    stream = SentencePairs(corpus, None, PretrainingData(max_length=24, next_sentence=next_sentence), seed=0)
    read, after = stream.read({}, 20)
    assert len(read) == 20
    assert after["epoch"] > 0
    assert set(_documents(corpus, read.first[:, 1]).tolist()) == {0}


def test_single_segments_use_every_token_once(random_corpus, monkeypatch) -> None:
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 100)
    corpus = random_corpus(50, most_tokens=120)
    settings = PretrainingData(max_length=50, short_seq_prob=0.3, next_sentence=False)
    instances = _epoch(SentencePairs(corpus, None, settings, seed=5))
    assert (instances.length[:, 0] >= 1).all()
    assert (instances.length[:, 0] <= 48).all()
    assert (instances.length[:, 1] == 0).all()
    starts = np.concatenate([[0], np.cumsum(corpus.sentence_lengths)])
    used = np.zeros(corpus.num_tokens, dtype=np.int64)
    for first, skip, length in zip(instances.first[:, 0], instances.skip[:, 0], instances.length[:, 0], strict=True):
        used[starts[first] + skip : starts[first] + skip + length] += 1
    assert (used == 1).all()
    assert len(np.unique(instances.keys)) == len(instances)
    several = instances.last[:, 0] - instances.first[:, 0] > 1
    assert (instances.skip[:, 0][several] == 0).all(), "only a lone sentence is ever cut"


def test_only_the_documents_asked_for_are_read(random_corpus) -> None:
    corpus = random_corpus(30)
    chosen = np.array([3, 17, 4, 29])
    instances = _epoch(SentencePairs(corpus, chosen, PretrainingData(max_length=64), seed=1))
    read = np.concatenate([_documents(corpus, instances.first[:, 0]), _documents(corpus, instances.first[:, 1])])
    assert set(read.tolist()) == set(chosen.tolist())


def test_epochs_differ_and_come_again(random_corpus) -> None:
    corpus = random_corpus(50)
    stream = SentencePairs(corpus, None, PretrainingData(max_length=64), seed=6)
    first, second = _rows(_epoch(stream, 0)), _rows(_epoch(stream, 1))
    assert _rows(_epoch(SentencePairs(corpus, None, PretrainingData(max_length=64), seed=6), 0)) == first
    assert first != second
    assert len(set(first) & set(second)) == 0
    other = SentencePairs(corpus, None, PretrainingData(max_length=64), seed=7)
    assert _rows(_epoch(other, 0)) != first


def test_repeated_instances_come_in_another_order(random_corpus, monkeypatch) -> None:
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 150)
    corpus = random_corpus(50)
    stream = SentencePairs(corpus, None, PretrainingData(max_length=64, static_masks=True), seed=6)
    first, second = _rows(_epoch(stream, 0)), _rows(_epoch(stream, 3))
    assert first != second
    assert sorted(first) == sorted(second)


def test_instances_of_a_document_do_not_depend_on_the_block(random_corpus, monkeypatch) -> None:
    corpus = random_corpus(50)
    b = SentencePairs(corpus, None, PretrainingData(max_length=64), seed=6)
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 100)
    a = SentencePairs(corpus, None, PretrainingData(max_length=64), seed=6)
    assert a.num_blocks > 1
    assert b.num_blocks == 1
    assert sorted(_rows(_epoch(a))) == sorted(_rows(_epoch(b)))


@pytest.mark.parametrize("size", [1, 7, 64])
def test_reading_is_seamless_from_any_position(random_corpus, size: int, monkeypatch) -> None:
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 40)
    corpus = random_corpus(10)
    stream = SentencePairs(corpus, None, PretrainingData(max_length=64), seed=8)
    assert stream.num_blocks > 2
    total = 3 * len(_epoch(stream)) // size + 1
    whole, end = stream.read({}, total * size)
    position, pieces = {}, []
    for _ in range(total):
        fresh = SentencePairs(corpus, None, PretrainingData(max_length=64), seed=8)
        part, position = (fresh if size > 1 else stream).read(position, size)
        pieces += _rows(part)
    assert pieces == _rows(whole)
    assert position == end
    assert end["epoch"] >= 2


def test_positions_after_the_last_instance_are_the_next_start(random_corpus, monkeypatch) -> None:
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 80)
    corpus = random_corpus(25)
    stream = SentencePairs(corpus, None, PretrainingData(max_length=64), seed=8)
    size = len(stream.block(0, 0))
    assert stream.read({}, size)[1] == _position(0, 1, 0)
    last = stream.num_blocks - 1
    assert stream.read(_position(4, last, 0), len(stream.block(4, last)))[1] == _position(5, 0, 0)
    assert _rows(stream.read(_position(0, 0, size), 3)[0]) == _rows(stream.read(_position(0, 1, 0), 3)[0])


def test_positions_that_do_not_exist_are_refused(random_corpus) -> None:
    stream = SentencePairs(random_corpus(5), None, PretrainingData(max_length=64), seed=8)
    with pytest.raises(DataError, match="the block has"):
        stream.read(_position(0, 0, 10**6), 1)
    with pytest.raises(DataError, match="block 9 of epoch 0: these documents have 1 blocks"):
        stream.read(_position(0, 9, 0), 1)
    for wrong in ({"row": 0}, {"epoch": 0, "block": 0}, {"epoch": 0, "block": 0, "instance": -1}, {"epoch": "0"}):
        with pytest.raises(DataError, match=r"data position .*: expected whole numbers from 0 for epoch, block, inst"):
            stream.read(wrong, 1)


def test_a_length_without_room_for_a_pair_is_refused(random_corpus) -> None:
    corpus = random_corpus(5)
    names = ["<s>", "<pad>", "</s>", "<mask>", *map(str, range(2000))]
    corpus.vocabulary = Vocabulary(names, BART_TOKENS, prefix="")
    corpus.tokenizer = BytePairTokenizer(corpus.vocabulary, (), lowercase=False)
    with pytest.raises(ConfigError, match=r"^data\.max_length = 5: a pair of texts .* need at least 6 tokens$"):
        check_corpus(PretrainRecipe.model_validate({"data": {"max_length": 5}}), corpus)
    check_corpus(PretrainRecipe.model_validate({"data": {"max_length": 6}}), corpus)
    assert (_epoch(SentencePairs(corpus, None, PretrainingData(max_length=6), seed=0)).length == 1).all()


def test_no_documents_are_refused(memory_corpus) -> None:
    with pytest.raises(DataError, match="no documents to sample from; pre-training needs at least one"):
        SentencePairs(memory_corpus([[[5]]]), np.array([], dtype=np.int64), PretrainingData(), seed=0)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="max_length"):
        PretrainingData(max_length=4)
    with pytest.raises(ValueError, match="short_seq_prob"):
        PretrainingData(short_seq_prob=1.5)


def test_truncation_equals_one_token_at_a_time() -> None:
    a, b = (side.ravel() for side in np.meshgrid(np.arange(1, 25), np.arange(1, 25)))
    for most in (2, 3, 7, 16, 17):
        expected = []
        for length_a, length_b in zip(a.tolist(), b.tolist(), strict=True):
            while length_a + length_b > most:
                if length_a > length_b:
                    length_a -= 1
                else:
                    length_b -= 1
            expected.append((length_a, length_b))
        assert list(zip(*(kept.tolist() for kept in truncated_lengths(a, b, most)), strict=True)) == expected


def test_cuts_at_the_front_are_binomial() -> None:
    tosses = np.repeat([0, 1, 10, 64, 65, 200], 4000)
    heads = _num_heads(tosses, 1, 2, 3, np.arange(len(tosses)))
    for number in np.unique(tosses):
        drawn = heads[tosses == number]
        assert drawn.min() >= 0
        assert drawn.max() <= number
        assert drawn.mean() == pytest.approx(number / 2, abs=4 * np.sqrt(number / 4 / 4000) + 1e-9)
        assert drawn.var() == pytest.approx(number / 4, rel=0.12)


def test_sentence_order_swaps_half_of_the_pairs_of_consecutive_texts(random_corpus) -> None:
    corpus = random_corpus(60)
    data = PretrainingData(max_length=64, sentence_order=True, short_seq_prob=0.5)
    pairs = SentencePairs(corpus, None, data, seed=3).block(0, 0)
    is_swapped = pairs.is_random == 1
    assert 0.4 < is_swapped.mean() < 0.6
    first, middle = (
        np.where(is_swapped, pairs.first[:, 1], pairs.first[:, 0]),
        np.where(is_swapped, pairs.last[:, 1], pairs.last[:, 0]),
    )
    follows, last = (
        np.where(is_swapped, pairs.first[:, 0], pairs.first[:, 1]),
        np.where(is_swapped, pairs.last[:, 0], pairs.last[:, 1]),
    )
    assert (middle == follows).all()
    assert ((first < middle) & (middle < last)).all()
    assert ((pairs.length[:, 0] > 0) & (pairs.length[:, 1] > 0) & (pairs.length[:, 0] + pairs.length[:, 1] <= 61)).all()
    offsets = np.asarray(corpus.document_offsets)
    assert (np.searchsorted(offsets, first, side="right") == np.searchsorted(offsets, last - 1, side="right")).all()
    order = np.argsort(first)
    assert (last[order][:-1] <= first[order][1:]).all()
    # only last sentences of documents are left over
    unused = np.setdiff1d(
        np.arange(offsets[-1]), np.concatenate([np.arange(*ends) for ends in zip(first, last, strict=True)])
    )
    assert np.isin(unused + 1, offsets).all()


def _with_pairs_in_one_document(memory_corpus, monkeypatch, number: int):
    """Return a corpus of eight documents in blocks of two, all but one of a single sentence."""
    documents = [[[9, 8], [7, 6, 5], [4]] if each == number else [[10 + each]] for each in range(8)]
    monkeypatch.setattr(sentence_pairs, "BLOCK_SENTENCES", 2)
    return memory_corpus(documents)


@pytest.mark.parametrize("number", [0, 7])
def test_a_block_without_pairs_in_sentence_order_is_empty(memory_corpus, monkeypatch, number: int) -> None:
    corpus, data = _with_pairs_in_one_document(memory_corpus, monkeypatch, number), PretrainingData(sentence_order=True)
    stream = SentencePairs(corpus, None, data, seed=0)
    assert stream.num_blocks == 4
    for epoch in range(6):  # in which the document with pairs is in different blocks
        sizes = [len(stream.block(epoch, block)) for block in range(4)]
        assert sorted(sizes) == [0, 0, 0, 1]
        rows, after = stream.read(_position(epoch, 0, 0), 1)
        assert {name: column.dtype for name, column in vars(rows).items()} == {
            name: np.dtype(np.uint64 if name == "keys" else np.int64) for name in vars(rows)
        }
        assert _documents(corpus, rows.first[:, 0]).tolist() == [number]
        assert after == _position(*divmod(4 * epoch + sizes.index(1) + 1, 4), 0)
        assert _rows(stream.read(after, 2)[0]) == _rows(
            Instances.join([stream.read(_position(epoch + later, 0, 0), 1)[0] for later in (1, 2)])
        )
        assert len(Instances.join([*stream.epoch(epoch)])) == 1
    extent = stream.extent()
    assert 1 <= extent.num_rows <= 4
    assert extent.lengths.tolist() == [9]
    loader = Loader(stream, Masking(corpus.vocabulary, data, 0), batch_size=2)
    assert [batch.num_sequences for batch in loader.epoch_batches(1)] == [1]
    assert loader.account().tokens_per_instance == 9


def test_sentence_order_needs_two_sentences(memory_corpus) -> None:
    with pytest.raises(DataError, match=r"sentence-order pairs need .* 2 sentences; none of these 2 has more than 1"):
        SentencePairs(memory_corpus([[[9, 8]], [[7]]]), None, PretrainingData(sentence_order=True), seed=0)


def test_documents_without_pairs_are_refused_before_training(memory_corpus, monkeypatch) -> None:
    """For documents that are held out, it would otherwise show only at the first evaluation."""
    recipe = PretrainRecipe.model_validate({"data": {"sentence_order": True, "held_out_fraction": 0.125}})
    said = set()
    for number in range(8):
        corpus = _with_pairs_in_one_document(memory_corpus, monkeypatch, number)
        with pytest.raises(DataError, match=r"^memory, (training|held-out) documents: .* of these [17] ") as caught:
            check_corpus(recipe, corpus)
        said.add(str(caught.value).split()[1])
        check_corpus(recipe.model_copy(update={"data": PretrainingData()}), corpus)
    assert said == {"training", "held-out"}
    check_corpus(recipe, memory_corpus([[[9, 8], [7]]] * 8))
