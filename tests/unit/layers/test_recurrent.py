import numpy as np
import pytest
import torch
from torch import nn

from maskloom.layers.attention import LayerState
from maskloom.layers.recurrent import CELLS, BiLSTM, RecurrentLayer, TimeOrder, read
from maskloom.layers.sequence_layout import SequenceLayout


def run(module, vectors, lengths):
    return module(vectors, SequenceLayout.from_lengths(lengths))


@pytest.mark.parametrize("lengths", [[5], [3, 7, 1, 7], [0, 4, 0, 2], [1, 1, 1]])
def test_every_sequence_is_read_as_if_alone(lengths):
    torch.manual_seed(1)
    module = BiLSTM(6, 8, num_layers=2).eval()
    vectors = torch.randn(sum(lengths), 6)
    together = run(module, vectors, lengths)
    alone = [run(module, part, [len(part)]) for part in vectors.split(lengths)]
    assert together.shape == (sum(lengths), 8)
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)


def test_gradients_reach_every_token_of_every_sequence():
    module = BiLSTM(3, 4)
    vectors = torch.randn(9, 3, requires_grad=True)
    run(module, vectors, [2, 4, 3]).square().sum().backward()
    assert vectors.grad is not None
    assert bool((vectors.grad.abs().sum(dim=1) > 0).all())


def test_nothing_passes_between_sequences():
    module = BiLSTM(3, 4).eval()
    vectors = torch.randn(7, 3)
    changed = vectors.clone()
    changed[3:] += 1.0
    before, after = run(module, vectors, [3, 4]), run(module, changed, [3, 4])
    assert torch.equal(before[:3], after[:3])
    assert not torch.allclose(before[3:], after[3:])


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    module, vectors = BiLSTM(3, 4, num_layers=2, dropout=0.5), torch.randn(5, 3)
    assert not torch.equal(run(module.train(), vectors, [5]), run(module, vectors, [5]))
    assert torch.equal(run(module.eval(), vectors, [5]), run(module, vectors, [5]))


def test_no_tokens_give_no_vectors():
    assert run(BiLSTM(3, 4), torch.zeros(0, 3), [0, 0]).shape == (0, 4)


def test_vectors_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="4 vectors do not fit a layout of 5 tokens"):
        run(BiLSTM(3, 4), torch.zeros(4, 3), [5])


def test_lengths_are_not_asked_of_the_device(monkeypatch):
    layout = SequenceLayout.from_lengths([3, 7, 1])
    monkeypatch.setattr(torch.Tensor, "cpu", lambda _: pytest.fail("a GPU would be waited for"))
    assert BiLSTM(6, 8).eval()(torch.randn(11, 6), layout).shape == (11, 8)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_a_layer_reads_each_sequence_by_itself(name, bidirectional):
    layer = RecurrentLayer(name, 8, bidirectional=bidirectional, dropout=0.0)
    lengths = [3, 0, 7, 1, 7]
    x = torch.randn(sum(lengths), 8)
    together = run(layer, x, lengths).split(lengths)
    for part, length, found in zip(x.split(lengths), lengths, together, strict=True):
        torch.testing.assert_close(found, run(layer, part, [length]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CELLS)
def test_a_text_in_two_parts_with_its_state_is_the_whole_text(name):
    layer, past = RecurrentLayer(name, 6, bidirectional=False, dropout=0.0), LayerState(torch.empty(0))
    x = torch.randn(2, 9, 6)
    whole = run(layer, x.flatten(0, 1), [9, 9]).view(2, 9, 6)
    first = layer(x[:, :4].flatten(0, 1), SequenceLayout.from_lengths([4, 4]), past)
    assert past.tensor.shape == (2, CELLS[name].num_parts, 6)
    assert torch.equal(past.tensor[:, 0], first.view(2, 4, 6)[:, -1])
    second = layer(x[:, 4:].flatten(0, 1), SequenceLayout.from_lengths([5, 5]), past)
    found = torch.cat([first.view(2, 4, 6), second.view(2, 5, 6)], 1)
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-6)
    kept = past.tensor
    layer(x[:0, 0], SequenceLayout.from_lengths([0, 0]), past)
    assert torch.equal(past.tensor, kept)


def in_one_way(name, rnn, x, *state):
    """Return h at every token of one sequence and the final state, given the initial one, each part (1, size)."""
    outputs, last = read(
        CELLS[name], rnn.all_weights, x, TimeOrder(np.array([len(x)]), x.device), torch.stack(state, 1)
    )
    return outputs, last.unbind(1)


def test_weights_are_shared_by_all_steps():
    rnn, x = nn.RNN(3, 4).double(), torch.randn(5, 3, dtype=torch.float64)
    copies = [nn.RNNCell(3, 4).double() for _ in x]
    for copied in copies:
        copied.load_state_dict({name.removesuffix("_l0"): value for name, value in rnn.state_dict().items()})
    state = apart = torch.zeros(1, 4, dtype=torch.float64)
    in_one_way("elman_tanh", rnn, x, state)[0][-1].sum().backward()
    for vector, copied in zip(x, copies, strict=True):
        apart = copied(vector[None], apart)
    apart.sum().backward()
    summed = sum(copied.weight_hh.grad for copied in copies)
    torch.testing.assert_close(rnn.weight_hh_l0.grad, summed, rtol=0, atol=1e-12)


def gated(**gates):
    """Return an LSTM whose given gates depend only on their biases, and the sequence that it reads."""
    rnn = nn.LSTM(3, 2).double()
    with torch.no_grad():
        for name, value in gates.items():
            rows = slice(2 * "ifgo".index(name), 2 * "ifgo".index(name) + 2)
            rnn.weight_ih_l0[rows] = rnn.weight_hh_l0[rows] = rnn.bias_hh_l0[rows] = 0.0
            rnn.bias_ih_l0[rows] = value
    return rnn, torch.randn(6, 3, dtype=torch.float64)


def test_gates_keep_delete_write_and_show_the_memory():
    h, c = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.7, -3.0]], dtype=torch.float64)
    _, (_, kept) = in_one_way("lstm", *gated(i=-40.0, f=40.0), h, c)
    torch.testing.assert_close(kept, c)
    _, (_, deleted) = in_one_way("lstm", *gated(i=-40.0, f=-40.0), h, c)
    assert deleted.abs().max() < 1e-12
    rnn, x = gated(i=40.0, f=-40.0)
    _, (_, written) = in_one_way("lstm", rnn, x, h, c)
    assert written.abs().max() < 1.0  # only the candidate of the last step
    shown, (_, memory) = in_one_way("lstm", *gated(i=-40.0, f=40.0, o=40.0), h, c)
    torch.testing.assert_close(shown, memory.tanh().expand(6, 2))
    hidden, _ = in_one_way("lstm", *gated(i=-40.0, f=40.0, o=-40.0), h, c)
    assert hidden.abs().max() < 1e-12


def test_with_gates_held_the_gradient_of_the_memory_is_the_product_of_forget_gates():
    rnn, x = gated(i=0.3, f=1.1, o=0.0, g=0.5)
    c = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    _, (_, last) = in_one_way("lstm", rnn, x, torch.zeros(1, 2, dtype=torch.float64), c)
    (gradient,) = torch.autograd.grad(last.sum(), c)
    expected = torch.tensor(1.1, dtype=torch.float64).sigmoid() ** len(x)
    torch.testing.assert_close(gradient, expected.expand(1, 2))


def test_dropout_falls_on_the_inputs_and_in_training_alone():
    layer, x = RecurrentLayer("gru", 4, bidirectional=True, dropout=0.5), torch.randn(5, 4)
    assert not torch.equal(run(layer, x, [5]), run(layer, x, [5]))
    layer.eval()
    assert torch.equal(run(layer, x, [5]), run(layer, x, [5]))


def test_two_directions_need_an_even_size():
    with pytest.raises(ValueError, match="output_size 5 must be even"):
        BiLSTM(3, 5)
    with pytest.raises(ValueError, match="hidden size 5 must be even: two directions share it"):
        RecurrentLayer("gru", 5, bidirectional=True, dropout=0.0)
