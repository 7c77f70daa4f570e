"""A causal model that reads one more token at a time, with the keys and values of those before kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from maskloom.errors import ConfigError
from maskloom.layers.attention import PastTokens
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads


class Decoder:
    """The state of sequences that grow together.

    `room` is the most tokens that one may come to. Raises ConfigError for a model that is not causal or has no head
    over the vocabulary.
    """

    def __init__(self, model: EncoderWithHeads, room: int) -> None:
        if (head := model.vocabulary_head) is None or not model.config.is_causal:
            raise ConfigError("only a left-to-right model with a language-model head continues a text")
        self._encoder, self._head, self._room = model.encoder, head, room
        self._device = model.encoder.word_embeddings.device

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Read prompts, each of at least one token, and return the logits of what follows: (sequences, vocabulary)."""
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        config = self._encoder.config
        self._past = PastTokens(config.num_hidden_layers, config.num_attention_heads, self._room, lengths)
        ids = torch.tensor(list(chain.from_iterable(prompts)), device=self._device)
        layout = SequenceLayout.from_lengths(lengths, self._device)
        return self._logits(ids, layout, layout.last_positions)

    def step(self, token_ids: Tensor) -> Tensor:
        """Add a token to every sequence, (sequences,), and return the logits of what follows."""
        self._past.add_token()
        positions = (self._past.lengths - 1).cpu().numpy()
        layout = SequenceLayout.from_lengths([1] * len(token_ids), self._device, position_ids=positions)
        return self._logits(token_ids, layout)

    def take(self, rows: Tensor) -> None:
        """Keep these sequences, in this order; one may come several times."""
        self._past.take(rows)

    def _logits(self, ids: Tensor, layout: SequenceLayout, rows: Tensor | None = None) -> Tensor:
        output = self._encoder.encode_packed(ids, torch.zeros_like(ids), layout, past=self._past.layers)
        hidden = output.last_hidden_state
        return self._head(hidden if rows is None else hidden.index_select(0, rows)).float()
