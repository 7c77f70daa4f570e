import pytest
import torch

from maskloom.layers.pooling import OverTokens
from maskloom.layers.sequence_layout import SequenceLayout

LENGTHS = [[3, 1, 40], [0, 5, 0, 17], [1], [0, 0], []]


def one_by_one(kind, hidden, lengths):
    """Pool sequence by sequence, adding tokens in order."""
    pooled = [torch.zeros(hidden.shape[1])] * len(lengths)
    for number, tokens in enumerate(hidden.split(lengths) if lengths else []):
        if len(tokens):
            pooled[number] = tokens.amax(0) if kind == "max" else sum(tokens.unbind(), torch.zeros(hidden.shape[1]))
            pooled[number] = pooled[number] / len(tokens) if kind == "mean" else pooled[number]
    return torch.stack(pooled) if pooled else hidden.new_zeros(0, hidden.shape[1])


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_sequences_are_pooled_as_one_by_one_to_the_bit(kind, lengths):
    layout = SequenceLayout.from_lengths(lengths)
    hidden = torch.randn(sum(lengths), 19, generator=torch.Generator().manual_seed(2), requires_grad=True)
    ours, plain = OverTokens(kind)(hidden, layout), one_by_one(kind, hidden, lengths)
    assert torch.equal(ours, plain)
    if sum(lengths):
        found = [torch.autograd.grad((pooled.sin() * 3).sum(), hidden)[0] for pooled in (ours, plain)]
        assert torch.equal(*found)


def test_equal_maxima_share_the_gradient():
    hidden = torch.tensor([[2.0, -1.0], [2.0, 0.0], [1.0, 0.0], [2.0, -3.0]], requires_grad=True)
    pooled = OverTokens("max")(hidden, SequenceLayout.from_lengths([3, 1]))
    (found,) = torch.autograd.grad((pooled * torch.tensor([[-6.0, 4.0], [1.0, 5.0]])).sum(), hidden)
    assert pooled.tolist() == [[2.0, 0.0], [2.0, -3.0]]
    assert found.tolist() == [[-3.0, 0.0], [-3.0, 2.0], [0.0, 2.0], [1.0, 5.0]]
