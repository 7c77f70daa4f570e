import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskloom.layers.attention import LayerState
from maskloom.layers.recurrent import CELLS, RecurrentLayer, TimeOrder
from maskloom.layers.sequence_layout import SequenceLayout

LENGTHS = [3, 0, 5, 1, 5]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
def test_the_order_of_time_is_a_permutation_with_whole_steps(lengths):
    at = TimeOrder(np.array(lengths), torch.device("cpu"))
    (order,), (places,), batch_sizes = at.tokens, at.places, at.batch_sizes
    tokens = [(step, sequence) for sequence, length in enumerate(lengths) for step in range(length)]
    ranked = sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence])
    expected = [
        tokens.index((step, sequence))
        for step in range(max(lengths))
        for sequence in ranked
        if lengths[sequence] > step
    ]
    assert order.tolist() == expected
    assert places[order].tolist() == list(range(len(tokens)))
    assert batch_sizes.tolist() == [sum(length > step for length in lengths) for step in range(max(lengths))]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), st.sampled_from([1, 2]))
def test_there_and_back_again(lengths, num_ways):
    at = TimeOrder(np.array(lengths), torch.device("cpu"), num_ways=num_ways)
    packed = torch.arange(sum(lengths) * num_ways * 3).view(-1, num_ways * 3)
    by_time = at.by_time(packed)
    assert torch.equal(at.packed(by_time), packed)
    for way in range(num_ways):
        assert torch.equal(by_time[way], packed[torch.from_numpy(at.tokens[way])].chunk(num_ways, 1)[way])
    assert all((at.tokens[way][at.places[way]] == np.arange(sum(lengths))).all() for way in range(num_ways))


def layer_of(name, *, bidirectional):
    torch.manual_seed(0)
    layer = RecurrentLayer(name, 4, bidirectional=bidirectional, dropout=0.0).double()
    x = torch.randn(sum(LENGTHS), 4, dtype=torch.float64, requires_grad=True)
    state = torch.randn(len(LENGTHS), *layer.state_shape, dtype=torch.float64, requires_grad=True)
    return layer, x, state


def run(layer, x, state):
    past = LayerState(state)
    return layer(x, SequenceLayout.from_lengths(LENGTHS), past), past.tensor


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_inputs_states_and_weights_are_those_of_differences(name, bidirectional):
    layer, x, state = layer_of(name, bidirectional=bidirectional)
    names = [parameter for parameter, _ in layer.named_parameters()]

    def function(x, state, *values):
        past = LayerState(state)
        weights = dict(zip(names, values, strict=True))
        found = torch.func.functional_call(layer, weights, (x, SequenceLayout.from_lengths(LENGTHS), past))
        return found, past.tensor

    assert torch.autograd.gradcheck(function, (x, state, *layer.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", CELLS)
def test_a_second_backward_pass_gives_the_same_and_second_derivatives_are_refused(name):
    layer, x, state = layer_of(name, bidirectional=True)
    loss = sum(part.square().sum() for part in run(layer, x, state))
    first, second = (torch.autograd.grad(loss, [x, state, *layer.parameters()], retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("name", CELLS)
def test_a_layer_computed_again_has_the_same_gradients_and_keeps_less(name):
    found, kept = [], []
    for recomputes in (False, True):
        layer, x, state = layer_of(name, bidirectional=True)
        layer.recomputes = recomputes
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda part, to=shapes: to.append(part.numel()) or part, lambda x: x
        ):
            outputs, last = run(layer, x, state)
        kept.append(sum(shapes))
        found.append(torch.autograd.grad(outputs.sum() + last.square().sum(), [x, state, *layer.parameters()]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert kept[1] < kept[0]


@pytest.mark.parametrize("name", CELLS)
def test_half_precision_computes_states_in_that_of_the_weights(name):
    layer, x, state = layer_of(name, bidirectional=True)
    layer, x, state = layer.float(), x.detach().float().requires_grad_(), state.detach().float()
    exact, last = run(layer, x, state)
    with torch.autocast("cpu", torch.bfloat16):
        rough, end = run(layer, x, state)
    assert rough.dtype == end.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.02)
    torch.testing.assert_close(end, last, rtol=0, atol=0.04)
    (gradient,) = torch.autograd.grad(rough.square().sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(exact.square().sum(), x)[0], rtol=0.1, atol=0.05)
