"""An encoder with its heads: the model that objectives train and checkpoints hold."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from maskloom.config import ConfigError
from maskloom.layers.crf import LinearChainCRF
from maskloom.layers.initialization import initialize
from maskloom.machine_memory import require_memory
from maskloom.models.bert import Bert, BertConfig
from maskloom.models.bilstm_tagger import BiLSTMTagger
from maskloom.models.heads import ClassificationHead, MaskedLMHead, NextSentenceHead, SpanHead

# What a head takes beside sizes and labels, by the name of the head.
HeadOptions = Mapping[str, Mapping[str, Any]]


class EncoderWithHeads(nn.Module):
    """An encoder and its heads by name ("mlm", "classifier", "span" …); objectives call them, it has no forward."""

    encoder: Bert
    heads: nn.ModuleDict

    def __init__(self, encoder: Bert, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(dict(heads))

    @property
    def config(self) -> BertConfig:
        """The configuration of the encoder."""
        return self.encoder.config

    def tie(self) -> None:
        """Make the masked-LM decoder the word-embedding parameter itself, as after loading or moving off meta."""
        if "mlm" in self.heads:
            cast(MaskedLMHead, self.heads["mlm"]).decoder = self.encoder.word_embeddings

    @torch.no_grad()
    def resize_vocabulary(self, vocab_size: int, *, seed: int) -> None:
        """Keep the first rows of the word embeddings, add freshly drawn ones, and keep decoder and bias in step.

        Raises ConfigError when the size leaves no room for the padding token.
        """
        try:
            config = BertConfig.model_validate({**self.config.model_dump(), "vocab_size": vocab_size})
        except ValueError:
            raise ConfigError(
                f"vocab_size {vocab_size}: a whole number above pad_token_id {self.config.pad_token_id} is needed"
            ) from None
        old = self.encoder.embeddings.word.weight
        word = nn.Embedding(vocab_size, config.hidden_size, device=old.device, dtype=old.dtype)
        initialize(word, std=config.initializer_range, seed=seed, prefix="encoder.embeddings.word.")
        num_kept = min(vocab_size, len(old))
        word.weight[:num_kept] = old[:num_kept]
        self.encoder.config = config
        self.encoder.embeddings.word = word
        if "mlm" in self.heads:
            head = cast(MaskedLMHead, self.heads["mlm"])
            bias = torch.zeros(vocab_size, device=old.device, dtype=old.dtype)
            bias[:num_kept] = head.bias[:num_kept]
            head.bias = nn.Parameter(bias)
        self.tie()


def build_model(
    config: BertConfig,
    heads: Sequence[str] = ("mlm", "nsp"),
    num_labels: int | None = None,
    seed: int | None = None,
    head_options: HeadOptions | None = None,
    leave: Container[str] = (),
) -> EncoderWithHeads:
    """Build a model with fresh weights that depend on the seed alone, not on which heads there are or their order.

    `num_labels` is for the "classifier", "tagger" and "bilstm_tagger" heads, `head_options` has what else a head takes,
    by its name. Parameters named in `leave` get no values: the caller has them. Raises ConfigError for an unknown or
    repeated head, one of these without a number of labels, and a model that this machine has no memory for.
    """
    device = torch.get_default_device()
    with torch.device("meta"):
        model = _assemble(config, heads, num_labels, head_options or {})
    if device.type == "meta":
        return model
    if device.type == "cpu":
        require_memory(sum(parameter.nbytes for parameter in model.parameters()), "the model")
    _allocate(model, device)
    model.tie()
    initialize(model, std=config.initializer_range, seed=seed, leave=leave)
    return model


def _allocate(model: nn.Module, device: torch.device) -> None:
    """Give every parameter memory on a device, without values.

    torch's `to_empty` imports a computer algebra system to do this, which takes longer than loading a small model.
    """
    for module in model.modules():
        for name, planned in list(module.named_parameters(recurse=False)):
            memory = torch.empty(planned.shape, dtype=planned.dtype, device=device)
            setattr(module, name, nn.Parameter(memory, requires_grad=planned.requires_grad))


def _assemble(
    config: BertConfig, heads: Sequence[str], num_labels: int | None, head_options: HeadOptions
) -> EncoderWithHeads:
    if len(set(heads)) != len(heads):
        raise ConfigError(f"heads {list(heads)} name one twice")
    encoder = Bert(config)
    builders: dict[str, Callable[[], nn.Module]] = {
        "mlm": lambda: MaskedLMHead(
            encoder.word_embeddings, activation_name=config.hidden_act, layer_norm_eps=config.layer_norm_eps
        ),
        "nsp": lambda: NextSentenceHead(config.hidden_size),
        "classifier": lambda: ClassificationHead(config.hidden_size, _required(num_labels), config.head_dropout),
        "tagger": lambda: ClassificationHead(config.hidden_size, _required(num_labels), config.head_dropout),
        "bilstm_tagger": lambda: BiLSTMTagger(config, _required(num_labels), **head_options.get("bilstm_tagger", {})),
        "crf": lambda: LinearChainCRF(_required(num_labels)),
        "choice": lambda: ClassificationHead(config.hidden_size, 1, config.head_dropout),
        "span": lambda: SpanHead(config.hidden_size),
    }
    unknown = [name for name in heads if name not in builders]
    if unknown:
        raise ConfigError(f"unknown heads {unknown}; known: {', '.join(builders)}")
    return EncoderWithHeads(encoder, {name: builders[name]() for name in heads})


def _required(num_labels: int | None) -> int:
    if num_labels is None or num_labels < 1:
        raise ConfigError(f"a classifier needs num_labels of at least 1; given: {num_labels}")
    return num_labels
