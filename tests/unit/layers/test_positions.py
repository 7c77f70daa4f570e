from dataclasses import replace

import numpy as np
import pytest
import torch

from maskloom.layers.attention import SelfAttention
from maskloom.layers.positions import rotated, rotation
from maskloom.layers.sequence_layout import SequenceLayout

LENGTHS = [5, 1, 13, 12, 5]


def placed(lengths, size, heads, *, shift=0):
    positions = np.concatenate([np.arange(length) for length in lengths]) + shift
    layout = SequenceLayout.from_lengths(lengths, position_ids=positions)
    return replace(layout, rotation=rotation(layout.filled_up(layout.position_ids.unsqueeze(1)), size, heads))


@pytest.mark.parametrize("size", [2, 16])
def test_equals_multiplication_by_complex_numbers(size):
    # by e^(i m theta), the paper's equation 12, with each pair of a head as a complex number
    torch.manual_seed(0)
    heads = 3
    layout = placed(LENGTHS, size, heads)
    qkv = torch.randn(36, 3 * heads * size, requires_grad=True)
    angles = layout.position_ids.unsqueeze(1) * 10_000.0 ** (-2 * torch.arange(size // 2) / size)
    turn = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    first, second = qkv[:, : 2 * heads * size].view(36, 2 * heads, size // 2, 2).unbind(3)
    turned = torch.complex(first, second) * turn
    expected = torch.cat((torch.stack((turned.real, turned.imag), 3).flatten(1), qkv[:, 2 * heads * size :]), 1)
    found, weights = rotated(qkv, layout), torch.randn(36, 3 * heads * size)
    gradients = [torch.autograd.grad((values * weights).sum(), qkv)[0] for values in (found, expected)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_attention_depends_on_distances_alone(causal):
    torch.manual_seed(0)
    attention, hidden = SelfAttention(48, 3, 0.0, causal=causal).eval(), torch.randn(36, 48)
    attention.qkv.weight.mul_(3)
    plain, shifted = (attention(hidden, placed(LENGTHS, 16, 3, shift=shift)) for shift in (0, 7))
    torch.testing.assert_close(shifted, plain, rtol=0, atol=3e-6)  # angles are rounded
    assert (attention(hidden, SequenceLayout.from_lengths(LENGTHS)) - plain).abs().max() > 1e-2


@pytest.mark.gpu
def test_packed_and_grouped_attention_are_turned_alike():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    attention, hidden, layout = SelfAttention(48, 3, 0.0), torch.randn(36, 48), placed(LENGTHS, 16, 3)
    grouped = attention(hidden, layout).detach()
    on_gpu = replace(SequenceLayout.from_lengths(LENGTHS, "cuda"), rotation=layout.rotation.cuda()[:36])
    with torch.autocast("cuda", torch.bfloat16):
        packed = attention.cuda()(hidden.cuda(), on_gpu).detach()
    assert float((packed.cpu().float() - grouped).norm() / grouped.norm()) < 2e-2


def test_compilers_turn_by_real_numbers(monkeypatch):
    qkv, layout = torch.randn(36, 48), placed(LENGTHS, 8, 2)
    found = rotated(qkv, layout)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(rotated(qkv, layout), found, rtol=0, atol=1e-6)


def test_half_precision_is_turned_in_single():
    qkv, layout = torch.randn(36, 48).bfloat16(), placed(LENGTHS, 8, 2)
    found = rotated(qkv, layout)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, rotated(qkv.float(), layout).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):  # attention takes fp32
        assert torch.equal(rotated(qkv, layout), rotated(qkv.float(), layout))
