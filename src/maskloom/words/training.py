"""Train word vectors: the tables of a vocabulary, the two matrices, and rounds of blocks shared among threads.

One thread trains block after block. Several update the same matrices without locks, as word2vec does (Hogwild), so the
result depends on their order. With `deterministic`, each trains a copy of the matrices on its own blocks; at the end of
a round the copies are merged by a rule that does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from maskloom.words.kernel import (
    HIERARCHICAL,
    NEGATIVE,
    SIGMOID_RANGE,
    SIGMOID_STEPS,
    SOFTMAX,
    Options,
    Tables,
    compiled,
)
from maskloom.words.settings import WordsRecipe

BLOCK = 10_000
"""Number of words that one thread trains at one learning rate."""
_LOSSES = {"negative": NEGATIVE, "hierarchical": HIERARCHICAL, "softmax": SOFTMAX}
_LOWEST_RATE = 1e-4
# Blocks per thread between two reports, and between two merges of deterministic threads.
_BLOCKS_OF_ROUND, _BLOCKS_BETWEEN_MEETINGS = 50, 10
_ROWS_AT_ONCE = 2048
_TINY = np.float32(1e-30)


def keep_probabilities(counts: np.ndarray, sample: float) -> np.ndarray:
    """Return (words,) the probability that an occurrence of a word is kept: (sqrt(f/t) + 1) t/f, at most 1.

    Differs from the paper, which has sqrt(t/f); its program has this.
    """
    if not sample:
        return np.ones(len(counts))
    ratio = counts / counts.sum() / sample
    return np.minimum((np.sqrt(ratio) + 1) / ratio, 1.0)


def alias_table(weights: np.ndarray) -> np.ndarray:
    """Return (slots,) uint64, a table for drawing numbers by their weights; see `kernel.Tables`."""
    left = (weights / weights.sum() * len(weights)).tolist()
    chance, other = [1.0] * len(left), [*range(len(left))]
    small = [number for number, part in enumerate(left) if part < 1]
    large = [number for number, part in enumerate(left) if part >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        chance[low], other[low] = left[low], high
        left[high] -= 1 - left[low]
        if left[high] < 1:
            small.append(large.pop())
    return (_out_of_32_bits(np.array(chance)).astype(np.uint64) << np.uint64(32)) | np.array(other, np.uint64)


def _out_of_32_bits(probabilities: np.ndarray) -> np.ndarray:
    return np.minimum(probabilities * 2**32, 2**32 - 1).astype(np.uint32)


def huffman_codes(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `starts` and `nodes` of the words' paths from the root of a Huffman tree; see `kernel.Tables`.

    `counts` must be descending. The label of a node is 1 minus its bit in the code; inner node 0 is the root.
    """
    num_words = len(counts)
    weights = [*counts.tolist()[::-1]]  # of leaves, ascending, then of inner nodes, which also come out ascending
    parents, bits = np.zeros(2 * num_words - 1, np.int64), np.zeros(2 * num_words - 1, np.uint8)
    leaf, inner = 0, num_words
    for new in range(num_words, 2 * num_words - 1):
        weight = 0
        for bit in (0, 1):
            if leaf < num_words and (inner >= new or weights[leaf] <= weights[inner]):
                child, leaf = leaf, leaf + 1
            else:
                child, inner = inner, inner + 1
            weight += weights[child]
            parents[child], bits[child] = new, bit
        weights.append(weight)
    root, at = 2 * num_words - 2, np.arange(num_words)[::-1]
    owners, nodes = list[np.ndarray](), list[np.ndarray]()
    words = np.arange(num_words)
    while len(words):  # one level of all paths per iteration, from the leaves
        owners.append(words)
        nodes.append(2 * (root - parents[at]) + 1 - bits[at])
        at = parents[at]
        words, at = words[at != root], at[at != root]
    owner = np.concatenate(owners[::-1])
    order = np.argsort(owner, kind="stable")
    starts = np.zeros(num_words + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=num_words), out=starts[1:])
    return starts, np.concatenate(nodes[::-1])[order].astype(np.int32)


def sigmoid_table(*, skips: bool) -> np.ndarray:
    """Return (2, 1002) float32: the sigmoid and its -log at the lower edges of 1,000 steps from -6 to 6, and beyond.

    Above 6 the sigmoid is 1; below -6 it is 0, or 1 with `skips`, so that nothing is learned from scores beyond.
    """
    values = 1 / (1 + np.exp(-np.linspace(-SIGMOID_RANGE, SIGMOID_RANGE, SIGMOID_STEPS, endpoint=False)))
    return np.stack([[float(skips), *values, 1.0], [0.0, *-np.log(values), 0.0]]).astype(np.float32)


def make_tables(recipe: WordsRecipe, counts: np.ndarray) -> Tables:
    """Return the tables of a vocabulary for training; the Huffman paths are empty unless the loss is hierarchical."""
    nothing = np.zeros(1, np.int64), np.zeros(0, np.int32)
    return Tables(
        _out_of_32_bits(keep_probabilities(counts, recipe.sample)),
        alias_table(counts.astype(np.float64) ** recipe.noise_exponent),
        *(huffman_codes(counts) if recipe.loss == "hierarchical" else nothing),
        sigmoid_table(skips=recipe.loss == "hierarchical"),  # as in the word2vec program
    )


class WordTraining:
    """The state of training: `vectors` (words, size), `outputs` (words or inner nodes, size), `blocks_done`, `loss`.

    The loss is the mean per prediction of the last round that had any.
    """

    def __init__(self, recipe: WordsRecipe, counts: np.ndarray, tokens: np.ndarray) -> None:
        self.recipe, self.tokens, self.blocks_done, self.loss = recipe, tokens, 0, 0.0
        self._train_block, self._tables = compiled(), make_tables(recipe, counts)
        draw = np.random.default_rng(recipe.seed)
        self.vectors = draw.random((len(counts), recipe.size), np.float32)
        self.vectors -= 0.5
        self.vectors /= recipe.size
        self.outputs = np.zeros((len(counts) - (recipe.loss == "hierarchical"), recipe.size), np.float32)
        self._blocks_of_epoch = -(-len(tokens) // BLOCK)
        self.num_blocks = recipe.epochs * self._blocks_of_epoch

    def rounds(self) -> Iterator[None]:
        """Continue training, and yield after each round, when the state is consistent."""
        workers = self.recipe.workers
        meets = self.recipe.deterministic and workers > 1
        copies = [(self.vectors.copy(), self.outputs.copy()) for _ in range(workers)] if meets else []
        with ThreadPoolExecutor(workers) as threads:
            while self.blocks_done < self.num_blocks:
                first = self.blocks_done
                length = workers * (_BLOCKS_BETWEEN_MEETINGS if meets else _BLOCKS_OF_ROUND)
                end = min(first + length, self.num_blocks)
                if meets:
                    per_thread = -(-(end - first) // workers)
                    edges = [min(first + k * per_thread, end) for k in range(workers + 1)]
                    parts = [(*copies[k], range(edges[k], edges[k + 1])) for k in range(workers)]
                else:
                    parts = [(self.vectors, self.outputs, range(block, block + 1)) for block in range(first, end)]
                results = [*threads.map(self._trained, parts)]
                if meets:
                    for whole, copied in zip((self.vectors, self.outputs), zip(*copies, strict=True), strict=True):
                        list(threads.map(partial(_merge, whole, copied), range(0, len(whole), _ROWS_AT_ONCE)))
                self.blocks_done = end
                total, num_predictions = map(sum, zip(*results, strict=True))
                self.loss = total / num_predictions if num_predictions else self.loss
                yield

    def rate_of(self, block: int) -> float:
        """Return the learning rate of a block, numbered over all epochs."""
        return self.recipe.peak_rate * max(_LOWEST_RATE, 1 - block / (self.num_blocks + 1))

    def _trained(self, part: tuple[np.ndarray, np.ndarray, range]) -> tuple[float, int]:
        vectors, outputs, numbers = part
        recipe, total, num_predictions = self.recipe, 0.0, 0
        for block in numbers:
            start = block % self._blocks_of_epoch * BLOCK
            options = Options(
                recipe.model == "cbow",
                _LOSSES[recipe.loss],
                recipe.window,
                recipe.negative if recipe.loss == "negative" else 0,
                recipe.context == "sum",
                recipe.divided_gradient,
                vectors.dtype.type(self.rate_of(block)),
            )
            seed = np.random.SeedSequence((recipe.seed, block)).generate_state(1, np.uint64)[0]
            tokens = np.asarray(self.tokens[start : start + BLOCK])
            loss, number = self._train_block(vectors, outputs, tokens, self._tables, options, seed)
            total, num_predictions = total + loss, num_predictions + number
        return total, num_predictions


def _merge(whole: np.ndarray, parts: tuple[np.ndarray, ...], start: int) -> None:
    """Merge the updates of copies into some rows of `whole` by Adasum (Maleki et al. 2021), and copy the rows back.

    Two changes a and b of a row add up to (1 - ab / 2aa) a + (1 - ab / 2bb) b: their full sum if they are orthogonal,
    and their mean if they are equal, where a plain sum would overshoot.
    """
    rows = slice(start, start + _ROWS_AT_ONCE)
    total = parts[0][rows] - whole[rows]
    for part in parts[1:]:
        change = part[rows] - whole[rows]
        common = np.einsum("ij,ij->i", total, change) / 2
        of_total, of_change = (np.maximum(np.einsum("ij,ij->i", x, x), _TINY) for x in (total, change))
        total *= (1 - common / of_total)[:, None]
        change *= (1 - common / of_change)[:, None]
        total += change
    whole[rows] += total
    for part in parts:
        part[rows] = whole[rows]
