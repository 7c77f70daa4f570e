import pytest
import torch

from maskloom.errors import ConfigError
from maskloom.layers.layer_mix import LAYER_CHOICES, LayerCombination, ScalarMix


def states(num_layers=5, tokens=3, hidden=2):
    """Return hidden states whose values encode their origin: layer * 100 + token * 10 + feature."""
    place = torch.arange(tokens)[:, None] * 10 + torch.arange(hidden)[None, :]
    return [layer * 100.0 + place for layer in range(num_layers + 1)]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("embeddings", [[10, 11]]),
        ("last", [[510, 511]]),
        ("second_to_last", [[410, 411]]),
        ("sum_last_four", [[200 + 300 + 400 + 500 + 40, 1400 + 44]]),
        ("concat_last_four", [[210, 211, 310, 311, 410, 411, 510, 511]]),
        ("sum_all", [[1500 + 50, 1500 + 55]]),
        ("all", [[10, 11], [110, 111], [210, 211], [310, 311], [410, 411], [510, 511]]),
        ("scalar_mix", [[10, 11], [110, 111], [210, 211], [310, 311], [410, 411], [510, 511]]),
        ("-1", [[510, 511]]),
        ("-2", [[410, 411]]),
        ("0", [[10, 11]]),
        ("-6", [[10, 11]]),
        ("3,-1, 0", [[310, 311], [510, 511], [10, 11]]),
        ("-1,-2", [[510, 511], [410, 411]]),
    ],
)
def test_combinations_by_hand(choice, expected):
    combination = LayerCombination.of(choice, 5)
    found = combination.select(states())
    assert found.shape == (3, combination.num_vectors, combination.width(2))
    assert found[1].tolist() == expected
    assert len(combination.vector_names()) == combination.num_vectors
    some = combination.select(states(), torch.tensor([2, 1]))
    assert torch.equal(some, found[[2, 1]])


def test_every_named_choice_is_tested_above_and_fits_a_model_of_twelve_layers():
    layers = {choice: LayerCombination.of(choice, 12).layers for choice in LAYER_CHOICES}
    assert layers["sum_all"] == tuple(range(1, 13))
    assert layers["second_to_last"] == (11,)
    assert layers["concat_last_four"] == layers["sum_last_four"] == (9, 10, 11, 12)
    assert layers["scalar_mix"] == layers["all"] == tuple(range(13))


@pytest.mark.parametrize(
    ("choice", "num_layers", "message"),
    [
        ("top", 5, "neither layer numbers nor one of embeddings, last"),
        ("6", 5, "layer 6: the encoder has layers 1 to 5"),
        ("-7", 5, "layer -7"),
        ("1,1", 5, "each may be listed only once"),
        ("5,-1", 5, "each may be listed only once"),
        ("", 5, "neither layer numbers"),
        ("sum_last_four", 3, "needs 4 layers; the encoder has 3"),
        ("second_to_last", 1, "needs 2 layers; the encoder has 1"),
        ("sum_all", 0, "needs 1 layers; the encoder has 0"),
        ("1,", 5, "neither layer numbers"),
    ],
)
def test_what_there_is_not_is_refused(choice, num_layers, message):
    with pytest.raises(ConfigError, match=message):
        LayerCombination.of(choice, num_layers)


def test_a_fresh_mix_is_the_mean_of_its_layers():
    vectors = torch.randn(4, 3, 5)
    torch.testing.assert_close(ScalarMix(3)(vectors), vectors.mean(dim=1))


def test_a_mix_by_hand():
    mix = ScalarMix(2)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([3.0, 1.0]).log())
        mix.scale.fill_(2.0)
    vectors = torch.tensor([[[1.0, 0.0], [0.0, 8.0]]])
    torch.testing.assert_close(mix(vectors), torch.tensor([[1.5, 4.0]]))


def test_a_mix_may_bring_each_layer_to_mean_0_and_variance_1_over_all_entries():
    vectors = 3.0 + torch.arange(1.0, 4.0)[:, None] * torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(0))
    mix = ScalarMix(3, layer_norm=True)
    mix.weights.data.copy_(torch.tensor([0.5, -1.0, 0.2]))
    mix.scale.data.fill_(1.5)
    expected = 0.0
    for weight, layer in zip(torch.softmax(mix.weights, 0), vectors.unbind(1), strict=True):
        expected = expected + weight * (layer - layer.mean()) / layer.var(correction=0).sqrt()
    torch.testing.assert_close(mix(vectors), 1.5 * expected)
    assert mix(vectors[:0]).shape == (0, 5)
