"""The fused kernels agree with attention over groups."""

from types import SimpleNamespace

import pytest
import torch

from maskloom.layers.attention import attend, prefers_packed
from maskloom.layers.sequence_layout import SequenceLayout


def test_only_half_precision_on_cuda_takes_them() -> None:
    layout, padded = SequenceLayout.from_lengths([5, 3]), SequenceLayout.of_padded(torch.tensor([[1, 0], [1, 1]]) > 0)
    assert layout.is_packed
    assert not padded.is_packed
    assert not prefers_packed(torch.zeros(8, 48, dtype=torch.bfloat16), layout, 2)


@pytest.mark.parametrize(
    ("major", "head_size", "dtype", "expected"),
    [
        (8, 64, torch.bfloat16, True),
        (9, 256, torch.float16, True),
        (7, 64, torch.float16, False),  # groups: the kernels need Ampere or later
        (8, 12, torch.bfloat16, False),
        (8, 264, torch.bfloat16, False),
        (8, 64, torch.float32, False),
    ],
)
def test_a_gpu_or_a_head_that_the_kernels_do_not_take_has_groups(monkeypatch, major, head_size, dtype, expected):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    layout, shape = SequenceLayout.from_lengths([5, 3]), (8, 3 * 2 * head_size)
    qkv = SimpleNamespace(is_cuda=True, dtype=dtype, device=torch.device("cuda", 1), shape=shape)
    assert prefers_packed(qkv, layout, 2) is expected


@pytest.mark.gpu
def test_padding_rows_change_nothing_on_cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    lengths, results = [150, 3, 17, 200, 1], []
    layout = SequenceLayout.from_lengths(lengths, "cuda")
    with torch.autocast("cuda", torch.bfloat16):
        filled = SequenceLayout.from_lengths(lengths, "cuda")
    assert (layout.num_rows, filled.num_rows) == (371, 372)
    qkv = torch.randn(372, 3 * 2 * 32, device="cuda", dtype=torch.bfloat16)
    for each in (layout, filled):
        rows = qkv[: each.num_rows].clone().requires_grad_()
        context = attend(rows, each, 2, 0.0)
        assert context.isfinite().all()
        (gradient,) = torch.autograd.grad(context[:371].sin().sum(), rows)
        results.append((context[:371], gradient[:371]))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    single = SequenceLayout.from_lengths([1] * 129, "cuda")
    assert attend(qkv[:129], single, 2, 0.0).shape == (129, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_gives_what_the_processor_gives(dtype: torch.dtype, causal: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    lengths = [50, 3, 17, 128, 1]
    qkv = torch.randn(sum(lengths), 3 * 2 * 32, requires_grad=True)
    expected = attend(qkv, SequenceLayout.from_lengths(lengths), 2, 0.0, causal=causal)
    layout, half = SequenceLayout.from_lengths(lengths, "cuda"), qkv.detach().cuda().to(dtype).requires_grad_()
    assert prefers_packed(half, layout, 2)
    found = attend(half, layout, 2, 0.0, causal=causal)
    torch.testing.assert_close(found.cpu().float(), expected, rtol=0, atol=2e-2)
    weights = torch.randn_like(expected)
    (exact,) = torch.autograd.grad((expected * weights).sum(), qkv)
    (gradient,) = torch.autograd.grad((found * weights.cuda()).sum(), half)
    assert float((gradient.cpu().float() - exact).norm() / exact.norm()) < 2e-2
    thinned = attend(half, layout, 2, 0.5, causal=causal).cpu().float()
    assert not torch.allclose(thinned, expected, atol=2e-2)
