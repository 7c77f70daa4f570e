"""maskloom: from raw text to a trained, evaluated, exported and used text encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maskloom.inference import Predictor

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(folder: str) -> Predictor:
    """Open a model folder for use: an object with `encode`, `predict` and `fill_mask`.

    Raises ValueError when the folder is not a model folder that maskloom or transformers wrote.
    """
    from maskloom.inference import Predictor

    return Predictor.load(folder)
