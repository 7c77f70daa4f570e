import pytest
import torch

from maskloom.layers.characters import CharacterCNN


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_it_is_the_equations_word_by_word(activation):
    torch.manual_seed(0)
    cnn = CharacterCNN(
        9, 3, [[1, 2], [3, 4]], num_highways=2, output_size=5, activation_name=activation
    ).double()  # fmt: skip
    for weights in cnn.parameters():
        torch.nn.init.normal_(weights)
    words = torch.randint(0, 9, (4, 6))
    function = getattr(torch, activation)
    for word, found in zip(words, cnn(words), strict=True):
        vectors = cnn.character.weight[word]
        parts = []
        for convolve in cnn.convolutions:
            width = convolve.kernel_size[0]
            windows = torch.stack([vectors[start : start + width].T for start in range(6 - width + 1)])
            parts.append(function((torch.einsum("wdk,ndk->wn", windows, convolve.weight) + convolve.bias).amax(0)))
        x = torch.cat(parts)
        for highway in cnn.highways:
            gate = torch.sigmoid(highway.weight[6:] @ x + highway.bias[6:])
            x = gate * torch.relu(highway.weight[:6] @ x + highway.bias[:6]) + (1 - gate) * x
        torch.testing.assert_close(found, cnn.projection(x))
