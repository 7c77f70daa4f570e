"""Going on from published weights on one's own text: what the model knew before, and what it learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.checkpoints.huggingface import LoadReport
from maskloom.config import ConfigError
from maskloom.data.corpus import Corpus
from maskloom.foreign_files import file_inside
from maskloom.runs.display import lines_of
from maskloom.text.vocabulary import Vocabulary

_ROWS = (
    ("mlm_loss", "masked-LM loss, nats", "{:.3f}"),
    ("mlm_accuracy", "masked-LM accuracy", "{:.1%}"),
    ("mlm_perplexity", "perplexity", "{:,.1f}"),
    ("nsp_loss", "next-sentence loss, nats", "{:.3f}"),
    ("nsp_accuracy", "next-sentence accuracy", "{:.1%}"),
)
_PARTS = (("cls.predictions", "masked-LM head"), ("cls.seq_relationship", "next-sentence head"), ("pooler", "pooler"))


def check_vocabulary(init: Path, num_embedded: int, corpus: Corpus) -> None:
    """Raise ConfigError when the pieces of a corpus are not those of the model that is to go on."""
    pieces = corpus.vocabulary
    hint = f"build the corpus with --vocab {init}"
    if len(pieces) > num_embedded:
        raise ConfigError(f"{init}: it embeds {num_embedded} pieces, the corpus was built with {len(pieces)}; {hint}")
    if not any(file_inside(init, name) for name in ("vocab.txt", "tokenizer.json")):
        return
    own = Vocabulary.load(init)
    if own != pieces:
        differing = (
            place for place, pair in enumerate(zip(own.tokens, pieces.tokens, strict=False)) if pair[0] != pair[1]
        )
        first = next(differing, min(len(own), len(pieces)))
        raise ConfigError(
            f"{init}: its vocabulary of {len(own)} pieces is not that of {len(pieces)} of the corpus, from id {first} "
            f"on; {hint}"
        )


def new_parts(report: LoadReport) -> list[str]:
    """Return a sentence on the parts that a model folder lacks and that start from random weights, or nothing."""
    new = [name for prefix, name in _PARTS if any(prefix in parameter for parameter in report.new_parameters)]
    if not new:
        return []
    text = f"new, with random weights, as the initial model has none: {', '.join(new)}"
    return [f"{text}; the loss before training is that of a random head" if "masked-LM head" in new else text]


def pretraining_lines(result: dict[str, Any]) -> list[str]:
    """Return what pre-training reached: beside what the initial weights did, where it went on from some."""
    before = result.get("before")
    if not before:
        return lines_of(result)
    rows = [("held out", "before", "after")]
    for key, name, form in _ROWS:
        if isinstance(before.get(key), float) and isinstance(result.get(key), float):
            rows.append((name, form.format(before[key]), form.format(result[key])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{name:<{widths[0]}}  {first:>{widths[1]}}  {last:>{widths[2]}}" for name, first, last in rows]
    unigram = f"unigram: {result['unigram_entropy']:.3f} nats"
    return [*lines, f"{result['num_predictions']:,.0f} masked pieces of held-out text; {unigram}"]
