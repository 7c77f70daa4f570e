"""Causal language modelling: every token is predicted from those before it (Radford et al. 2018, equation 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from maskloom.config import PretrainingData
    from maskloom.text.vocabulary import Vocabulary


def num_next_tokens(lengths: np.ndarray, data: PretrainingData) -> np.ndarray:
    """Return how many tokens sequences of these lengths predict: those of text, special ones left out."""
    return lengths - (data.max_length - data.num_text_tokens)


def next_tokens(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    sample_keys: np.ndarray,
    vocabulary: Vocabulary,
    data: PretrainingData,
    **_: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids as they are, the positions before each token of text (predictions,) ascending, and those tokens.

    [CLS] and [SEP] are never predicted. Nothing is drawn.
    """
    is_text = ~vocabulary.is_mark[token_ids]
    is_text[np.cumsum(lengths) - lengths] = False
    (targets,) = np.nonzero(is_text)
    return token_ids.astype(np.int64), targets - 1, token_ids[targets].astype(np.int64)
