"""Heads on top of an encoder: masked-LM, next-sentence, classification, span (BERT paper 3.3, 3.5, 4.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskloom.layers.activations import activation
from maskloom.layers.dropout import Dropout
from maskloom.layers.matrix_products import Dense
from maskloom.layers.vocabulary_loss import vocabulary_loss


class MaskedLMHead(nn.Module):
    """dense, activation, LayerNorm, then the word embeddings as decoder, plus a bias (paper 3.3.1).

    (predictions, hidden) to (predictions, vocabulary). `decoder` is the encoder's own word-embedding parameter: its
    gradient comes from both ends.
    """

    def __init__(self, decoder: nn.Parameter, *, activation_name: str, layer_norm_eps: float) -> None:
        super().__init__()
        vocab_size, hidden_size = decoder.shape
        self.dense = Dense(hidden_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.decoder = decoder
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activation = activation(activation_name)

    def transform(self, hidden: Tensor) -> Tensor:
        """Return what the decoder is applied to: (predictions, hidden)."""
        return self.layer_norm(self.activation(self.dense(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits."""
        return F.linear(self.transform(hidden), self.decoder, self.bias)

    def loss_sum(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the summed cross-entropy of the predictions against labels (predictions,), in nats."""
        return vocabulary_loss(self.transform(hidden), self.decoder, self.bias, labels)


class NextSentenceHead(nn.Module):
    """Is the second sentence the actual next one: (sequences, hidden) to (sequences, 2); class 0 is "next" (3.3.2)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the logits of "next" and "random"."""
        return self.dense(pooled)


class ClassificationHead(nn.Module):
    """Dropout, then dense: (rows, hidden) to (rows, num_labels) (paper 3.5).

    Rows are pooled sequences for classification and multiple choice, tokens for tagging.
    Differs from the paper: it writes no bias; the published code has one.
    """

    def __init__(self, hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        if num_labels < 1:
            raise ValueError(f"num_labels is {num_labels}; at least 1 is needed")
        self.num_labels = num_labels
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(hidden_size, num_labels)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return one logit (or regression value) per label."""
        return self.dense(self.dropout(vectors))


class SpanHead(nn.Module):
    """Start and end logits of an answer: (tokens, hidden) to (tokens, 2), without dropout (paper 4.2).

    Differs from the paper: its start and end vectors have no bias; the published code has one.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits of "the answer starts here" and "it ends here"."""
        return self.dense(hidden)
