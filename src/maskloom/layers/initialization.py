"""Initial weights that depend on a seed and a parameter's name only (published BERT code: truncated normal)."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


@torch.no_grad()
def initialize(module: nn.Module, *, std: float, seed: int | None = None, prefix: str = "") -> None:
    """Fill every parameter: matrices from a normal of `std` cut at two sigma, biases 0, LayerNorm 1 and 0.

    Each matrix has its own generator, keyed by the seed and `prefix` + its name, so the order or the presence of other
    modules changes nothing. Without a seed one is drawn from torch's global generator. A tied parameter is filled once,
    under its first name. Parameters on the meta device are left alone.
    """
    if all(parameter.is_meta for parameter in module.parameters()):
        return
    if seed is None:
        seed = int(torch.randint(2**62, (), device="cpu"))
    norms = {id(m.weight) for m in module.modules() if isinstance(m, nn.LayerNorm)}
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            continue
        if id(parameter) in norms:
            parameter.fill_(1.0)
        elif name.rpartition(".")[2] == "bias":
            parameter.zero_()
        else:
            digest = hashlib.sha256(f"{seed}:{prefix}{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            values = torch.empty(parameter.shape, dtype=torch.float32)
            nn.init.trunc_normal_(values, std=std, a=-2 * std, b=2 * std, generator=generator)
            parameter.copy_(values)
