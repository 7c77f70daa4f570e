"""Decoding of targets after sources, which an encoder has read (Vaswani et al. 2017, 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from torch import Tensor

from maskloom.errors import DataError
from maskloom.generation.search import Choice, Continuation, DecodingStep, Generation, found_by
from maskloom.layers.attention import PastTokens
from maskloom.layers.copies import to_device
from maskloom.layers.decoding import Step, next_token_step
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.transformer import TransformerDecoder

_LONGER = 50


def most_tokens(source_length: int, min_tokens: int, *, name: str, room: int | None = None) -> int:
    """Return how many tokens a target has at most after a source: 50 more (Vaswani et al. 2017, 6.1), and no more
    than a decoder has `room` for. Raises DataError, with the source's name, where `min_tokens` are more.
    """
    most = source_length + _LONGER if room is None else min(source_length + _LONGER, room)
    if min_tokens > most:
        why = f"{_LONGER} more than the source's {source_length}" if room != most else "as many as its decoder reads"
        raise DataError(f"{name}: min_tokens {min_tokens}: a target has at most {most} tokens, {why}")
    return most


def decode_sources(
    model: EncoderWithHeads,
    hidden: Tensor,
    layout: SequenceLayout,
    settings: Generation,
    *,
    begin: Sequence[int],
    end: int,
    numbers: Sequence[int] | None = None,
    steps: list[DecodingStep] | None = None,
) -> list[Continuation]:
    """Return the target of each source, whose packed vectors are `hidden` (source tokens, hidden).

    Draws are keyed by `numbers` of the sources, 0 and so on unless given. `steps` gets those of a single source.

    A target begins with the tokens `begin`, which are not among its ids; a configuration may force the one after the
    first, and the end where a target comes to its limit. It has at most `most_tokens`; DataError is raised where it is
    to have more.
    """
    if (forced := getattr(model.config, "forced_bos_token_id", None)) is not None:
        begin = [begin[0], forced, *begin[2:]]
    room = cast(TransformerDecoder, model.heads["decoder"]).max_length - len(begin)
    numbers = list(range(layout.num_sequences) if numbers is None else numbers)
    num_steps = [
        min(settings.max_tokens, most_tokens(length, settings.min_tokens, name=f"source {number}", room=room))
        for number, length in zip(numbers, layout.sizes.tolist(), strict=True)
    ]
    forces_end = getattr(model.config, "forced_eos_token_id", None) == end
    choose = Choice(end, (), settings, numbers, steps, forces_end)
    decoder = SourceDecoder(model, hidden, layout, len(begin) + max(num_steps))
    return found_by(decoder, [begin] * len(num_steps), choose, num_steps)


class SourceDecoder:
    """A decoder that reads one more token of several targets at a time, with the keys and values of their sources.

    `room` is the most tokens that a target may come to.
    """

    def __init__(self, model: EncoderWithHeads, hidden: Tensor, layout: SequenceLayout, room: int) -> None:
        head = self._head = cast(TransformerDecoder, model.heads["decoder"])
        self._room, self._device = room, hidden.device
        self._single: SequenceLayout | None = None  # of one token a target
        self._num_heads = model.config.num_attention_heads
        self._memories = head.memories(hidden, layout)
        self._steps = list[Step]()
        self._sources = np.arange(layout.num_sequences)  # of the targets
        self._read = self._sources  # of the memories, each for as many targets that stand together

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read as many first tokens of every target, and return the logits of what follows: (sequences, vocabulary)."""
        ids, *more = to_device(np.array(prompts), self._device).unbind(1)
        layout = SequenceLayout.from_lengths([1] * len(ids), self._device)
        head = self._head
        self._past = PastTokens(len(head.layers), self._num_heads, self._room, layout, head.neighborhood)
        logits = self._logits(ids, layout)
        for column in more:
            logits = self.step(column)
        return logits

    def step(self, token_ids: Tensor) -> Tensor:
        """Add a token to every target, (sequences,), and return the logits of what follows."""
        if self._single is None or self._single.num_sequences != len(token_ids):
            self._single = SequenceLayout.from_lengths([1] * len(token_ids), self._device)
            rows = self._head.decoder.index_select(0, token_ids)
            self._steps = [next_token_step(cast(TransformerLayer, layer), rows) for layer in self._head.layers]
        layout = replace(self._single, position_ids=self._past.lengths, max_position=self._past.longest)
        self._past.add_token()
        return self._logits(token_ids, layout)

    def take(self, rows: np.ndarray) -> None:
        """Keep these targets, in this order; one may come several times."""
        self._past.take(rows)
        self._sources = self._sources[rows]
        read = np.unique(self._sources)
        if not np.array_equal(np.repeat(read, len(rows) // len(read)), self._sources):
            read = self._sources  # as many each, in another order or number
        if not np.array_equal(read, self._read):
            kept = to_device((self._read == read[:, None]).argmax(1), self._device)
            self._memories = [memory.taken(kept) for memory in self._memories]
            self._read = read

    def _logits(self, token_ids: Tensor, layout: SequenceLayout) -> Tensor:
        layers = self._steps or self._head.layers
        hidden = self._head.step(token_ids, layout, self._memories, self._past.layers, layers)
        return self._head.logits(hidden).float()
