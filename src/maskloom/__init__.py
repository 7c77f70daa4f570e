"""maskloom: from raw text to a trained, evaluated, exported and used text encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maskloom.inference import Predictor

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(folder: str, *, int8: bool = False) -> Predictor:
    """Open a model folder for use: an object with `encode`, `predict` and `fill_mask`.

    `int8` computes in eight-bit integers, which is faster on a processor and close to what fp32 gives. Raises
    ValueError when the folder is not a model folder that maskloom or transformers wrote, or the processor lacks int8.
    """
    from maskloom.inference import Predictor

    return Predictor.load(folder, int8=int8)
