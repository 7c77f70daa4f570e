"""BERT: a bidirectional Transformer encoder (Devlin et al. 2018, 3.1, 3.2), or its left-to-right ablation."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from maskloom.layers.activations import ACTIVATIONS
from maskloom.layers.embeddings import TokenEmbeddings
from maskloom.layers.pooling import TokenPooler
from maskloom.layers.positions import rotation
from maskloom.layers.recurrent import BiLSTM
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.bert_config import BertConfig
from maskloom.models.encoder import Encoder

__all__ = ["Bert", "BertConfig"]


class Bert(Encoder):
    """The encoder: embeddings, layers (post-norm as published, or pre-norm with `pre_norm`), pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = TokenEmbeddings(
            vocab_size=config.vocab_size,
            num_segments=config.type_vocab_size,
            num_positions=None if config.rotary else config.max_position_embeddings,
            hidden_size=config.hidden_size,
            layer_norm_eps=config.layer_norm_eps,
            dropout=config.hidden_dropout_prob,
            embedding_size=config.embedding_size,
        )
        self.layers, self.final_norm = self.transformer_stack()
        self.top = BiLSTM(config.hidden_size, config.hidden_size, num_layers=1) if config.bilstm else None
        reads = "ends" if config.bilstm else "last" if config.causal else "first"
        # RoFormer's classifiers use the activation of the layers where BERT's pooler uses tanh.
        activation = ACTIVATIONS[config.hidden_act] if config.rotary else torch.tanh
        self.pooler = TokenPooler(config.hidden_size, reads=reads, activation=activation)

    def layer_layout(self, layout: SequenceLayout) -> SequenceLayout:
        """Return the layout that the layers read: if positions are rotary, with their rotation."""
        if not cast(BertConfig, self.config).rotary:
            return layout
        positions, num_heads = layout.filled_up(layout.position_ids.unsqueeze(1)), self.config.num_attention_heads
        return replace(layout, rotation=rotation(positions, self.config.hidden_size // num_heads, num_heads))

    def embedded(self, token_ids: Tensor, segment_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the normed sum of word, segment and, unless positions are rotary, position embeddings (paper 3.2)."""
        return self.embeddings(token_ids, segment_ids, layout.position_ids)
