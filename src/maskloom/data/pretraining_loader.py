"""Pre-training batches as a function of a position: sampling, gathering of tokens, masking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from maskloom.data.batch import PretrainingBatch
from maskloom.data.corruption import MASKING, Corruption
from maskloom.data.sampling import DataPosition, Instances, InstanceStream
from maskloom.errors import ConfigError

if TYPE_CHECKING:
    from maskloom.config import PretrainingData
    from maskloom.data.corpus.opening import Corpus


@dataclass(frozen=True)
class PretrainingAccount:
    """What an epoch holds, told from its first block: instances, tokens of each with special ones, predictions.

    `cut_fraction` is the fraction of the predictions asked for by the rate that `max_predictions_per_seq` cuts off.
    """

    num_instances: int
    tokens_per_instance: float
    predictions_per_instance: float
    cut_fraction: float


class PretrainingLoader:
    """Batches of masked instances (BERT paper 3.3.1, 3.3.2), exact in corpus, documents, settings, seed and position.

    Masks are drawn anew in every epoch; with `static_masks` every epoch has the instances and masks of epoch 0, in an
    order of its own. `documents` are the indices to read, None for all. Of every training batch the instances of `rows`
    are made, and position and masks are as if all were: together, processes make the batch that one would make. Raises
    ValueError for a batch size below 1, DataError for documents without sentences.
    """

    def __init__(
        self,
        corpus: Corpus,
        documents: np.ndarray | None,
        data: PretrainingData,
        *,
        batch_size: int,
        seed: int,
        rows: slice = slice(None),
        corruption: Corruption = MASKING,
    ) -> None:
        """Set up the stream; nothing is read before the first batch."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, a batch needs at least 1 sequence")
        self._corpus, self._data, self._batch_size, self._seed, self._rows = corpus, data, batch_size, seed, rows
        self._corruption = corruption
        self._stream = InstanceStream(corpus, documents, data, seed=seed, repeat_instances=data.static_masks)

    def batch(self, position: DataPosition) -> tuple[PretrainingBatch, DataPosition]:
        """Return the batch that starts at a position and the position after it; ends of epochs fall inside batches."""
        instances, after = self._stream.read(position, self._batch_size)
        return self._gathered(instances.take(self._rows)), after

    def next_batch(self, position: dict[str, int]) -> tuple[PretrainingBatch, dict[str, int]]:
        """Return the batch at a position kept as plain numbers, {} for the start, and the position after it."""
        batch, after = self.batch(DataPosition.from_dict(position) if position else DataPosition())
        return batch, after.as_dict()

    def account(self) -> PretrainingAccount:
        """Return what an epoch holds; the first block, which training needs anyway, speaks for the others."""
        block = self._stream.block(0, 0)
        lengths = block.a_length + block.b_length + self._data.max_length - self._data.num_text_tokens
        uncut = self._data.model_copy(update={"max_predictions_per_seq": self._data.max_length})
        wanted, predicted = (self._corruption.count(lengths, data).sum() for data in (uncut, self._data))
        return PretrainingAccount(
            num_instances=round(len(block) / self._stream.block_fraction),
            tokens_per_instance=float(lengths.mean()),
            predictions_per_instance=float(predicted) / len(block),
            cut_fraction=1.0 - float(predicted) / float(wanted),
        )

    def epoch_batches(self, epoch: int) -> Iterator[PretrainingBatch]:
        """Yield each instance of an epoch once, with the masks of that epoch; the last batch may be smaller."""
        pending: list[Instances] = []
        for block in range(self._stream.num_blocks):
            joined = Instances.join([*pending, self._stream.block(epoch, block)])
            whole = len(joined) - len(joined) % self._batch_size
            for first in range(0, whole, self._batch_size):
                yield self._gathered(joined.take(slice(first, first + self._batch_size)))
            pending = [joined.take(slice(whole, None))]
        if pending and len(pending[0]):
            yield self._gathered(pending[0])

    def _gathered(self, instances: Instances) -> PretrainingBatch:
        """Return the instances with their tokens and marks: A of segment 0, and B of segment 1."""
        has_pairs = self._data.next_sentence
        vocabulary, template = self._corpus.vocabulary, self._corpus.tokenizer.template
        after_a, after_b = (template.middle, template.end) if has_pairs else (template.end, ())
        a_total = len(template.begin) + instances.a_length + len(after_a)
        b_total = instances.b_length + len(after_b)
        lengths = a_total + b_total
        ends = np.cumsum(lengths)
        starts = ends - lengths
        tokens = np.empty(int(ends[-1]), dtype=np.int64)
        b_starts = starts + a_total
        for places, marks in (
            (starts, template.begin),
            (b_starts - len(after_a), after_a),
            (ends - len(after_b), after_b),
        ):
            tokens[places[:, None] + np.arange(len(marks))] = marks
        a_starts = starts + len(template.begin)
        self._fill(tokens, a_starts, instances.a_first, instances.a_last, instances.a_skip, instances.a_length)
        if has_pairs:
            self._fill(tokens, b_starts, instances.b_first, instances.b_last, instances.b_skip, instances.b_length)
        masked, positions, labels = self._corruption.apply(
            tokens, lengths, instances.keys, vocabulary, self._data, seed=self._seed, epoch=instances.epochs
        )
        sides = np.stack([a_total, b_total], axis=1).reshape(-1)
        return PretrainingBatch(
            token_ids=masked,
            segment_ids=np.repeat(np.tile(np.arange(2), len(instances)), sides),
            lengths=lengths,
            mlm_positions=positions,
            mlm_labels=labels,
            nsp_labels=instances.is_random.copy() if has_pairs else None,
        )

    def _fill(self, tokens: np.ndarray, *columns: np.ndarray) -> None:
        """Copy one side of every instance out of the corpus to its place in the packed tokens.

        The columns are the place, the first sentence, the one after the last, the tokens left out first, the length.
        """
        for start, first, last, skipped, length in zip(*(column.tolist() for column in columns), strict=True):
            tokens[start : start + length] = self._corpus.sentences(first, last)[skipped : skipped + length]


def rows_of_rank(
    batch_size: int, micro_batch_size: int | Literal["auto"] | None, *, rank: int, world_size: int
) -> slice:
    """Return the sequences of a batch that a rank makes: whole micro-batches, in order, as many as any other rank.

    Without a micro-batch size, or with "auto", a rank's part may be cut anywhere. Together the ranks have the sequences
    of the batch in the order in which one process would have them. Raises ConfigError, with the numbers of processes
    that work, when the parts cannot be equally many.
    """
    if world_size == 1:
        return slice(0, batch_size)
    size = micro_batch_size if isinstance(micro_batch_size, int) else 1
    if batch_size % size:
        raise ConfigError(
            f"several processes need micro-batches of one size: training.batch_size {batch_size} is no multiple of "
            f"training.micro_batch_size {size}"
        )
    num_parts = batch_size // size
    if num_parts % world_size:
        what = f"training.batch_size {batch_size}"
        if size > 1:
            what += f" is {num_parts} micro-batches of training.micro_batch_size {micro_batch_size}, which"
        sizes = ", ".join(str(number) for number in range(1, num_parts + 1) if num_parts % number == 0)
        raise ConfigError(f"{what} cannot be shared by {world_size} processes; numbers of processes that work: {sizes}")
    own = num_parts // world_size * size
    return slice(rank * own, (rank + 1) * own)
