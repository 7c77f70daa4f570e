"""The table of architectures: what a run, a checkpoint or a contract test needs to know about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maskloom.errors import ConfigError, DataError
from maskloom.models.bart_config import BART_SIZES, BartConfig, MarianConfig
from maskloom.models.bert_config import BertConfig
from maskloom.models.elmo_config import ELMO_SIZES, ElmoConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.models.model_config import SIZES, ModelConfig, ModelSection
from maskloom.models.recurrent_config import RECURRENT_SIZES, GruConfig, LstmConfig, RnnConfig
from maskloom.models.t5_config import T5_SIZES, T5Config
from maskloom.models.transformer_config import TRANSFORMER_SIZES, TransformerConfig
from maskloom.rows import Rows, later

if TYPE_CHECKING:
    from torch import nn

    from maskloom.models.encoder import Encoder


@dataclass(frozen=True)
class Architecture:
    """One encoder architecture; `checkpoints.huggingface.FORMATS` describes how its weights are published.

    `build` creates an encoder from its configuration, and imports torch only then. `vocabulary_head` is the head over
    the vocabulary that it is pre-trained with. `sizes` holds the configuration keys of each size that a recipe can
    name. Modules of the types in `undecayed` have no weight decay, like norms and biases. The classifier may have no
    bias, or be a deep one. If it `has_decoder`, the encoder creates the head "decoder". If it `has_state`, its state is
    carried from batch to batch. If it `reads_spelling`, its inputs are ids of `text.spelled_tokenizer` instead of ids
    of its vocabulary.
    """

    name: str
    config_type: type[ModelConfig]
    build: Callable[[Any], Encoder]
    vocabulary_head: str = "mlm"
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: SIZES)
    undecayed: tuple[type[nn.Module], ...] = ()
    has_classifier_bias: bool = True
    has_deep_classifier: bool = False
    has_decoder: bool = False
    has_state: bool = False
    reads_spelling: bool = False


_LATER: dict[str, Callable[[Any], Encoder]] = {
    name: later(f"maskloom.models.{name.lower()}", name)
    for name in ("Bert", "Gpt", "Transformer", "Bart", "T5", "Recurrent", "Elmo")
}
_CELLS: dict[str, Any] = {"sizes": RECURRENT_SIZES, "has_decoder": True, "has_state": True}
_BART: dict[str, Any] = {"has_deep_classifier": True, "has_decoder": True}
_ROWS = (
    Architecture("bert", BertConfig, _LATER["Bert"]),
    Architecture("gpt", GptConfig, _LATER["Gpt"], "lm", has_classifier_bias=False),  # as published
    Architecture("transformer", TransformerConfig, _LATER["Transformer"], sizes=TRANSFORMER_SIZES, has_decoder=True),
    # before BART, because a MarianConfig is a BartConfig
    Architecture("marian", MarianConfig, _LATER["Bart"], sizes=TRANSFORMER_SIZES, **_BART),
    Architecture("bart", BartConfig, _LATER["Bart"], sizes=BART_SIZES, **_BART),
    Architecture("t5", T5Config, _LATER["T5"], sizes=T5_SIZES, has_decoder=True),
    Architecture("rnn", RnnConfig, _LATER["Recurrent"], "lm", **_CELLS),
    Architecture("lstm", LstmConfig, _LATER["Recurrent"], "lm", **_CELLS),
    Architecture("gru", GruConfig, _LATER["Recurrent"], "lm", **_CELLS),
    Architecture("elmo", ElmoConfig, _LATER["Elmo"], "bilm", sizes=ELMO_SIZES, has_state=True, reads_spelling=True),
)
ARCHITECTURES: Rows[Architecture] = Rows("model.architecture", {row.name: row for row in _ROWS})


# Keys that [model.config] may not set, and what determines them.
_DETERMINED = {
    "vocab_size": "the vocabulary",
    "source_vocab_size": "`maskloom finetune --source-vocab`",
    "num_source_layers": "seq2seq.source_layers",
}


def architecture_of(config: ModelConfig) -> Architecture:
    """Return the row for a configuration."""
    return next(row for row in ARCHITECTURES.values() if isinstance(config, row.config_type))


def config_of(section: ModelSection, **more: Any) -> ModelConfig:
    """Return the configuration of a recipe's [model] with extra keys; raises ConfigError for a wrong one."""
    for key, source in _DETERMINED.items():
        if (given := section.config.get(key)) is not None:
            raise ConfigError(f"model.config.{key} = {given!r:.200}: {source} determines it; leave it out")
    row = ARCHITECTURES[section.architecture]
    return row.config_type.of_size(section.size, row.sizes, **{**section.config, **more})


def published_config(values: dict[str, Any], source: str) -> ModelConfig:
    """Read a config.json (BERT's if it has no model_type); raises DataError for an unknown type or wrong values."""
    name = values.get("model_type", "bert")
    row = next((row for row in ARCHITECTURES.values() if name in row.config_type.model_types), None)
    if row is None:
        known = ", ".join(name for row in ARCHITECTURES.values() for name in row.config_type.model_types)
        raise DataError(f"{source}: model_type = {name!r:.200}: only these are supported: {known}")
    return row.config_type.from_published(values, source)
