"""Heads on top of an encoder: masked and causal LM, next-sentence, classification, span (BERT paper 3.3, 3.5, 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.activations import activation
from maskloom.layers.crf import LinearChainCRF
from maskloom.layers.dropout import Dropout
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.processor.onednn import Packable
from maskloom.layers.vocabulary_loss import filled_up_predictions, vocabulary_loss
from maskloom.models.architectures import architecture_of
from maskloom.models.bilstm_tagger import BiLSTMTagger
from maskloom.models.document_head import DocumentHead
from maskloom.models.encoder import Encoder


class MaskedLMHead(nn.Module):
    """dense, activation, LayerNorm, then the word embeddings as decoder, plus a bias (paper 3.3.1).

    (predictions, hidden) to (predictions, vocabulary). `decoder` is the encoder's own word-embedding parameter; the
    dense layer goes from `hidden_size`, by default the same, to its width.
    """

    def __init__(
        self, decoder: nn.Parameter, activation_name: str, layer_norm_eps: float, hidden_size: int | None = None
    ) -> None:
        super().__init__()
        vocab_size, width = decoder.shape
        self.dense = Dense(hidden_size or width, width)
        self.layer_norm = nn.LayerNorm(width, eps=layer_norm_eps)
        self.decoder = decoder
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activation = activation(activation_name)

    def transform(self, hidden: Tensor) -> Tensor:
        """Return the input of the decoder: (predictions, width)."""
        return self.layer_norm(self.activation(self.dense(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits."""
        return F.linear(self.transform(hidden), self.decoder, self.bias)

    def loss_sum(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy of the predictions against labels (predictions,), in nats."""
        hidden, labels, weights = filled_up_predictions(hidden, labels, weights)
        return vocabulary_loss(self.transform(hidden), self.decoder, self.bias, labels, weights)

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Resize the bias, with new values at 0; the encoder resizes the decoder."""
        self.bias = nn.Parameter(F.pad(self.bias, (0, vocab_size - len(self.bias))))  # a negative width truncates


class LanguageModelHead(Packable):
    """The word embeddings as decoder, without a bias: (predictions, hidden) to (predictions, vocabulary).

    Radford et al. 2018, equation 2. `decoder` is the encoder's own word-embedding parameter.
    """

    bias = None

    def __init__(self, decoder: nn.Parameter) -> None:
        super().__init__()
        self.decoder = decoder

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The word embeddings."""
        return self.decoder

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits."""
        return self.packed_product(hidden) if self.is_packed_for(hidden) else F.linear(hidden, self.decoder)

    def loss_sum(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy of the predictions against labels (predictions,), in nats."""
        return vocabulary_loss(hidden, self.decoder, None, labels, weights)

    def resize(self, vocab_size: int) -> None:
        """Do nothing: the encoder resizes the decoder."""


class BidirectionalLMHead(nn.Module):
    """A softmax over words that both directions of a language model share (Peters et al. 2018, equation 1 and after).

    It has the table `decoder` (vocabulary, size) and a bias. The loss takes the states of one direction, (predictions,
    size). For both side by side, (predictions, 2 size), the directions' logits for the word between are summed.
    """

    def __init__(self, decoder: nn.Parameter) -> None:
        super().__init__()
        self.decoder = decoder
        self.bias = nn.Parameter(torch.zeros(len(decoder)))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits; those of one direction if `hidden` is as wide as the table."""
        ways = hidden.unflatten(-1, (-1, self.decoder.shape[1]))
        return F.linear(ways.sum(-2), self.decoder, self.bias * ways.shape[-2])

    def loss_sum(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy of one direction's predictions against labels (predictions,), in nats."""
        return vocabulary_loss(hidden, self.decoder, self.bias, labels, weights)

    resize = MaskedLMHead.resize


class ClassificationHead(nn.Module):
    """Dropout, then dense: (rows, hidden) to (rows, num_labels) (paper 3.5).

    Rows are pooled sequences for classification, multiple choice and next sentences (0 is the next one, 3.3.2), tokens
    for tagging and for answer spans, whose outputs are the start and end scores (4.2).
    Differs from the paper, which has no bias; the published code has one.
    """

    def __init__(self, hidden_size: int, num_labels: int, dropout: float = 0.0, *, bias: bool = True) -> None:
        super().__init__()
        self.num_labels = num_labels
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(hidden_size, num_labels, bias=bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return one logit (or regression value) per label."""
        return self.dense(self.dropout(vectors))


class DeepClassificationHead(ClassificationHead):
    """The same on tanh of another dense layer, with dropout before each layer, as in BART's code."""

    def __init__(self, hidden_size: int, num_labels: int, dropout: float = 0.0) -> None:
        super().__init__(hidden_size, num_labels, dropout)
        self.inner = nn.Linear(hidden_size, hidden_size)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return one logit (or regression value) per label."""
        return super().forward(torch.tanh(self.inner(self.dropout(vectors))))


@dataclass(frozen=True)
class HeadRow:
    """The description of a head.

    `build` takes the encoder, the number of labels and the head's own options. `reads` is the head's input: the vectors
    of tokens, the pooled vectors of sequences, the pooled vectors of the sequences of a document, the vectors of
    layers, the scores of tags, or the vectors of tokens as a decoder's memory. A head that `is_labelled` has an output
    for each label; a head that `is_tied` uses the word embeddings as its decoder.
    """

    build: Callable[[Encoder, int | None, Mapping[str, Any]], nn.Module]
    reads: Literal["tokens", "pooled", "document", "layers", "scores", "memory"]
    is_labelled: bool = False
    is_tied: bool = False


def _masked_lm(encoder: Encoder, num_labels: int | None, options: Mapping[str, Any]) -> nn.Module:
    config = encoder.config
    return MaskedLMHead(encoder.word_embeddings, config.hidden_act, config.layer_norm_eps, config.hidden_size)


def _classifier(encoder: Encoder, num_labels: int | None, options: Mapping[str, Any]) -> nn.Module:
    row = architecture_of(encoder.config)
    if row.has_deep_classifier:
        return DeepClassificationHead(encoder.config.hidden_size, _required(num_labels), encoder.config.head_dropout)
    return _tagger(encoder, num_labels, options, bias=row.has_classifier_bias)


def _tagger(
    encoder: Encoder, num_labels: int | None, options: Mapping[str, Any], *, bias: bool = True
) -> ClassificationHead:
    config = encoder.config
    return ClassificationHead(config.hidden_size, _required(num_labels), config.head_dropout, bias=bias)


def _required(num_labels: int | None) -> int:
    if num_labels is None or num_labels < 1:
        raise ConfigError(f"a classifier needs num_labels of at least 1; given: {num_labels}")
    return num_labels


HEADS: dict[str, HeadRow] = {
    "mlm": HeadRow(_masked_lm, "tokens", is_tied=True),
    "lm": HeadRow(lambda encoder, *_: LanguageModelHead(encoder.word_embeddings), "tokens", is_tied=True),
    "nsp": HeadRow(lambda encoder, *_: ClassificationHead(encoder.config.hidden_size, 2), "pooled"),
    "classifier": HeadRow(_classifier, "pooled", is_labelled=True),
    "tagger": HeadRow(_tagger, "tokens", is_labelled=True),
    "bilstm_tagger": HeadRow(
        lambda encoder, num_labels, options: BiLSTMTagger(encoder.config, _required(num_labels), **options),
        "layers",
        is_labelled=True,
    ),
    "document": HeadRow(
        lambda encoder, num_labels, options: DocumentHead(
            encoder.config.hidden_size, _required(num_labels), encoder.config.head_dropout
        ),
        "document",
        is_labelled=True,
    ),
    "crf": HeadRow(lambda encoder, num_labels, options: LinearChainCRF(_required(num_labels)), "scores"),
    "choice": HeadRow(lambda encoder, _, options: _tagger(encoder, 1, options), "pooled"),
    "decoder": HeadRow(lambda encoder, *_: encoder.new_decoder(), "memory", is_tied=True),
    "span": HeadRow(lambda encoder, *_: ClassificationHead(encoder.config.hidden_size, 2), "tokens"),
    "bilm": HeadRow(lambda encoder, *_: BidirectionalLMHead(encoder.word_embeddings), "tokens", is_tied=True),
}
"""The heads by name; each is built, loaded, saved and exported according to its row."""
