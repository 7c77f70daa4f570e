"""An architecture added from outside the package; docs/ADDING.md shows this file."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from maskloom.checkpoints.published.format import PublishedFormat, TensorName, own_rows, plain_rows
from maskloom.layers.embeddings import WordEmbeddings
from maskloom.layers.initialization import constants
from maskloom.layers.pooling import LastToken, OverTokens
from maskloom.models.architectures import Architecture
from maskloom.models.encoder import Encoder
from maskloom.models.model_config import ModelConfig


class BagConfig(ModelConfig):
    """The keys shared by all encoders."""

    model_types: ClassVar = ("bag",)


class RootNorm(nn.Module):
    """x divided by its root mean square, times learned weights."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden):
        return self.weight * F.rms_norm(hidden, hidden.shape[-1:])


class MixingLayer(nn.Module):
    """x + tanh(W (mean of the sequence)): (tokens, hidden) to (tokens, hidden)."""

    def __init__(self, size):
        super().__init__()
        self.mean, self.dense = OverTokens("mean"), nn.Linear(size, size)

    def forward(self, hidden, layout):
        means = self.mean(hidden[: layout.num_tokens], layout)
        return hidden + layout.filled_up(torch.tanh(self.dense(means)).repeat_interleave(layout.lengths, 0))


class Bag(Encoder):
    """Embeddings, mixing layers, a norm; the last token represents the sequence."""

    initial_rules: ClassVar = {RootNorm: constants(weight=1.0)}

    def __init__(self, config):
        super().__init__()
        self.config, size = config, config.hidden_size
        self.embeddings = WordEmbeddings(
            config.vocab_size, size, config.hidden_dropout_prob, config.max_position_embeddings
        )
        self.layers = nn.ModuleList(MixingLayer(size) for _ in range(config.num_hidden_layers))
        self.final_norm, self.pooler = RootNorm(size), LastToken()

    def embedded(self, token_ids, segment_ids, layout):
        return self.embeddings(token_ids, layout.position_ids)


BAG = Architecture(
    "bag",
    BagConfig,
    Bag,
    vocabulary_head="lm",
    sizes={"tiny": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}},
    undecayed=(RootNorm,),
    has_classifier_bias=False,
)

BAG_HEADS = {"lm": (), "classifier": (TensorName("heads.classifier.dense.weight", "bag_labels.weight"),)}


def bag_rows(config, heads):
    single = ("embeddings.word", "embeddings.position", "final_norm")
    rows = [*own_rows(*(f"encoder.{name}.weight" for name in single))]
    for number in range(config.num_hidden_layers):
        rows += plain_rows(f"encoder.layers.{number}.dense", f"mixing.{number}")
    return [*rows, *(row for head in heads for row in BAG_HEADS[head])]


BAG_FORMAT = PublishedFormat(
    name="bag of words",
    prefix="",
    rows=bag_rows,
    heads=BAG_HEADS,
    class_names=lambda config: ((("classifier",), "BagClassifier"), ((), "Bag")),
)
