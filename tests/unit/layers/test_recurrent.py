import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskloom.layers.recurrent import BiLSTM, time_order
from maskloom.layers.sequence_layout import SequenceLayout


def run(module, vectors, lengths):
    return module(vectors, SequenceLayout.from_lengths(lengths))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_the_order_of_time_is_a_permutation_with_whole_steps(lengths):
    order, places, batch_sizes = time_order(np.array(lengths))
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


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="output_size is 5"):
        BiLSTM(3, 5)
    with pytest.raises(ValueError, match="4 vectors do not fit a layout of 5 tokens"):
        run(BiLSTM(3, 4), torch.zeros(4, 3), [5])


def test_lengths_are_not_asked_of_the_device(monkeypatch):
    layout = SequenceLayout.from_lengths([3, 7, 1])
    monkeypatch.setattr(torch.Tensor, "cpu", lambda _: pytest.fail("a GPU would be waited for"))
    assert BiLSTM(6, 8).eval()(torch.randn(11, 6), layout).shape == (11, 8)
