"""The likeliest tokens for each [MASK] of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.inference import Predictor


def fill_mask(model: str | Path, text: str, *, top_k: int = 5) -> dict[str, Any]:
    """Return the text and, for each [MASK] in order, the `top_k` tokens with their probabilities.

    Raises ConfigError when the model has no masked-LM head, DataError when the text has no [MASK].
    """
    return {"text": text, "masks": Predictor.load(model).fill_mask(text, top_k=top_k)}
