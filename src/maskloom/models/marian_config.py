"""The configuration of the Transformer of Marian's published models (Junczys-Dowmunt et al. 2018)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from maskloom.models.bart_config import BartConfig, TokenId

# Defaults of published files that differ from ours.
_PUBLISHED = {"pad_token_id": 58_100, "decoder_start_token_id": 58_100, "scale_embedding": False}


class MarianConfig(BartConfig):
    """The keys of a BART, for the original Transformer: scaled embeddings with sinusoids, and no norm after them.

    All sines of a position come before its cosines. Everything else is as in BART, including the keys in files.
    """

    vocab_size: Annotated[int, Field(ge=1, le=10_000_000)] = 58_101
    scale_embedding: bool = True
    pad_token_id: TokenId | None = None
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | None = 0
    decoder_start_token_id: TokenId = 0
    forced_eos_token_id: TokenId | None = 0

    has_sinusoids: ClassVar[bool] = True
    model_types: ClassVar = ("marian", "maskloom_marian_crf")
    required_values: ClassVar = {
        **{key: values for key, values in BartConfig.required_values.items() if key != "extra_pos_embeddings"},
        "normalize_embedding": (False, None),
        "static_position_embeddings": (True, None),
        "share_encoder_decoder_embeddings": (True, None),
    }

    @model_validator(mode="after")
    def _is_the_original(self) -> Self:
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size {self.hidden_size} must be even for sinusoidal positions")
        if self.source_vocab_size is not None:
            raise ValueError("source_vocab_size: only a BART has a source encoder")
        return self

    @property
    def never_generated(self) -> tuple[int, ...]:
        """Padding: published models give it a logit of 0, however low the others are, and forbid it."""
        return () if self.pad_token_id in (None, self.eos_token_id) else (self.pad_token_id,)

    @classmethod
    def own_keys(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return a published mapping under the keys of this class."""
        return super().own_keys({**_PUBLISHED, **values})

    def as_published(self) -> dict[str, Any]:
        """Return the mapping that goes into config.json, including model_type."""
        return {**super().as_published(), "model_type": self.model_types[0], "decoder_vocab_size": self.vocab_size}

    @classmethod
    def _unsupported(cls, values: dict[str, Any]) -> list[str]:
        found, size = super()._unsupported(values), values.get("decoder_vocab_size")
        if size not in (None, values.get("vocab_size", cls.model_fields["vocab_size"].default)):
            found.append(f"decoder_vocab_size = {size!r:.200} must equal vocab_size")
        return found
