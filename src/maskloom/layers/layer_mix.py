"""Combinations of an encoder's hidden states: one layer, a sum, a concatenation, a learned mean (BERT paper 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from maskloom.errors import ConfigError

Join = Literal["each", "sum", "concat", "mix"]

_NAMED: dict[str, tuple[slice, Join]] = {
    "embeddings": (slice(1), "each"),
    "last": (slice(-1, None), "each"),
    "second_to_last": (slice(-2, -1), "each"),
    "sum_last_four": (slice(-4, None), "sum"),
    "concat_last_four": (slice(-4, None), "concat"),
    "sum_all": (slice(1, None), "sum"),
    "scalar_mix": (slice(None), "mix"),
    "all": (slice(None), "each"),
}
LAYER_CHOICES = tuple(_NAMED)


@dataclass(frozen=True)
class LayerCombination:
    """Which hidden states to select and how to combine them.

    `layers` are indices of the hidden states: 0 is the output of the embedding block, after its LayerNorm, and 1 the
    first layer. With `join` "sum" or "concat" they become one vector. "each" keeps the layers separate, as does "mix",
    whose weights are learned later by a `ScalarMix`.
    """

    name: str
    layers: tuple[int, ...]
    join: Join

    @classmethod
    def of(cls, choice: str, num_layers: int) -> LayerCombination:
        """Parse a choice for an encoder of `num_layers` layers (12 in a base model), not counting the embeddings.

        Names are listed in `LAYER_CHOICES`: "sum_all" excludes the embeddings, like the paper's row for all 12 layers;
        "scalar_mix" and "all" include them. Numbers, separated by commas, select individual layers, kept separate;
        negative numbers count from the end, -1 being the last layer. Raises ConfigError for an unknown name, a layer
        that does not exist, or a layer listed twice.
        """
        if choice in _NAMED:
            chosen, join = _NAMED[choice]
            if (needed := abs(chosen.start or 0)) > num_layers:
                raise ConfigError(f"layers = {choice!r} needs {needed} layers; the encoder has {num_layers}")
            return cls(choice, tuple(range(num_layers + 1)[chosen]), join)
        try:
            numbers = [int(part) for part in choice.split(",")]
        except ValueError:
            known = ", ".join(LAYER_CHOICES)
            raise ConfigError(f"layers = {choice!r}: neither layer numbers nor one of {known}") from None
        for number in numbers:
            if not -(num_layers + 1) <= number <= num_layers:
                known = f"the encoder has layers 1 to {num_layers}, or -1 to -{num_layers}; 0 is its embeddings"
                raise ConfigError(f"layer {number}: {known}")
        layers = tuple(number % (num_layers + 1) for number in numbers)
        if len(set(layers)) != len(layers):
            raise ConfigError(f"layers {numbers}: each may be listed only once")
        return cls(choice, layers, "each")

    @property
    def num_vectors(self) -> int:
        """Number of vectors that `select` returns for each token."""
        return 1 if self.join in ("sum", "concat") else len(self.layers)

    def width(self, hidden_size: int) -> int:
        """Return the width of each of these vectors."""
        return hidden_size * len(self.layers) if self.join == "concat" else hidden_size

    def vector_names(self) -> list[str]:
        """Return a name for each of these vectors: the combination's, or the numbers of its layers."""
        return [self.name] if self.join in ("sum", "concat") else [str(layer) for layer in self.layers]

    def select(self, hidden_states: Sequence[Tensor], positions: Tensor | None = None) -> Tensor:
        """Return (tokens, vectors, width) from states (tokens, hidden), only at `positions`, ordered as in `layers`."""
        states = [hidden_states[layer] for layer in self.layers]
        if positions is not None:
            states = [state.index_select(0, positions) for state in states]
        if self.join == "concat":
            return torch.cat(states, dim=1)[:, None, :]
        stacked = torch.stack(states, dim=1)
        return stacked.sum(dim=1, keepdim=True) if self.join == "sum" else stacked


class ScalarMix(nn.Module):
    """A learned weighted mean of layers times a learned scale: (rows, layers, width) to (rows, width).

    The weights are a softmax, initially equal, and the scale starts at 1 (Peters et al. 2018, equation 1). With
    `layer_norm`, each layer is first normalised to mean 0 and variance 1 over all entries of all rows.
    """

    def __init__(self, num_layers: int, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the weighted means times the scale."""
        if self.layer_norm and len(vectors):
            variance, mean = torch.var_mean(vectors, (0, 2), correction=0, keepdim=True)
            vectors = (vectors - mean) * torch.rsqrt(variance + 1e-12)
        return self.scale * torch.einsum("l,rlw->rw", torch.softmax(self.weights, dim=0), vectors)
