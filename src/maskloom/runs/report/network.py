"""What a model consists of: its modules as nested blocks, with their sizes and parameter counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn


class Block(NamedTuple):
    """`number` identical modules in a row: the name and class of each, its parameter count, sizes and parts."""

    number: int
    name: str
    kind: str
    num_parameters: int
    sizes: Sequence[str]
    parts: Sequence[Block]


def blocks(owner: nn.Module, name: str = "", seen: set[int] | None = None) -> list[Block]:
    """Return the blocks of a module, in order; a parameter that several modules share counts where it first appears.

    `name` is the name of a module list, which its modules take. Dropout and identity modules are left out.
    """
    seen, found = set() if seen is None else seen, list[Block]()
    for own, module in owner.named_children():
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            found += blocks(module, own if isinstance(module, nn.ModuleList) else "", seen)
        elif not isinstance(module, nn.Identity | nn.Dropout):
            new = {key: one for key, one in module.named_parameters(recurse=False) if id(one) not in seen}
            seen |= {id(one) for one in new.values()}
            sizes = [
                f"{key} {' × '.join(f'{size:,}' for size in one.shape)}{'' if key in new else ', shared'}"
                for key, one in module.named_parameters(recurse=False)
            ]
            parts = blocks(module, seen=seen)
            count = sum(one.numel() for one in new.values()) + sum(one.number * one.num_parameters for one in parts)
            block = Block(1, name or own, type(module).__name__, count, sizes, parts)
            if found and found[-1]._replace(number=1) == block:
                block = found.pop()
                block = block._replace(number=block.number + 1)
            found.append(block)
    return found
