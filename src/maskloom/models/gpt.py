"""GPT: a Transformer decoder without cross-attention (Radford et al. 2018, 3.1), in GPT-2's layout as well."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from maskloom.layers.attention import SelfAttention
from maskloom.layers.embeddings import WordPositionEmbeddings
from maskloom.layers.feed_forward import FeedForward
from maskloom.layers.initialization import initialize
from maskloom.layers.pooling import LastToken
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer
from maskloom.models.encoder import Encoder
from maskloom.models.gpt_config import GptConfig


class Gpt(Encoder):
    """Word and position embeddings, causal layers, and the last token's vector for a sequence (equation 2).

    Layers are post-norm, as GPT's are; with `pre_norm` a norm stands before each block and one after the last layer, as
    in GPT-2. There are no segments. Weights start from a normal of `initializer_range` cut at two sigma.
    Differs from the published code: its embedding dropout falls on the table, and positions are logits as well.
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.embeddings = WordPositionEmbeddings(
            vocab_size=config.vocab_size,
            num_positions=config.max_position_embeddings,
            hidden_size=hidden,
            dropout=config.embedding_dropout_prob,
        )
        self.layers = nn.ModuleList(
            TransformerLayer(
                SelfAttention(hidden, config.num_attention_heads, config.attention_probs_dropout_prob, causal=True),
                FeedForward(hidden, config.intermediate_size, config.hidden_act),
                norm=partial(nn.LayerNorm, hidden, eps=eps),
                dropout=config.hidden_dropout_prob,
                pre_norm=config.pre_norm,
            )
            for _ in range(config.num_hidden_layers)
        )
        self.final_norm = nn.LayerNorm(hidden, eps=eps) if config.pre_norm else nn.Identity()
        self.pooler = LastToken()
        initialize(self, std=config.initializer_range)

    def embedded(self, token_ids: Tensor, segment_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the sum of word and position embeddings; segments are not told apart."""
        return self.embeddings(token_ids, layout.position_ids)
