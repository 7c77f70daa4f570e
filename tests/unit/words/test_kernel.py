"""The inner loop: its updates compared with autograd, the compiled loop with the plain one, and its draws."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from maskloom.errors import ConfigError
from maskloom.words import kernel
from maskloom.words.kernel import HIERARCHICAL, NEGATIVE, SOFTMAX, Options, Tables
from maskloom.words.settings import WordsRecipe
from maskloom.words.training import alias_table, huffman_codes, make_tables

WORDS, SIZE, RATE = 6, 5, 0.3
LOSSES = {"negative": NEGATIVE, "hierarchical": HIERARCHICAL, "softmax": SOFTMAX}
COUNTS = np.array([9, 7, 4, 3, 2, 1])
NOISE = 5  # the only word that the tables of `exact_tables` draw
SENTENCE = [0, 1, 2, 1]


def exact_tables(loss: str) -> Tables:
    paths = huffman_codes(COUNTS) if loss == "hierarchical" else (np.zeros(1, np.int64), np.zeros(0, np.int32))
    everything = np.full(WORDS, 2**32 - 1, np.uint32)
    return Tables(everything, np.array([NOISE], np.uint64), *paths, np.zeros((2, 2)))


def matrices(dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    return draw.normal(size=(WORDS, SIZE)).astype(dtype), draw.normal(size=(WORDS, SIZE)).astype(dtype)


def read_only(tokens: object) -> np.ndarray:
    """Return tokens as a run maps them from its file, so that numba compiles one form of the loop."""
    found = np.array(tokens, np.int32)
    found.flags.writeable = False
    return found


def plain(*arguments: object) -> tuple[float, int]:
    with np.errstate(over="ignore"):  # 64-bit draws wrap around
        return kernel.train_block(*arguments)  # type: ignore[arg-type]


def loss_of(hidden: torch.Tensor, outputs: torch.Tensor, word: int, loss: str) -> torch.Tensor:
    if loss == "softmax":
        return torch.nn.functional.cross_entropy(outputs @ hidden, torch.tensor(word))
    targets = [(word, 1), (NOISE, 0)]
    if loss == "hierarchical":
        starts, nodes = huffman_codes(COUNTS)
        targets = [divmod(int(node), 2) for node in nodes[starts[word] : starts[word + 1]]]
    scores = torch.stack([outputs[target] @ hidden for target, _ in targets])
    labels = torch.tensor([float(label) for _, label in targets], dtype=scores.dtype)
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")


def by_autograd(
    vectors: np.ndarray, outputs: np.ndarray, model: str, loss: str, sums: bool, factor: str
) -> tuple[np.ndarray, np.ndarray, float]:
    inner, outer = torch.tensor(vectors), torch.tensor(outputs)
    total = 0.0
    for center, word in enumerate(SENTENCE):
        context = [SENTENCE[at] for at in (center - 1, center + 1) if 0 <= at < len(SENTENCE)]
        for group in [context] if model == "cbow" else [[row] for row in context]:
            rows = inner[group].clone().requires_grad_()
            leaf = outer.clone().requires_grad_()
            found = loss_of(rows.sum(0) if sums else rows.mean(0), leaf, word, loss)
            found.backward()
            scale = {"true": 1, "times": len(group), "over": 1 / len(group)}[factor]
            for row, gradient in zip(group, rows.grad, strict=True):
                inner[row] -= RATE * scale * gradient
            outer -= RATE * leaf.grad
            total += found.item()
    return inner.numpy(), outer.numpy(), total


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("model", "sums", "divides", "factor"),
    [
        ("skipgram", False, False, "true"),
        ("cbow", False, True, "true"),
        ("cbow", True, False, "true"),
        ("cbow", False, False, "times"),  # word2vec's rule: each word of the window gets the whole gradient
        ("cbow", True, True, "over"),
    ],
)
def test_updates_and_loss_equal_autograd(model: str, sums: bool, divides: bool, factor: str, loss: str) -> None:
    vectors, outputs = matrices()
    expected = by_autograd(vectors, outputs, model, loss, sums, factor)
    options = Options(model == "cbow", LOSSES[loss], 1, int(loss == "negative"), sums, divides, np.float64(RATE))
    total, number = plain(vectors, outputs, read_only(SENTENCE), exact_tables(loss), options, np.uint64(1))
    np.testing.assert_allclose(vectors, expected[0], atol=1e-10)
    np.testing.assert_allclose(outputs, expected[1], atol=1e-10)
    assert total == pytest.approx(expected[2], abs=1e-9)
    assert number == (4 if model == "cbow" else 6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", ["skipgram", "cbow"])
def test_the_compiled_loop_equals_the_plain_one(model: str, loss: str) -> None:
    draw = np.random.default_rng(0)
    counts = np.sort(draw.integers(5, 100, 30))[::-1]
    tokens = read_only(draw.integers(-1, 30, 150))
    recipe = WordsRecipe(model=model, loss=loss, sample=0.02)  # type: ignore[arg-type]
    tables = make_tables(recipe, counts)
    options = Options(model == "cbow", LOSSES[loss], 5, 5 if loss == "negative" else 0, False, False, np.float32(0.05))
    start = [(draw.random((30, 20)) - 0.5).astype(np.float32) for _ in range(2)]
    both = [[part.copy() for part in start] for _ in range(2)]
    results = [
        train(*parts, tokens, tables, options, np.uint64(7))
        for train, parts in zip((kernel.compiled(), plain), both, strict=True)
    ]
    assert results[0][1] == results[1][1] > 50
    assert results[0][0] == pytest.approx(float(results[1][0]), rel=1e-4)
    for compiled, by_python in zip(*both, strict=True):
        np.testing.assert_allclose(compiled, by_python, atol=2e-5)
    assert np.abs(both[0][0] - start[0]).max() > 1e-3


@pytest.mark.parametrize("form", ["compiled", "plain"])
@pytest.mark.parametrize(
    ("loss", "score", "learns"),
    [
        ("hierarchical", 6.5, False),
        ("hierarchical", -6.5, False),
        ("hierarchical", 5.5, True),
        ("hierarchical", -5.5, True),
        ("negative", 6.5, True),
        ("negative", -6.5, True),
    ],
)
def test_hierarchical_softmax_skips_nodes_beyond_the_table(form: str, loss: str, score: float, learns: bool) -> None:
    train = kernel.compiled() if form == "compiled" else plain
    tables = make_tables(WordsRecipe(loss=loss, sample=0.0), np.array([3, 1]))  # type: ignore[arg-type]
    vectors, outputs = np.ones((2, 2), np.float32), np.full((2, 2), score / 2, np.float32)
    options = Options(False, LOSSES[loss], 1, int(loss == "negative"), False, False, np.float32(0.1))
    train(vectors, outputs, read_only([0, 1]), tables, options, np.uint64(1))
    assert (np.abs(vectors - 1).max() > 0) == learns
    assert (np.abs(outputs - score / 2).max() > 0) == learns


@pytest.mark.parametrize("form", ["compiled", "plain"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_score_that_is_no_number_makes_the_loss_one_too(form: str, loss: str) -> None:
    train = kernel.compiled() if form == "compiled" else plain
    tables = make_tables(WordsRecipe(loss=loss, sample=0.0), COUNTS)  # type: ignore[arg-type]
    vectors, outputs = matrices(np.float32)
    vectors[1] = np.nan
    options = Options(False, LOSSES[loss], 1, int(loss == "negative"), False, False, np.float32(RATE))
    total, number = train(vectors, outputs, read_only(SENTENCE), tables, options, np.uint64(1))
    assert np.isnan(total)
    assert number == 6


def draws(noise: np.ndarray, number: int) -> np.ndarray:
    ahead = np.zeros(number, np.int64)
    with np.errstate(over="ignore"):
        kernel._draw_noise(noise, ahead, np.zeros((1, 1)), np.uint64(5))
    return ahead


@pytest.mark.parametrize("exponent", [0.75, 1.0])
def test_noise_is_drawn_by_counts_to_the_exponent(exponent: float) -> None:
    counts = np.array([4000.0, 900, 300, 120, 60, 20, 8])
    wanted = counts**exponent / (counts**exponent).sum()
    seen = np.bincount(draws(alias_table(counts**exponent), 20_000), minlength=len(counts))
    assert chisquare(seen, wanted * seen.sum()).pvalue > 1e-3
    other = counts ** (1.75 - exponent)
    assert chisquare(seen, other / other.sum() * seen.sum()).pvalue < 1e-6


def test_frequent_words_are_kept_by_their_probability() -> None:
    counts = np.array([600_000, 100_000, 2000, 10])
    keep = make_tables(WordsRecipe(sample=1e-3), counts).keep
    wanted = np.minimum((np.sqrt(counts / (1e-3 * counts.sum())) + 1) * 1e-3 * counts.sum() / counts, 1.0)
    sentence, state, kept = np.zeros(kernel.MAX_SENTENCE, np.int32), np.uint64(7), np.zeros(4)
    tokens, asked = np.tile(np.arange(4, dtype=np.int32), 200), 0
    with np.errstate(over="ignore"):
        for _ in range(30):
            _, length, state = kernel._read_sentence(tokens, 0, keep, sentence, state)
            kept, asked = kept + np.bincount(sentence[:length], minlength=4), asked + 200
    error = np.sqrt(wanted * (1 - wanted) / asked)
    assert (np.abs(kept / asked - wanted) <= 4 * error + 1e-9).all()
    assert wanted[3] == 1.0 > wanted[1] > wanted[0] > 0.0


def test_a_word_is_no_noise_of_its_own() -> None:
    targets = np.zeros(5, np.int64)
    assert kernel._with_noise(3, np.array([1, 3, 2, 3]), targets) == 3
    assert targets[:3].tolist() == [2 * 3 + 1, 2 * 1, 2 * 2]


def predictions(tokens: list[int], window: int, keep: np.ndarray | None = None) -> int:
    vectors, outputs = matrices(np.float32)
    tables = exact_tables("negative")
    tables = tables if keep is None else tables._replace(keep=keep)
    options = Options(False, NEGATIVE, window, 1, False, False, np.float32(0.01))
    return plain(vectors, outputs, read_only(tokens), tables, options, np.uint64(9))[1]


def test_windows_stretch_over_subsampled_words_and_end_with_sentences() -> None:
    keep = np.full(WORDS, 2**32 - 1, np.uint32)
    keep[1] = 0
    assert predictions([0, 1, 2], 1) == 4
    assert predictions([0, 1, 2], 1, keep) == 2
    assert predictions([0, -1, 2], 3) == 0
    assert predictions([0, 2, -1, 2, 3, 4], 1) == 6


@pytest.mark.parametrize("length", [2, 3, 4, 5, 40])
def test_widths_are_uniform_up_to_the_window(length: int) -> None:
    """Short sentences cut wide windows, so together their means hold the whole distribution of widths."""
    window, copies = 4, 2000 // length
    expected, variance = 0.0, 0.0
    for center in range(length):
        sides = [min(width, center) + min(width, length - 1 - center) for width in range(1, window + 1)]
        expected, variance = expected + np.mean(sides), variance + np.var(sides)
    number = predictions([*([0] * length), -1] * copies, window)
    assert abs(number / copies - expected) <= 4 * (variance / copies) ** 0.5
    assert predictions([0, 2] * 10, 1) == 38


def test_a_sentence_is_cut_at_a_thousand_words() -> None:
    assert predictions([0] * 1000 + [2] * 10, 1) == 2 * 999 + 2 * 9


def test_without_a_place_for_its_cache_numba_compiles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    def njit(**keys: object) -> object:
        if "cache" in keys:
            raise RuntimeError("cannot cache function")
        return lambda function: (function, keys["nogil"])

    kernel.compiled.cache_clear()
    monkeypatch.setattr(numba, "njit", njit)
    assert kernel.compiled() == (kernel.train_block, True)
    kernel.compiled.cache_clear()


def test_numba_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.compiled.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    with pytest.raises(ConfigError, match=r"pip install 'maskloom\[words\]'"):
        kernel.compiled()


def test_no_reference_is_counted_at_a_target() -> None:
    numba = pytest.importorskip("numba")
    compiled = numba.njit(fastmath={"reassoc", "contract"}, error_model="numpy")(kernel._binary)
    matrix, vector = numba.types.Array(numba.float32, 2, "C"), numba.types.Array(numba.float32, 1, "C")
    compiled.compile((matrix, numba.int64, matrix, numba.int64, matrix, vector, numba.float32))
    code = compiled.inspect_llvm(compiled.signatures[0]).split("define ")[1]
    assert "fmul" in code
    assert "NRT_incref" not in code
    assert "NRT_decref" not in code
