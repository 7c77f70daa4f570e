import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskloom.layers import sequence_layout
from maskloom.layers.sequence_layout import SequenceLayout


def test_offsets_positions_and_first_tokens():
    layout = SequenceLayout.from_lengths([3, 1, 2])
    assert layout.offsets.tolist() == [0, 3, 4, 6]
    assert layout.lengths.tolist() == [3, 1, 2]
    assert layout.first_positions.tolist() == [0, 3, 4]
    assert layout.last_positions.tolist() == [2, 3, 5]
    assert layout.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert (layout.num_sequences, layout.num_tokens, layout.max_length) == (3, 6, 3)


def test_padding_rows_are_sequences_no_longer_than_the_longest(monkeypatch):
    for num_filled, expected in ((0, [0, 3, 8]), (5, [0, 3, 8, 13]), (11, [0, 3, 8, 13, 18, 19])):
        monkeypatch.setattr(sequence_layout, "filled_number", lambda number, _, more=num_filled: number + more)
        layout = SequenceLayout.from_lengths([3, 5])
        assert layout.row_offsets.tolist() == expected
        assert (layout.num_rows, layout.offsets.tolist()) == (8 + num_filled, [0, 3, 8])
        assert SequenceLayout.from_lengths([1] * 7).num_rows == 7  # a step of decoding has as many rows as sequences


@pytest.mark.parametrize("lengths", [[5, 5, 5], [7]])
def test_equal_lengths_need_no_index_copies(lengths):
    layout = SequenceLayout.from_lengths(lengths)
    assert layout.slot_tokens is None
    assert len(layout.groups) == 1
    assert layout.groups[0].key_mask is None


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_lengths_of_any_kind(kind):
    assert SequenceLayout.from_lengths(kind([2, 3])).num_tokens == 5


@given(st.lists(st.integers(0, 90), max_size=40))
@settings(max_examples=60, deadline=None)
def test_slots_hold_every_token_once_and_waste_little(lengths):
    layout = SequenceLayout.from_lengths(lengths)
    tokens = torch.arange(layout.num_tokens, dtype=torch.float32)[:, None]
    slots = layout.to_slots(tokens)
    assert len(slots) == sum(group.num_slots for group in layout.groups)
    assert torch.equal(layout.from_slots(slots)[: layout.num_tokens], tokens)
    # Every group wastes at most an eighth of its length (or four positions) per sequence.
    assert len(slots) <= sum(length * 8 / 7 + 4 for length in lengths)
    assert sum(group.num_sequences for group in layout.groups) == sum(length > 0 for length in lengths)
    for group in layout.groups:
        rows = slots[group.first_slot : group.first_slot + group.num_slots].view(group.num_sequences, group.length)
        is_real = torch.ones_like(rows, dtype=torch.bool) if group.key_mask is None else group.key_mask[:, 0, 0]
        for row, real in zip(rows, is_real, strict=True):
            first = int(row[0])
            assert row[real].tolist() == list(range(first, first + int(real.sum())))
            assert first in layout.offsets.tolist()


@pytest.mark.parametrize("lengths", [[4, 4], [2, 9, 3, 0, 30, 29], [1, 20]])
def test_slot_gathers_have_the_gradient_of_an_index(lengths):
    layout = SequenceLayout.from_lengths(lengths)
    packed = torch.randn(layout.num_tokens, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(layout.num_tokens, 3, dtype=torch.float64)
    (layout.from_slots(layout.to_slots(packed)) * weights).sum().backward()
    assert torch.equal(packed.grad, weights)


def test_own_positions_replace_the_counted_ones():
    layout = SequenceLayout.from_lengths([2, 1], position_ids=np.array([4, 9, 0]))
    assert layout.position_ids.tolist() == [4, 9, 0]
    assert layout.max_position == 9


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([3, -1], "length -1 of sequence 1"), ([[1, 2]], "shape"), ([1.5], "float64"), (["3"], "integers")],
)
def test_refuses_what_is_no_list_of_lengths(lengths, message):
    with pytest.raises(ValueError, match=message):
        SequenceLayout.from_lengths(lengths)


def test_refuses_positions_that_do_not_fit():
    with pytest.raises(ValueError, match="1 position ids for 3 tokens"):
        SequenceLayout.from_lengths([3], position_ids=np.array([0]))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_batches_without_tokens(lengths):
    layout = SequenceLayout.from_lengths(lengths)
    assert (layout.num_tokens, layout.groups, layout.max_position) == (0, (), -1)
