"""Embeddings of a new model initialised from word vectors (Mikolov et al. 2013)."""

from __future__ import annotations

import torch

from maskloom.errors import ConfigError, amount
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.model_config import ModelSection
from maskloom.runs.words import open_vectors
from maskloom.text.normalization import whole_word
from maskloom.text.tokenizer import Tokenizer


def take_word_vectors(model: EncoderWithHeads, section: ModelSection, tokenizer: Tokenizer) -> list[str]:
    """Copy word vectors into the embeddings of the tokens that are these words; return sentences to report.

    Tokens are looked up as they are, then in the case in which they are most frequent. An uncased tokenizer's are then
    looked up as the most frequent word that it turns into them, such as one with accents. Special tokens, pieces that
    continue a word, and words without a vector keep their values. Raises ConfigError for vectors of another width, and
    if no token has a vector.
    """
    if section.word_vectors is None:
        return []
    vocabulary = tokenizer.vocabulary
    vectors, table = open_vectors(section.word_vectors), model.encoder.word_embeddings
    (size, width), folded = (vectors.matrix.shape[1], table.shape[1]), dict[str, int]()
    if size != width:
        raise ConfigError(
            f"model.word_vectors: {section.word_vectors} has vectors of {size} numbers, but the embeddings of the "
            f"model have {width}; set model.config.hidden_size = {size} (or, in a BERT, model.config.embedding_size)"
        )
    for row, word in enumerate(vectors.words):
        folded.setdefault(word.lower(), row)
    for row, word in enumerate(vectors.words if tokenizer.lowercase else ()):
        folded.setdefault(whole_word(word, lowercase=True), row)
    rows, special = dict[int, int](), vocabulary.special.tokens
    for place, token in enumerate(vocabulary.tokens):
        is_word = vocabulary.is_border[place] and token not in special
        word = vocabulary.bare(token)
        if is_word and (row := vectors.places.get(word, folded.get(word.lower()))) is not None:
            rows[place] = row
    if not rows:
        raise ConfigError(f"model.word_vectors: no token of the vocabulary is a word in {section.word_vectors}")
    with torch.no_grad():
        table[[*rows]] = torch.from_numpy(vectors.matrix[[*rows.values()]]).to(table)
    if section.freeze_word_vectors:
        table.requires_grad_(False)
    counted = f"{len(rows):,} of the vocabulary's {amount(len(vocabulary), 'token')}"
    return [f"embeddings of {counted} come from {section.word_vectors}"]
