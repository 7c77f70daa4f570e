"""Decoding of targets from encoded sources (Vaswani et al. 2017, 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from torch import Tensor

from maskloom.errors import DataError
from maskloom.generation.search import Choice, Continuation, Decoder, DecodingStep, Generation, decode
from maskloom.layers.attention import PastTokens
from maskloom.layers.copies import to_device
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.model_config import ModelConfig
from maskloom.models.transformer import TransformerDecoder

_LONGER = 50


def most_tokens(source_length: int, min_tokens: int, *, name: str, room: int | None = None) -> int:
    """Return the maximum length of a target: the source's plus 50 (Vaswani et al. 2017, 6.1), at most `room`.

    Raises DataError with the source's name if `min_tokens` exceeds it.
    """
    most = source_length + _LONGER if room is None else min(source_length + _LONGER, room)
    if min_tokens > most:
        why = f"{_LONGER} more than the source's {source_length}" if room != most else "the most that its decoder reads"
        raise DataError(f"{name}: min_tokens {min_tokens}: a target has at most {most} tokens, {why}")
    return most


def with_forced(begin: Sequence[int], config: ModelConfig) -> list[int]:
    """Return the tokens that begin every generated target: `begin`, whose second one a configuration may replace."""
    forced = getattr(config, "forced_bos_token_id", None)
    return [*begin] if forced is None else [begin[0], forced, *begin[2:]]


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
    """Return the target of each source; `hidden` (source tokens, hidden) holds the sources' packed vectors.

    Draws are keyed by the sources' `numbers`, by default 0, 1, 2 ... If given, `steps` records the steps of a single
    source.

    A target begins with the tokens `begin`, which are not among its ids, as `with_forced` changes them. The
    configuration may also force the end of a target at its limit. The limit is the smaller of `max_tokens` and
    `most_tokens`; raises DataError if `min_tokens` exceeds the latter.
    """
    begin = with_forced(begin, model.config)
    room = cast(TransformerDecoder, model.heads["decoder"]).max_length - len(begin)
    numbers = list(range(layout.num_sequences) if numbers is None else numbers)
    num_steps = [
        min(settings.max_tokens, most_tokens(length, settings.min_tokens, name=f"source {number + 1}", room=room))
        for number, length in zip(numbers, layout.sizes.tolist(), strict=True)
    ]
    forces_end = getattr(model.config, "forced_eos_token_id", None) == end
    repeatable = [begin] * len(num_steps) if settings.no_repeat_ngram > 1 else []  # a start token may be the end token
    choose = Choice(end, model.config.never_generated, settings, numbers, steps, forces_end, repeatable)
    decoder = SourceDecoder(model, hidden, layout, len(begin) + max(num_steps), settings.beam or 1)
    return decode(decoder, [begin] * len(num_steps), choose, num_steps)


class SourceDecoder(Decoder):
    """A decoder that reads several targets in parallel, one token at a time, with their sources' keys and values.

    `room` is the maximum number of tokens of a target, `width` that of a beam search.
    """

    def __init__(
        self, model: EncoderWithHeads, hidden: Tensor, layout: SequenceLayout, room: int, width: int = 1
    ) -> None:
        head = self._head = cast(TransformerDecoder, model.heads["decoder"])
        self._use_layers(head.layers, head.decoder, room, width)
        self._num_heads = model.config.num_attention_heads
        self._memories = head.memories(hidden, layout)
        self._sources = np.arange(layout.num_sequences)  # the source of each target
        self._read = self._sources  # the source of each memory; adjacent targets may share one

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read equally long prompts of all targets and return the logits of next tokens: (sequences, vocabulary)."""
        ids, *more = to_device(np.array(prompts), self._device).unbind(1)
        layout = SequenceLayout.from_lengths([1] * len(ids), self._device)
        head = self._head
        self._past = PastTokens(len(head.layers), self._num_heads, self._room, layout, head.neighborhood, self._width)
        logits = self._logits(ids, layout)
        for column in more:
            logits = self.step(column)
        return logits

    def step(self, token_ids: Tensor) -> Tensor:
        """Add a token to every target, (sequences,), and return the logits of the next ones."""
        return self._logits(token_ids, self._next_layout(token_ids))

    def take(self, rows: np.ndarray) -> None:
        """Keep the targets `rows`, in that order; rows may repeat."""
        super().take(rows)
        self._sources = self._sources[rows]
        read = np.unique(self._sources)
        if not np.array_equal(np.repeat(read, len(rows) // len(read)), self._sources):
            read = self._sources  # not equal runs of sorted sources: one memory per target
        if not np.array_equal(read, self._read):
            kept = to_device((self._read == read[:, None]).argmax(1), self._device)
            self._memories = [memory.taken(kept) for memory in self._memories]
            self._read = read

    def _logits(self, token_ids: Tensor, layout: SequenceLayout) -> Tensor:
        layers = self._steps or self._head.layers
        hidden = self._head.step(token_ids, layout, self._memories, self._past.layers, layers)
        return self._head.logits(hidden).float()
