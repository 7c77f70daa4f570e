"""Heads on top of an encoder: language models, classification, spans, tags on frozen vectors, and documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.activations import activation
from maskloom.layers.copies import to_device
from maskloom.layers.crf import LinearChainCRF
from maskloom.layers.dropout import Dropout
from maskloom.layers.general_attention import masked_softmax
from maskloom.layers.layer_mix import LayerCombination, ScalarMix
from maskloom.layers.processor.matrix_products import Dense
from maskloom.layers.processor.onednn import Packable
from maskloom.layers.recurrent import BiLSTM, RecurrentLayer
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.vocabulary_loss import filled_up_predictions, vocabulary_loss
from maskloom.models.architectures import architecture_of
from maskloom.models.encoder import Encoder
from maskloom.models.model_config import ModelConfig


class VocabularyHead(nn.Module):
    """The word embeddings as decoder, with an optional bias: (predictions, hidden) to (predictions, vocabulary).

    `decoder` is the encoder's own word-embedding parameter.
    """

    bias: nn.Parameter | None

    def __init__(self, decoder: nn.Parameter, *, has_bias: bool = True) -> None:
        super().__init__()
        self.decoder = decoder
        self.register_parameter("bias", nn.Parameter(torch.zeros(len(decoder))) if has_bias else None)

    def transform(self, hidden: Tensor) -> Tensor:
        """Return the input of the decoder: by default the vectors themselves."""
        return hidden

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits."""
        return F.linear(self.transform(hidden), self.decoder, self.bias)

    def loss_sum(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy of the predictions against labels (predictions,), in nats."""
        return vocabulary_loss(self.transform(hidden), self.decoder, self.bias, labels, weights)

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Resize the bias, with new values at 0; the encoder resizes the decoder."""
        if self.bias is not None:
            self.bias = nn.Parameter(F.pad(self.bias, (0, vocab_size - len(self.bias))))  # a negative width truncates


class MaskedLMHead(VocabularyHead):
    """dense, activation, LayerNorm, then the word embeddings as decoder, plus a bias (paper 3.3.1)."""

    bias: nn.Parameter  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, decoder: nn.Parameter, config: ModelConfig) -> None:
        super().__init__(decoder)
        self.dense = Dense(config.hidden_size, decoder.shape[1])
        self.layer_norm = nn.LayerNorm(decoder.shape[1], eps=config.layer_norm_eps)
        self.activation = activation(config.hidden_act)

    def transform(self, hidden: Tensor) -> Tensor:
        """Return the input of the decoder: (predictions, width of the embeddings)."""
        return self.layer_norm(self.activation(self.dense(hidden)))

    def loss_sum(self, hidden: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy of the predictions against labels (predictions,), in nats."""
        return super().loss_sum(*filled_up_predictions(hidden, labels, weights))


class LanguageModelHead(VocabularyHead, Packable):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The word embeddings as decoder, without a bias (Radford et al. 2018, equation 2)."""

    def __init__(self, decoder: nn.Parameter) -> None:
        super().__init__(decoder, has_bias=False)

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The word embeddings."""
        return self.decoder

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits."""
        return self.packed_product(hidden) if self.is_packed_for(hidden) else super().forward(hidden)


class BidirectionalLMHead(VocabularyHead):
    """A softmax over words that both directions of a language model share (Peters et al. 2018, 3.1).

    The loss takes the states of one direction, (predictions, size). For both side by side, (predictions, 2 size), the
    directions' logits for the word between are summed.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits; those of one direction if `hidden` is as wide as the table."""
        ways = hidden.unflatten(-1, (-1, self.decoder.shape[1]))
        return F.linear(ways.sum(-2), self.decoder, cast(Tensor, self.bias) * ways.shape[-2])


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


class BiLSTMTagger(nn.Module):
    """A tagger on vectors of a frozen encoder (BERT paper 5.4): (words, vectors, width) to (words, num_labels).

    `layers` selects hidden states, as in `LayerCombination`; several vectors of a word are concatenated or, for
    "scalar_mix", mixed with learned weights, with `mix_layer_norm` after normalisation. `lstm_size` is the width of
    both directions together: the paper's "768-dimensional" is ambiguous, and we take it that the output is as wide as
    BERT-base. `dropout` is applied before the LSTM, between its layers, and before the linear layer. With `word_size`,
    word vectors of that size are concatenated with the mixed vector (Peters et al. 2018, 3.3). Raises ConfigError for
    unknown layers and for an odd `lstm_size`.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_labels: int,
        *,
        layers: str = "concat_last_four",
        lstm_size: int = 768,
        lstm_layers: int = 2,
        dropout: float = 0.1,
        mix_layer_norm: bool = False,
        word_size: int = 0,
    ) -> None:
        super().__init__()
        if lstm_size < 2 or lstm_size % 2:
            raise ConfigError(f"lstm_size = {lstm_size} must be even and at least 2: two directions share it")
        self.num_labels, self.word_size = num_labels, word_size
        self.combination = LayerCombination.of(layers, config.num_hidden_layers)
        is_mixed, num_vectors = self.combination.join == "mix", self.combination.num_vectors
        width = self.combination.width(config.hidden_size)
        self.mix = ScalarMix(num_vectors, layer_norm=mix_layer_norm) if is_mixed else None
        self.dropout = nn.Dropout(dropout)
        self.bilstm = BiLSTM(
            (width if is_mixed else width * num_vectors) + word_size, lstm_size, num_layers=lstm_layers, dropout=dropout
        )
        self.dense = nn.Linear(lstm_size, num_labels)

    def forward(self, vectors: Tensor, layout: SequenceLayout, word_vectors: Tensor | None = None) -> Tensor:
        """Return a logit per tag: (words, vectors, width) and, if used, (words, word_size) to (words, tags).

        Raises ConfigError for word vectors of a size other than the model's.
        """
        size = 0 if word_vectors is None else word_vectors.shape[1]
        if size != self.word_size:
            raise ConfigError(
                f"word vectors have {size} numbers; the model was trained with {self.word_size or 'none'}"
            )
        mixed = vectors.flatten(1) if self.mix is None else self.mix(vectors)
        mixed = mixed if word_vectors is None else torch.cat([mixed, word_vectors], 1)
        return self.dense(self.dropout(self.bilstm(self.dropout(mixed), layout)))


class DocumentHead(nn.Module):
    """Title-guided attention over the sentences of a document, with a logit for each label (Dong et al. 2019).

    A bidirectional GRU reads sentence vectors, and two attentions its states. The energies are q tanh(W h + b), with W
    and b shared by both attentions: q is the title vector in one and a learned vector in the other. The document vector
    is [title; context of the title; context of the learned vector]; dropout and a dense layer follow. Raises
    ConfigError for an odd hidden size, which the two directions share equally.
    """

    def __init__(self, hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        if hidden_size % 2:
            raise ConfigError(f"hidden size {hidden_size} must be even: the two directions over sentences share it")
        self.num_labels = num_labels
        self.sentences = RecurrentLayer("gru", hidden_size, bidirectional=True, dropout=0.0)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.query = nn.Parameter(torch.empty(hidden_size))
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(3 * hidden_size, num_labels)

    def forward(
        self, vectors: Tensor, counts: np.ndarray, uses: tuple[bool, bool, bool] = (True, True, True)
    ) -> Tensor:
        """Return (documents, labels) for vectors (sequences, hidden): each document's title, then its sentences.

        `counts` (documents,) are at least 2. Parts of the document vector for which `uses` is False are zeroed.
        """
        firsts, device = np.cumsum(counts) - counts, vectors.device
        titles = vectors.index_select(0, to_device(firsts, device))
        others = to_device(np.delete(np.arange(len(vectors)), firsts), device)
        layout = SequenceLayout.from_lengths(counts - 1, device)
        states = layout.padded(self.sentences(vectors.index_select(0, others), layout))
        queries = torch.stack([titles, self.query.expand_as(titles)], 1)
        is_sentence = torch.arange(layout.max_length, device=device) < layout.lengths.unsqueeze(1)
        energies = queries @ self.key(states).tanh().transpose(1, 2)
        read = masked_softmax(energies, is_sentence.unsqueeze(1)) @ states
        parts = torch.cat([titles.unsqueeze(1), read], 1) * to_device(np.array(uses), device).unsqueeze(1)
        return self.dense(self.dropout(parts.flatten(1)))


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


def _sizes(encoder: Encoder, num_labels: int | None) -> tuple[int, int, float]:
    """Return the hidden size, the number of labels, which a labelled head needs, and the dropout of a head."""
    if num_labels is None or num_labels < 1:
        raise ConfigError(f"a classifier needs num_labels of at least 1; given: {num_labels}")
    return encoder.config.hidden_size, num_labels, encoder.config.head_dropout


def _classifier(encoder: Encoder, num_labels: int | None, _: Mapping[str, Any]) -> nn.Module:
    row, sizes = architecture_of(encoder.config), _sizes(encoder, num_labels)
    if row.has_deep_classifier:
        return DeepClassificationHead(*sizes)
    return ClassificationHead(*sizes, bias=row.has_classifier_bias)


def _bilstm_tagger(encoder: Encoder, num_labels: int | None, options: Mapping[str, Any]) -> nn.Module:
    return BiLSTMTagger(encoder.config, _sizes(encoder, num_labels)[1], **options)


HEADS: dict[str, HeadRow] = {
    "mlm": HeadRow(lambda encoder, *_: MaskedLMHead(encoder.word_embeddings, encoder.config), "tokens", is_tied=True),
    "lm": HeadRow(lambda encoder, *_: LanguageModelHead(encoder.word_embeddings), "tokens", is_tied=True),
    "nsp": HeadRow(lambda encoder, *_: ClassificationHead(encoder.config.hidden_size, 2), "pooled"),
    "classifier": HeadRow(_classifier, "pooled", is_labelled=True),
    "tagger": HeadRow(
        lambda encoder, num_labels, _: ClassificationHead(*_sizes(encoder, num_labels)), "tokens", is_labelled=True
    ),
    "bilstm_tagger": HeadRow(_bilstm_tagger, "layers", is_labelled=True),
    "document": HeadRow(
        lambda encoder, num_labels, _: DocumentHead(*_sizes(encoder, num_labels)), "document", is_labelled=True
    ),
    "crf": HeadRow(lambda encoder, num_labels, _: LinearChainCRF(_sizes(encoder, num_labels)[1]), "scores"),
    "choice": HeadRow(lambda encoder, *_: ClassificationHead(*_sizes(encoder, 1)), "pooled"),
    "decoder": HeadRow(lambda encoder, *_: encoder.new_decoder(), "memory", is_tied=True),
    "span": HeadRow(lambda encoder, *_: ClassificationHead(encoder.config.hidden_size, 2), "tokens"),
    "bilm": HeadRow(lambda encoder, *_: BidirectionalLMHead(encoder.word_embeddings), "tokens", is_tied=True),
}
"""The heads by name; each is built, loaded, saved and exported according to its row."""
