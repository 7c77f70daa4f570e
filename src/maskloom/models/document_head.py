"""The head of title-guided attention over the sentences of a document (Dong et al. 2019)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.copies import to_device
from maskloom.layers.dropout import Dropout
from maskloom.layers.general_attention import masked_softmax
from maskloom.layers.recurrent import RecurrentLayer
from maskloom.layers.sequence_layout import SequenceLayout


class DocumentHead(nn.Module):
    """A bidirectional GRU over sentence vectors, two attentions over its states, and a logit for each label.

    The energies are q tanh(W h + b), with W and b shared by both attentions: q is the title vector in one and a learned
    vector in the other. The document vector is [title; context of the title; context of the learned vector]; dropout
    and a dense layer follow. Raises ConfigError for an odd hidden size, which the two directions share equally.
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
