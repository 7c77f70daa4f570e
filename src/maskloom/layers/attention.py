"""Multi-head attention over packed sequences, within texts and to another text (Vaswani et al. 2017, 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.copies import to_device
from maskloom.layers.general_attention import AttentionLayout, attend_between
from maskloom.layers.positions import rotated
from maskloom.layers.processor.grouped_attention import grouped_attention, paired_attention, prefers_paired
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.system.devices import has_bf16

_HALF = (torch.float16, torch.bfloat16)
_SHORT = 128  # up to this many tokens our own function trains faster than torch's, even without dropout
_MORE = 8  # minimum number of positions by which a full cache grows


class SelfAttention(nn.Module):
    """Attention within sequences: (tokens, hidden) to (tokens, hidden); each token attends to its own sequence only.

    Query, key and value projections are one matrix product, rows in that order. With `causal`, each token attends only
    to itself and earlier tokens. If the layout has a `rotation`, queries and keys are rotated by their positions. In
    training, dropout is applied to the probabilities. Raises ValueError if the heads do not divide the hidden size.
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden size {hidden_size} is not divisible by {num_heads} heads")
        self.num_heads = num_heads
        self.dropout = dropout
        self.causal = causal
        self.qkv = Dense.joined(hidden_size, *3 * [hidden_size])
        self.output = Dense(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, layout: SequenceLayout, past: KeyValues | None = None) -> Tensor:
        """Return the projected context of every token, which also attends to the earlier tokens in `past`."""
        qkv, dropout = rotated(self.projected(hidden), layout), self.dropout if self.training else 0.0
        if past is None or past.is_empty:
            context = attend(qkv, layout, self.num_heads, dropout, causal=self.causal)
            if past is not None:
                past.begin(qkv, layout)
        else:
            context = past.attend(qkv)
        return self.output(context)

    def projected(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values, (tokens, 3 hidden)."""
        return self.qkv(hidden)

    def probabilities(self, hidden: Tensor, layout: SequenceLayout, past: KeyValues | None = None) -> Tensor:
        """Return the attention probabilities of one sequence, (heads, tokens, tokens), for display."""
        tokens = rotated(self.projected(hidden), layout)[: layout.num_tokens]
        queries, keys, _ = tokens.unflatten(1, (3, self.num_heads, -1)).permute(1, 2, 0, 3)
        scores = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[2])
        allowed = layout.groups[0].allowed(hidden.device, causal=self.causal)
        return (scores if allowed is None else scores[None].masked_fill(~allowed, -math.inf)[0]).softmax(-1)


class CrossAttention(nn.Module):
    """Attention from the decoder's tokens (queries) to all tokens of the encoder's last layer (keys and values).

    Dropout is applied to the probabilities in training. Raises ValueError if the heads do not divide the hidden size.
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden size {hidden_size} is not divisible by {num_heads} heads")
        self.num_heads, self.dropout = num_heads, dropout
        self.query = Dense(hidden_size, hidden_size)
        self.key_value = Dense.joined(hidden_size, hidden_size, hidden_size)
        self.output = Dense(hidden_size, hidden_size)

    def forward(self, hidden: Tensor, memory: Memory) -> Tensor:
        """Return the projected context of every token, (tokens, hidden)."""
        return self.output(memory.attend(self, self.queries(hidden)))

    def queries(self, hidden: Tensor) -> Tensor:
        """Return the query of every token, (tokens, hidden)."""
        return self.query(hidden)

    def keys_values(self, hidden: Tensor) -> Tensor:
        """Return the key and the value of every token, (tokens, 2 hidden)."""
        return self.key_value(hidden)

    def probabilities(self, hidden: Tensor, memory: PackedMemory) -> Tensor:
        """Return the attention probabilities of one pair of texts, (heads, tokens, source tokens), for display."""
        keys, _ = self.keys_values(memory.hidden).chunk(2, 1)
        q, k = (part.unflatten(1, (self.num_heads, -1)).transpose(0, 1) for part in (self.queries(hidden), keys))
        return (q @ k.transpose(1, 2) / math.sqrt(q.shape[2])).softmax(-1)


class NarrowSelfAttention(SelfAttention):
    """Self-attention with queries and keys of size `key_size` per head: (tokens, hidden) to (tokens, hidden)."""

    def __init__(
        self, hidden_size: int, num_heads: int, dropout: float, *, key_size: int, causal: bool = False
    ) -> None:
        super().__init__(hidden_size, num_heads, dropout, causal=causal)
        self.key_size = key_size
        self.qkv = Dense.joined(hidden_size, *2 * [num_heads * key_size], hidden_size)

    def projected(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values, (tokens, 3 hidden)."""
        return _filled(self.qkv(hidden), 2 * self.num_heads, self.key_size, hidden.shape[1] // self.num_heads)


class NarrowCrossAttention(CrossAttention):
    """Attention to another text with queries and keys of size `key_size` per head."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float, *, key_size: int) -> None:
        super().__init__(hidden_size, num_heads, dropout)
        self.key_size = key_size
        self.query = Dense(hidden_size, num_heads * key_size)
        self.key_value = Dense.joined(hidden_size, num_heads * key_size, hidden_size)

    def queries(self, hidden: Tensor) -> Tensor:
        """Return the query of every token, (tokens, hidden)."""
        return _filled(self.query(hidden), self.num_heads, self.key_size, hidden.shape[1] // self.num_heads)

    def keys_values(self, hidden: Tensor) -> Tensor:
        """Return the key and the value of every token, (tokens, 2 hidden)."""
        return _filled(self.key_value(hidden), self.num_heads, self.key_size, hidden.shape[1] // self.num_heads)


def _filled(rows: Tensor, num_narrow: int, key_size: int, size: int) -> Tensor:
    """Return rows in which the first `num_narrow` heads are padded with zeros from `key_size` to `size`.

    They are scaled by (size / key_size)^(1/4), as attention divides scores by sqrt(size) instead of sqrt(key_size).
    """
    narrow, values = rows.tensor_split([num_narrow * key_size], 1)
    heads = narrow.unflatten(1, (num_narrow, key_size)) * (size / key_size) ** 0.25
    return torch.cat([F.pad(heads, (0, size - key_size)).flatten(1), values], 1)


@dataclass(frozen=True)
class PackedMemory:
    """The encoder's output (source tokens, hidden), attended to by the packed tokens of targets."""

    hidden: Tensor
    layout: AttentionLayout

    def attend(self, attention: CrossAttention, queries: Tensor) -> Tensor:
        """Return the context of every target token."""
        key_values, num_heads = attention.keys_values(self.hidden), attention.num_heads
        dropout = attention.dropout if attention.training else 0.0
        if prefers_paired(queries, self.layout):
            return paired_attention(queries, key_values, self.layout, num_heads, dropout)
        keys, values = key_values.chunk(2, 1)
        return attend_between(queries, keys, values, self.layout, num_heads, dropout=dropout)


@dataclass(frozen=True)
class PaddedMemory:
    """One layer's keys and values, computed once for all decoding steps.

    Shapes: `keys` (sequences, heads, head size, source), `values` (sequences, heads, source, head size). `mask`
    (sequences, 1, 1, source) is added to the scores. It is 0 at real tokens, or None if all sources are equally long.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, attention: CrossAttention, hidden: Tensor, layout: SequenceLayout) -> PaddedMemory:
        """Return the keys and values of packed sources, (source tokens, hidden)."""
        longest, padded = layout.max_length, layout.padded(attention.keys_values(hidden))
        keys, values = padded.unflatten(2, (2, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None
        if layout.sizes.min() < longest:  # the values of padding are 0, so an empty source yields 0
            is_padding = torch.arange(longest, device=hidden.device) >= layout.lengths.unsqueeze(1)
            mask = torch.finfo(padded.dtype).min * is_padding[:, None, None].to(padded.dtype)
        return cls(keys.transpose(2, 3).contiguous(), values.contiguous(), mask)

    def attend(self, attention: CrossAttention, queries: Tensor) -> Tensor:
        """Return the context of every target's newest token; each source has equally many consecutive targets."""
        number, num_heads, size, _ = self.keys.shape
        # With few queries on a CPU, plain products are several times as fast as torch's fused attention.
        scores = (queries.view(number, -1, num_heads, size).transpose(1, 2) @ self.keys).mul_(size**-0.5)
        scores = scores if self.mask is None else scores.add_(self.mask)
        return (scores.softmax(-1) @ self.values).transpose(1, 2).reshape(len(queries), -1)

    def taken(self, rows: Tensor) -> PaddedMemory:
        """Return the sequences `rows`, in this order; a sequence may be repeated."""
        keys, values = (part.index_select(0, rows) for part in (self.keys, self.values))
        return PaddedMemory(keys, values, None if self.mask is None else self.mask.index_select(0, rows))


Memory = PackedMemory | PaddedMemory
"""What a decoder layer attends to in addition to its own tokens."""


class PastTokens:
    """A decoding cache: the keys and values, in every layer, of the tokens that sequences have so far.

    `lengths` (sequences,) counts the tokens. A sequence has up to `room` positions in each layer and starts at the
    first. The newest token attends to all tokens or, with a `neighborhood`, to itself and that many before it.

    In a beam search of `width`, each run of `width` sequences continues the same prompt. The tokens of a run are kept
    side by side: `take` copies nothing, and `mask` selects the tokens that a sequence consists of.
    """

    def __init__(
        self, num_layers: int, num_heads: int, room: int, layout: SequenceLayout, neighborhood: int = 0, width: int = 1
    ) -> None:
        self.num_heads, self.room, self.lengths, self._sizes = num_heads, room, layout.lengths, layout.sizes
        self._reach, self._width = neighborhood or room, 1 if neighborhood else width
        self.run = 1  # sequences whose tokens are kept side by side
        self._origins = self.lengths.new_empty(0)  # (sequences, room): where in the run each token is kept
        self.layers = [KeyValues(self) for _ in range(num_layers)]
        self._measure()

    def add_token(self) -> None:
        """Reserve a position for one more token of every sequence."""
        self.lengths, self._sizes = self.lengths + 1, self._sizes + 1
        self.longest += 1
        if self.mask is not None:
            self._measure()

    def take(self, rows: np.ndarray) -> None:
        """Reduce the cache to the sequences `rows`, in this order; a sequence may be repeated."""
        if np.array_equal(rows, np.arange(len(self._sizes))):
            return
        kept, self._sizes = to_device(rows, self.lengths.device), self._sizes[rows]
        self.lengths = self.lengths.index_select(0, kept)
        if self.run > 1 and (runs := _sources(rows // self.run, self.run)) is not None:
            if not np.array_equal(runs, np.arange(len(self._origins) // self.run)):
                self._select(to_device(runs, kept.device))
            self._origins = self._origins.index_select(0, kept)
        else:
            self._separate()
            self._select(kept)
            if self._width > 1 and _sources(rows, self._width) is not None and self._sizes.min() == self._sizes.max():
                self._join()
        self._measure()

    def _select(self, runs: Tensor) -> None:
        for layer in self.layers:
            layer.tensor = layer.tensor.index_select(0, runs)

    def _join(self) -> None:
        """Keep the tokens of each run side by side from now on."""
        self.run = self._width
        for layer in self.layers:
            layer.tensor = layer.tensor.unflatten(0, (-1, self.run)).transpose(1, 2).flatten(2, 3).contiguous()
        self._origins = torch.arange(len(self._sizes), device=self.lengths.device).remainder_(self.run)
        self._origins = self._origins.unsqueeze(1).repeat(1, self.room)

    def _separate(self) -> None:
        """Give each sequence its own copy of its tokens."""
        if self.run == 1:
            return
        for layer in self.layers:
            origins = self._origins[:, : layer.tensor.shape[1]]
            runs = torch.arange(len(origins), device=origins.device).unsqueeze(1) // self.run
            positions = torch.arange(origins.shape[1], device=origins.device)
            layer.tensor = layer.tensor[runs, positions, origins].unsqueeze(2)
        self.run = 1

    def _measure(self) -> None:
        """Update what all layers need: the longest length, and a mask unless all tokens of a run are read."""
        self.longest = int(self._sizes.max())
        self.mask = None
        if self.run > 1:
            places = torch.arange(self.run, device=self.lengths.device)
            self._origins[:, self.longest :] = places.repeat(len(self._origins) // self.run).unsqueeze(1)
            others = self._origins[:, : self.longest, None] != places
            mask = others.new_zeros(others.shape, dtype=self.layers[0].tensor.dtype).masked_fill_(others, -math.inf)
            # floats, because attention would convert a boolean mask in every layer
            self.mask = mask.view(-1, 1, self.run, self.longest * self.run)
        elif self._sizes.min() < self.longest:
            positions = torch.arange(self.longest, device=self.lengths.device)
            lengths = self.lengths.unsqueeze(1)
            seen = (positions < lengths) & (positions >= lengths - 1 - self._reach)
            self.mask = seen[:, None, None]

    @property
    def first(self) -> int:
        """The first position that the newest tokens read, 0 where `mask` limits them instead."""
        return max(0, self.longest - 1 - self._reach) if self.mask is None else 0


def _sources(rows: np.ndarray, run: int) -> np.ndarray | None:
    """Return the common row of each run of `run` rows, or None if a run has different ones."""
    if len(rows) % run:
        return None
    runs = rows.reshape(-1, run)
    return runs[:, 0] if (runs == runs[:, :1]).all() else None


class LayerState:
    """What a layer remembers of earlier tokens: a `tensor` with a row per sequence, empty before the first tokens."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @property
    def is_empty(self) -> bool:
        """Whether no token has been seen yet."""
        return self.tensor.numel() == 0


class KeyValues(LayerState):
    """The keys and values of one layer, (runs, positions, run, 2 hidden), which grow as tokens are added."""

    def __init__(self, past: PastTokens) -> None:
        super().__init__(past.lengths.new_empty(0))
        self.past = past

    def begin(self, qkv: Tensor, layout: SequenceLayout) -> None:
        """Store the keys and values of the first tokens, (tokens, 3 hidden)."""
        self.tensor = layout.padded(qkv[: layout.num_tokens, qkv.shape[1] // 3 :]).unsqueeze(2)

    def attend(self, qkv: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
        """Add the newest token of every sequence, and return its context: (sequences, 3 hidden) to (sequences, hidden).

        `bias` is added to the scores times `scale`; it must be minus infinity where there is no token.
        Letters: n runs of r sequences, s longest length, h heads, d head size.
        """
        past, number, hidden_size = self.past, len(qkv), qkv.shape[1] // 3
        if past.longest > (num_places := self.tensor.shape[1]):
            more = min(max(_MORE, num_places // 4), past.room - num_places)
            self.tensor = F.pad(self.tensor, (0, 0, 0, 0, 0, more))
        if past.mask is None or past.run > 1:
            self.tensor[:, past.longest - 1] = qkv[:, hidden_size:].unflatten(0, (-1, past.run))
        else:
            self.tensor[torch.arange(number, device=qkv.device), past.lengths - 1, 0] = qkv[:, hidden_size:]
        seen = self.tensor[:, past.first : past.longest].flatten(1, 2)
        kv_nshd = seen.view(len(seen), seen.shape[1], 2 * past.num_heads, -1)
        keys, values = kv_nshd.transpose(1, 2).chunk(2, 1)
        q_nhrd = qkv[:, :hidden_size].view(len(seen), past.run, past.num_heads, -1).transpose(1, 2)
        mask = past.mask if bias is None else bias.to(q_nhrd.dtype)
        context = F.scaled_dot_product_attention(q_nhrd, keys, values, attn_mask=mask, scale=scale)
        return context.transpose(1, 2).reshape(number, -1)


def attend(qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool = False) -> Tensor:
    """Return softmax(q k / sqrt(d)) v per sequence and head: (tokens, 3 hidden) to (tokens, hidden).

    With `causal`, each token attends only to itself and earlier tokens. Letters: n sequences of a length group, s its
    length, h heads, d head size.
    """
    if prefers_packed(qkv, layout, num_heads):
        return _flash_attention(qkv, layout, num_heads, dropout, causal=causal)
    slots = layout.to_slots(qkv)
    if not layout.groups:
        return qkv.new_zeros(0, qkv.shape[1] // 3)
    is_short = slots.requires_grad and layout.max_length <= _SHORT
    if (dropout > 0.0 or is_short) and slots.device.type == "cpu" and not torch.compiler.is_compiling():
        return layout.from_slots(grouped_attention(slots, layout, num_heads, dropout, causal=causal))
    contexts = []
    parts = slots.split([group.num_slots for group in layout.groups])
    for group, part in zip(layout.groups, parts, strict=True):
        q_nhsd, k_nhsd, v_nhsd = part.view(group.num_sequences, group.length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
        mask = group.mask(causal=causal)
        is_causal = causal and mask is None
        context_nhsd = F.scaled_dot_product_attention(
            q_nhsd, k_nhsd, v_nhsd, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
        )
        contexts.append(context_nhsd.transpose(1, 2).reshape(group.num_slots, -1))
    return layout.from_slots(contexts[0] if len(contexts) == 1 else torch.cat(contexts))


def prefers_packed(qkv: Tensor, layout: SequenceLayout, num_heads: int) -> bool:
    """Return whether torch's fused variable-length kernels support a batch.

    They need half precision on CUDA, compute capability 8.0 or later, head sizes that are a multiple of 8 up to 256,
    and packed sequences of which none is empty.
    """
    is_half = qkv.is_cuda and qkv.dtype in _HALF and has_bf16(qkv.device)
    takes_heads = qkv.shape[1] // (3 * num_heads) in range(8, 257, 8)
    return is_half and takes_heads and layout.is_packed and not layout.has_empty_sequences


def _flash_attention(qkv: Tensor, layout: SequenceLayout, num_heads: int, dropout: float, *, causal: bool) -> Tensor:
    """Return softmax(q k / sqrt(d)) v per sequence and head: (tokens, 3 hidden) to (tokens, hidden).

    It is the operator beneath `torch.nn.attention.varlen`, whose own function does not support dropout.
    """
    offsets, longest = layout.row_offsets.int(), layout.max_length
    parts = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)
    context_tnd, *_ = torch.ops.aten._flash_attention_forward(
        *parts, offsets, offsets, longest, longest, dropout, causal, return_debug_mask=False
    )
    return context_tnd.flatten(1)
