import math

import numpy as np
import pytest
import torch

from maskloom.layers.attention import attend
from maskloom.layers.dropout import RowDraws, drawing
from maskloom.layers.general_attention import AttentionLayout, Past, attend_between, masked_softmax
from maskloom.layers.sequence_layout import SequenceLayout

HEADS, SIZE = 3, 4
QUERIES, KEYS = [5, 1, 13, 0, 12, 5], [4, 9, 0, 3, 20, 4]


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def by_head(rows):
    return rows.view(len(rows), HEADS, SIZE).transpose(0, 1)


def naive(queries, keys, values, num_queries, num_keys, *, may=None, bias=None, past=None):
    """Attend query by query; `may(sequence)` is a sequence's mask, `bias(q, place, num_keys)` is added to scores."""
    contexts = []
    parts = zip(queries.split(num_queries), keys.split(num_keys), values.split(num_keys), strict=True)
    for number, (q_rows, k_rows, v_rows) in enumerate(parts):
        q, k, v = by_head(q_rows), by_head(k_rows), by_head(v_rows)
        if past is not None:
            k, v = torch.cat([past.keys[number], k], 1), torch.cat([past.values[number], v], 1)
        for place in range(len(q_rows)):
            seen = np.ones(k.shape[1], dtype=bool) if may is None else may(number)[place]
            context = torch.zeros(HEADS, SIZE, dtype=torch.float64)
            if seen.any():
                scores = torch.einsum("hd,hkd->hk", q[:, place], k) / math.sqrt(SIZE)
                if bias is not None:
                    scores = scores + bias(q[:, place], place, k.shape[1])
                context = torch.einsum("hk,hkd->hd", scores[:, torch.from_numpy(seen)].softmax(-1), v[:, seen])
            contexts.append(context.flatten())
    return torch.stack(contexts)


def assert_equal_with_gradients(found, expected, inputs):
    weights = torch.randn_like(found)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def inputs_of(num_queries, num_keys):
    torch.manual_seed(0)
    return [drawn(sum(num), HEADS * SIZE) for num in (num_queries, num_keys, num_keys)]


def laid_out(num_queries, num_keys=None, **options):
    keys = None if num_keys is None else SequenceLayout.from_lengths(num_keys)
    return AttentionLayout(SequenceLayout.from_lengths(num_queries), keys, **options)


def test_queries_attend_to_keys_of_another_text():
    inputs = inputs_of(QUERIES, KEYS)
    found = attend_between(*inputs, laid_out(QUERIES, KEYS), HEADS)
    assert_equal_with_gradients(found, naive(*inputs, QUERIES, KEYS), inputs)


def test_the_order_of_keys_with_their_values_changes_nothing():
    queries, keys, values = inputs_of(QUERIES, KEYS)
    starts = np.cumsum(KEYS) - KEYS
    order = np.concatenate([start + np.arange(number - 1, -1, -1) for start, number in zip(starts, KEYS, strict=True)])
    layout, expected = laid_out(QUERIES, KEYS), attend_between(queries, keys, values, laid_out(QUERIES, KEYS), HEADS)
    found = attend_between(queries, keys[order], values[order], layout, HEADS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (attend_between(queries, keys[order], values, layout, HEADS) - expected).abs().max() > 0.1


def test_a_query_without_keys_gets_zeros_and_finite_gradients():
    inputs = inputs_of(QUERIES, KEYS)
    found = attend_between(*inputs, laid_out(QUERIES, KEYS), HEADS)
    assert not found[6:19].any()  # the third sequence has no keys
    assert found[:6].all()
    found.sum().backward()
    assert all(torch.isfinite(part.grad).all() for part in inputs)


@pytest.mark.parametrize("allowed", [None, torch.tensor([True, True, False])], ids=str)
def test_under_autocast_a_softmax_is_in_single_precision(allowed):
    scores = torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = masked_softmax(scores, allowed)
    torch.testing.assert_close(found, masked_softmax(scores.float(), allowed), rtol=0, atol=0)


def test_causal_attention_equals_the_fast_path():
    inputs = inputs_of(QUERIES, QUERIES)
    found = attend_between(*inputs, laid_out(QUERIES, causal=True), HEADS)
    expected = attend(torch.cat(inputs, 1), SequenceLayout.from_lengths(QUERIES), HEADS, 0.0, causal=True)
    assert_equal_with_gradients(found, expected, inputs)


def test_explicit_masks_as_of_permutations():
    generator = np.random.default_rng(0)
    orders = [generator.permutation(number) for number in QUERIES]
    masks = [order[None, :] < order[:, None] for order in orders]  # the first token of an order sees nothing
    inputs = inputs_of(QUERIES, QUERIES)
    found = attend_between(*inputs, laid_out(QUERIES, allowed=masks), HEADS)
    assert_equal_with_gradients(found, naive(*inputs, QUERIES, QUERIES, may=lambda number: masks[number]), inputs)


def test_a_bias_that_knows_places_alone():
    table = torch.randn(HEADS, 40, dtype=torch.float64)
    inputs = inputs_of(QUERIES, QUERIES)

    def bias(queries, group):
        number = queries.shape[2]
        places = torch.arange(number)
        return table[:, (places[None, :] - places[:, None]) + 20][None]

    found = attend_between(*inputs, laid_out(QUERIES), HEADS, bias=bias)
    expected = naive(
        *inputs,
        QUERIES,
        QUERIES,
        bias=lambda q, place, num_keys: table[:, torch.arange(num_keys) - place + 20],
    )
    assert_equal_with_gradients(found, expected, inputs)


def test_a_memory_with_a_bias_that_reads_the_queries():
    memory, lengths = 3, [4, 2, 11]
    distances = drawn(HEADS, 40, SIZE)
    past = Past(drawn(3, HEADS, memory, SIZE), drawn(3, HEADS, memory, SIZE))
    inputs = inputs_of(lengths, lengths)

    def bias(queries, group):
        places = torch.arange(queries.shape[2])
        away = memory + places[:, None] - torch.arange(memory + len(places))[None, :] + 20
        return torch.einsum("nhqd,hqkd->nhqk", queries, distances[:, away])

    def mask(number):
        own = np.tri(lengths[number], dtype=bool)
        return np.concatenate([np.ones((lengths[number], memory), dtype=bool), own], 1)

    found = attend_between(*inputs, laid_out(lengths, causal=True, past=memory), HEADS, bias=bias, past=past)
    expected = naive(
        *inputs,
        lengths,
        lengths,
        may=mask,
        past=past,
        bias=lambda q, place, number: torch.einsum(
            "hd,hkd->hk", q, distances[:, memory + place - torch.arange(number) + 20]
        ),
    )
    assert_equal_with_gradients(found, expected, [*inputs, *past, distances])


def test_decoding_with_a_past_equals_all_at_once():
    lengths = [7, 7]
    queries, keys, values = inputs_of(lengths, lengths)
    whole = attend_between(queries, keys, values, laid_out(lengths, causal=True), HEADS)
    first = [torch.stack([by_head(rows)[:, :6] for rows in part.split(7)]) for part in (keys, values)]
    last = [part[[6, 13]] for part in (queries, keys, values)]
    found = attend_between(*last, laid_out([1, 1], causal=True, past=6), HEADS, past=Past(*first))
    torch.testing.assert_close(found, whole[[6, 13]], rtol=1e-13, atol=1e-13)


def test_dropout_is_that_of_the_row_whatever_is_beside_it():
    queries, keys, values = (part.detach().float() for part in inputs_of([6, 9], [6, 9]))

    def context(first_row, rows, lengths):
        with drawing(RowDraws(7, first_row, np.array(lengths))):
            return attend_between(queries[rows], keys[rows], values[rows], laid_out(lengths), HEADS, dropout=0.5)

    together, alone = context(0, slice(None), [6, 9]), context(1, slice(6, None), [9])
    assert not torch.equal(together, attend_between(queries, keys, values, laid_out([6, 9]), HEADS))
    torch.testing.assert_close(together[6:], alone)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_keys": [1, 2], "causal": True}, "keys of the same tokens"),
        ({"num_keys": [1]}, "2 sequences of queries, but 1 of keys"),
        (
            {"allowed": [np.ones((2, 2), dtype=bool), np.ones((3, 2), dtype=bool)]},
            r"mask of sequence 1 does not have shape \(3, 3\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        laid_out([2, 3], **options)
