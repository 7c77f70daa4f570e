"""Tables, threads and what training converges to."""

import heapq
from itertools import pairwise

import numpy as np
import pytest

from maskloom.text.word_vectors import WordVectors
from maskloom.words import kernel, training
from maskloom.words.settings import WordsRecipe
from maskloom.words.training import WordTraining, alias_table, huffman_codes, keep_probabilities, sigmoid_table


def trained(recipe: WordsRecipe, counts: np.ndarray, tokens: np.ndarray) -> WordTraining:
    tokens.flags.writeable = False  # as a run maps them from its file, so that numba compiles one form of the loop
    state = WordTraining(recipe, counts, tokens)
    [*state.rounds()]
    assert state.blocks_done == state.num_blocks
    return state


def random_text(num_words: int = 40, length: int = 30_000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    tokens = np.minimum(draw.zipf(1.6, length) - 1, num_words - 1).astype(np.int32)
    tokens[::12] = -1
    tokens.flags.writeable = False  # as in `trained`
    return np.bincount(tokens[tokens >= 0], minlength=num_words), tokens


def test_keep_probabilities_are_the_program_s() -> None:
    counts = np.array([100, 10, 1, 889])
    assert keep_probabilities(counts, 1e-3)[:3] == pytest.approx([0.11, 0.1 + 0.1**0.5, 1.0])
    assert keep_probabilities(counts, 0.0).tolist() == [1.0] * 4


def test_a_sample_too_small_to_divide_by_is_refused() -> None:
    with pytest.raises(ValueError, match="sample = 1e-13: it must be 0 or at least 1e-12"):
        WordsRecipe(sample=1e-13)


def test_the_sigmoid_is_read_from_a_thousand_steps() -> None:
    edges = np.arange(-6, 6, 0.012)
    for skips in (False, True):
        table = sigmoid_table(skips=skips)
        assert table.shape == (2, 1002)
        assert table[:, [0, -1]].tolist() == [[float(skips), 1.0], [0.0, 0.0]]
        assert table[0, 1:-1] == pytest.approx(1 / (1 + np.exp(-edges)), abs=1e-6)
        assert table[1, 1:-1] == pytest.approx(np.log1p(np.exp(-edges)), abs=1e-6)


@pytest.mark.parametrize("score", [-7.0, -5.99, -2.5, 0.0, 0.013, 3.1, 5.99, 7.0])
def test_a_score_moves_a_word_by_its_step_of_the_sigmoid(score: float) -> None:
    rate, error = np.float32(0.5), np.zeros(1, np.float32)
    source, outputs = np.array([[score]], np.float32), np.ones((1, 1), np.float32)
    loss = kernel._binary(source, 0, outputs, 1, sigmoid_table(skips=False), error, rate)
    edge = np.floor((score + 6) / 0.012 + 1e-4) * 0.012 - 6
    probability = 0.0 if score < -6 else 1.0 if score > 6 else 1 / (1 + np.exp(-edge))
    assert error[0] == pytest.approx(0.5 * (1 - probability), abs=1e-6)
    assert outputs[0, 0] == pytest.approx(1 + 0.5 * (1 - probability) * score, abs=1e-5)
    assert loss == pytest.approx(-score if score < -6 else 0.0 if score > 6 else -np.log(probability), abs=1e-5)


def test_an_alias_table_holds_its_weights() -> None:
    weights = np.array([50.0, 3, 0.2, 7, 7, 1])
    table = alias_table(weights)
    chance, other = (table >> np.uint64(32)) / 2**32, (table & np.uint64(2**32 - 1)).astype(int)
    held = chance + np.bincount(other, 1 - chance, len(weights))
    assert held / len(weights) == pytest.approx(weights / weights.sum(), abs=1e-9)


def test_huffman_codes_are_prefix_free_and_as_short_as_can_be() -> None:
    counts = np.sort(np.random.default_rng(2).integers(1, 500, 60))[::-1]
    starts, nodes = huffman_codes(counts)
    paths = [tuple(nodes[a:b].tolist()) for a, b in pairwise(starts)]
    codes = sorted(tuple(node & 1 for node in path) for path in paths)
    assert all(a != b[: len(a)] for a, b in pairwise(codes))
    assert {path[0] >> 1 for path in paths} == {0}
    assert {node >> 1 for path in paths for node in path} == {*range(59)}
    heap, cost = [*counts.tolist()], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        heapq.heappush(heap, both := heapq.heappop(heap) + heapq.heappop(heap))
        cost += both
    assert sum(len(path) * count for path, count in zip(paths, counts, strict=True)) == cost


def test_the_rate_falls_linearly_to_its_floor() -> None:
    state = WordTraining(WordsRecipe(epochs=4, size=2), *random_text())
    rates = [state.rate_of(block) for block in range(state.num_blocks)]
    assert rates[0] == 0.025
    assert np.diff(rates) == pytest.approx(-0.025 / 13)
    assert WordsRecipe(model="cbow").peak_rate == 0.05
    assert state.rate_of(10**9) == pytest.approx(2.5e-6)


@pytest.mark.parametrize(("workers", "deterministic"), [(1, False), (3, True)])
def test_the_same_seed_gives_the_same_bits(workers: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_BLOCKS_BETWEEN_MEETINGS", 1)
    recipe = WordsRecipe(size=8, epochs=2, workers=workers, deterministic=deterministic)
    first, second = (trained(recipe, *random_text()) for _ in range(2))
    assert np.array_equal(first.vectors, second.vectors)
    assert np.array_equal(first.outputs, second.outputs)
    other = trained(recipe.model_copy(update={"seed": 1}), *random_text())
    assert not np.array_equal(first.vectors, other.vectors)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_training_goes_on_from_any_round(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_BLOCKS_BETWEEN_MEETINGS", 1)
    monkeypatch.setattr(training, "_BLOCKS_OF_ROUND", 2)
    recipe = WordsRecipe(size=8, epochs=3, workers=workers, deterministic=True)
    whole, stopped, resumed = (WordTraining(recipe, *random_text()) for _ in range(3))
    [*whole.rounds()]
    next(stopped.rounds())
    resumed.vectors[:], resumed.outputs[:], resumed.blocks_done = stopped.vectors, stopped.outputs, stopped.blocks_done
    [*resumed.rounds()]
    assert 0 < stopped.blocks_done < whole.blocks_done
    assert np.array_equal(whole.vectors, resumed.vectors)


def test_copies_meet_in_their_sum_where_they_differ_and_their_mean_where_they_agree() -> None:
    before = np.array([[4, -2], [0.5, 7], [-1, 1]], np.float32)
    changes = [[[1, 0], [1, 1], [0, 0]], [[0, 2], [1, 1], [3, 0]]]
    whole, parts = before.copy(), tuple(before + np.array(change, np.float32) for change in changes)
    training._merge(whole, parts, 0)
    assert whole == pytest.approx(before + np.array([[1, 2], [1, 1], [3, 0]]), abs=1e-5)
    assert all(np.array_equal(part, whole) for part in parts)


@pytest.mark.parametrize("model", ["skipgram", "cbow"])
@pytest.mark.parametrize("loss", ["negative", "hierarchical", "softmax"])
def test_words_of_the_same_contexts_come_together(model: str, loss: str) -> None:
    draw = np.random.default_rng(4)
    # in each of 4 topics, two words (0, 1; 2, 3; ...) share the same ten context words
    topics = draw.integers(0, 4, 6000)
    sentences = [
        [2 * topic + draw.integers(2), *(8 + 10 * topic + draw.integers(0, 10, 5)).tolist(), -1] for topic in topics
    ]
    tokens = np.array([word for sentence in sentences for word in sentence], np.int32)
    counts = np.bincount(tokens[tokens >= 0], minlength=48)
    recipe = WordsRecipe(model=model, loss=loss, size=16, sample=0.0, epochs=4)  # type: ignore[arg-type]
    vectors = WordVectors([*map(str, range(48))], trained(recipe, counts, tokens).vectors)
    cosines = vectors.directions[:8] @ vectors.directions[:8].T
    same = min(cosines[2 * topic, 2 * topic + 1] for topic in range(4))
    others = max(cosines[a, b] for a in range(8) for b in range(8) if a // 2 != b // 2)
    assert same > 0.9
    assert others < same - 0.05


def test_products_are_pmi_less_the_logarithm_of_the_noise_words() -> None:
    """Levy and Goldberg 2014: in skip-gram with k noise words by unigram frequency, w c tends to PMI - ln k."""
    size, draw = 50, np.random.default_rng(5)
    both = 1 + draw.poisson(20 * draw.gamma(1.0, size=(size, size)))  # how often each pair of words occurs together
    pairs = draw.permutation(np.repeat(np.arange(size * size), both.ravel()))
    tokens = np.stack([pairs // size, pairs % size, np.full(len(pairs), -1)], 1).ravel().astype(np.int32)
    counts = np.bincount(tokens[tokens >= 0], minlength=size)
    recipe = WordsRecipe(size=size, window=1, negative=2, noise_exponent=1.0, sample=0.0, epochs=15, learning_rate=0.1)
    state = trained(recipe, counts, tokens)
    joint = (both + both.T) / both.sum() / 2
    wanted = np.log(joint / np.outer(joint.sum(1), joint.sum(0))) - np.log(2)
    products = state.vectors @ state.outputs.T
    assert np.corrcoef(products.ravel(), wanted.ravel())[0, 1] > 0.95
    assert products.mean() == pytest.approx(wanted.mean(), abs=0.1)
