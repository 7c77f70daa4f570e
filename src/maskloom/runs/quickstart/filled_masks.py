"""Masks filled by the freshly trained model: in sentences of ours, and in real ones whose word is known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from maskloom.data.counter_random import Permutation
from maskloom.inference import Predictor

OURS = (
    "Returns a [MASK] of strings.",
    "If [MASK], the output is written to a file.",
    "The [MASK] of the matrix must be positive.",
    "This function is [MASK] since version 3.",
    "The name of the [MASK] to open.",
    "Raises an [MASK] when the file does not exist.",
)
_NUM_REAL = 8
_WORD = re.compile(r"[A-Za-z]{4,}")


def fill_masks(model: Path, held_out: Path, *, seed: int, top_k: int = 5) -> dict[str, Any]:
    """Return the likeliest tokens for our sentences, and for sentences of a dev set with one word of each masked.

    `held_out` is a JSONL file with a `text` field that pre-training never saw. A real row also has the word that stood
    there and whether it is among the tokens. Only words that are one token are masked.
    """
    predictor = Predictor.load(model)
    ours = [{"text": text, **_guesses(predictor, text, top_k)} for text in OURS]
    texts = [json.loads(line)["text"] for line in held_out.read_text(encoding="utf-8").splitlines()]
    order = Permutation(len(texts), seed)
    real: list[dict[str, Any]] = []
    for place in range(len(texts)):
        text = texts[order[place]]
        words = [m for m in _WORD.finditer(text) if len(predictor.tokenizer.token_ids(m.group())) == 1]
        if len(real) == _NUM_REAL or not words or len(text) > 110:
            continue
        word = words[Permutation(len(words), seed, place)[0]]
        masked = f"{text[: word.start()]}[MASK]{text[word.end() :]}"
        guesses = _guesses(predictor, masked, top_k)
        truth = word.group().lower()
        real.append({"text": masked, "truth": truth, "is_found": truth in guesses["tokens"], **guesses})
    return {"ours": ours, "real": real}


def _guesses(predictor: Predictor, text: str, top_k: int) -> dict[str, list[Any]]:
    best = predictor.fill_mask(text, top_k=top_k)[0]
    return {"tokens": [row["token"] for row in best], "probabilities": [row["probability"] for row in best]}
