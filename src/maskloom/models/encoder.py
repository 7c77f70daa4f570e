"""The base of all encoders: packed sequences through embeddings, layers and pooler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from maskloom.errors import ConfigError
from maskloom.layers.attention import (
    CrossAttention,
    LayerState,
    NarrowCrossAttention,
    NarrowSelfAttention,
    SelfAttention,
)
from maskloom.layers.copies import to_device
from maskloom.layers.feed_forward import FeedForward, GatedFeedForward
from maskloom.layers.initialization import RULES, InitialRules
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.layers.transformer import TransformerLayer
from maskloom.models.model_config import ModelConfig


@cache
def make_exportable() -> None:
    """Register `EncoderOutput` with torch.export, only when needed, because that import takes seconds."""
    torch.export.register_dataclass(EncoderOutput, serialized_type_name="maskloom.EncoderOutput")


@dataclass(frozen=True)
class EncoderOutput:
    """Token vectors and pooled vectors of a batch.

    `last_hidden_state` is (tokens, hidden) from a packed call and (batch, length, hidden), zero at padding, from a
    padded one; `pooled` is (sequences, hidden). `hidden_states` holds the embeddings, then the output of every
    layer, including the last; it is None unless requested.
    """

    last_hidden_state: Tensor
    pooled: Tensor
    hidden_states: tuple[Tensor, ...] | None = None


class Encoder(nn.Module):
    """A stack of layers over packed tokens; padding is never computed.

    A subclass creates `embeddings` (with a table `word`), `layers`, `final_norm` and `pooler`, and maps ids to vectors
    in `embedded`. It may put a layer on `top`, which `through_top` calls. If it `pools_state`, `pooled` needs the state
    of the layers. Its parameters are filled by `build_model`, by `initial_rules` where they differ from `RULES`.
    """

    pools_state = False
    initial_rules: InitialRules = RULES

    config: ModelConfig
    embeddings: nn.Module
    layers: nn.ModuleList
    final_norm: nn.Module
    pooler: nn.Module
    top: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.top = None

    def train(self, mode: bool = True) -> Self:
        """Set the mode; direct submodules whose weights are all frozen stay in evaluation mode, without dropout."""
        super().train(mode)
        for part in self.children():
            if (weights := [*part.parameters()]) and not any(each.requires_grad for each in weights):
                part.eval()
        return self

    @property
    def word_embeddings(self) -> nn.Parameter:
        """The word-embedding matrix (vocabulary, hidden), shared with language-model heads."""
        return cast(nn.Parameter, cast(nn.Embedding, self.embeddings.word).weight)

    def new_decoder(self) -> nn.Module:
        """Return a decoder that attends to this encoder's output; raises ConfigError if the architecture has none."""
        raise ConfigError(f"{type(self).__name__}: an architecture without a decoder; a Transformer has one")

    def freeze(self) -> None:
        """Freeze everything except the modules that read the layers: their mix and the layer on top."""
        for name, weights in self.named_parameters():
            weights.requires_grad_(name.startswith(("mix.", "top.")))

    def read_through_decoder(self) -> None:
        """Prepare for heads without a decoder; does nothing here, since they read most encoders directly."""

    def through_top(self, token_ids: Tensor, hidden: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the output of the layer on top for tokens and their vectors, (tokens, hidden)."""
        return cast(nn.Module, self.top)(hidden, layout)

    def pooled(self, hidden: Tensor, layout: SequenceLayout, past: Sequence[LayerState] | None) -> Tensor:
        """Pool token vectors to one vector per sequence, (sequences, hidden); `past` has the state of every layer."""
        return self.pooler(hidden, layout)

    def transformer_stack(self, *, of_decoder: bool = False) -> tuple[nn.ModuleList, nn.Module]:
        """Return the layers of its configuration, causal if that is, or of its decoder, and the norm after the last."""
        config = self.config
        block = GatedFeedForward if getattr(config, "gated", False) else FeedForward
        attention, cross_attention = SelfAttention, CrossAttention
        if key_size := getattr(config, "key_size", None):
            attention = partial(NarrowSelfAttention, key_size=key_size)
            cross_attention = partial(NarrowCrossAttention, key_size=key_size)
        sizes = (config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob)
        activation_dropout = getattr(config, "activation_dropout", 0.0)
        number = getattr(config, "num_decoder_layers", None) if of_decoder else None
        norm = partial(nn.LayerNorm, config.hidden_size, eps=config.layer_norm_eps)
        pre_norm = getattr(config, "pre_norm", False)
        layers = nn.ModuleList(
            TransformerLayer(
                attention(*sizes, causal=config.is_causal or of_decoder),
                block(config.hidden_size, config.intermediate_size, config.hidden_act, activation_dropout),
                norm=norm,
                dropout=config.hidden_dropout_prob,
                pre_norm=pre_norm,
                cross_attention=cross_attention(*sizes) if of_decoder else None,
            )
            for _ in range(number or config.num_hidden_layers)
        )
        return layers, norm() if pre_norm else nn.Identity()

    def layer_layout(self, layout: SequenceLayout) -> SequenceLayout:
        """Return the layout that the layers read."""
        return layout

    def embedded(self, token_ids: Tensor, segment_ids: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the input of the first layer, (tokens, hidden): by default word embeddings alone."""
        return self.embeddings(token_ids)

    def encode_packed(
        self,
        token_ids: Tensor,
        segment_ids: Tensor,
        layout: SequenceLayout,
        *,
        keep_hidden_states: bool = False,
        past: Sequence[LayerState] | None = None,
    ) -> EncoderOutput:
        """Encode packed sequences: ids and segments (tokens,) to vectors (tokens, hidden) and (sequences, hidden).

        `past` holds each layer's state of earlier tokens, such as keys and values, and is extended by these tokens.
        Raises ValueError for a layout with a different number of tokens or a sequence beyond max_position_embeddings.
        """
        self.check_packed(token_ids, segment_ids, layout)
        layout = self.layer_layout(layout)
        if past is None and self.pools_state:
            past = [LayerState(token_ids.new_empty(0)) for _ in self.layers]
        hidden = self.embedded(token_ids, segment_ids, layout)
        dtype = self.word_embeddings.dtype  # on a GPU, embeddings and layers may return half precision
        states = [hidden.to(dtype)]
        if layout.num_tokens > 0:
            rows = layout.filled_up(hidden)
            for number, layer in enumerate(self.layers):
                rows = layer(rows, layout) if past is None else layer(rows, layout, past[number])
                hidden = rows[: layout.num_tokens]
                if keep_hidden_states:
                    states.append(hidden.to(dtype))
        elif keep_hidden_states:
            states *= 1 + len(self.layers)
        hidden = states[-1] = self.final_norm(hidden.to(dtype))
        if self.top is not None and layout.num_tokens > 0:
            hidden = states[-1] = self.through_top(token_ids, hidden, layout)
        return EncoderOutput(
            last_hidden_state=hidden,
            pooled=self.pooled(hidden, layout, past),
            hidden_states=tuple(states) if keep_hidden_states else None,
        )

    def forward(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        keep_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encode padded sequences: (batch, length) to (batch, length, hidden) and (batch, hidden).

        `attention_mask` is 1 (or True) at real tokens, in any pattern; a token's position is its column. Padding is
        not computed: its vectors are zero, only real tokens are pooled, and a row without any pools to zeros. Raises
        ValueError for mismatched shapes, other values in the mask, or a length beyond max_position_embeddings.
        """
        is_exporting, device = torch.compiler.is_exporting(), token_ids.device
        if not is_exporting:
            self._check_padded(token_ids, segment_ids, attention_mask)
        batch, length = token_ids.shape
        ids = token_ids.flatten()
        segments = torch.zeros_like(ids) if segment_ids is None else segment_ids.flatten()
        is_real = index = None
        if is_exporting:  # only operations whose sizes and branches do not depend on values
            make_exportable()
            is_real = torch.ones_like(token_ids) != 0 if attention_mask is None else attention_mask != 0
            layout = SequenceLayout.of_padded(is_real)
        elif attention_mask is None:
            layout = SequenceLayout.from_lengths(np.full(batch, length), device)
        else:
            real = attention_mask.cpu().numpy() != 0
            positions = np.flatnonzero(real)
            layout = SequenceLayout.from_lengths(real.sum(1), device, position_ids=positions % max(length, 1))
            index = to_device(positions, device)
            ids, segments = ids[index], segments[index]
        output = self.encode_packed(ids, segments, layout, keep_hidden_states=keep_hidden_states)

        def pad(packed: Tensor) -> Tensor:
            if index is not None:
                packed = packed.new_zeros(batch * length, packed.shape[-1]).index_copy(0, index, packed)
            padded = packed.view(batch, length, packed.shape[-1])
            return padded if is_real is None else padded * is_real.unsqueeze(2)

        states = None if output.hidden_states is None else tuple(pad(state) for state in output.hidden_states)
        return EncoderOutput(pad(output.last_hidden_state), output.pooled, states)

    def check_packed(self, token_ids: Tensor, segment_ids: Tensor, layout: SequenceLayout) -> None:
        """Raise ValueError for ids that do not fit a layout, and for sequences that are too long."""
        if token_ids.shape != (layout.num_tokens,) or segment_ids.shape != (layout.num_tokens,):
            raise ValueError(
                f"token ids {tuple(token_ids.shape)} and segment ids {tuple(segment_ids.shape)} "
                f"do not fit a layout of {layout.num_tokens} tokens"
            )
        if layout.max_position >= self.config.max_position_embeddings:
            raise ValueError(
                f"a sequence of length {layout.max_position + 1} exceeds max_position_embeddings "
                f"{self.config.max_position_embeddings}"
            )

    def _check_padded(self, token_ids: Tensor, segment_ids: Tensor | None, attention_mask: Tensor | None) -> None:
        if token_ids.ndim != 2:
            raise ValueError(f"token ids have shape {tuple(token_ids.shape)}; (batch, length) is needed")
        for name, tensor in (("segment ids", segment_ids), ("attention mask", attention_mask)):
            if tensor is not None and tensor.shape != token_ids.shape:
                raise ValueError(f"{name}: shape {tuple(tensor.shape)}, but token ids have {tuple(token_ids.shape)}")
        if attention_mask is not None and not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
            raise ValueError("the attention mask holds values other than 0 and 1")
        if (length := token_ids.shape[1]) > (limit := self.config.max_position_embeddings):
            raise ValueError(f"sequences of length {length} exceed max_position_embeddings {limit}")
