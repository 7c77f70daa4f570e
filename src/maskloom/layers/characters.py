"""Word vectors from characters: convolutions of several widths, highways, a projection (Kim et al. 2016; ELMo)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.activations import activation


class Characters(nn.Embedding):
    """Character embeddings, drawn uniformly between -1 and 1."""


class CharacterCNN(nn.Module):
    """Map the character ids of words to vectors: (words, characters) to (words, output_size).

    Each of the `filters` (width, number) is max-pooled over the word and followed by the activation (relu or tanh),
    then by `num_highways` highway layers and a projection.
    """

    def __init__(
        self,
        num_characters: int,
        character_size: int,
        filters: Sequence[Sequence[int]],
        *,
        num_highways: int,
        output_size: int,
        activation_name: str,
    ) -> None:
        super().__init__()
        total = sum(number for _, number in filters)
        # Skip torch's own initialisation: the values are set later.
        self.character = Characters.from_pretrained(torch.empty(num_characters, character_size), freeze=False)
        self.convolutions = nn.ModuleList(nn.Conv1d(character_size, number, width) for width, number in filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(num_highways))
        self.projection = nn.Linear(total, output_size)
        self._activation = activation(activation_name)

    def forward(self, characters: Tensor) -> Tensor:
        """Return the vectors of words."""
        vectors = self.character(characters).transpose(1, 2)
        hidden = torch.cat([self._activation(convolve(vectors).amax(2)) for convolve in self.convolutions], 1)
        for highway in self.highways:
            hidden = highway(hidden)
        return self.projection(hidden)


class Highway(nn.Linear):
    """g relu(W x + b) + (1 - g) x, g = sigmoid(V x + c): (rows, size) to the same (Srivastava et al. 2015).

    `weight` stacks W on top of V. The bias c starts at -2, so that most of x passes through at first.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size, 2 * size)

    def forward(self, input: Tensor) -> Tensor:
        """Return the gated mean."""
        new, gate = super().forward(input).chunk(2, 1)
        return torch.lerp(input, F.relu(new), gate.sigmoid())
