"""The table of architectures: what a run, a checkpoint or a contract test needs to know of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from maskloom.models.bert import Bert, BertConfig


@dataclass(frozen=True)
class Architecture:
    """One encoder architecture.

    `build` makes an encoder from its configuration; `blocks` names the repeated parts of one, for sharding, compiling
    and activation checkpointing.
    """

    name: str
    paper: str
    config_type: type[BertConfig]
    build: Callable[[BertConfig], Bert]
    blocks: Callable[[Bert], Sequence[nn.Module]]


ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture(
        name="bert",
        paper="Devlin et al. 2018, BERT: Pre-training of Deep Bidirectional Transformers",
        config_type=BertConfig,
        build=Bert,
        blocks=lambda encoder: list(encoder.layers),
    ),
}


def architecture_of(config: BertConfig) -> Architecture:
    """Return the row of a configuration."""
    return next(row for row in ARCHITECTURES.values() if isinstance(config, row.config_type))
