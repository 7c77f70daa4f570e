"""GPT: a Transformer decoder without cross-attention (Radford et al. 2018, 3.1), in GPT-2's layout as well."""

from __future__ import annotations

from torch import Tensor

from maskloom.layers.embeddings import WordEmbeddings
from maskloom.layers.pooling import LastToken
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.encoder import Encoder
from maskloom.models.gpt_config import GptConfig


class Gpt(Encoder):
    """Word and position embeddings, causal layers, and the last token's vector for a sequence (equations 2 and 3).

    Layers are post-norm, as in GPT; with `pre_norm` a norm comes before each block and one after the last layer, as in
    GPT-2. There are no segments.
    Differs from the published code, which applies embedding dropout to the table and computes logits for positions too.
    """

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = WordEmbeddings(
            config.vocab_size, config.hidden_size, config.embedding_dropout_prob, config.max_position_embeddings
        )
        self.layers, self.final_norm = self.transformer_stack()
        self.pooler = LastToken()

    def embedded(self, token_ids: Tensor, segment_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the sum of word and position embeddings; segments are ignored."""
        return self.embeddings(token_ids, layout.position_ids)
