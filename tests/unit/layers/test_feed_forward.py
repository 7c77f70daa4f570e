from unittest import mock

import pytest
import torch

from maskloom.layers.feed_forward import GatedFeedForward
from maskloom.layers.processor import onednn


def as_written(block, x):
    """Return equation 6 of Shazeer 2020 with biases, and with GELU by its definition."""
    up, gate = block.up.weight.split(block.up.out_features // 2)
    up_bias, gate_bias = block.up.bias.split(block.up.out_features // 2)
    inner = x @ up.T + up_bias
    gelu = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
    return (gelu * (x @ gate.T + gate_bias)) @ block.down.weight.T + block.down.bias


@pytest.mark.parametrize("library", ["mkl", "onednn"])
def test_a_gated_block_is_geglu_with_its_gradients(library):
    torch.manual_seed(0)
    with mock.patch.object(onednn, "_library", library):
        block, x = GatedFeedForward(64, 96, "gelu"), torch.randn(1500, 64, requires_grad=True)
        weights, found = torch.randn(1500, 64), []
        for output in (block(x), as_written(block, x)):
            found.append((output, *torch.autograd.grad((output * weights).mean(), (x, *block.parameters()))))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def test_both_projections_have_the_width_that_is_named():
    block = GatedFeedForward(8, 12, "relu")
    assert {name: tuple(weight.shape) for name, weight in block.named_parameters()} == {
        "up.weight": (24, 8), "up.bias": (24,), "down.weight": (8, 12), "down.bias": (8,)
    }  # fmt: skip
