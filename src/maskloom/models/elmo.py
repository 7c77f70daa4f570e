"""ELMo: a bidirectional language model that reads characters (Peters et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from maskloom.layers.attention import LayerState
from maskloom.layers.characters import CharacterCNN, Characters, Highway
from maskloom.layers.copies import to_device
from maskloom.layers.dropout import Dropout
from maskloom.layers.embeddings import table
from maskloom.layers.initialization import InitialRules
from maskloom.layers.layer_mix import ScalarMix
from maskloom.layers.pooling import OverTokens
from maskloom.layers.projected_lstm import ProjectedLSTMs
from maskloom.layers.recurrent import BiLSTM
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.elmo_config import ElmoConfig
from maskloom.models.encoder import Encoder, EncoderOutput
from maskloom.text.spelled_tokenizer import BEGIN_SENTENCE, CONTINUES

BEGIN_WORD, END_WORD, PADDING = 258, 259, 260
"""Character ids beyond the bytes, as published; 256 begins and 257 ends a sentence."""
NUM_CHARACTERS = 261


def _fill(module: nn.Module, name: str, values: Tensor, generator: torch.Generator) -> None:
    """Fill weights uniformly by fan-in, biases with 0; forget-gate biases start at 1, highway-gate biases at -2."""
    if "bias" not in name:
        num_read = values[0].numel() if isinstance(module, nn.Conv1d) else values.shape[-1]
        bound = 1.0 if isinstance(module, Characters) else num_read**-0.5
        values.uniform_(-bound, bound, generator=generator)
        return
    values.zero_()
    if isinstance(module, ProjectedLSTMs):
        values[:, :, module.cell_size : 2 * module.cell_size] = 1.0
    if isinstance(module, Highway):
        values[module.in_features :] = -2.0


class WordSpellings(nn.Module):
    """Spelled words to vectors: (words, characters) to (words, size); with the table `word`, which predicts words."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        size = config.hidden_size // 2
        self.characters = CharacterCNN(
            NUM_CHARACTERS,
            config.character_size,
            config.filters,
            num_highways=config.num_highways,
            output_size=size,
            activation_name=config.hidden_act,
        )
        self.word = table(config.vocab_size, size)

    def forward(self, characters: Tensor) -> Tensor:
        """Return the vectors of words; a repeated word is computed only once."""
        distinct, places = torch.unique(characters, dim=0, return_inverse=True)
        return self.characters(distinct).index_select(0, places)


class Elmo(Encoder):
    """Words spelled in bytes through a character CNN and bidirectional projected LSTMs; the layers are mixed.

    The tokens are those of `text.spelled_tokenizer`; each byte of a word gets the vector of the word. Token vectors are
    a `ScalarMix` of the embeddings, duplicated to the full width, and of all layers. A sequence's vector is the maximum
    over its words, excluding sentence marks. Hidden states are the layers before mixing.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size // 2
        self.embeddings = WordSpellings(config)
        self.layers = nn.ModuleList(
            ProjectedLSTMs(
                size,
                config.intermediate_size,
                cell_clip=config.cell_clip,
                clip=config.projection_clip,
                adds_input=config.adds_input and number > 0,
                dropout=config.hidden_dropout_prob,
            )
            for number in range(config.num_hidden_layers)
        )
        self.final_norm = Dropout(config.hidden_dropout_prob)
        self.mix = ScalarMix(config.num_hidden_layers + 1, layer_norm=config.mix_layer_norm)
        self.mix_dropout = Dropout(config.mix_dropout)
        self.top = BiLSTM(config.hidden_size, config.hidden_size, num_layers=1) if config.bilstm else None
        self.pooler = OverTokens("max")
        kinds = (Characters, nn.Conv1d, nn.Linear, ProjectedLSTMs)
        self.initial_rules: InitialRules = dict.fromkeys(kinds, _fill)

    def encode_words(
        self,
        vectors: Tensor,
        layout: SequenceLayout,
        past: Sequence[LayerState] | None = None,
        *,
        is_reversed: bool = False,
    ) -> list[Tensor]:
        """Return the input of the first layer and the output of every layer, (words, hidden) each.

        Both halves of `vectors` (words, hidden) are the same word vectors; with `is_reversed`, the right half is of
        another text of the same lengths, from right to left. `past` holds the state of each layer and is updated.
        """
        states = [vectors]
        for number, layer in enumerate(self.layers):
            state = None if past is None else past[number]
            states.append(layer(states[-1], layout, state, is_reversed))
        return states

    def encode_packed(
        self,
        token_ids: Tensor,
        segment_ids: Tensor,
        layout: SequenceLayout,
        *,
        keep_hidden_states: bool = False,
        past: Sequence[LayerState] | None = None,
    ) -> EncoderOutput:
        """Encode packed sequences as `Encoder` does; `past` holds the state of each layer, empty at first."""
        self.check_packed(token_ids, segment_ids, layout)
        device, (characters, places, counts) = token_ids.device, self.spelled(token_ids.cpu().numpy(), layout.sizes)
        words, places = SequenceLayout.from_lengths(counts, device), to_device(places, device)
        vectors = self.embeddings(to_device(characters, device))
        states = self.encode_words(torch.cat([vectors, vectors], 1), words, past)
        mixed = self.mix_dropout(self.mix(torch.stack(states, 1)))
        if self.top is not None:
            mixed = self.top(mixed, words)
        # a sequence is represented by its words, not by its sentence marks
        is_word = ~np.isin(characters[:, 1], [CONTINUES, CONTINUES + 1])
        counts = np.where(counts > 0, np.add.reduceat(np.append(is_word, 0), np.cumsum(counts) - counts), 0)
        of_words = mixed.index_select(0, to_device(np.flatnonzero(is_word), device))
        return EncoderOutput(
            last_hidden_state=mixed.index_select(0, places),
            pooled=self.pooler(of_words, SequenceLayout.from_lengths(counts, device)),
            hidden_states=tuple(state.index_select(0, places) for state in states) if keep_hidden_states else None,
        )

    def spelled(self, token_ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the characters of words (words, characters), each token's word (tokens,), and each text's words.

        `sizes` (texts,) count tokens. Every word has a begin and an end mark, and between them the bytes that fit.
        """
        most, ends = cast(ElmoConfig, self.config).max_characters, np.cumsum(sizes)
        starts = (token_ids < CONTINUES) | (token_ids >= BEGIN_SENTENCE)
        starts[(ends - sizes)[sizes > 0]] = True
        first, places = np.flatnonzero(starts), np.cumsum(starts) - 1
        depths = np.arange(len(token_ids)) - first[places] + 1
        characters = np.full((len(first), most), PADDING)
        characters[:, 0] = BEGIN_WORD
        ids = np.where(token_ids < BEGIN_SENTENCE, token_ids % CONTINUES, token_ids - BEGIN_SENTENCE + CONTINUES)
        is_in = depths < most - 1
        characters[places[is_in], depths[is_in]] = ids[is_in]
        lengths = np.minimum(np.bincount(places, minlength=len(first)), most - 2)
        characters[np.arange(len(first)), lengths + 1] = END_WORD
        edges = np.append(0, places + 1)  # the number of words that begin before each token
        return characters, places, edges[ends] - edges[ends - sizes]
