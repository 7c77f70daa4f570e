"""Initial weights that depend on a seed and a parameter's name only (published BERT code: truncated normal)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container

import torch
from torch import nn

from maskloom.layers.layer_mix import ScalarMix


@torch.no_grad()
def initialize(
    module: nn.Module, *, std: float, seed: int | None = None, prefix: str = "", leave: Container[str] = ()
) -> None:
    """Fill every parameter: matrices from a normal of `std` cut at two sigma, biases 0, LayerNorm 1 and 0.

    A recurrent layer of n units has all of its numbers drawn evenly between -1 and 1 over the root of n, as torch does;
    a mean of layers begins with equal weights and the factor 1.

    Each matrix has its own generator, keyed by the seed and `prefix` + its name, so the order or the presence of other
    modules changes nothing. Without a seed one is drawn from torch's global generator. A tied parameter is filled once,
    under its first name. Parameters on the meta device are left alone, and so are those named in `leave`.
    """
    if all(parameter.is_meta for parameter in module.parameters()):
        return
    if seed is None:
        seed = int(torch.randint(2**62, (), device="cpu"))
    constants = {id(m.weight): 1.0 for m in module.modules() if isinstance(m, nn.LayerNorm)}
    constants |= {id(m.weights): 0.0 for m in module.modules() if isinstance(m, ScalarMix)}
    constants |= {id(m.scale): 1.0 for m in module.modules() if isinstance(m, ScalarMix)}
    lstms = [m for m in module.modules() if isinstance(m, nn.LSTM)]
    bounds = {id(parameter): 1 / math.sqrt(m.hidden_size) for m in lstms for parameter in m.parameters()}
    for name, parameter in module.named_parameters():
        if parameter.is_meta or name in leave:
            continue
        if id(parameter) in constants:
            parameter.fill_(constants[id(parameter)])
        elif name.rpartition(".")[2] == "bias":
            parameter.zero_()
        else:
            digest = hashlib.sha256(f"{seed}:{prefix}{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            values = torch.empty(parameter.shape, dtype=torch.float32)
            if id(parameter) in bounds:
                bound = bounds[id(parameter)]
                nn.init.uniform_(values, -bound, bound, generator=generator)
            else:
                nn.init.trunc_normal_(values, std=std, a=-2 * std, b=2 * std, generator=generator)
            parameter.copy_(values)
