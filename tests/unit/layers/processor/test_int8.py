import pytest
import torch

from maskloom.errors import ConfigError
from maskloom.layers.processor import int8
from maskloom.layers.processor.int8 import Int8Dense, largest_weight, quantize_dense_layers
from maskloom.layers.processor.matrix_products import Dense
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig


@pytest.fixture(autouse=True)
def supported():
    try:
        largest_weight()
    except ConfigError as error:
        pytest.skip(str(error))


def dense_layer(num_inputs=37, num_outputs=21, bias=True):
    torch.manual_seed(1)
    return Dense(num_inputs, num_outputs, bias=bias)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 16, 1000, 2049])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_close(num_rows, bias):
    dense = dense_layer(bias=bias)
    rows = torch.randn(num_rows, 37) * torch.logspace(-3, 3, num_rows).unsqueeze(1)
    found, expected = Int8Dense(dense)(rows), dense(rows).detach()
    assert found.shape == expected.shape
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert bool((errors < 0.03).all())


def test_what_eight_bits_hold_is_exact():
    dense = dense_layer()
    with torch.no_grad():
        dense.weight.random_(-largest_weight(), largest_weight() + 1)
        dense.weight[:, 0] = largest_weight()
    rows = torch.randint(-127, 128, (9, 37)).float()
    rows[:, 1] = 127.0
    torch.testing.assert_close(Int8Dense(dense)(rows), dense(rows).detach(), rtol=1e-5, atol=1e-2)


def test_a_row_does_not_depend_on_the_others():
    layer, rows = Int8Dense(dense_layer()), torch.randn(700, 37)
    together = layer(rows)
    assert torch.equal(layer(rows[333:334]), together[333:334])
    rows[0] *= 1000
    assert torch.equal(layer(rows)[1:], together[1:])


def test_rows_of_zeros_give_the_bias():
    dense = dense_layer()
    torch.testing.assert_close(Int8Dense(dense)(torch.zeros(3, 37)), dense.bias.detach().expand(3, -1))


def test_fine_outputs_are_finer():
    dense, rows = dense_layer(256, 64), torch.randn(50, 256)
    with torch.no_grad():
        dense.weight.copy_(torch.round(dense.weight / dense.weight.abs().amax(1, keepdim=True) * largest_weight()))
    found, expected = Int8Dense(dense, num_fine=32)(rows), dense(rows).detach()
    coarse, fine = ((found - expected)[:, part].norm() for part in (slice(32), slice(32, 64)))
    assert fine < coarse / 50
    assert torch.equal(found[:, :32], Int8Dense(dense)(rows)[:, :32])


@pytest.mark.parametrize("largest", [127, 63])
def test_every_dense_layer_of_an_encoder_is_replaced(monkeypatch, largest):
    monkeypatch.setattr(int8, "largest_weight", lambda: largest)
    config = BertConfig(
        vocab_size=99, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=20, initializer_range=0.1,
    )  # fmt: skip
    model = build_model(config, ("classifier",), 3, seed=0).eval()
    ids = torch.randint(0, 99, (5, 13))
    with torch.inference_mode():
        expected = model.encoder(ids)
        quantize_dense_layers(model.encoder)
        found = model.encoder(ids)
    layers = [module for module in model.encoder.modules() if isinstance(module, Int8Dense)]
    assert len(layers) == 8
    assert [layer.num_fine for layer in layers[:4]] == [48, 0, 0, 0]
    assert max(int(layer.weight.abs().max()) for layer in layers) == largest
    assert not any(isinstance(module, Dense) for module in model.encoder.modules())
    similarity = torch.cosine_similarity(found.last_hidden_state, expected.last_hidden_state, dim=-1)
    assert float(similarity.min()) > 0.995
    assert not torch.equal(found.last_hidden_state, expected.last_hidden_state)


def test_an_unsupported_processor_is_named(monkeypatch):
    largest_weight.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NO AVX")
            with pytest.raises(
                ConfigError, match=r"int8: .*AVX2 or AVX-512.*this is NO AVX with torch .*Leave int8 out"
            ):
                Int8Dense(dense_layer())
        with monkeypatch.context() as patch:
            patch.setattr(int8, "_is_exact", lambda largest: False)
            with pytest.raises(ConfigError, match="int8: "):
                quantize_dense_layers(torch.nn.Sequential(dense_layer()))
        with monkeypatch.context() as patch:
            patch.setattr(int8, "_is_exact", lambda largest: largest < 127)
            assert largest_weight() == 63
            largest_weight.cache_clear()
    finally:
        largest_weight.cache_clear()


def test_a_model_on_another_device_is_refused():
    with torch.device("meta"):
        module = torch.nn.Sequential(Dense(4, 4))
    with pytest.raises(ConfigError, match="int8: the model is on meta; eight-bit inference runs only on the CPU"):
        quantize_dense_layers(module)


def test_a_model_without_a_layer_for_it_is_refused():
    with pytest.raises(ConfigError, match="no dense layer of a Transformer"):
        quantize_dense_layers(torch.nn.LSTM(4, 4))
