"""Encodes examples as token ids once; batches are then slices of flat arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from maskloom.data.batch import BothOrdersBatch, ChoiceBatch, ClassificationBatch, ranges, sorted_batches
from maskloom.data.counter_random import Permutation
from maskloom.errors import DataError, amount
from maskloom.tasks.examples import Example
from maskloom.text.tokenizer import Tokenizer

_ENCODE_AT_ONCE = 2048
_ORDER_STREAM, _BATCH_STREAM = 0xF17E, 0xBA7C
# Units of this many batches are drawn at once; to group them by length, they are sorted, cut and shuffled in batches.
_WINDOW_BATCHES = 16


class EncodedData(Protocol):
    """Examples of one file as token ids, divided into units from which batches are formed.

    A unit is an example that makes one sequence or one group of choices, or a window of a question, a sentence or a
    document.
    """

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each unit, (units,)."""
        ...

    @property
    def num_examples(self) -> int:
        """Number of examples, which may differ from the number of units; an epoch is a pass over all units."""
        return len(self)

    def __len__(self) -> int: ...

    def batch(self, indices: np.ndarray) -> Any:
        """Return the units at these indices, packed in this order; labels are None if the data has none."""
        ...

    def account(self) -> dict[str, Any]:
        """Return what encoding truncated, split or left out, as plain values."""
        ...

    def notes(self, path: Path) -> list[str]:
        """Return what a user should know about the encoding of the file before trusting a score."""
        ...


@dataclass(frozen=True, kw_only=True)
class EncodedExamples(EncodedData):
    """Token ids of all examples, concatenated: sequence i is `token_ids[offsets[i]:offsets[i + 1]]`.

    Example e, which is one unit, has the sequences from `first[e]` up to `first[e + 1]`: a single one, or one per
    choice; `batch_type` is the batch that they form. `labels` is the result of `encode_labels`. Truncation to
    `max_length` removed `num_truncated_tokens` tokens from `num_truncated_examples` examples.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    offsets: np.ndarray
    first: np.ndarray
    labels: np.ndarray | None
    max_length: int
    num_truncated_examples: int
    num_truncated_tokens: int
    batch_type: type[ClassificationBatch | ChoiceBatch] = ClassificationBatch

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example, special tokens included."""
        return np.diff(self.offsets[self.first])

    def __len__(self) -> int:
        return len(self.first) - 1

    def batch(self, indices: np.ndarray) -> ClassificationBatch | ChoiceBatch:
        """Return the examples at these indices, packed in this order, with the sequences of each in order."""
        first, end = self.first[indices], self.first[indices + 1]
        places = ranges(self.offsets[first], self.offsets[end] - self.offsets[first])
        sequences = ranges(first, end - first)
        return self.batch_type(
            token_ids=self.token_ids[places].astype(np.int64),
            segment_ids=self.segment_ids[places].astype(np.int64),
            lengths=self.offsets[sequences + 1] - self.offsets[sequences],
            labels=None if self.labels is None else self.labels[indices],
            indices=np.asarray(indices, dtype=np.int64),
            **({"num_choices": end - first} if issubclass(self.batch_type, ChoiceBatch) else {}),
        )

    def notes(self, path: Path) -> list[str]:
        """Report how many examples were truncated, if any."""
        if not self.num_truncated_examples:
            return []
        return [
            f"{path}: {self.num_truncated_examples:,} of {amount(len(self), 'example')} exceed "
            f"{self.max_length} tokens and lose {amount(self.num_truncated_tokens, 'token')}"
        ]

    def account(self) -> dict[str, Any]:
        """Return the truncation counts, as plain values."""
        return {
            "max_length": self.max_length,
            "num_truncated_examples": self.num_truncated_examples,
            "num_truncated_tokens": self.num_truncated_tokens,
            "truncated_fraction": self.num_truncated_examples / max(len(self), 1),
        }


def encode_both_orders(
    examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, labels: np.ndarray | None = None
) -> EncodedExamples:
    """Encode pairs in order, as A B and as B A (Radford et al. 2018, 3.3); raises DataError for a single text."""
    if alone := [example.line for example in examples if example.pair is None]:
        raise DataError(f"line {alone[0]}: only one text; pair.both_orders = true needs pairs of texts")
    texts = (pair for e in examples for pair in ((e.text, e.pair), (e.pair or "", e.text)))
    fields = encoded_texts(texts, 2 * np.arange(len(examples) + 1), tokenizer, max_length)
    return EncodedExamples(**fields, labels=labels, batch_type=BothOrdersBatch)


def encode_examples(
    examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, labels: np.ndarray | None = None
) -> EncodedExamples:
    """Encode examples in order; a pair longer than `max_length` loses tokens from the end of its longer text."""
    texts = ((example.text, example.pair) for example in examples)
    return EncodedExamples(**encoded_texts(texts, np.arange(len(examples) + 1), tokenizer, max_length), labels=labels)


def encoded_texts(
    texts: Iterable[tuple[str, str | None]], first: np.ndarray, tokenizer: Tokenizer, max_length: int
) -> dict[str, Any]:
    """Return the fields of `EncodedExamples` except labels; example e has the texts `first[e]` up to `first[e + 1]`."""
    ids, lengths, firsts, cut = [np.empty(0, np.int32)], [0], [0], [0]
    texts = iter(texts)
    while some := list(islice(texts, _ENCODE_AT_ONCE)):
        for own, num_first, num_cut in tokenizer.sequences(some, max_length=max_length):
            ids.append(np.asarray(own, dtype=np.int32))
            lengths.append(len(own))
            firsts.append(num_first)
            cut.append(num_cut)
    parts = np.stack([firsts, np.subtract(lengths, firsts)], 1).reshape(-1)
    return {
        "token_ids": np.concatenate(ids),
        "segment_ids": np.repeat(np.tile(np.array([0, 1], np.int8), len(lengths)), parts),
        "offsets": np.cumsum(lengths, dtype=np.int64),
        "first": first,
        "max_length": max_length,
        "num_truncated_examples": int(np.count_nonzero(np.diff(np.cumsum(cut)[first]))),
        "num_truncated_tokens": sum(cut),
    }


@dataclass
class ShuffledBatches:
    """An endless stream of full batches in which every unit occurs once per epoch; seeking is O(1).

    The stream concatenates the epochs, each in an order determined by (seed, epoch), and is cut into consecutive
    batches, which mix long and short units: packed batches need no padding. `group_by_length` sorts every 16 batches
    and cuts them again; these are less random, and cost CoNLL-2003 a point of F1. A position is a single number, the
    batch. Only the units at `rows` of each batch are built, so that processes share it.
    """

    data: EncodedData
    batch_size: int
    seed: int
    rows: slice = field(default_factory=lambda: slice(None))
    group_by_length: bool = False
    _window: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False)  # the last one drawn

    def next_batch(self, position: dict[str, int]) -> tuple[Any, dict[str, int]]:
        """Return the batch at a position ({} is the start) and the position after it."""
        number = position.get("batch", 0)
        return self.data.batch(self.indices(number)[self.rows]), {"batch": number + 1}

    def indices(self, number: int) -> np.ndarray:
        """Return the indices of the units in batch `number`, counted from 0."""
        window, place = divmod(number, _WINDOW_BATCHES)
        if window not in self._window:
            order, count = np.arange(_WINDOW_BATCHES), _WINDOW_BATCHES * self.batch_size
            units = self._stream(window * count, count)
            if self.group_by_length:
                units = units[np.argsort(self.data.lengths[units], kind="stable")]
                order = Permutation(_WINDOW_BATCHES, self.seed, _BATCH_STREAM, window)[order]
            self._window = {window: units.reshape(_WINDOW_BATCHES, -1)[order]}
        return self._window[window][place]

    def _stream(self, first: int, count: int) -> np.ndarray:
        """Return the units at positions `first` up to `first + count` of the endless stream."""
        size, found = len(self.data), []
        for epoch in range(first // size, (first + count - 1) // size + 1):
            within = np.arange(max(0, first - epoch * size), min(size, first + count - epoch * size))
            found.append(Permutation(size, self.seed, _ORDER_STREAM, epoch)[within])
        return np.concatenate(found)


def batches_by_length(data: EncodedData, *, max_tokens: int, max_units: int | None = None) -> Iterator[Any]:
    """Yield every unit once, longest first, in batches of at most `max_tokens` tokens (or one unit) and `max_units`."""
    yield from (data.batch(indices) for indices in sorted_batches(data.lengths, max_tokens, max_units))
