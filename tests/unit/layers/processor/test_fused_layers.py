"""GPU kernels compute what the layers compute on a processor, dropout included."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from maskloom.data.batch import PretrainingBatch
from maskloom.layers.dropout import (
    Dropout,
    RowDraws,
    _hashed,
    device_draws,
    drawing,
    dropout_factors,
    head_keys,
    next_keys,
)
from maskloom.layers.processor import fused_layers
from maskloom.layers.processor.fused_layers import fused_type, fuses
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import build_model, prepare_blocks
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.loop import StepDraws, accumulate_gradients
from maskloom.training.precision import in_precision

LENGTHS = {"short": [50, 3, 17, 128, 1], "long": [50, 3, 200, 129, 1]}
GPU = torch.device("cuda", 0)


def model_of(dropout: float, *, causal: bool = False) -> nn.Module:
    config = BertConfig.of_size(
        "tiny",
        vocab_size=101,
        hidden_size=96,
        num_attention_heads=3,
        intermediate_size=160,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        causal=causal,
    )
    model = build_model(config, seed=0, heads=("mlm",))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def batch_of(lengths: list[int]) -> PretrainingBatch:
    draw, total = np.random.default_rng(0), sum(lengths)
    positions = np.sort(draw.choice(total, 30, replace=False))
    return PretrainingBatch(
        token_ids=draw.integers(5, 101, total),
        segment_ids=draw.integers(0, 2, total),
        lengths=np.array(lengths),
        mlm_positions=positions,
        mlm_labels=draw.integers(5, 101, 30),
        nsp_labels=None,
    )


def loss_and_gradients(model: nn.Module, lengths: list[int], precision: str, device: torch.device):
    objective = in_precision(MaskedLanguageModeling(pair_part=None), precision, device)
    model = model.to(device).train()
    losses = accumulate_gradients(model, objective, batch_of(lengths), None, draws=StepDraws(0, 3))
    return losses["mlm"], {name: each.grad.cpu() for name, each in model.named_parameters() if each.grad is not None}


def test_nothing_is_fused_on_a_processor():
    assert not fuses(torch.zeros(2, 2))
    with torch.autocast("cpu", torch.bfloat16):
        assert fused_type(torch.zeros(2, 2)) is None


def test_draws_for_a_device_are_those_of_the_processor():
    """Hashing the words with the keys as a kernel does gives the factors of `dropout_factors`."""
    lengths, rate, width = np.array([5, 1, 7]), 0.3, 11
    with drawing(RowDraws(77, 3, lengths)):
        expected = dropout_factors(torch.ones(13, width), rate, *next_keys(13))
    with drawing(RowDraws(77, 3, lengths)):
        keys, word, threshold, factor = device_draws(13, rate, torch.device("cpu"))

    def hashed(words: np.ndarray) -> np.ndarray:
        words = words ^ (words >> 16)
        words = words * np.int32(0x7FEB352D)
        words = words ^ (words >> 15)
        words = words * np.int32(0x846CA68B - 2**32)
        return words + (words >> 16)

    with np.errstate(over="ignore"):
        columns = np.arange(width, dtype=np.int32)
        rows = hashed(keys.numpy() ^ np.int32(word))[:, None]
        words = hashed(rows + (columns >> 1) * np.int32(0x9E3779B9 - 2**32))
        halves = (words >> ((columns & 1) << 4)) & 0xFFFF
    kept = torch.from_numpy((halves ^ 0x8000) >= threshold)
    torch.testing.assert_close(kept * factor, expected, rtol=1e-6, atol=0)


def test_without_a_step_a_device_draws_from_the_generator():
    torch.manual_seed(0)
    first, second = (device_draws(4, 0.5, torch.device("cpu")) for _ in range(2))
    assert not torch.equal(first.keys, second.keys)
    assert device_draws(4, 0.0, torch.device("cpu")) is fused_layers.NO_DRAWS


def autograd_of(function, gradient, *inputs):
    """Return the gradients of the inputs by autograd, enabled here because it is off within a backward pass."""
    with torch.enable_grad():
        inputs = [each.detach().requires_grad_() for each in inputs]
        return torch.autograd.grad(function(*inputs), inputs, gradient)


def attended(qkv, settings):
    size = qkv.shape[1] // (3 * settings.num_heads)
    parts = [
        F.scaled_dot_product_attention(
            *own.view(len(own), 3, settings.num_heads, size).permute(1, 2, 0, 3), is_causal=settings.causal
        )
        for own in qkv.split(settings.layout.row_offsets.diff().tolist())
    ]
    return torch.cat([part.transpose(0, 1).flatten(1) for part in parts])


@pytest.fixture
def _plain_kernels(monkeypatch):
    """Let a processor train with the GPU sublayers, with plain operations in place of their kernels."""

    def normed_sum(hidden, added, scale, shift, epsilon, draws):
        return F.layer_norm(hidden + added, hidden.shape[1:], scale, shift, epsilon), scale, shift

    def normed_sum_gradients(gradient, hidden, added, scale, _means, shift, draws):
        def normed(hidden, added, scale, shift):
            return F.layer_norm(hidden + added, hidden.shape[1:], scale, shift, 1e-12)

        d_hidden, d_added, *parts = autograd_of(normed, gradient, hidden, added, scale, shift)
        return d_hidden, d_added, torch.stack([*parts, d_added.sum(0)])

    def gelu_gradient(x, gradient):
        (found,) = autograd_of(F.gelu, gradient, x)
        return found, found.sum(0)

    def attention_gradients(d_context, qkv, context, log_sums, settings, draws):
        (found,) = autograd_of(lambda x: attended(x, settings), d_context, qkv)
        return found, found.sum(0)

    plain = {
        "_normed_sum": normed_sum,
        "_normed_sum_gradients": normed_sum_gradients,
        "_gelu_gradient": gelu_gradient,
        "_attention": lambda qkv, settings, draws: (attended(qkv, settings), qkv),
        "_attention_gradients": attention_gradients,
    }
    for name, function in plain.items():
        monkeypatch.setattr(fused_layers, name, function)
    monkeypatch.setattr("maskloom.layers.transformer.fused_type", lambda x: torch.float32)


@pytest.mark.parametrize(("causal", "num_filled"), [(False, 0), (True, 0), (False, 300)])
def test_the_gradients_of_sublayers_are_those_of_the_layer(monkeypatch, request, causal, num_filled):
    """The backward pass written out for GPUs, product by product, with plain operations in place of the kernels."""
    model, again = model_of(0.0, causal=causal), model_of(0.0, causal=causal)
    again.load_state_dict(model.state_dict())
    loss, exact = loss_and_gradients(model, LENGTHS["short"], "fp32", torch.device("cpu"))
    request.getfixturevalue("_plain_kernels")
    monkeypatch.setattr("maskloom.layers.sequence_layout.filled_number", lambda number, device: number + num_filled)
    taken = []
    sublayer = fused_layers.feed_forward_sublayer
    monkeypatch.setattr(
        "maskloom.layers.transformer.feed_forward_sublayer", lambda *given: taken.append(1) or sublayer(*given)
    )
    found, gradients = loss_and_gradients(again, LENGTHS["short"], "fp32", torch.device("cpu"))
    assert len(taken) == len(model.encoder.layers)
    assert found == pytest.approx(loss, rel=1e-6)
    for name, gradient in exact.items():
        assert float((gradients[name] - gradient).norm() / gradient.norm()) < 1e-5, name


def heads_and_settings(lengths: list[int], size: int, *, num_heads: int = 2, causal: bool = False):
    """Return queries, keys and values with large scores, those of the first sequence about -100, and settings."""
    torch.manual_seed(sum(lengths))
    qkv = 3 * torch.randn(sum(lengths), 3, num_heads, size)
    root = (100 * size**0.5) ** 0.5
    qkv[: lengths[0], 0, :, 0], qkv[: lengths[0], 1, :, 0] = root, -root
    settings = SimpleNamespace(
        layout=SequenceLayout.from_lengths(lengths), num_heads=num_heads, causal=causal, attention_dropout=0.1
    )
    return qkv.flatten(1), settings


def plain_attention(qkv: torch.Tensor, settings, draws) -> torch.Tensor:
    """Softmax over each sequence and head, times the dropout factors of a processor."""
    num_heads, found, start = settings.num_heads, [], 0
    keys = None if draws is fused_layers.NO_DRAWS else _hashed(draws.keys.cpu() ^ draws.word)
    for length in settings.layout.sizes:
        own = qkv[start : start + length].view(length, 3, num_heads, -1)
        q, k, v = own.permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if settings.causal:
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        p = scores.softmax(-1)
        if keys is not None:
            own_keys = head_keys(keys[None, start : start + length], num_heads)
            dither = draws.threshold - settings.attention_dropout * 2**16  # so that the threshold is that of `draws`
            p = p * dropout_factors(p[None], settings.attention_dropout, own_keys, dither + 1e-9)[0]
        found.append((p @ v).transpose(0, 1).flatten(1))
        start += length
    return torch.cat(found)


SIZES_AND_LENGTHS = [
    (16, [1]), (64, [16, 3]), (32, [31, 2, 1]), (64, [65, 64, 1]), (128, [33, 20]), (128, [70, 5]), (64, [200, 1, 130])
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "lengths"), SIZES_AND_LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_attention_and_its_gradients_are_those_of_a_plain_softmax(size, lengths, causal, rate):
    """Every variant that is compiled: sizes of heads, blocks of 16 rows and more, several blocks."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert_attention_is_plain(size, lengths, causal=causal, rate=rate, device=GPU, dtype=torch.float16)


def assert_attention_is_plain(size, lengths, *, causal, rate, device, dtype):
    qkv, settings = heads_and_settings(lengths, size, causal=causal)
    qkv, gradient = qkv.to(dtype), torch.randn(len(qkv), qkv.shape[1] // 3).to(dtype)
    with drawing(RowDraws(5, 0, np.array(lengths))):
        draws = device_draws(len(qkv), rate, device)
    exact = qkv.double().requires_grad_()
    expected = plain_attention(exact, settings, draws)
    (wanted,) = torch.autograd.grad(expected, exact, gradient.double())
    settings.layout = SequenceLayout.from_lengths(lengths, device)
    moved = qkv.to(device)
    context, log_sums = fused_layers._attention(moved, settings, draws)
    d_qkv, sums = fused_layers._attention_gradients(gradient.to(device), moved, context, log_sums, settings, draws)
    bound = 1e-4 if dtype == torch.float32 else 2e-2
    for found, right in ((context, expected.detach()), (d_qkv, wanted), (sums, wanted.sum(0))):
        assert float((found.cpu().double() - right).norm()) <= bound * float(right.norm())


@pytest.mark.parametrize(
    ("size", "longest", "rows", "num_blocks"),
    [(64, 1, 16, 1), (64, 20, 32, 1), (32, 64, 64, 1), (64, 65, 64, 2), (128, 65, 32, 3), (16, 509, 64, 8)],
)
def test_the_programs_of_attention_cover_every_row(monkeypatch, size, longest, rows, num_blocks):
    ran = {}
    monkeypatch.setattr(
        fused_layers, "_run", lambda name, grid, *given, **more: ran.update({name: (grid, given, more)})
    )
    # from 512 tokens on, processors with AVX-512 add a group of filled-up rows
    qkv, settings = heads_and_settings([longest, 1, 1], size, causal=True)
    with drawing(RowDraws(5, 0, np.array([longest, 1, 1]))):
        draws = device_draws(len(qkv), 0.1, torch.device("cpu"))
    context, log_sums = fused_layers._attention(qkv, settings, draws)
    fused_layers._attention_gradients(context, qkv, context, log_sums, settings, draws)
    assert list(ran) == ["attention", "query_gradient", "key_gradient"]
    for name, (grid, given, more) in ran.items():
        assert grid == (3 * 2 * num_blocks,), name
        assert given[-3:] == (longest + 2, num_blocks, 2)
        assert (more["SIZE"], more["ROWS"], more["DROPS"], more["CAUSAL"]) == (size, rows, True, True)
    assert ran["key_gradient"][2]["COLUMNS"] == min(rows, 32)
    assert rows * num_blocks >= longest


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_gpu_trains_as_a_processor_does(lengths, causal, precision):
    """Loss and all gradients, also with dropout, whose draws are the same."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for dropout in (0.0, 0.1):
        model = model_of(dropout, causal=causal)
        loss, exact = loss_and_gradients(model, LENGTHS[lengths], "fp32", torch.device("cpu"))
        again = model_of(dropout, causal=causal)
        again.load_state_dict(model.state_dict())
        found, gradients = loss_and_gradients(again, LENGTHS[lengths], precision, GPU)
        assert found == pytest.approx(loss, rel=5e-3)
        assert gradients.keys() == exact.keys()
        for name, gradient in exact.items():
            assert float((gradients[name] - gradient).norm() / gradient.norm()) < 5e-2, (name, dropout)


@pytest.mark.gpu
def test_layers_that_are_computed_again_draw_the_same():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    plain, again = model_of(0.1), model_of(0.1)
    again.load_state_dict(plain.state_dict())
    prepare_blocks(again, recompute=True, compile_=False)
    loss, exact = loss_and_gradients(plain, LENGTHS["short"], "bf16", GPU)
    found, gradients = loss_and_gradients(again, LENGTHS["short"], "bf16", GPU)
    assert found == loss
    assert all(torch.equal(gradients[name], gradient) for name, gradient in exact.items())


@pytest.mark.gpu
def test_gradients_are_the_same_twice():
    """No two programs of a kernel add to the same place; from 3,073 tokens on, torch sorts them for its tables."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, again = model_of(0.1), model_of(0.1)
    again.load_state_dict(model.state_dict())
    (loss, exact), (found, gradients) = (loss_and_gradients(each, [128] * 40, "bf16", GPU) for each in (model, again))
    assert found == loss
    assert [name for name, gradient in exact.items() if not torch.equal(gradients[name], gradient)] == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_alone_is_that_of_the_processor(dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    lengths, dropout = np.array([5, 40, 128, 1]), Dropout(0.2)
    x = torch.randn(int(lengths.sum()), 96).to(dtype).float()
    with drawing(RowDraws(77, 3, lengths)):
        expected = dropout(x)
    moved = x.to(GPU, dtype).requires_grad_()
    with drawing(RowDraws(77, 3, lengths)):
        found = dropout(moved)
    assert torch.equal(found.cpu() == 0, expected == 0)
    torch.testing.assert_close(found.detach().cpu().float(), expected, rtol=1e-2, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), moved)
    assert torch.equal(gradient.cpu() == 0, expected == 0)


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_leaves_the_gradient_in_its_logits(weighted):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    num_words, labels = 5000, torch.randint(5000, (37,))
    logits, bias = torch.randn(37, 5056), torch.randn(num_words)
    weights = torch.rand(37) if weighted else None
    wanted, offset = logits[:, :num_words].clone().requires_grad_(), bias.clone().requires_grad_()
    losses = F.cross_entropy(wanted + offset, labels, reduction="none")
    loss = (losses if weights is None else losses * weights).sum()
    d_logits, d_bias = torch.autograd.grad(loss, (wanted, offset))
    moved = logits.to(GPU)
    found, d_offset = fused_layers.loss_and_gradient(
        moved, bias.to(GPU), labels.to(GPU), None if weights is None else weights.to(GPU), num_words
    )
    assert float(found) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(moved[:, :num_words].cpu(), d_logits, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(d_offset.cpu(), d_bias, rtol=1e-4, atol=1e-5)
    assert not moved[:, num_words:].any()


@pytest.mark.gpu
def test_frozen_layers_and_evaluation_are_not_fused():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, layout = model_of(0.0).to(GPU), SequenceLayout.from_lengths([5, 3], GPU)
    layer, hidden = model.encoder.layers[0], torch.randn(8, 96, device=GPU)
    with torch.autocast("cuda", torch.bfloat16):
        assert layer._fused(hidden, layout) is not None
        with torch.no_grad():
            assert layer._fused(hidden, layout) is None
        layer.feed_forward.up.bias.requires_grad_(False)
        assert layer._fused(hidden, layout) is None
    assert layer._fused(hidden, layout) is None


class Function:
    """A Triton function of a tensor, a count that is not specialised, a width and two constants."""

    def __init__(self) -> None:
        names = {"x": False, "count": False, "width": False, "BLOCK": True, "DROPS": True}
        self.params = [
            SimpleNamespace(name=name, is_constexpr=is_constant, do_not_specialize=name == "count")
            for name, is_constant in names.items()
        ]
        self.compiled: list[dict] = []
        self.started: list[tuple] = []

    def __getitem__(self, grid):
        def run(*arguments, **constants):
            self.compiled.append(constants)
            return {grid: lambda *given: self.started.append((len(self.compiled), *given))}

        return run


def test_a_kernel_is_searched_for_once_for_each_variant():
    function, x = Function(), torch.zeros(64)
    kernel = fused_layers._Kernel(function)
    assert x.data_ptr() % 16 == 0
    for count in (1, 2, 16):  # not specialised, so it makes no variant
        kernel.launch((1, 1, 1), (x, count, 768), {"DROPS": False, "num_warps": 4, "BLOCK": 1024})
    assert function.compiled == [{"DROPS": False, "num_warps": 4, "BLOCK": 1024}]
    assert [(number, count, width, *constants) for number, _x, count, width, *constants in function.started] == [
        (1, 2, 768, 1024, False),  # in the order of the parameters
        (1, 16, 768, 1024, False),
    ]
    variants = [
        ((x[1:], 1, 768), 1024),  # another alignment
        ((x.half(), 1, 768), 1024),  # another type
        ((x, 1, 100), 1024),  # not divisible by 16
        ((x, 1, 768), 512),  # another constant
        ((x, 1, 1), 1024),
        ((x, 1, 2**40), 1024),  # 64 bits
    ]
    for number, (arguments, block) in enumerate(variants, start=2):
        for _ in range(2):
            kernel.launch((1, 1, 1), arguments, {"DROPS": False, "num_warps": 4, "BLOCK": block})
        assert len(function.compiled) == number
    assert [number for number, *_ in function.started] == [1, 1, 2, 3, 4, 5, 6, 7]
