"""Fused passes give what single operations give; on a GPU as torch compiles them, elsewhere as they are written."""

import pytest
import torch
from torch import nn

from maskloom.layers import transformer, vocabulary_loss
from maskloom.layers.dropout import Dropout
from maskloom.layers.processor.fused_passes import fuses
from maskloom.layers.transformer import residual

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture
def _fused(monkeypatch):
    """Take the fused passes on a processor too, not compiled."""
    monkeypatch.setattr(transformer, "fuses", lambda x: True)
    monkeypatch.setattr(vocabulary_loss, "fuses", lambda x: True)
    with torch.compiler.set_stance("force_eager"):
        yield


def norm_of(width: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, eps=1e-12)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def gradients(found: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((found * torch.linspace(-1, 1, found.numel()).view_as(found)).sum(), inputs)


@pytest.mark.usefixtures("_fused")
def test_the_norm_of_a_sum_is_that_of_a_residual(monkeypatch):
    norm, hidden, added = norm_of(16), torch.randn(7, 16), torch.randn(7, 16, requires_grad=True)
    found = residual(hidden, lambda x: added, norm, Dropout(0.0))
    monkeypatch.setattr(transformer, "fuses", lambda x: False)
    expected = residual(hidden, lambda x: added, norm, Dropout(0.0))
    torch.testing.assert_close(found, expected)
    wanted = added, norm.weight, norm.bias
    for gradient, exact in zip(gradients(found, *wanted), gradients(expected, *wanted), strict=True):
        torch.testing.assert_close(gradient, exact)


@pytest.mark.usefixtures("_fused")
def test_what_is_added_is_thinned_in_training_alone_and_sums_are_in_fp32():
    norm, added = norm_of(1024), torch.ones(8, 1024, dtype=torch.bfloat16, requires_grad=True)
    hidden, dropout = torch.zeros(8, 1024), Dropout(0.25)
    thinned = residual(hidden, lambda x: added, norm, dropout)
    assert thinned.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(thinned.float().pow(2).sum(), added)
    assert float((gradient == 0).float().mean()) == pytest.approx(0.25, abs=0.03)
    whole = residual(hidden, lambda x: added, norm, dropout.eval())
    torch.testing.assert_close(whole.float(), norm.bias.detach().expand(8, 1024), rtol=8e-3, atol=1e-2)


@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_logits", [10**6, 1])
def test_a_loss_in_fused_passes_is_the_loss(monkeypatch, weighted, num_logits):
    monkeypatch.setattr(vocabulary_loss, "_NUM_LOGITS", num_logits)
    hidden, decoder = torch.randn(300, 8, requires_grad=True), torch.randn(101, 8, requires_grad=True)
    bias, labels = torch.randn(101, requires_grad=True), torch.randint(101, (300,))
    weights = torch.rand(300) if weighted else None
    inputs = hidden, decoder, bias
    found = vocabulary_loss.vocabulary_loss(hidden, decoder, bias, labels, weights)
    monkeypatch.setattr(vocabulary_loss, "fuses", lambda x: False)
    expected = vocabulary_loss.vocabulary_loss(hidden, decoder, bias, labels, weights)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    for gradient, exact in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-5)


def test_nothing_is_fused_on_a_processor():
    assert not fuses(torch.zeros(2, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gives_the_norm_of_a_sum(dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    norm, hidden, added = norm_of(64), torch.randn(50, 64), torch.randn(50, 64, requires_grad=True)
    expected = residual(hidden, lambda x: added, norm, Dropout(0.0))
    wanted = gradients(expected, added, norm.weight, norm.bias)
    moved, half = norm_of(64).cuda(), added.detach().cuda().to(dtype).requires_grad_()
    moved.load_state_dict(norm.state_dict())
    found = residual(hidden.cuda(), lambda x: half, moved, Dropout(0.0))
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    assert float((found.cpu().float() - expected).norm() / expected.norm()) < bound
    weights = torch.linspace(-1, 1, found.numel(), device="cuda").view_as(found)
    for gradient, exact in zip(
        torch.autograd.grad((found * weights).sum(), (half, moved.weight, moved.bias)), wanted, strict=True
    ):
        assert float((gradient.cpu().float() - exact).norm() / exact.norm()) < bound
