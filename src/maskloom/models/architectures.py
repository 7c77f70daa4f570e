"""The table of architectures: what a run, a checkpoint or a contract test needs to know of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.bert import Bert, BertConfig


@dataclass(frozen=True)
class Architecture:
    """One encoder architecture.

    `build` makes an encoder from its configuration; `blocks` names the repeated parts of one, for sharding, compiling
    and activation checkpointing; `heads` are the heads it can carry.
    """

    name: str
    paper: str
    config_type: type[BertConfig]
    build: Callable[[BertConfig], Bert]
    blocks: Callable[[Bert], Sequence[nn.Module]]
    heads: tuple[str, ...]


def prepare_blocks(model: EncoderWithHeads, *, recompute: bool, compile_: bool) -> None:
    """Have the blocks of a model computed again in the backward pass, or compiled by torch for any number of tokens."""
    for block in blocks_of(model):
        block.recomputes = recompute  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        if compile_:
            block.compile(dynamic=True)


def blocks_of(model: EncoderWithHeads) -> Sequence[nn.Module]:
    """Return the repeated parts of a model's encoder."""
    row = next(row for row in ARCHITECTURES.values() if isinstance(model.config, row.config_type))
    return row.blocks(model.encoder)


ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture(
        name="bert",
        paper="Devlin et al. 2018, BERT: Pre-training of Deep Bidirectional Transformers",
        config_type=BertConfig,
        build=Bert,
        blocks=lambda encoder: list(encoder.layers),
        heads=("mlm", "nsp", "classifier"),
    ),
}
