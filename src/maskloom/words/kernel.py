"""The inner loop of word2vec, compiled by numba; without numba it also runs, slowly, as plain Python.

Draws are a function of a block's seed (splitmix64), so a block gives the same updates whenever it is trained.

No branch touches an array in the code for each target and each word of a window. Otherwise numba would count references
to that array on each iteration, with atomic operations on memory shared by all threads: more than half of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from maskloom.errors import ConfigError

NEGATIVE, HIERARCHICAL, SOFTMAX = range(3)
MAX_SENTENCE = 1000
"""Maximum number of words in a sentence after subsampling; longer sentences are split."""
SIGMOID_RANGE, SIGMOID_STEPS = 6, 1000

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR, _SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = (np.uint64(bits) for bits in (27, 30, 31, 32))
_LOW = np.uint64(0xFFFFFFFF)
# The counts along a path in a Huffman tree grow like Fibonacci's numbers, and are below 2**63.
_LONGEST_PATH = 91
# How many words ahead of its turn the rows of a word are prefetched.
_LEAD = 3


class Tables(NamedTuple):
    """The per-word tables of the vocabulary that a block reads, and the sigmoid.

    `keep` (words,) uint32 and the upper half of `noise` (words,) uint64 are probabilities times 2**32; the lower half
    of `noise` is the other word of its slot (Walker's alias method). The path of word w from the root of the Huffman
    tree is `nodes` from `starts[w]` to `starts[w + 1]`, each as 2 node + label. `sigmoid` (2, steps + 2) holds the
    sigmoid and its -log: first the value below -6, then the steps from -6 to 6, 1,000 in the word2vec program, then the
    value above 6. Without steps both are computed exactly.
    """

    keep: np.ndarray
    noise: np.ndarray
    starts: np.ndarray
    nodes: np.ndarray
    sigmoid: np.ndarray


class Options(NamedTuple):
    """The settings of a block; its learning `rate` is a scalar of the vectors' type."""

    is_cbow: bool
    loss: int
    window: int
    negative: int
    sums: bool
    divides: bool
    rate: Any


def train_block(
    vectors: np.ndarray, outputs: np.ndarray, tokens: np.ndarray, tables: Tables, options: Options, seed: np.uint64
) -> tuple[float, int]:
    """Train on a block of text in place; return the sum of the losses and the number of predictions.

    `vectors` (words, size) are the vectors of words as context, `outputs` (words or inner nodes, size) those that
    predict. `tokens` (tokens,) int32 are words, with -1 at the end of each sentence. Subsampled words are removed
    first, so windows extend across them; a window has `window` - b words per side, b uniform from 0 to `window` - 1.
    """
    size, rate = vectors.shape[1], options.rate
    error, context = np.zeros(size, vectors.dtype), np.zeros((1, size), vectors.dtype)
    source = context if options.is_cbow else vectors
    keep, noise, starts, nodes, sigmoid = tables
    ahead = np.zeros(options.negative, np.int64)
    targets = np.zeros(max(options.negative + 1, _LONGEST_PATH), np.int64)
    scores = np.zeros(outputs.shape[0] if options.loss == SOFTMAX else 0, vectors.dtype)
    sentence = np.empty(MAX_SENTENCE, np.int64)
    state = _draw_noise(noise, ahead, outputs, seed)
    place, total, num_predictions = 0, 0.0, 0
    while place < tokens.shape[0]:
        place, length, state = _read_sentence(tokens, place, keep, sentence, state)
        for center in range(length):
            word = sentence[center]
            state += _GOLDEN
            width = options.window - np.int64(((_mixed(state) >> _32) * np.uint64(options.window)) >> _32)
            first, last = max(0, center - width), min(length, center + width + 1)
            _prefetch(outputs, sentence[min(center + _LEAD, length - 1)])
            _prefetch(vectors, sentence[min(center + options.window + _LEAD, length - 1)])
            if options.is_cbow and last - first > 1:
                _gather(vectors, sentence, (first, center, last), context, options.sums)
            for other in range(first, last):
                if other == center:
                    continue
                row = 0 if options.is_cbow else sentence[other]
                for i in range(size):
                    error[i] = 0
                if options.loss == SOFTMAX:
                    total += _softmax(source, row, word, outputs, scores, error, rate)
                else:
                    if options.loss == NEGATIVE:
                        number = _with_noise(word, ahead, targets)
                        state = _draw_noise(noise, ahead, outputs, state)
                    else:
                        number = _path(word, starts, nodes, targets)
                    for k in range(number):
                        total += _binary(source, row, outputs, targets[k], sigmoid, error, rate)
                num_predictions += 1
                if options.is_cbow:
                    _spread(vectors, sentence, (first, center, last), error, options.divides)
                    break  # the whole window is one prediction
                for i in range(size):
                    vectors[row, i] += error[i]
    return total, num_predictions


def _read_sentence(
    tokens: np.ndarray, place: int, keep: np.ndarray, sentence: np.ndarray, state: np.uint64
) -> tuple[int, int, np.uint64]:
    """Read a sentence without its subsampled words; return the next place, the number of words and the new state."""
    length = 0
    while place < tokens.shape[0] and length < MAX_SENTENCE:
        word = tokens[place]
        place += 1
        if word < 0:
            break
        state += _GOLDEN
        if (_mixed(state) >> _32) <= np.uint64(keep[word]):
            sentence[length] = word
            length += 1
    return place, length, state


def _gather(
    vectors: np.ndarray, sentence: np.ndarray, window: tuple[Any, int, Any], context: np.ndarray, sums: bool
) -> None:
    """Write the mean or the sum of a window's vectors to `context` (1, size).

    A window is its first word, its centre, which is left out, and the end.
    """
    first, center, last = window
    size, number = vectors.shape[1], vectors.dtype.type(last - first - 1)
    for i in range(size):
        context[0, i] = 0
    for place in range(first, last - 1):
        word = sentence[place + (place >= center)]
        for i in range(size):
            context[0, i] += vectors[word, i]
    if not sums:
        for i in range(size):
            context[0, i] /= number


def _spread(
    vectors: np.ndarray, sentence: np.ndarray, window: tuple[Any, int, Any], error: np.ndarray, divides: bool
) -> None:
    """Add the update of a window, `error`, to each of its words."""
    first, center, last = window
    size, number = vectors.shape[1], vectors.dtype.type(last - first - 1)
    if divides:
        for i in range(size):
            error[i] /= number
    for place in range(first, last - 1):
        word = sentence[place + (place >= center)]
        for i in range(size):
            vectors[word, i] += error[i]


def _with_noise(word: int, ahead: np.ndarray, targets: np.ndarray) -> int:
    """Write a word (label 1) and its noise (label 0) to `targets` as 2 target + label; return their number."""
    targets[0] = 2 * word + 1
    number = 1
    for k in range(ahead.shape[0]):
        targets[number] = 2 * ahead[k]
        number += ahead[k] != word  # the word itself does not count as noise, and is not replaced
    return number


def _path(word: int, starts: np.ndarray, nodes: np.ndarray, targets: np.ndarray) -> int:
    """Write the inner nodes of a word to `targets` as 2 node + label; return their number."""
    number = starts[word + 1] - starts[word]
    for k in range(number):
        targets[k] = nodes[starts[word] + k]
    return number


def _binary(
    source: np.ndarray, row: int, outputs: np.ndarray, target: int, sigmoid: np.ndarray, error: np.ndarray, rate: Any
) -> float:
    """Train one binary decision: g = rate (label - sigmoid(h o)); add g o to `error`, g h to o. Return its loss."""
    size, place, steps = source.shape[1], target >> 1, sigmoid.shape[1] - 2
    score = source.dtype.type(0)
    for i in range(size):
        score += source[row, i] * outputs[place, i]
    sign = source.dtype.type(1 if target & 1 else -1)
    score *= sign
    at = np.int64(0)
    if score >= SIGMOID_RANGE:
        at = np.int64(steps + 1)
    elif score > -SIGMOID_RANGE:
        at = 1 + np.int64((score + SIGMOID_RANGE) * (steps / (2 * SIGMOID_RANGE)))
    probability, loss = sigmoid[0, at], sigmoid[1, at]
    if at == 0:  # also for a NaN, which has no place in the table
        loss = -score
    if steps == 0:
        probability = source.dtype.type(1 / (1 + math.exp(-score)))
        loss = source.dtype.type(-math.log(probability))
    step = sign * rate * (source.dtype.type(1) - probability)
    for i in range(size):
        output = outputs[place, i]
        error[i] += step * output
        outputs[place, i] = output + step * source[row, i]
    return loss


def _softmax(
    source: np.ndarray, row: int, word: int, outputs: np.ndarray, scores: np.ndarray, error: np.ndarray, rate: Any
) -> float:
    """Train the prediction of a word among all, p = softmax(W h); return its cross-entropy."""
    size, top = source.shape[1], -np.inf
    for other in range(outputs.shape[0]):
        score = source.dtype.type(0)
        for i in range(size):
            score += source[row, i] * outputs[other, i]
        scores[other] = score
        top = max(top, score)
    total = 0.0
    for other in range(outputs.shape[0]):
        total += math.exp(scores[other] - top)
    loss = math.log(total) + top - scores[word]
    for other in range(outputs.shape[0]):
        probability = math.exp(scores[other] - top) / total
        step = source.dtype.type(rate * ((1.0 if other == word else 0.0) - probability))
        for i in range(size):
            output = outputs[other, i]
            error[i] += step * output
            outputs[other, i] = output + step * source[row, i]
    return loss


def _draw_noise(noise: np.ndarray, ahead: np.ndarray, outputs: np.ndarray, state: np.uint64) -> np.uint64:
    """Draw the noise words of the next prediction in advance, and prefetch their rows."""
    for k in range(ahead.shape[0]):
        state += _GOLDEN
        drawn = _mixed(state)
        slot = ((drawn >> _32) * np.uint64(noise.shape[0])) >> _32
        entry = noise[slot]
        word = np.int64(slot) if (drawn & _LOW) <= (entry >> _32) else np.int64(entry & _LOW)
        ahead[k] = word
        _prefetch(outputs, word)
    return state


def _mixed(state: np.uint64) -> np.uint64:
    state = (state ^ (state >> _30)) * _FIRST_FACTOR
    state = (state ^ (state >> _27)) * _SECOND_FACTOR
    return state ^ (state >> _31)


def _prefetch(array: np.ndarray, row: Any) -> None:
    """Prefetch a row from memory: no-op in plain Python, one instruction per cache line when compiled."""


@cache
def compiled() -> Callable[..., tuple[float, int]]:
    """Return `train_block`, compiled or from numba's cache; raises ConfigError if numba is not installed."""
    try:
        import numba
        from llvmlite import ir
        from numba.core import cgutils, types
        from numba.extending import intrinsic, overload, register_jitable
    except ImportError:
        raise ConfigError("training word vectors needs numba; install it with: pip install 'maskloom[words]'") from None

    @intrinsic
    def prefetch(_context: Any, array: Any, row: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            matrix = context.make_array(signature.args[0])(context, builder, arguments[0])
            byte, word, long = (ir.IntType(bits) for bits in (8, 32, 64))
            stride = builder.extract_value(matrix.strides, 0)
            place = builder.add(builder.ptrtoint(matrix.data, long), builder.mul(stride, arguments[1]))
            kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), word, word, word])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            with cgutils.for_range_slice(builder, long(0), stride, long(64), inc=True) as (offset, _):
                address = builder.inttoptr(builder.add(place, offset), byte.as_pointer())
                builder.call(function, [address, word(0), word(3), word(1)])  # for reading, high locality, data cache
            return context.get_dummy_value()

        return types.void(array, types.int64), generate

    options: Any = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}
    overload(_prefetch)(lambda array, row: lambda array, row: prefetch(array, row))  # pyright: ignore[reportCallIssue]
    # inlined, because a call takes as long as the work of some of these
    parts = (_mixed, _draw_noise, _read_sentence, _gather, _spread, _with_noise, _path, _binary, _softmax)
    for part in parts:
        register_jitable(forceinline=True, **options)(part)
    try:
        return numba.njit(nogil=True, cache=True, **options)(train_block)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        return numba.njit(nogil=True, **options)(train_block)
