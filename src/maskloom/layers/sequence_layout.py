"""The position of each sequence in a packed (tokens, hidden) array, and how attention traverses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.layers.copies import all_to_device, to_device
from maskloom.layers.processor.onednn import filled_number

# Sequences share an attention call if the shorter ones waste at most 1 / 8 of its length (or a few positions).
_GROUP_TOLERANCE = 8
_GROUP_SLACK = 4


@dataclass(frozen=True)
class LengthGroup:
    """Sequences of near-equal length that one attention call handles as (num_sequences, length).

    `first_slot` is where the group starts in slot order; `key_mask` (num_sequences, 1, 1, length) is True where a key
    is real, or None if every sequence has the full length. If `is_padded_behind`, real keys come first and are all
    visible; otherwise the mask may differ for each query, (num_sequences or 1, 1, length, length).
    """

    first_slot: int
    num_sequences: int
    length: int
    key_mask: Tensor | None = None
    is_padded_behind: bool = True

    @property
    def num_slots(self) -> int:
        """Number of slots: sequences times length."""
        return self.num_sequences * self.length

    def rows_of(self, slots: Tensor) -> Tensor:
        """Return this group's part of all slots, (slots, ...) to (num_sequences, length, ...)."""
        part = slots.narrow(0, self.first_slot, self.num_slots)
        return part.view(self.num_sequences, self.length, *slots.shape[1:])

    def mask(self, *, causal: bool) -> Tensor | None:
        """Return a mask, True where a query may attend and broadcastable to (sequences, 1, length, length), or None.

        None means everywhere or, with `causal`, up to the query itself: as padding is last, no real query sees it.
        """
        if not causal:
            return self.key_mask
        if self.key_mask is None or self.is_padded_behind:
            return None
        before = torch.ones(self.length, self.length, dtype=torch.bool, device=self.key_mask.device).tril()
        # a padding query must attend to something
        return (self.key_mask & before) | torch.eye(self.length, dtype=torch.bool, device=self.key_mask.device)

    def allowed(self, device: torch.device, *, causal: bool) -> Tensor | None:
        """Return `mask`, but as a tensor also where it stands for all keys up to the query itself."""
        mask, size = self.mask(causal=causal), self.length
        return torch.ones(size, size, dtype=torch.bool, device=device).tril() if causal and mask is None else mask


@dataclass(frozen=True)
class Grouping:
    """Sequences sorted by length and grouped, padded to the longest sequence of their group.

    `slots` is None if the order of the tokens stays the same; its padding slots repeat their sequence's first token.
    """

    groups: tuple[LengthGroup, ...]
    slots: Slots | None = None
    cached: dict[bool, Any] = field(default_factory=dict, init=False, repr=False)  # by attention, for all layers


@dataclass(frozen=True)
class SequenceLayout:
    """Offsets and lengths of the packed sequences of one batch, computed once and shared by all layers.

    Linear layers, norms and heads see only (tokens, hidden). Attention sees the slots of a `grouping`, `given` or, on
    a GPU, made when needed. If `is_packed`, `offsets` define which tokens attend to each other; otherwise, as for
    padded rows, the masks of the groups do.

    `num_rows` is the number of rows that the layers see. A few padding rows may follow the tokens so that matrix
    products reuse row counts they have seen before; these rows belong to no sequence and receive no gradient.
    `row_offsets` continue `offsets` with sequences made of the padding rows, for attention that computes all rows.
    `rotation` (rows, 3 hidden / 2, 2) rotates queries and keys by their positions in models that do so, and `biases`,
    one per group, are added to attention scores. `has_gaps` is true if positions were given that differ from the
    tokens' places in their sequences.
    """

    offsets: Tensor
    row_offsets: Tensor
    lengths: Tensor
    first_positions: Tensor
    last_positions: Tensor
    position_ids: Tensor
    num_sequences: int
    num_tokens: int
    num_rows: int
    max_length: int
    max_position: int
    has_empty_sequences: bool
    given: Grouping | None
    is_packed: bool = True
    rotation: Tensor | None = None
    host_lengths: np.ndarray | None = None
    has_gaps: bool = False
    biases: tuple[Tensor, ...] = ()

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int] | np.ndarray | Tensor,
        device: torch.device | str | None = None,
        *,
        position_ids: np.ndarray | None = None,
    ) -> SequenceLayout:
        """Lay out sequences of the given lengths one after the other; positions count from 0 in each.

        `position_ids` (tokens,) replaces these positions. Raises ValueError unless lengths are non-negative integers,
        or if there is not one position id per token.
        """
        sizes = _as_lengths(lengths)
        device = torch.device(device) if device is not None else torch.device("cpu")
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        num_tokens = int(offsets[-1])
        starts = offsets[:-1]
        places = np.arange(num_tokens, dtype=np.int64) - np.repeat(starts, sizes)
        if position_ids is None:
            position_ids = places
        elif len(position_ids) != num_tokens:
            raise ValueError(f"{len(position_ids)} position ids for {num_tokens} tokens; one for each token is needed")
        max_length = int(sizes.max(initial=0))
        # a step of decoding gives the layers one row for each sequence
        num_rows = filled_number(num_tokens, device) if max_length > 1 else num_tokens
        grouping = _group(sizes, num_rows, device) if device.type == "cpu" else None
        if grouping is not None and grouping.slots is None:
            num_rows = num_tokens
        parts = offsets, sizes, np.minimum(starts, starts[sizes > 0].max(initial=0)), np.maximum(offsets[1:] - 1, 0)
        at, lengths, firsts, lasts, positions = all_to_device([*parts, position_ids], device)
        row_offsets = at
        if num_rows > num_tokens:
            filling = np.arange(num_tokens, num_rows, max_length)
            row_offsets = to_device(np.concatenate([starts, filling, [num_rows]]), device)
        return cls(
            offsets=at,
            row_offsets=row_offsets,
            lengths=lengths,
            first_positions=firsts,  # an empty sequence gets the first token of another
            last_positions=lasts,
            position_ids=positions,
            num_sequences=len(sizes),
            num_tokens=num_tokens,
            num_rows=num_rows,
            max_length=max_length,
            max_position=int(position_ids.max(initial=-1)),
            has_empty_sequences=bool((sizes == 0).any()),
            given=grouping,
            host_lengths=sizes,
            has_gaps=position_ids is not places and not np.array_equal(position_ids, places),
        )

    @classmethod
    def of_padded(cls, is_real: Tensor) -> SequenceLayout:
        """Lay out the rows of a (batch, length) mask, True at tokens, as sequences of that length, padding included.

        It uses only tensor operations, independent of the sizes, so that torch.export can trace it; the cost is that
        padding is computed too. A row without any token sees all keys, and its vectors are meaningless.
        """
        batch, length = is_real.shape
        columns = torch.arange(length, device=is_real.device)
        offsets = torch.arange(batch + 1, device=is_real.device) * length
        starts = offsets[:-1]
        lengths = is_real.sum(1)
        keys = is_real | (lengths == 0).unsqueeze(1)
        return cls(
            offsets=offsets,
            row_offsets=offsets,
            lengths=lengths,
            first_positions=starts + is_real.to(torch.int64).argmax(1),
            last_positions=starts + length - 1 - is_real.to(torch.int64).flip(1).argmax(1),
            position_ids=columns.expand(batch, length).reshape(-1),
            num_sequences=batch,
            num_tokens=batch * length,
            num_rows=batch * length,
            max_length=length,
            max_position=length - 1,
            has_empty_sequences=True,
            given=Grouping((LengthGroup(0, batch, length, keys[:, None, None, :], is_padded_behind=False),)),
            is_packed=False,
        )

    @property
    def sizes(self) -> np.ndarray:
        """The lengths on the host; reading them waits for a GPU only after `of_padded`."""
        return self.lengths.cpu().numpy() if self.host_lengths is None else self.host_lengths

    @property
    def grouping(self) -> Grouping:
        """The groups of sequences and the order of their slots."""
        return self._made if self.given is None else self.given

    @cached_property
    def _made(self) -> Grouping:
        """The groups on a GPU, where fused attention needs none."""
        return _group(self.sizes, self.num_rows, self.lengths.device)

    @property
    def groups(self) -> tuple[LengthGroup, ...]:
        """The groups of sequences."""
        return self.grouping.groups

    @property
    def slot_tokens(self) -> Tensor | None:
        """The token of each slot, (slots,)."""
        slots = self.grouping.slots
        return None if slots is None else slots.tokens

    def group_positions(self) -> list[Tensor]:
        """Return the positions of each group's slots, (num_sequences or 1, length)."""
        if not self.has_gaps:
            return [torch.arange(group.length, device=self.lengths.device)[None] for group in self.groups]
        slots = self.position_ids if self.slot_tokens is None else self.position_ids[self.slot_tokens]
        return [group.rows_of(slots) for group in self.groups]

    def within(self, neighborhood: int) -> SequenceLayout:
        """Return a layout with attention up to `neighborhood` positions away, 0 for no limit (Vaswani et al., 4).

        Differs from the paper: farther tokens are masked, so the cost stays quadratic in the length.
        """
        if not neighborhood or (self.max_length <= neighborhood + 1 and not self.has_gaps):
            return self
        groups = []
        for group, places in zip(self.groups, self.group_positions(), strict=True):
            mask = ((places.unsqueeze(1) - places.unsqueeze(2)).abs() <= neighborhood)[:, None]
            if group.key_mask is not None:  # padding must attend to something: itself
                mask = (mask & group.key_mask) | torch.eye(group.length, dtype=torch.bool, device=mask.device)
            groups.append(replace(group, key_mask=mask, is_padded_behind=False))
        return replace(self, given=replace(self.grouping, groups=tuple(groups)), is_packed=False)

    def filled_up(self, packed: Tensor) -> Tensor:
        """Append rows of zeros: (tokens, features) to (rows, features)."""
        return F.pad(packed, (0, 0, 0, self.num_rows - self.num_tokens)) if self.num_rows > self.num_tokens else packed

    def padded(self, packed: Tensor) -> Tensor:
        """Return sequences padded with zeros to the longest: (tokens, features) to (sequences, longest, features)."""
        shifts = torch.arange(self.num_sequences, device=packed.device) * self.max_length - self.offsets[:-1]
        shifts = torch.repeat_interleave(shifts, self.lengths, output_size=self.num_tokens)
        places = shifts + torch.arange(self.num_tokens, device=packed.device)
        result = packed.new_zeros(self.num_sequences * self.max_length, packed.shape[1])
        return result.index_copy(0, places, packed).view(self.num_sequences, self.max_length, packed.shape[1])

    def to_slots(self, packed: Tensor) -> Tensor:
        """Reorder (rows, features) to slot order, (slots, features)."""
        slots = self.grouping.slots
        return packed if slots is None else slots.to_slots(packed)

    def from_slots(self, slots: Tensor) -> Tensor:
        """Reorder (slots, features) back to packed order, (rows, features)."""
        order = self.grouping.slots
        return slots if order is None else order.from_slots(slots)


@dataclass(frozen=True)
class Slots:
    """A padded order of packed tokens: `tokens` (slots,) has the token of each slot, `slots` (rows,) the reverse.

    The slots in `padding`, if any, may name any token; rows after the first `num_tokens` may name any slot.
    """

    tokens: Tensor
    slots: Tensor
    padding: Tensor | None
    num_tokens: int

    def to_slots(self, packed: Tensor) -> Tensor:
        """Reorder (rows, features) to this order; padding slots must not receive gradients."""
        slots = self.slots[: len(packed)]  # padding rows may be absent
        return _ToSlots.apply(packed, self.tokens, slots, self.num_tokens)  # pyright: ignore[reportReturnType]

    def from_slots(self, slots: Tensor) -> Tensor:
        """Reorder (slots, features) back to packed order."""
        return _FromSlots.apply(slots, self.tokens, self.slots, self.padding)  # pyright: ignore[reportReturnType]


class SlotPlaces:
    """Collects the slots of a batch's tokens, group by group, from the lengths of its sequences."""

    def __init__(self, sizes: np.ndarray) -> None:
        self._sizes, self._starts = sizes, np.cumsum(sizes) - sizes
        self._tokens, self._is_real, self._number = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=bool)], 0

    def add(self, members: np.ndarray) -> tuple[LengthGroup, np.ndarray]:
        """Add sequences; return their group, without a mask, and which slots hold a token, (sequences, longest)."""
        first, sizes = self._number, self._sizes[members, None]
        positions = np.arange(sizes.max())
        is_real = positions < sizes
        starts = np.where(sizes > 0, self._starts[members, None], 0)  # an empty sequence has no token
        self._tokens.append((starts + np.where(is_real, positions, 0)).ravel())
        self._is_real.append(is_real.ravel())
        self._number += is_real.size
        return LengthGroup(first, len(members), is_real.shape[1]), is_real

    def slots(self, num_rows: int, device: torch.device) -> Slots:
        """Return the slots of all groups, in which padding rows after the tokens are in the first slot."""
        tokens, is_real = np.concatenate(self._tokens), np.concatenate(self._is_real)
        slots = np.zeros(num_rows, dtype=np.int64)
        slots[tokens[is_real]] = np.flatnonzero(is_real)
        padding = None if is_real.all() else to_device(np.flatnonzero(~is_real), device)
        return Slots(to_device(tokens, device), to_device(slots, device), padding, int(self._sizes.sum()))


class _ToSlots(torch.autograd.Function):
    """Gather by slot. The gradient is a gather too, because attention sends no gradient to padding slots."""

    @staticmethod
    def forward(ctx, packed: Tensor, slot_tokens: Tensor, token_slots: Tensor, num_tokens: int) -> Tensor:
        ctx.save_for_backward(token_slots)
        ctx.num_tokens = num_tokens
        return packed.index_select(0, slot_tokens)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        (token_slots,) = ctx.saved_tensors
        result = gradient.index_select(0, token_slots)
        result[ctx.num_tokens :].zero_()
        return result, None, None, None


class _FromSlots(torch.autograd.Function):
    """Gather by token; padding slots receive zero gradients."""

    @staticmethod
    def forward(ctx, slots: Tensor, slot_tokens: Tensor, token_slots: Tensor, padding_slots: Tensor | None) -> Tensor:
        ctx.save_for_backward(slot_tokens, padding_slots)
        return slots.index_select(0, token_slots)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        slot_tokens, padding_slots = ctx.saved_tensors
        gradient = gradient.index_select(0, slot_tokens)
        if padding_slots is not None:
            gradient.index_fill_(0, padding_slots, 0.0)
        return gradient, None, None, None


def _as_lengths(lengths: Sequence[int] | np.ndarray | Tensor) -> np.ndarray:
    sizes = lengths.cpu().numpy() if isinstance(lengths, Tensor) else np.asarray(lengths)
    if sizes.size == 0:
        sizes = sizes.astype(np.int64)
    if sizes.ndim != 1 or not np.issubdtype(sizes.dtype, np.integer):
        raise ValueError(f"lengths have shape {sizes.shape} and type {sizes.dtype}; one row of integers is needed")
    if (sizes < 0).any():
        raise ValueError(f"length {int(sizes.min())} of sequence {int(sizes.argmin())} is negative")
    return sizes.astype(np.int64)


def _group(sizes: np.ndarray, num_rows: int, device: torch.device) -> Grouping:
    """Split sequences into groups of near-equal length; map slots to tokens and tokens to slots."""
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]
    groups: list[LengthGroup] = []
    places, first = SlotPlaces(sizes), 0
    while first < len(order):
        length = int(sizes[order[first]])
        shortest = length - max(_GROUP_SLACK, length // _GROUP_TOLERANCE)
        members = order[first : first + int(np.count_nonzero(sizes[order[first:]] >= shortest))]
        group, is_real = places.add(members)
        mask = None if is_real.all() else to_device(is_real[:, None, None, :], device)
        groups.append(replace(group, key_mask=mask))
        first += len(members)
    keeps_order = len(groups) <= 1 and all(group.key_mask is None for group in groups)
    keeps_order &= device.type == "cpu" or num_rows == sizes.sum()  # a CPU then does without padding rows
    return Grouping(tuple(groups), None if keeps_order else places.slots(num_rows, device))
