import pytest
import torch
from torch import nn

from maskloom.layers.activations import activation
from maskloom.layers.initialization import initialize


def test_matrices_are_normal_cut_at_two_sigma():
    dense = nn.Linear(400, 400)
    initialize(dense, std=0.02, seed=3)
    assert dense.weight.abs().max() <= 0.04
    assert float(dense.weight.detach().std()) == pytest.approx(0.0176, abs=0.0002)
    assert not dense.bias.any()


def test_recurrent_layers_start_as_torch_starts_them():
    lstm = nn.LSTM(30, 100)
    initialize(lstm, std=0.02, seed=3)
    for values in lstm.parameters():
        assert values.abs().max() <= 0.1  # uniform up to 1 / sqrt(100) on either side
        assert float(values.detach().std()) == pytest.approx(0.1 / 3**0.5, rel=0.1)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norms_start_at_one_and_zero(kind):
    norm = kind(5)
    nn.init.normal_(norm.weight)
    if kind is nn.LayerNorm:
        nn.init.normal_(norm.bias)
    initialize(norm, std=0.02, seed=3)
    assert norm.weight.tolist() == [1.0] * 5
    assert kind is nn.RMSNorm or norm.bias.tolist() == [0.0] * 5


def test_rules_are_by_type_of_module_and_inherited():
    class Doubling(nn.Linear):
        pass

    class Twice(Doubling):
        pass

    def twos(module, name, values, generator):
        values.fill_(2.0 if name == "weight" else len(module.weight))

    layers = nn.ModuleDict({"plain": nn.Linear(3, 4), "ruled": Twice(3, 4), "norm": nn.LayerNorm(3)})
    alone = nn.ModuleDict({"plain": nn.Linear(3, 4)})
    initialize(layers, std=0.02, seed=3, rules={Doubling: twos})
    initialize(alone, std=0.02, seed=3)
    assert layers["ruled"].weight.unique().tolist() == [2.0]
    assert layers["ruled"].bias.tolist() == [4.0] * 4
    assert torch.equal(layers["plain"].weight, alone["plain"].weight)
    assert layers["norm"].weight.tolist() == [1.0] * 3


def test_values_depend_on_seed_and_name_only():
    alone = nn.ModuleDict({"b": nn.Linear(3, 4)})
    among = nn.ModuleDict({"a": nn.Linear(3, 4), "b": nn.Linear(3, 4)})
    initialize(alone, std=0.02, seed=3)
    torch.rand(5)
    initialize(among, std=0.02, seed=3)
    assert torch.equal(alone["b"].weight, among["b"].weight)
    assert not torch.equal(among["a"].weight, among["b"].weight)
    initialize(alone, std=0.02, seed=4)
    assert not torch.equal(alone["b"].weight, among["b"].weight)


def test_without_a_seed_torch_draws_one():
    first, second = nn.Linear(3, 4), nn.Linear(3, 4)
    for dense in (first, second):
        torch.manual_seed(8)
        initialize(dense, std=0.02)
    assert torch.equal(first.weight, second.weight)
    initialize(second, std=0.02)
    assert not torch.equal(first.weight, second.weight)


def test_activations_by_published_name():
    values = torch.linspace(-4, 4, 101)
    exact = values * 0.5 * (1 + torch.erf(values / 2**0.5))
    assert torch.allclose(activation("gelu")(values), exact, atol=1e-6)
    difference = (activation("gelu_new")(values) - exact).abs().max()
    assert 4e-4 < difference < 5e-4
    with pytest.raises(ValueError, match="unknown activation 'gleu'; known: gelu"):
        activation("gleu")
