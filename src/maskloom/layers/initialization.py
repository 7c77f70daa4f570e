"""Initial weights that depend only on a seed and a parameter's name (published BERT code: truncated normal)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Mapping

import torch
from torch import Tensor, nn

from maskloom.layers.layer_mix import ScalarMix

InitialRule = Callable[[nn.Module, str, Tensor, torch.Generator], object]
"""Fills a parameter, given its module, its name in the module, the tensor to fill and a random generator."""
InitialRules = Mapping[type[nn.Module], InitialRule]


def constants(**by_name: float) -> InitialRule:
    """Return a rule that fills each parameter of a module with the number given for its name."""
    return lambda module, name, values, generator: values.fill_(by_name[name])


def _as_torch_does(module: nn.Module, name: str, values: Tensor, generator: torch.Generator) -> Tensor:
    bound = 1 / math.sqrt(module.hidden_size)  # pyright: ignore[reportArgumentType]
    return nn.init.uniform_(values, -bound, bound, generator=generator)


RULES: InitialRules = {
    nn.LayerNorm: constants(weight=1.0, bias=0.0),
    nn.RMSNorm: constants(weight=1.0),
    ScalarMix: constants(weights=0.0, scale=1.0),
    nn.RNNBase: _as_torch_does,
}
"""Rules for module types shared by all architectures; other types have no default rule."""


@torch.no_grad()
def initialize(
    module: nn.Module,
    *,
    std: float,
    seed: int | None = None,
    prefix: str = "",
    leave: Container[str] = (),
    rules: InitialRules | None = None,
) -> None:
    """Fill every parameter by the rule for its module's type; `rules` override `RULES` for the same type.

    A module inherits the rule of its base class. Without a rule, biases are 0 and other parameters are drawn from a
    normal distribution with deviation `std`, truncated at two sigma. Each parameter has its own generator, seeded with
    the seed and `prefix` + its name, so other modules and their order have no effect. Without a seed, one is drawn from
    torch's global generator. A tied parameter is filled once, under its first name. Parameters named in `leave` are not
    filled.
    """
    if seed is None:
        seed = int(torch.randint(2**62, (), device="cpu"))
    by_type = {**RULES, **(rules or {})}
    for full_name, parameter in module.named_parameters():
        if full_name in leave:
            continue
        path, _, name = full_name.rpartition(".")
        owner = module.get_submodule(path)
        rule = next((by_type[kind] for kind in type(owner).__mro__ if kind in by_type), None)
        digest = hashlib.sha256(f"{seed}:{prefix}{full_name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        values = torch.empty(parameter.shape, dtype=torch.float32)
        if rule is not None:
            rule(owner, name, values, generator)
        elif name == "bias":
            values.zero_()
        else:
            nn.init.trunc_normal_(values, std=std, a=-2 * std, b=2 * std, generator=generator)
        parameter.copy_(values)
