import copy
import runpy
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from maskloom.errors import ConfigError
from maskloom.layers.activations import ACTIVATIONS
from maskloom.layers.processor import matrix_products, onednn
from maskloom.layers.processor.matrix_products import Dense, dense, product, transposed_product
from maskloom.layers.processor.onednn import filled_number, pack_for_inference, prefers_onednn, row_step
from maskloom.models.heads import LanguageModelHead
from maskloom.training.faults.memory import is_out_of_memory

CPU = torch.device("cpu")


def tensors(rows, inputs, outputs, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows + inputs + outputs)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,))
    return [torch.randn(s, generator=generator, dtype=dtype, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("shape", [(700, 160, 200), (3000, 64, 256), (90, 512, 512), (1, 3, 5), (0, 4, 4)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_gradients_are_those_of_linear(shape, has_bias):
    x, weight, bias = tensors(*shape)
    inputs = [x, weight, bias] if has_bias else [x, weight]
    results = []
    for function in (dense, F.linear):
        output = function(x, weight, bias if has_bias else None)
        results.append((output, torch.autograd.grad(output.sin().sum(), inputs)))
    (ours, our_gradients), (plain, plain_gradients) = results
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    for gradient, expected in zip(our_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=2e-3)
        assert gradient.is_contiguous()


@pytest.mark.parametrize("shape", [(5, 3, 4), (9, 2, 7), (2, 7, 3)])
def test_written_out_gradient_passes_gradcheck(shape):
    assert torch.autograd.gradcheck(matrix_products._Dense.apply, tensors(*shape, dtype=torch.float64))


def test_product_takes_a_transposed_view():
    x, weight, _ = tensors(300, 400, 500)
    with torch.no_grad():
        torch.testing.assert_close(product(x, weight.t().contiguous().t()), x @ weight.t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "shape", [(333, 900, 1200), (333, 1200, 900), (320, 1024, 1024), (333, 300, 700), (5, 3, 4), (0, 3, 4)]
)
def test_transposed_product(shape):
    num_rows, num_left, num_right = shape
    generator = torch.Generator().manual_seed(2)
    left, right = torch.randn(num_rows, num_left, generator=generator), torch.randn(num_rows, num_right)
    result = transposed_product(left, right)
    torch.testing.assert_close(result, left.t() @ right, rtol=1e-4, atol=1e-3)
    assert result.is_contiguous()


def test_few_row_counts_reach_onednn(monkeypatch):
    if not onednn._has_wide_kernels():
        pytest.skip("no AVX-512 here, so nothing goes to oneDNN")
    monkeypatch.setattr(onednn, "_library", "onednn")
    monkeypatch.setattr(matrix_products, "SMALLEST_GRADIENT", 1 << 20)
    seen = set()
    multiply = torch.ops.mkldnn._linear_pointwise

    def watched(x, weight, *rest):
        seen.add((tuple(x.shape), tuple(weight.shape)))
        return multiply(x, weight, *rest)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", watched)
    weight, x = torch.randn(2048, 512), torch.randn(511, 512)
    with torch.no_grad():
        for num_rows in range(256, 511, 5):
            assert product(x[:num_rows], weight).shape == (num_rows, 2048)
            transposed_product(x[:num_rows], torch.ones(num_rows, 2048))
    assert 2 * 7 <= len(seen) <= 2 * 9
    seen.clear()
    transposed_product(x, torch.ones(511, 2047))  # MKL is faster for smaller gradients
    assert not seen
    assert [filled_number(n, CPU) for n in (0, 5, 511, 513, 1024, 1025, 2000)] == [0, 5, 511, 576, 1024, 1152, 2048]
    with mock.patch.object(onednn, "_library", "mkl"):
        assert filled_number(2000, CPU) == 2000
    assert [row_step(n) for n in (0, 1, 15, 16, 255, 256, 511, 512)] == [1, 1, 1, 2, 16, 32, 32, 64]


def test_half_precision_sees_few_numbers_of_rows(monkeypatch):
    """A kernel of oneDNN for a number of rows that it has not seen takes longer than the product."""
    seen, multiply = set(), F.linear
    monkeypatch.setattr(F, "linear", lambda x, *rest: (seen.add(len(x)), multiply(x, *rest))[1])
    weight, x, bias = torch.randn(48, 32).bfloat16(), torch.randn(511, 32).bfloat16(), torch.randn(48).bfloat16()
    for num_rows in range(256, 511, 5):
        found = product(x[:num_rows], weight, bias)
        assert found.shape == (num_rows, 48)
    assert sorted(seen) == [*range(256, 513, 32)]
    exact = multiply(x[:num_rows].float(), weight.float(), bias.float())
    torch.testing.assert_close(found.float(), exact, rtol=2e-2, atol=0.1)
    gradient = transposed_product(x[:77], found[:77])
    torch.testing.assert_close(gradient.float(), x[:77].float().t() @ found[:77].float(), rtol=2e-2, atol=2.0)
    assert filled_number(300, CPU) == 300
    with torch.autocast("cpu", torch.bfloat16):
        assert [filled_number(n, CPU) for n in (0, 5, 300, 513)] == [0, 5, 320, 576]


def test_half_precision_on_cuda_gets_at_most_a_64th_more_rows(monkeypatch):
    gpu = torch.device("cuda", 0)
    assert filled_number(18_401, gpu) == 18_401
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
    numbers = range(16_384, 32_768)
    filled = [filled_number(number, gpu) for number in numbers]
    assert all(0 <= more - number <= number / 64 for number, more in zip(numbers, filled, strict=True))
    assert len(set(filled)) == 65
    assert [filled_number(n, gpu) for n in (0, 1, 100, 129)] == [0, 1, 100, 130]


def test_lack_of_room_is_found_before_onednn_meets_it(monkeypatch):
    if not onednn._has_wide_kernels():
        pytest.skip("no AVX-512 here, so nothing goes to oneDNN")
    monkeypatch.setattr(onednn, "_library", "onednn")
    monkeypatch.setattr(onednn, "_ROOM_OF_KERNEL", 1 << 60)
    onednn._find_room.cache_clear()
    x, weight, _ = tensors(700, 160, 200)
    for multiply in (lambda: product(x, weight), lambda: transposed_product(torch.ones(9, 1024), torch.ones(9, 2048))):
        with pytest.raises(RuntimeError) as caught:
            multiply()
        assert is_out_of_memory(caught.value)


@pytest.fixture
def packed(monkeypatch):
    if not onednn._has_wide_kernels():
        pytest.skip("no AVX-512 here, so no weight is packed")
    monkeypatch.setattr(onednn, "_library", "onednn")
    layer = Dense(96, 160)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    pack_for_inference(layer)
    return layer


@pytest.mark.parametrize("rows", [0, 1, 7, 20, 333, 2000])
@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu"])
def test_a_packed_weight_gives_the_values_of_linear(packed, rows, name):
    x = torch.randn(rows, 96)
    expected = F.linear(x, packed.weight, packed.bias).detach()
    with torch.no_grad():
        assert packed.is_packed_for(x) == (rows > 0)
        torch.testing.assert_close(packed(x), expected, rtol=1e-4, atol=1e-4)
        activated = packed.activated(x, ACTIVATIONS[name])
    torch.testing.assert_close(activated, ACTIVATIONS[name](expected), rtol=1e-4, atol=1e-4)


def test_a_packed_weight_is_left_aside_once_the_weight_changes_or_learns(packed):
    x = torch.randn(5, 96)
    assert not packed.is_packed_for(x)  # gradients are on
    with torch.no_grad():
        assert packed.is_packed_for(x)
        for changed in (lambda: packed.weight.mul_(2.0), lambda: setattr(packed, "weight", torch.nn.Parameter(x))):
            packed.pack()
            assert packed.is_packed_for(x)
            changed()
            assert not packed.is_packed_for(x)


def test_a_weight_made_in_inference_mode_is_not_packed(packed):
    with torch.inference_mode():
        packed.weight, packed._packed = torch.nn.Parameter(packed.weight.clone()), None
        packed.pack()
        assert packed(torch.ones(2, packed.weight.shape[1])).isfinite().all()
    assert packed._packed is None


def test_a_layer_with_a_packed_weight_can_be_copied(packed):
    copied = copy.deepcopy(packed)
    x = torch.randn(5, 96)
    with torch.no_grad():
        assert not copied.is_packed_for(x)
        torch.testing.assert_close(copied(x), packed(x), rtol=1e-4, atol=1e-4)


@pytest.fixture
def rounded():
    if not onednn._has_wide_kernels() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("no products in bf16 here")
    torch.manual_seed(0)
    layer = Dense(96, 160)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    with mock.patch.object(onednn, "_library", "mkl"):  # bf16 is oneDNN's on any processor
        pack_for_inference(layer, dtype=torch.bfloat16)
    return layer


@pytest.mark.parametrize("rows", [1, 7, 333])
@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu"])
def test_a_weight_packed_in_bf16_gives_the_values_of_autocast(rounded, rows, name):
    x = torch.randn(rows, 96)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = F.linear(x, rounded.weight, rounded.bias)
        assert rounded.is_packed_for(x)
        for given in (x, x.bfloat16()):
            torch.testing.assert_close(rounded(given), expected, rtol=0.01, atol=0.05)
        activated = rounded.activated(x, ACTIVATIONS[name])
        assert activated.dtype == torch.bfloat16
        torch.testing.assert_close(activated, ACTIVATIONS[name](expected), rtol=0.01, atol=0.1)


def test_a_weight_packed_in_bf16_is_left_aside_without_its_autocast(rounded):
    x = torch.randn(5, 96)
    with torch.no_grad():
        assert not rounded.is_packed_for(x)
        torch.testing.assert_close(rounded(x), F.linear(x, rounded.weight, rounded.bias), rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.float16):
            assert not rounded.is_packed_for(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert not rounded.is_packed_for(x)  # gradients are on


def test_nothing_is_packed_where_products_are_left_to_mkl():
    layer = Dense(96, 160)
    with mock.patch.object(onednn, "_library", "mkl"):
        pack_for_inference(layer)
    assert layer._packed is None


@pytest.mark.parametrize("rows", [1, 3, 4, 8, 32, 33])
def test_a_model_that_decodes_takes_packed_weights_for_some_rows_beside_mkl(rows):
    if not onednn._has_wide_kernels():
        pytest.skip("no AVX-512 here, so no weight is packed")
    small, large, x = Dense(96, 160), Dense(768, 768), torch.randn(rows, 768)
    torch.nn.init.normal_(large.weight)
    torch.nn.init.zeros_(large.bias)
    with mock.patch.object(onednn, "_library", "mkl"), torch.no_grad():
        head = LanguageModelHead(large.weight)
        pack_for_inference(torch.nn.Sequential(small, large, head), decodes=True)
        assert small._packed is None
        assert head.is_packed_for(x) == (4 <= rows <= 32)
        torch.testing.assert_close(head(x), F.linear(x, large.weight), rtol=1e-4, atol=1e-3)
        assert large.is_packed_for(x) == (4 <= rows <= 32)
        torch.testing.assert_close(large(x), F.linear(x, large.weight), rtol=1e-4, atol=1e-3)


def test_nothing_goes_to_onednn_where_torch_is_told_to_do_without(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not prefers_onednn(torch.empty(4096, 128), 512)


def test_nothing_goes_to_onednn_where_products_are_left_to_mkl():
    x, weight, bias = tensors(700, 160, 200)
    by_default = prefers_onednn(torch.empty(4096, 128), 512)
    expected = dense(x, weight, bias)
    with mock.patch.object(onednn, "_library", "mkl"):
        assert not prefers_onednn(torch.empty(4096, 128), 512)
        torch.testing.assert_close(dense(x, weight, bias), expected, rtol=1e-4, atol=1e-3)
    assert prefers_onednn(torch.empty(4096, 128), 512) == by_default


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\n\nvendor_id\t: Other\n", ("GenuineIntel", 6)),
        ("CPU implementer : 0x41\n", ("", 0)),
        ("vendor_id : AuthenticAMD\ncpu family : ?\n", ("AuthenticAMD", 0)),
        (None, ("", 0)),
    ],
)
def test_the_processor_is_read_from_the_system(tmp_path, text, expected):
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert onednn._processor(path) == expected


def test_smaller_gradients_are_onednns_where_it_was_measured_to_be_faster():
    smallest = onednn._smallest_gradient
    assert smallest("AuthenticAMD", 26) < smallest("AuthenticAMD", 25) == smallest("GenuineIntel", 26)


def test_by_default_the_maker_decides(monkeypatch):
    monkeypatch.delenv("MASKLOOM_PRODUCTS", raising=False)
    read = runpy.run_path(onednn.__file__)  # the module as it is read anew
    assert read["_library"] == ("onednn" if read["_MAKER"] == "AuthenticAMD" else "mkl")


def test_the_environment_says_which_library(monkeypatch):
    for library in ("mkl", "onednn"):
        monkeypatch.setenv("MASKLOOM_PRODUCTS", library)
        assert runpy.run_path(onednn.__file__)["_library"] == library
    monkeypatch.setenv("MASKLOOM_PRODUCTS", "MKL")
    with pytest.raises(ConfigError, match="MASKLOOM_PRODUCTS='MKL' is neither 'onednn' nor 'mkl'"):
        runpy.run_path(onednn.__file__)


def test_no_gradient_is_made_for_what_is_frozen():
    x, weight, bias = tensors(700, 160, 200)
    weight.requires_grad_(False)
    dense(x, weight, bias).sum().backward()
    assert weight.grad is None
    assert x.grad is not None
    assert bias.grad is not None


def test_small_odd_and_other_types_go_the_plain_way():
    large = torch.empty(4096, 128)
    assert not prefers_onednn(torch.empty(4, 8), 8)
    assert not prefers_onednn(large.double(), 512)
    assert not prefers_onednn(large.to("meta"), 512)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not prefers_onednn(large, 512)
        assert Dense(128, 512)(large).dtype == torch.bfloat16


def test_dense_has_the_parameters_of_linear():
    assert [name for name, _ in Dense(3, 4).named_parameters()] == ["weight", "bias"]
    assert isinstance(Dense(3, 4), torch.nn.Linear)


def test_a_small_weight_is_not_packed_as_each_number_of_rows_would_cost_more_memory_than_it(packed):
    small = Dense(16, 48)
    pack_for_inference(torch.nn.Sequential(small, packed))
    assert small._packed is None
    assert packed._packed is not None
