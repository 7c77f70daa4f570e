import pytest
import torch

from maskloom.layers.attention import LayerState
from maskloom.layers.projected_lstm import ProjectedLSTMs
from maskloom.layers.sequence_layout import SequenceLayout

LENGTHS = [3, 0, 7, 7, 1]
SIZE, CELL = 5, 7


def layer_of(*, cell_clip=0.5, clip=0.3, adds_input=True):
    torch.manual_seed(0)
    layer = ProjectedLSTMs(SIZE, CELL, cell_clip=cell_clip, clip=clip, adds_input=adds_input, dropout=0.0).double()
    for weights in layer.parameters():
        torch.nn.init.normal_(weights, std=0.7)
    return layer


def inputs():
    torch.manual_seed(1)
    return torch.randn(sum(LENGTHS), 2 * SIZE, dtype=torch.double, requires_grad=True)


def plainly(layer, hidden, kept):
    """Compute the equations sequence by sequence, direction by direction and step by step."""
    cell_clip, clip = layer.clips
    outputs, last = [], []
    for vectors, state in zip(hidden.split(LENGTHS), kept, strict=True):
        sides, ends = [], []
        for way in (0, 1):
            h, c, found = state[way, :SIZE], state[way, SIZE:], []
            read = vectors[:, way * SIZE : (way + 1) * SIZE]
            for x in read.flip(0) if way else read:
                gates = layer.weight[way] @ torch.cat([x, h]) + layer.bias[way, 0]
                i, f, o, g = gates.chunk(4)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                c = c.clamp(-cell_clip, cell_clip) if cell_clip else c
                h = layer.projection[way] @ (o.sigmoid() * c.tanh())
                h = h.clamp(-clip, clip) if clip else h
                found.append(h)
            rows = torch.stack(found) if found else read
            sides.append(rows.flip(0) if way else rows)
            ends.append(torch.cat([h, c]))
        outputs.append(torch.cat(sides, 1) + (vectors if layer.adds_input else 0))
        last.append(torch.stack(ends))
    return torch.cat(outputs), torch.stack(last)


@pytest.mark.parametrize(
    "options", [{}, {"cell_clip": 0.0}, {"clip": 0.0}, {"cell_clip": 0.0, "clip": 0.0, "adds_input": False}]
)
def test_outputs_states_and_all_gradients_are_those_of_a_plain_loop(options):
    layer, hidden = layer_of(**options), inputs()
    state = 0.2 * torch.randn(len(LENGTHS), 2, SIZE + CELL, dtype=torch.double)
    past = LayerState(state.clone())
    found = layer(hidden, SequenceLayout.from_lengths(LENGTHS), past)
    expected, last = plainly(layer, hidden, state)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(past.tensor, last, rtol=0, atol=1e-14)
    weights, over = torch.randn_like(found), [hidden, *layer.parameters()]
    gradients = [torch.autograd.grad((values * weights).sum(), over) for values in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


def test_both_clips_cut():
    outputs = [layer_of(**{"cell_clip": 9.0, "clip": 9.0, "adds_input": False, **clip}) for clip in ({}, {"clip": 0.3})]
    free, cut = (layer(inputs(), SequenceLayout.from_lengths(LENGTHS)) for layer in outputs)
    assert free.abs().max() > 0.5
    assert cut.abs().max() == 0.3
    past = LayerState(torch.empty(0))
    layer_of(cell_clip=0.25)(inputs(), SequenceLayout.from_lengths(LENGTHS), past)
    assert past.tensor[:, :, SIZE:].abs().max() == 0.25


def test_a_reversed_text_on_the_right_is_read_as_it_stands():
    layer, layout = layer_of(), SequenceLayout.from_lengths(LENGTHS)
    hidden = inputs().detach()
    parts = [(part[:, :SIZE], part[:, SIZE:].flip(0)) for part in hidden.split(LENGTHS)]
    turned = torch.cat([torch.cat(part, 1) for part in parts])
    plain, found = layer(hidden, layout), layer(turned, layout, None, True)
    # even x @ w of rows in reverse order differs in the last bits on some processors (AVX2)
    for one, other in zip(plain.split(LENGTHS), found.split(LENGTHS), strict=True):
        torch.testing.assert_close(other[:, :SIZE], one[:, :SIZE], rtol=0, atol=1e-14)
        torch.testing.assert_close(other[:, SIZE:], one[:, SIZE:].flip(0), rtol=0, atol=1e-14)


def test_nothing_is_compiled():
    layer = layer_of()
    layer.compile()
    assert layer._compiled_call_impl is None


def test_with_a_state_it_is_recomputed_too():
    hidden, found = inputs(), []
    for recomputes in (False, True):
        layer, past = (
            layer_of(),
            LayerState(torch.randn(5, 2, SIZE + CELL, generator=torch.Generator().manual_seed(3)).double()),
        )
        layer.recomputes, calls, computed = recomputes, [], layer.computed
        layer.computed = lambda *given, calls=calls, computed=computed: calls.append(1) or computed(*given)
        output = layer(hidden, SequenceLayout.from_lengths(LENGTHS), past)
        gradients = torch.autograd.grad(output.sin().sum(), [hidden, *layer.parameters()])
        assert len(calls) == 1 + recomputes
        found.append([output, past.tensor, *gradients])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
