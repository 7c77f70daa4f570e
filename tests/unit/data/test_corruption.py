import numpy as np
import pytest
from scipy import stats

from maskloom.data.batch import Texts
from maskloom.data.corruption import Masking, NextTokens, num_predictions
from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.data.streams.sentence_pairs import SentencePairs
from maskloom.text.vocabulary import BART_TOKENS, Vocabulary

UNCAPPED = PretrainingData(max_predictions_per_seq=10_000)


def _sequences(vocabulary, lengths, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return packed sequences [CLS] A [SEP] B [SEP] of random ordinary tokens."""
    rng = np.random.default_rng(seed)
    ordinary = np.setdiff1d(np.arange(len(vocabulary)), list(vocabulary.special_ids))
    parts = []
    for length in lengths:
        ids = rng.choice(ordinary, length)
        ids[0], ids[length // 2], ids[-1] = vocabulary.cls_id, vocabulary.sep_id, vocabulary.sep_id
        parts.append(ids)
    return np.concatenate(parts), np.asarray(lengths, dtype=np.int64)


def _keys(num_sequences: int) -> np.ndarray:
    return np.arange(num_sequences, dtype=np.uint64)


def _mask(vocabulary, ids, lengths, settings=UNCAPPED, *, seed=1, epoch=0, keys=None):
    return _predicted(Masking(vocabulary, settings, seed), ids, lengths, keys, epoch)


def _predicted(corrupt, ids, lengths, keys=None, epoch=0, following=None):
    keys, epochs = _keys(len(lengths)) if keys is None else keys, np.broadcast_to(epoch, len(lengths))
    batch = corrupt(Texts(ids, np.zeros_like(ids), lengths, keys, epochs, following=following))
    return batch.token_ids, batch.mlm_positions, batch.mlm_labels


def _words(ids: np.ndarray, vocabulary) -> list[list[int]]:
    """Return words as lists of positions, found one token at a time."""
    words: list[list[int]] = []
    after_special = True
    for position, token in enumerate(ids.tolist()):
        if token in (vocabulary.cls_id, vocabulary.sep_id):
            after_special = True
            continue
        if vocabulary.tokens[token].startswith("##") and not after_special:
            words[-1].append(position)
        else:
            words.append([position])
        after_special = False
    return words


def test_counts_round_half_to_even_and_include_special_tokens(toy_vocabulary) -> None:
    lengths = [10, 30, 70, 110, 128, 512]
    assert num_predictions(np.array(lengths), UNCAPPED).tolist() == [2, 4, 10, 16, 19, 77]
    ids, packed = _sequences(toy_vocabulary, lengths)
    _, positions, _ = _mask(toy_vocabulary, ids, packed)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    assert np.bincount(owners[positions]).tolist() == [2, 4, 10, 16, 19, 77]
    assert num_predictions(np.array([3, 128, 512]), PretrainingData()).tolist() == [1, 19, 20]
    assert num_predictions(np.array([512]), PretrainingData(max_predictions_per_seq=80)).tolist() == [77]


@pytest.mark.parametrize("whole_word_masking", [False, True])
def test_special_tokens_are_never_masked_and_labels_are_the_originals(toy_vocabulary, whole_word_masking: bool) -> None:
    rng = np.random.default_rng(0)
    ids, lengths = _sequences(toy_vocabulary, rng.integers(5, 40, 2000))
    settings = PretrainingData(whole_word_masking=whole_word_masking)
    masked, positions, labels = _mask(toy_vocabulary, ids, lengths, settings)
    assert (np.diff(positions) > 0).all()
    assert (labels == ids[positions]).all()
    assert not np.isin(labels, [toy_vocabulary.cls_id, toy_vocabulary.sep_id]).any()
    untouched = np.ones(len(ids), dtype=bool)
    untouched[positions] = False
    assert (masked[untouched] == ids[untouched]).all()
    assert masked.dtype == positions.dtype == labels.dtype == np.int64


@pytest.mark.parametrize("whole_word_masking", [False, True])
def test_replacements_are_80_10_10_over_the_whole_vocabulary(toy_vocabulary, whole_word_masking: bool) -> None:
    ids, lengths = _sequences(toy_vocabulary, [128] * 6000)
    masked, positions, labels = _mask(
        toy_vocabulary, ids, lengths, PretrainingData(whole_word_masking=whole_word_masking)
    )
    got = masked[positions]
    assert len(positions) > 100_000
    is_mask, is_same = got == toy_vocabulary.mask_id, got == labels
    other = got[~is_mask & ~is_same]
    share = 1 / len(toy_vocabulary)
    expected = np.array([0.8 + 0.1 * share, 0.1 + 0.1 * share, 0.1 - 0.2 * share]) * len(positions)
    assert stats.chisquare([is_mask.sum(), is_same.sum(), len(other)], expected).pvalue > 1e-3
    counts = np.bincount(other, minlength=len(toy_vocabulary))
    specials = list(toy_vocabulary.special_ids - {toy_vocabulary.mask_id})
    assert (counts[specials] > 0).sum() >= 3, "special tokens are drawn as well"
    ordinary = np.setdiff1d(np.arange(len(toy_vocabulary)), list(toy_vocabulary.special_ids))
    assert stats.chisquare(counts[ordinary]).pvalue > 1e-3


def test_positions_are_drawn_evenly(toy_vocabulary) -> None:
    ids, lengths = _sequences(toy_vocabulary, [64] * 12_000)
    _, positions, _ = _mask(toy_vocabulary, ids, lengths)
    assert len(positions) > 100_000
    counts = np.bincount(positions % 64, minlength=64)
    allowed = np.setdiff1d(np.arange(64), [0, 32, 63])
    assert counts[[0, 32, 63]].sum() == 0
    assert stats.chisquare(counts[allowed]).pvalue > 1e-3


def test_neighbours_are_drawn_independently(toy_vocabulary) -> None:
    ids, lengths = _sequences(toy_vocabulary, [23] * 20_000)
    _, positions, _ = _mask(toy_vocabulary, ids, lengths)
    hits = np.zeros((20_000, 23), dtype=bool)
    hits[positions // 23, positions % 23] = True
    both = (hits[:, 1] & hits[:, 2]).mean()
    assert both == pytest.approx(3 / 20 * 2 / 19, abs=0.004)


def test_shares_are_settings(toy_vocabulary) -> None:
    ids, lengths = _sequences(toy_vocabulary, [128] * 500)
    all_masked = _mask(toy_vocabulary, ids, lengths, PretrainingData(mask_prob=1.0, keep_prob=0.0))
    assert (all_masked[0][all_masked[1]] == toy_vocabulary.mask_id).all()
    all_kept = _mask(toy_vocabulary, ids, lengths, PretrainingData(mask_prob=0.0, keep_prob=1.0))
    assert (all_kept[0] == ids).all()
    assert (all_kept[1] == all_masked[1]).all()
    all_random = _mask(toy_vocabulary, ids, lengths, PretrainingData(mask_prob=0.0, keep_prob=0.0))
    assert (all_random[0][all_random[1]] == all_random[2]).mean() < 0.01


def test_draws_depend_on_seed_epoch_and_key_but_not_on_the_batch(toy_vocabulary) -> None:
    ids, lengths = _sequences(toy_vocabulary, [128] * 20)
    base = _mask(toy_vocabulary, ids, lengths)
    again = _mask(toy_vocabulary, ids, lengths)
    assert all((a == b).all() for a, b in zip(base, again, strict=True))
    for changes in ({"seed": 2}, {"epoch": 1}, {"keys": _keys(20) + np.uint64(20)}):
        assert (_mask(toy_vocabulary, ids, lengths, **changes)[1] == base[1]).mean() < 0.2
    alone = _mask(toy_vocabulary, ids[128 * 7 : 128 * 8], lengths[:1], keys=_keys(20)[7:8])
    mine = base[1] // 128 == 7
    assert (alone[1] == base[1][mine] - 128 * 7).all()
    assert (alone[0] == base[0][128 * 7 : 128 * 8]).all()
    epochs = np.repeat([0, 1], 10)
    mixed = _mask(toy_vocabulary, ids, lengths, epoch=epochs)[1]
    other = _mask(toy_vocabulary, ids, lengths, epoch=1)[1]
    assert mixed[mixed < 1280].tolist() == base[1][base[1] < 1280].tolist()
    assert mixed[mixed >= 1280].tolist() == other[other >= 1280].tolist()


def test_whole_words_are_predicted_whole_or_not_at_all(toy_vocabulary) -> None:
    rng = np.random.default_rng(1)
    ids, lengths = _sequences(toy_vocabulary, rng.integers(5, 150, 400))
    settings = PretrainingData(whole_word_masking=True)
    masked, positions, _ = _mask(toy_vocabulary, ids, lengths, settings)
    chosen = set(positions.tolist())
    mixed = 0
    for word in _words(ids, toy_vocabulary):
        assert chosen.issuperset(word) or chosen.isdisjoint(word)
        if len(word) > 1 and word[0] in chosen:
            mixed += len({int(masked[position] == toy_vocabulary.mask_id) for position in word}) == 2
    assert mixed > 100, "the replacement is drawn for each piece, not for each word"
    owners = np.repeat(np.arange(len(lengths)), lengths)
    counts = np.bincount(owners[positions], minlength=len(lengths))
    assert (counts <= num_predictions(lengths, settings)).all()
    assert counts.sum() > 0.97 * num_predictions(lengths, settings).sum()


def test_whole_words_of_byte_level_pieces_begin_with_their_space() -> None:
    vocabulary = Vocabulary([*BART_TOKENS.tokens, "Ġa", "Ġb", "c", "."], BART_TOKENS, prefix="")
    tokens = ["<s>", "c", "c", "Ġa", "c", ".", "Ġb", "</s>"]
    ids, seen = np.array([vocabulary.ids[token] for token in tokens]), set()
    for seed in range(200):
        settings = PretrainingData(masked_lm_prob=0.4, whole_word_masking=True)
        _, positions, _ = _mask(vocabulary, ids, np.array([8]), settings, seed=seed)
        seen.add(tuple(positions.tolist()))
    assert seen == {(1, 2, 6), (3, 4, 5)}


def test_a_word_that_would_exceed_the_count_is_skipped(toy_vocabulary) -> None:
    """Of a nine-piece word and a one-piece word, only the latter fits into two predictions."""
    ids = np.array([toy_vocabulary.ids[t] for t in ["[CLS]", "t1", *["##t3"] * 8, "t2", "[SEP]"]])
    for seed in range(30):
        _, positions, labels = _mask(
            toy_vocabulary, ids, np.array([12]), PretrainingData(whole_word_masking=True), seed=seed
        )
        assert positions.tolist() == [10]
        assert labels.tolist() == [toy_vocabulary.ids["t2"]]


def test_a_continuation_after_a_separator_is_a_word_of_its_own(toy_vocabulary) -> None:
    tokens = ["[CLS]", "##t0", "##t3", "[SEP]", "##t6", "t1", "[SEP]"]
    ids = np.array([toy_vocabulary.ids[token] for token in tokens])
    seen = set()
    for seed in range(200):
        settings = PretrainingData(masked_lm_prob=0.3, whole_word_masking=True)
        _, positions, _ = _mask(toy_vocabulary, ids, np.array([7]), settings, seed=seed)
        seen.add(tuple(positions.tolist()))
    assert seen == {(1, 2), (4, 5)}


def test_whole_words_are_chosen_as_a_plain_loop_chooses_them(toy_vocabulary) -> None:
    """Multi-piece words get the same share of the predictions as in a simple shuffle with skipping."""
    one, _ = _sequences(toy_vocabulary, [40])
    words = _words(one, toy_vocabulary)
    rng = np.random.default_rng(0)
    expected, found = np.zeros(40), np.zeros(40)
    for _ in range(4000):
        left = 6
        for index in rng.permutation(len(words)):
            if len(words[index]) <= left:
                left -= len(words[index])
                expected[words[index]] += 1
    ids, lengths = np.tile(one, 4000), np.full(4000, 40)
    _, positions, _ = _mask(toy_vocabulary, ids, lengths, PretrainingData(whole_word_masking=True))
    np.add.at(found, positions % 40, 1)
    assert len({len(word) for word in words}) >= 3
    assert np.abs(found - expected).max() < 4.5 * np.sqrt(2 * 600)
    assert (found > 0).tolist() == (expected > 0).tolist()


def test_sequences_without_words_have_no_predictions(toy_vocabulary) -> None:
    ids = np.array([toy_vocabulary.cls_id, toy_vocabulary.sep_id, toy_vocabulary.sep_id])
    for whole_word_masking in (False, True):
        masked, positions, labels = _mask(
            toy_vocabulary, ids, np.array([3]), PretrainingData(whole_word_masking=whole_word_masking)
        )
        assert masked.tolist() == ids.tolist()
        assert len(positions) == len(labels) == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"masked_lm_prob": 0.0}, "masked_lm_prob"),
        ({"masked_lm_prob": 1.0}, "masked_lm_prob"),
        ({"max_predictions_per_seq": 0}, "max_predictions_per_seq"),
        ({"mask_prob": 0.95, "keep_prob": 0.1}, r"mask_prob \+ keep_prob = 1\.05"),
        ({"mask_prob": -0.1}, "mask_prob"),
    ],
)
def test_settings_are_checked(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PretrainingData(**values)


def test_every_token_of_text_is_predicted_from_the_one_before(toy_vocabulary):
    cls, sep = toy_vocabulary.cls_id, toy_vocabulary.sep_id
    ids = np.array([cls, 9, 8, sep, cls, 7, sep, 6, sep], dtype=np.int64)
    corrupt = NextTokens(toy_vocabulary, PretrainingData(next_sentence=False), 0)
    kept, positions, labels = _predicted(corrupt, ids, np.array([4, 5]))
    assert kept.tolist() == ids.tolist()
    assert positions.tolist() == [0, 1, 4, 6]
    assert labels.tolist() == [9, 8, 7, 6]


def test_every_token_of_running_text_is_predicted_marks_and_all(toy_vocabulary):
    sep = toy_vocabulary.sep_id
    ids = np.array([9, 8, sep, 7, 6], dtype=np.int64)
    corrupt = NextTokens(toy_vocabulary, PretrainingData(next_sentence=False), 0)
    kept, positions, labels = _predicted(corrupt, ids, np.array([2, 3]), following=np.array([sep, 5]))
    assert kept.tolist() == ids.tolist()
    assert positions.tolist() == [0, 1, 2, 3, 4]
    assert labels.tolist() == [8, sep, 7, 6, 5]


@pytest.mark.parametrize("length", [16, 64])
def test_the_loader_predicts_what_it_counts(random_corpus, length):
    data = PretrainingData(max_length=length, next_sentence=False)
    corpus = random_corpus(30)
    loader = Loader(SentencePairs(corpus, None, data, seed=1), NextTokens(corpus.vocabulary, data, 1), batch_size=16)
    batch, _ = loader.next_batch({})
    assert (batch.token_ids[batch.mlm_positions + 1] == batch.mlm_labels).all()
    assert len(batch.mlm_labels) == batch.num_tokens - 2 * 16
    account = loader.account()
    assert account.cut_fraction == 0.0
    assert account.predictions_per_instance == pytest.approx(account.tokens_per_instance - 2)
