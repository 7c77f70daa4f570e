"""What every encoder returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@cache
def make_exportable() -> None:
    """Tell torch.export what an `EncoderOutput` holds; it is told late, as importing it takes seconds."""
    torch.export.register_dataclass(EncoderOutput, serialized_type_name="maskloom.EncoderOutput")


@dataclass(frozen=True)
class EncoderOutput:
    """Token vectors and pooled vectors of a batch.

    `last_hidden_state` is (tokens, hidden) from a packed call and (batch, length, hidden), zero at padding, from a
    padded one; `pooled` is (sequences, hidden). `hidden_states` holds the embeddings, then every layer's output, the
    last one included; it is None unless it was asked for.
    """

    last_hidden_state: Tensor
    pooled: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
