"""An encoder with its heads: the model that objectives train and checkpoints hold."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from maskloom.errors import ConfigError
from maskloom.layers.initialization import initialize
from maskloom.models.architectures import architecture_of
from maskloom.models.encoder import Encoder
from maskloom.models.heads import HEADS, VocabularyHead
from maskloom.models.model_config import ModelConfig
from maskloom.system.resources import require_memory

# Options of heads other than sizes and labels, by the name of the head.
HeadOptions = Mapping[str, Mapping[str, Any]]


class EncoderWithHeads(nn.Module):
    """An encoder and its heads by name ("mlm", "classifier", "span" …); objectives call both: it has no `forward`."""

    encoder: Encoder
    heads: nn.ModuleDict

    def __init__(self, encoder: Encoder, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(dict(heads))

    @property
    def config(self) -> ModelConfig:
        """The configuration of the encoder."""
        return self.encoder.config

    @property
    def vocabulary_head(self) -> VocabularyHead | None:
        """The head that returns logits over the vocabulary, or None."""
        heads = (head for name, head in self.heads.items() if HEADS[name].is_tied and HEADS[name].reads == "tokens")
        return cast("VocabularyHead | None", next(heads, None))

    def tie(self) -> None:
        """Point tied decoders at the word-embedding parameter again, for example after loading or moving off meta."""
        for head in self._tied_heads():
            head.decoder = self.encoder.word_embeddings

    def _tied_heads(self) -> list[Any]:
        """Return the heads, and the layer on top, that share the word embeddings as their `decoder`."""
        heads = [head for name, head in self.heads.items() if HEADS[name].is_tied]
        return [*heads, self.encoder.top] if hasattr(self.encoder.top, "decoder") else heads

    @torch.no_grad()
    def resize_vocabulary(self, vocab_size: int, *, seed: int) -> None:
        """Resize embeddings and bias, keeping the first rows; raises ConfigError if the padding token has no row."""
        config = self.config.with_keys({"vocab_size": vocab_size}, "")
        old = self.encoder.word_embeddings
        word = nn.Embedding(vocab_size, old.shape[1], device=old.device, dtype=old.dtype)
        prefix, rules = "encoder.embeddings.word.", self.encoder.initial_rules
        initialize(word, std=config.initializer_range, seed=seed, prefix=prefix, rules=rules)
        num_kept = min(vocab_size, len(old))
        word.weight[:num_kept] = old[:num_kept]
        word.weight.requires_grad_(old.requires_grad)
        self.encoder.config = config
        self.encoder.embeddings.word = word
        for head in self._tied_heads():
            head.resize(vocab_size)
        self.tie()


def build_model(
    config: ModelConfig,
    heads: Sequence[str] = ("mlm", "nsp"),
    num_labels: int | None = None,
    seed: int | None = None,
    head_options: HeadOptions | None = None,
    leave: Container[str] = (),
) -> EncoderWithHeads:
    """Build a model whose initial weights depend only on the seed, not on the choice or order of the heads.

    `num_labels` applies to labelled heads such as "classifier", "tagger" and "bilstm_tagger"; `head_options` holds the
    other options of heads, by name. Parameters named in `leave` stay uninitialised, for the caller to fill. Raises
    ConfigError for a labelled head without `num_labels`, and a model that does not fit into this machine's memory.
    """
    row, options, device = architecture_of(config), head_options or {}, torch.get_default_device()
    has_sources = row.has_decoder and getattr(config, "source_vocab_size", None) is not None
    if has_sources and {*heads} - {"decoder"}:
        raise ConfigError("a model with a separate source vocabulary is only for seq2seq")
    with torch.device("meta"):
        encoder = row.build(config)
        if "decoder" not in heads:
            encoder.read_through_decoder()
        built = {name: HEADS[name].build(encoder, num_labels, options.get(name, {})) for name in heads}
        model = EncoderWithHeads(encoder, built)
    if device.type == "meta":
        return model
    if device.type == "cpu":
        require_memory(sum(parameter.nbytes for parameter in model.parameters()), "the model")
    fill_model(model, seed, leave)
    return model


def fill_model(model: EncoderWithHeads, seed: int | None, leave: Container[str]) -> None:
    """Allocate a model that was built on the meta device, and initialise its parameters except those in `leave`."""
    device = torch.get_default_device()
    for module in model.modules():  # torch's `to_empty` would import a computer algebra system
        for name, planned in list(module.named_parameters(recurse=False)):
            memory = torch.empty(planned.shape, dtype=planned.dtype, device=device)
            setattr(module, name, nn.Parameter(memory, requires_grad=planned.requires_grad))
    model.tie()
    std, rules = model.config.initializer_range, model.encoder.initial_rules
    initialize(model, std=std, seed=seed, leave=leave, rules=rules)


def blocks_of(model: EncoderWithHeads) -> Sequence[nn.Module]:
    """Return the repeated blocks of a model: the layers of its encoder, of a source encoder, and of a decoder."""
    stacks = (getattr(part, "layers", None) for part in model.modules())
    return [layer for layers in stacks if isinstance(layers, nn.ModuleList) for layer in layers]


def prepare_blocks(model: EncoderWithHeads, *, recompute: bool, compile_: bool) -> None:
    """Set whether blocks are recomputed in the backward pass, and optionally compile them for any number of tokens."""
    for block in blocks_of(model):
        block.recomputes = recompute  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        if compile_:
            block.compile(dynamic=True)
