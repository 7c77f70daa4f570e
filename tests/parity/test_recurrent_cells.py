"""Recurrent layers on packed tokens compared with torch's modules and float64 loops, with all gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from maskloom.layers.attention import LayerState
from maskloom.layers.recurrent import CELLS, BiLSTM, RecurrentLayer, TimeOrder, read, read_by_kernel
from maskloom.layers.sequence_layout import SequenceLayout

LENGTHS = [4, 9, 0, 1, 9, 6]
TORCHS = [name for name, cell in CELLS.items() if cell.kernel]


def layer_of(name, *, bidirectional, size=8):
    torch.manual_seed(0)
    return RecurrentLayer(name, size, bidirectional=bidirectional, dropout=0.0).double()


def vectors(size=8):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(sum(LENGTHS), size, generator=generator, dtype=torch.float64, requires_grad=True)


def gradients(loss, *tensors):
    return torch.autograd.grad(loss, tensors)


@pytest.mark.parametrize("name", TORCHS)
def test_our_equations_equal_torchs_cells_with_all_gradients(name):
    rnn = CELLS[name].module(5, 7).double()
    at, x = TimeOrder(np.array(LENGTHS), torch.device("cpu")), vectors(5)
    state = torch.randn(at.sizes[0], CELLS[name].num_parts, 7, dtype=torch.float64, requires_grad=True)
    ours, last = read(CELLS[name], rnn.all_weights, x, at, state)
    packed = nn.utils.rnn.PackedSequence(x[at.tokens[0]], torch.from_numpy(at.batch_sizes))
    first = tuple(part.unsqueeze(0) for part in state.unbind(1))
    theirs, end = rnn(packed, first if len(first) > 1 else first[0])
    end = end if isinstance(end, tuple) else (end,)
    torch.testing.assert_close(ours, theirs.data[at.places[0]], rtol=0, atol=1e-12)
    torch.testing.assert_close(last, torch.cat(end).transpose(0, 1), rtol=0, atol=1e-12)
    inputs = (x, state, *rnn.parameters())
    mine = gradients((ours**2).sum() + last.sum(), *inputs)
    other = gradients((theirs.data**2).sum() + sum(part.sum() for part in end), *inputs)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", TORCHS)
def test_a_layer_equals_torchs_module_on_each_sequence(name, bidirectional):
    ours = layer_of(name, bidirectional=bidirectional)
    width = 4 if bidirectional else 8
    theirs = CELLS[name].module(8, width, bidirectional=bidirectional).double()
    with torch.no_grad():
        for parameter, value in ours.forwards.named_parameters():
            getattr(theirs, parameter).copy_(value)
        for parameter, value in ours.backwards.named_parameters() if bidirectional else ():
            getattr(theirs, f"{parameter}_reverse").copy_(value)
    x, past = vectors(), LayerState(torch.empty(0))
    found = ours(x, SequenceLayout.from_lengths(LENGTHS), past)
    parts = [part for part in x.split(LENGTHS) if len(part)]
    alone = [theirs(part) for part in parts]
    expected = torch.cat([output for output, _ in alone])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for row, (_, last) in zip([0, 1, 3, 4, 5], alone, strict=True):
        last = last if isinstance(last, tuple) else (last,)
        torch.testing.assert_close(past.tensor[row], torch.stack([part.flatten() for part in last]), rtol=0, atol=1e-12)
    assert not past.tensor[2].any()
    with torch.no_grad():
        torch.testing.assert_close(ours(x, SequenceLayout.from_lengths(LENGTHS)), found, rtol=0, atol=1e-12)
    mine = gradients((found**2).sum(), x, *ours.parameters())
    other = gradients((expected**2).sum(), x, *theirs.parameters())
    assert len(mine) == len(other)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", TORCHS)
def test_torchs_kernels_which_cuda_gets_give_the_same(name, bidirectional):
    layer, x = layer_of(name, bidirectional=bidirectional), vectors()
    ways = [rnn.all_weights[0] for rnn in (layer.forwards, layer.backwards) if rnn is not None]
    at = TimeOrder(np.array(LENGTHS), x.device, num_ways=len(ways))
    first = torch.randn(at.sizes[0], *layer.state_shape, dtype=torch.float64, requires_grad=True)
    ours, theirs = read(CELLS[name], ways, x, at, first), read_by_kernel(CELLS[name].kernel, ways, x, at, first)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    inputs = (x, first, *layer.parameters())
    mine, other = (gradients(sum(part.sum() for part in both), *inputs) for both in (ours, theirs))
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", TORCHS)
def test_under_autocast_torchs_kernels_compute_in_the_type_of_the_weights(name):
    """For bf16 too cuDNN would take fp16, in which the gradients of a large batch vanish."""
    rnn, at = CELLS[name].module(8, 8), TimeOrder(np.array(LENGTHS), torch.device("cpu"))
    x, first = vectors().detach().bfloat16(), torch.randn(at.sizes[0], CELLS[name].num_parts, 8)
    exact = read_by_kernel(CELLS[name].kernel, rnn.all_weights, x.float(), at, first)
    with torch.autocast("cpu", torch.bfloat16):
        found = read_by_kernel(CELLS[name].kernel, rnn.all_weights, x, at, first)
    for one, other in zip(found, exact, strict=True):
        assert torch.equal(one, other)


def test_under_autocast_a_bilstm_computes_in_the_type_of_its_weights_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)  # so that torch's module reads all layers
    bilstm, layout, x = BiLSTM(8, 6), SequenceLayout.from_lengths(LENGTHS), vectors().detach().bfloat16()
    exact = bilstm(x.float(), layout)
    with torch.autocast("cpu", torch.bfloat16):
        found = bilstm(x, layout)
    assert torch.equal(found, exact)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def elman_loop(x, h, w, u, b, c):
    return sigmoid(w @ x + b + u @ h + c)


def cho_loop(x, h, w, u, b, c):
    size = len(h)
    part = {gate: slice(at * size, (at + 1) * size) for at, gate in enumerate("rzn")}
    r, z = (sigmoid(w[part[gate]] @ x + b[part[gate]] + u[part[gate]] @ h + c[part[gate]]) for gate in "rz")
    n = np.tanh(w[part["n"]] @ x + b[part["n"]] + u[part["n"]] @ (r * h) + c[part["n"]])
    return z * h + (1 - z) * n


@pytest.mark.parametrize(("name", "loop"), [("elman_sigmoid", elman_loop), ("gru_before", cho_loop)])
def test_cells_that_torch_has_not_equal_a_loop(name, loop):
    layer, x = layer_of(name, bidirectional=True), vectors()
    found = layer(x, SequenceLayout.from_lengths(LENGTHS)).detach().numpy()
    rows = []
    for part in x.detach().split(LENGTHS):
        ways = []
        for rnn, sequence in ((layer.forwards, part.numpy()), (layer.backwards, part.numpy()[::-1])):
            weights = [
                getattr(rnn, f"{kind}_l0").detach().numpy() for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            h, outputs = np.zeros(4), []
            for vector in sequence:
                h = loop(vector, h, *weights)
                outputs.append(h)
            ways.append(outputs if rnn is layer.forwards else outputs[::-1])
        rows += [np.concatenate(pair) for pair in zip(*ways, strict=True)]
    np.testing.assert_allclose(found, np.stack(rows), rtol=0, atol=1e-12)
