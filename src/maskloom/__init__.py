"""maskloom: from raw text to a trained, evaluated, exported and used text encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from maskloom.inference import Predictor

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(folder: str | Path, *, int8: bool = False, device: str = "cpu", batch_size: int | None = None) -> Predictor:
    """Open a model folder for use: an object with `encode`, `predict` and `fill_mask`, which threads may share.

    `int8` computes in eight-bit integers, which is faster on a processor and close to what fp32 gives. `device` is
    "cpu", "cuda", "cuda:1" and so on, or "auto": CUDA where there is any. `batch_size` bounds how many texts are
    computed at once; by default batches are bounded in tokens only. Raises ValueError when the folder is not a model
    folder that maskloom, transformers or sentence-transformers wrote, the device is not there, or the processor lacks
    int8.
    """
    from maskloom.inference import Predictor

    return Predictor.load(folder, int8=int8, device=device, batch_size=batch_size)
