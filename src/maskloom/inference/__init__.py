"""Inference with trained models: typed predictions, text vectors, generation and ensembles."""

from maskloom.generation.search import Generation
from maskloom.inference.ensemble import Ensemble, open_models
from maskloom.inference.model_folder import resolve_model_folder
from maskloom.inference.predictor import Predictor
from maskloom.inference.results import AnswerCandidate, Entity, FilledText, GeneratedText, MaskCandidate, Prediction
from maskloom.system.foreign_files import restart_models

__all__ = [
    "AnswerCandidate",
    "Ensemble",
    "Entity",
    "FilledText",
    "GeneratedText",
    "Generation",
    "MaskCandidate",
    "Prediction",
    "Predictor",
    "open_models",
    "resolve_model_folder",
    "restart_models",
]
