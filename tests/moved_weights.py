"""Weights that differ like those of a trained model: the biases of a new one are all 0, and its norms all 1."""

import torch


@torch.no_grad()
def moved(model):
    """Move every parameter by random numbers of its own, and return the model."""
    for number, parameter in enumerate(model.parameters()):
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return model
