"""Text in, typed predictions out; bulk features."""

from maskloom.inference.model_folder import resolve_model_folder
from maskloom.inference.predictor import Predictor

__all__ = ["Predictor", "resolve_model_folder"]
