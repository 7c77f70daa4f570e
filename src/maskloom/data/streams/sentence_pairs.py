"""Choose the sentences of each pre-training instance, and the order of the instances (BERT paper 3.3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from maskloom.data.batch import Texts, ranges
from maskloom.data.corpus.opening import Corpus
from maskloom.data.counter_random import Permutation, integers, uniform, words
from maskloom.data.loader import Columns, Extent, position_numbers
from maskloom.data.settings import PretrainingData
from maskloom.errors import DataError

BLOCK_SENTENCES = 200_000
"""Average number of sentences in a block of documents; instances are shuffled within a block."""

_NUM_CACHED_BLOCKS = 2
_NUM_DOCUMENT_DRAWS = 10
# One number for each kind of draw, so that no two kinds share random words.
_ORDER, _BLOCK, _SHORT, _TARGET, _A_END, _IS_RANDOM, _DOCUMENT, _START, _FRONT_A, _FRONT_B, _KEY = range(101, 112)


@dataclass(frozen=True)
class Instances(Columns):
    """Instances as index columns, int64 except `keys`, uint64; tokens are gathered later.

    The first four are (instances, 2), one column for each of the sides A and B: a side is `length` tokens of the
    sentences `first` to `last` (exclusive), after skipping the first `skip` tokens. The length of B is 0 for single
    segments. The others are (instances,): `is_random` is 1 if B does not follow A, `epochs` is the epoch that keys the
    masks, and `keys` distinguish the instances of an epoch.
    """

    first: np.ndarray
    last: np.ndarray
    skip: np.ndarray
    length: np.ndarray
    is_random: np.ndarray
    epochs: np.ndarray
    keys: np.ndarray


class SentencePairs:
    """An endless, seekable stream of instances from some documents of a corpus.

    Every epoch visits the documents in its own order, in blocks of `documents_per_block`, and shuffles the instances of
    a block. Instances have at most `max_length` tokens, including special tokens; in each epoch, a document is cut for
    a shorter target, uniform from 2 tokens up, with probability `short_seq_prob`; without `next_sentence` instances are
    single segments. With `static_masks` every epoch has the instances of epoch 0, in its own order. Raises DataError if
    no document has the sentences that an instance needs.
    """

    def __init__(self, corpus: Corpus, documents: np.ndarray | None, data: PretrainingData, *, seed: int) -> None:
        """Sample from the documents with these indices, or from all."""
        self._corpus, self._data, self._seed = corpus, data, seed
        self._num_marks = corpus.tokenizer.template.num_marks(2 if data.next_sentence else 1)
        self._room = data.max_length - self._num_marks
        offsets = np.asarray(corpus.document_offsets, dtype=np.int64)
        chosen = np.arange(len(offsets) - 1) if documents is None else np.asarray(documents, dtype=np.int64)
        if len(chosen) == 0:
            raise DataError("no documents to sample from; pre-training needs at least one")
        self._documents, self._first, self._count = chosen, offsets[chosen], offsets[chosen + 1] - offsets[chosen]
        task = None if data.pairs is None else PAIR_TASKS[data.pairs]
        if task is not None and (most := int(self._count.max())) < task.least_sentences:
            raise DataError(
                f"{task.name} pairs need a document of at least {task.least_sentences} sentences; "
                f"none of these {len(chosen):,} has more than {most}"
            )
        fraction = len(self._documents) / int(self._count.sum())
        self.documents_per_block = max(1, round(BLOCK_SENTENCES * fraction))
        self.num_blocks = -(-len(self._documents) // self.documents_per_block)
        self._cache: dict[tuple[int, int], Instances] = {}

    def read(self, position: dict[str, int], num_rows: int) -> tuple[Instances, dict[str, int]]:
        """Return the instances from a position on, across blocks and epochs, and the position after them.

        A position is the epoch, the block of documents in the epoch, and the instance in the block. Raises DataError
        for a position that does not exist with these documents and settings.
        """
        epoch, block, instance = position_numbers(position, "epoch", "block", "instance")
        parts, missing = [], num_rows
        while missing:
            instances = self.block(epoch, block)
            if instance > len(instances):
                raise DataError(
                    f"data position {position}: the block has {len(instances)} instances; the position "
                    f"was saved with another corpus or other sampling settings"
                )
            parts.append(instances.take(slice(instance, instance + missing)))
            missing -= len(parts[-1])
            instance += len(parts[-1])
            if instance == len(instances):
                epochs, block = divmod(block + 1, self.num_blocks)
                epoch, instance = epoch + epochs, 0
        return Instances.join(parts), {"epoch": epoch, "block": block, "instance": instance}

    def epoch(self, number: int) -> Iterator[Instances]:
        """Yield the instances of an epoch, block by block."""
        return (self.block(number, block) for block in range(self.num_blocks))

    def extent(self) -> Extent:
        """Return the size of an epoch, estimated from its first instances, which training needs anyway."""
        number, block = next((number, block) for number, block in enumerate(self.epoch(0), 1) if len(block))
        fraction = min(1.0, number * self.documents_per_block / len(self._documents))
        return Extent(round(len(block) / fraction), block.length.sum(axis=1) + self._num_marks, self._num_marks)

    def gather(self, rows: Instances) -> Texts:
        """Return instances with their tokens and marks; A is segment 0, B is segment 1."""
        has_pairs, template = self._data.next_sentence, self._corpus.tokenizer.template
        frames = template.frames(rows.length[:, 0], rows.length[:, 1] if has_pairs else None)
        for side, starts in enumerate((frames.first, frames.second) if has_pairs else (frames.first,)):
            columns = starts, *(column[:, side] for column in (rows.first, rows.last, rows.skip, rows.length))
            for start, first, last, skipped, length in zip(*(column.tolist() for column in columns), strict=True):
                part = self._corpus.sentences(first, last)[skipped : skipped + length]
                frames.token_ids[start : start + length] = part
        return Texts(
            token_ids=frames.token_ids,
            segment_ids=frames.segment_ids,
            lengths=frames.lengths,
            keys=rows.keys,
            epochs=rows.epochs,
            pair_labels=rows.is_random.copy() if has_pairs else None,
        )

    def block(self, epoch: int, block: int) -> Instances:
        """Return all instances of a block, in order. Raises DataError for a block that does not exist."""
        if not 0 <= block < self.num_blocks:
            raise DataError(f"block {block} of epoch {epoch}: these documents have {self.num_blocks} blocks")
        if (epoch, block) not in self._cache:
            first = block * self.documents_per_block
            last = min(first + self.documents_per_block, len(self._documents))
            visited = Permutation(len(self._documents), self._seed, _ORDER, epoch)[np.arange(first, last)]
            instances = self._walk(visited, 0 if self._data.static_masks else epoch)
            order = Permutation(len(instances), self._seed, _BLOCK, epoch, block)
            self._cache[epoch, block] = instances.take(order[np.arange(len(instances))])
            if len(self._cache) > _NUM_CACHED_BLOCKS:
                del self._cache[next(iter(self._cache))]
        return self._cache[epoch, block]

    def _walk(self, visited: np.ndarray, epoch: int) -> Instances:
        """Cut the documents (indices in `self._documents`) into instances, in order.

        All possible chunks are computed in one pass, because where one ends depends only on its first sentence.
        """
        counts = self._count[visited]
        document_ends = np.cumsum(counts)
        sentences = ranges(self._first[visited], counts)
        lengths = self._corpus.sentence_lengths[sentences].astype(np.int64)
        most, documents = self._room, self._documents[visited]
        is_short = uniform(self._seed, _SHORT, epoch, documents) < self._data.short_seq_prob
        targets = np.where(is_short, 2 + integers(most - 1, self._seed, _TARGET, epoch, documents), most)
        chunks = _Chunks(
            sentences=sentences,
            document_ends=np.repeat(document_ends, counts),
            indices=np.repeat(visited, counts),
            targets=np.repeat(targets, counts),
            token_ends=np.concatenate([[0], np.cumsum(lengths)]),
        )
        pairs = self._data.pairs
        return self._segments(chunks, epoch) if pairs is None else PAIR_TASKS[pairs].cut(self, chunks, epoch)

    def random_pairs(self, chunks: _Chunks, epoch: int) -> Instances:
        """Return pairs of segments: a chunk of sentences up to the target length, split or with a random B."""
        starts = np.arange(len(chunks.sentences))
        last = np.minimum(np.searchsorted(chunks.token_ends, chunks.goals), chunks.document_ends)
        num_sentences = last - starts
        a_end = 1 + integers(np.maximum(num_sentences - 1, 1), self._seed, _A_END, epoch, chunks.sentences)
        is_random = (num_sentences == 1) | (uniform(self._seed, _IS_RANDOM, epoch, chunks.sentences) < 0.5)
        # The sentences that a random B replaces are not lost: the next chunk starts with them.
        start = _chain(np.where(is_random, starts + a_end, last))
        middle, last = start + a_end[start], last[start]
        sentences, is_random = chunks.sentences[start], is_random[start]
        a_side, b_side = chunks.side(start, start, middle), chunks.side(start, middle, last)
        (rows,) = np.nonzero(is_random)
        goal = chunks.targets[start[rows]] - a_side[2, rows]
        b_side[:, rows] = self._random_texts(chunks.indices[start[rows]], sentences[rows], goal, epoch)
        return self._truncated(sentences, np.stack([a_side, b_side], axis=2), is_random, epoch)

    def swapped_pairs(self, chunks: _Chunks, epoch: int) -> Instances:
        """Return pairs of segments of one chunk, half of them swapped (ALBERT, 3.1); skips a single last sentence."""
        last = np.searchsorted(chunks.token_ends, chunks.goals)
        last = np.clip(last, np.arange(len(last)) + 2, chunks.document_ends)
        reached = _chain(last)
        start = reached[last[reached] - reached > 1]
        sentences, last = chunks.sentences[start], last[start]
        middle = start + 1 + integers(last - start - 1, self._seed, _A_END, epoch, sentences)
        sides = np.stack([chunks.side(start, start, middle), chunks.side(start, middle, last)], axis=2)
        is_swapped = uniform(self._seed, _IS_RANDOM, epoch, sentences) < 0.5
        sides = np.where(is_swapped[:, None], sides[..., ::-1], sides)
        return self._truncated(sentences, sides, is_swapped, epoch)

    def _truncated(self, sentences: np.ndarray, sides: np.ndarray, is_random: np.ndarray, epoch: int) -> Instances:
        """Return instances of two sides, cut to fit; `sides` (3, instances, 2) are as `_Chunks.side` returns them."""
        first, last, whole = sides
        length = np.stack(truncated_lengths(whole[:, 0], whole[:, 1], self._room), axis=1)
        tosses = zip((whole - length).T, (_FRONT_A, _FRONT_B), strict=True)
        skip = [_num_heads(num_tosses, self._seed, draw, epoch, sentences) for num_tosses, draw in tosses]
        return Instances(
            first=first,
            last=last,
            skip=np.stack(skip, axis=1),
            length=length,
            is_random=is_random.astype(np.int64),
            epochs=np.full(len(sentences), epoch, dtype=np.int64),
            keys=words(self._seed, _KEY, sentences, 0),
        )

    def _random_texts(
        self, indices: np.ndarray, sentences: np.ndarray, goals: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return first sentence, sentence after the last, and number of tokens of texts from other documents.

        A text starts at a random sentence and grows until it has `goals` tokens or the document ends. Another document
        is drawn in up to 10 attempts; after that the same document is used and still counts as random.
        """
        others = indices.copy()
        for attempt in range(_NUM_DOCUMENT_DRAWS):
            (same,) = np.nonzero(others == indices)
            if len(same) == 0:
                break
            others[same] = integers(len(self._documents), self._seed, _DOCUMENT, epoch, sentences[same], attempt)
        first = self._first[others] + integers(self._count[others], self._seed, _START, epoch, sentences)
        document_ends = self._first[others] + self._count[others]
        last, num_tokens = first.copy(), np.zeros(len(first), dtype=np.int64)
        growing = np.arange(len(first))
        while len(growing):
            num_tokens[growing] += self._corpus.sentence_lengths[last[growing]]
            last[growing] += 1
            unfinished = (num_tokens[growing] < goals[growing]) & (last[growing] < document_ends[growing])
            growing = growing[unfinished]
        return first, last, num_tokens

    def _segments(self, chunks: _Chunks, epoch: int) -> Instances:
        """Return single segments of whole sentences that fit the target; longer sentences are cut into equal parts."""
        last = np.searchsorted(chunks.token_ends, chunks.goals, side="right") - 1
        last = np.clip(last, np.arange(len(last)) + 1, chunks.document_ends)
        reached = _chain(last)
        first, after, num_tokens = chunks.side(reached, reached, last[reached])
        num_parts = -(-num_tokens // self._room)
        part = ranges(0, num_parts)
        sentences, after, whole, num_parts = np.repeat([first, after, num_tokens, num_parts], num_parts, axis=1)
        first_token, end_token = whole * part // num_parts, whole * (part + 1) // num_parts
        columns = np.zeros((4, len(part), 2), dtype=np.int64)
        columns[..., 0] = sentences, after, first_token, end_token - first_token
        return Instances(
            *columns,
            is_random=np.zeros_like(part),
            epochs=np.full_like(part, epoch),
            keys=words(self._seed, _KEY, sentences, part),
        )


class Passages(SentencePairs):
    """`SentencePairs` for single segments that also locates the sentences in them."""

    def gather(self, rows: Instances) -> Texts:
        """Return segments with their tokens and marks, and the positions of their sentences."""
        texts, counts = super().gather(rows), rows.last[:, 0] - rows.first[:, 0]
        owners = np.repeat(np.arange(len(rows)), counts)
        first = np.cumsum(counts) - counts
        lengths = self._corpus.sentence_lengths[ranges(rows.first[:, 0], counts)].astype(np.int64)
        ends = np.cumsum(lengths)
        ends -= (ends[first] - lengths[first] + rows.skip[:, 0])[owners]  # a sentence too long for a segment is cut
        begins = np.maximum(ends - lengths, 0)
        starts = np.cumsum(texts.lengths) - texts.lengths + len(self._corpus.tokenizer.template.begin)
        lengths = np.minimum(ends, rows.length[owners, 0]) - begins
        return replace(texts, sentence_starts=starts[owners] + begins, sentence_lengths=lengths)


@dataclass(frozen=True)
class _Chunks:
    """Every sentence of a block as a possible start of a chunk.

    All (sentences,): index in the corpus, index in the block after the document's last sentence, index of the document
    in the stream's list, target length in tokens; `token_ends` (sentences + 1,) are the tokens before each sentence.
    """

    sentences: np.ndarray
    document_ends: np.ndarray
    indices: np.ndarray
    targets: np.ndarray
    token_ends: np.ndarray

    @property
    def goals(self) -> np.ndarray:
        """The token offset in the block at which a chunk that starts at each sentence reaches its target length."""
        return self.token_ends[:-1] + self.targets

    def side(self, start: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return sides of chunks that begin at `start`: the block's indices `first` to `end` (exclusive).

        The rows (3, chunks) are the first sentence, the sentence after the last, and the number of tokens.
        """
        offsets = self.sentences[start] - start
        return np.stack([offsets + first, offsets + end, self.token_ends[end] - self.token_ends[first]])


class PairTask(NamedTuple):
    """A task on pairs of texts: its display name, and the method that cuts a block of documents into such pairs.

    Shorter documents than `least_sentences` give no pairs.
    """

    name: str
    cut: Callable[[SentencePairs, _Chunks, int], Instances]
    least_sentences: int = 1


PAIR_TASKS = {
    "nsp": PairTask("next-sentence", SentencePairs.random_pairs),
    "sop": PairTask("sentence-order", SentencePairs.swapped_pairs, least_sentences=2),
}
"""The tasks on pairs of texts, with the metrics TASK_loss in nats, TASK_accuracy and TASK_majority_fraction."""


def pair_task_of(metrics: Mapping[str, float]) -> str | None:
    """Return the pair task that `metrics` belong to, or None."""
    return next((task for task in PAIR_TASKS if f"{task}_accuracy" in metrics), None)


def truncated_lengths(a_length: np.ndarray, b_length: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths after the longer side, or B in a tie, has lost tokens until both fit `most`."""
    a_kept = np.minimum(a_length, np.maximum(most - b_length, (most + 1) // 2))
    return a_kept, np.minimum(b_length, most - a_kept)


def _chain(following: np.ndarray) -> np.ndarray:
    """Return the indices reached from 0 by going from each index to the one in `following`."""
    steps, place, reached = following.tolist(), 0, []
    while place < len(steps):
        reached.append(place)
        place = steps[place]
    return np.array(reached, dtype=np.int64)


def _num_heads(num_tosses: np.ndarray, seed: int, stream: int, epoch: int, sentences: np.ndarray) -> np.ndarray:
    """Return the number of heads in fair coin tosses: the tokens cut from the front rather than the back."""
    num_words = -(-num_tosses // 64)
    owner = np.repeat(np.arange(len(num_tosses)), num_words)
    number = ranges(0, num_words)
    unused = np.maximum(64 * (number + 1) - num_tosses[owner], 0).astype(np.uint64)
    bits = words(seed, stream, epoch, sentences[owner], number) >> unused
    return np.bincount(owner, np.bitwise_count(bits), len(num_tosses)).astype(np.int64)
