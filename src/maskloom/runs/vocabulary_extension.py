"""Adding pieces from a domain's text to the vocabulary of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch

from maskloom.checkpoints.huggingface import load_model, read_config
from maskloom.data.corpus.documents import ReadingReport, read_documents, refuse_output_inside
from maskloom.errors import ConfigError, DataError, amount
from maskloom.inference.model_folder import (
    load_tokenizer,
    modules_folder,
    read_settings,
    resolve_model_folder,
    with_word_vectors,
)
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.heads import MaskedLMHead
from maskloom.runs.model_writing import check_new_folder, write_model_folder
from maskloom.system.worker_processes import ONE_PROCESS, Work
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.vocabulary_extension import NewPiece, choose_pieces
from maskloom.text.vocabulary_training import VocabularySettings, measure_coverage
from maskloom.text.word_counting import count_words
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

REPORT = "vocabulary_extension.json"


def extend_vocabulary(
    paths: Sequence[str | Path],
    num_pieces: int,
    *,
    min_frequency: int = 5,
    model: Path,
    out: Path,
    work: Work = ONE_PROCESS,
    on_bad_text: Literal["error", "skip"] = "error",
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Write a model folder whose vocabulary has the best new pieces for the text; return the report.

    `choose_pieces` chooses at most `num_pieces`, each of which occurs at least `min_frequency` times. Old pieces keep
    their ids; the embedding and the masked-LM bias of a new piece start as the means over the old pieces into which it
    was split. `out` appears whole or not at all. Raises ConfigError for impossible settings and an `out` that holds
    something, DataError for a damaged model or bad text.
    """
    folder = resolve_model_folder(model)
    refuse_output_inside(paths, out)
    check_new_folder(out)
    tokenizer, reading = load_tokenizer(folder), ReadingReport()
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise ConfigError(f"{folder}: vocab extend needs a WordPiece vocabulary (vocab.txt); this one is another kind")
    if tokenizer.added:
        raise ConfigError(f"{folder}: vocab extend adds pieces at the end, where this vocabulary has added tokens")
    if tokenizer.targets is not None:
        raise ConfigError(f"{folder}: vocab extend is for models with one vocabulary; this one has two")
    texts = (document.text for document in read_documents(paths, on_bad_text=on_bad_text, report=reading))
    most = VocabularySettings.max_distinct_words
    counted = count_words(texts, lowercase=tokenizer.lowercase, max_distinct_words=most, work=work, progress=progress)
    if not counted.counts:
        raise DataError(f"no words in {amount(counted.num_texts, 'text')}; new pieces are chosen from words")
    old = tokenizer.vocabulary
    often = amount(min_frequency, "time")
    pieces = choose_pieces(counted.counts, old, num_pieces=num_pieces, min_frequency=min_frequency)
    if not pieces:
        raise DataError(f"no piece to add: no run of pieces within a word occurs at least {often}")
    vocabulary = Vocabulary([*old.tokens, *(piece.token for piece in pieces)])
    (loaded, _), extended = load_model(folder), replace(tokenizer, vocabulary=vocabulary)
    _give_rows(loaded, old, pieces)
    report = {
        "model": str(folder),
        "num_new_pieces": len(pieces),
        "old_size": len(old),
        "size": len(vocabulary),
        "num_words": counted.num_words,
        "before": measure_coverage(tokenizer, counted.counts),
        "after": measure_coverage(extended, counted.counts),
        "reading": reading.as_dict(),
    }
    if len(pieces) < num_pieces:
        report["why_fewer"] = f"no other run of pieces within a word occurs at least {often}"
    rows = [{"id": place, **asdict(piece)} for place, piece in enumerate(pieces, start=len(old))]
    _write_model(loaded, folder, extended, out, {**report, "pieces": rows})
    return {"folder": str(out), **report, "pieces": [piece.token for piece in pieces]}


@torch.no_grad()
def _give_rows(model: EncoderWithHeads, old: Vocabulary, pieces: list[NewPiece]) -> None:
    """Grow the word embeddings, and with them decoder and bias; new rows are means of the old pieces' rows."""
    # some models have more embeddings than tokens in their vocabulary
    if len(old) + len(pieces) > model.config.vocab_size:
        model.resize_vocabulary(len(old) + len(pieces), seed=0)
    rows = [model.encoder.word_embeddings]
    if isinstance(head := model.vocabulary_head, MaskedLMHead):
        rows.append(head.bias)
    for place, piece in enumerate(pieces, start=len(old)):
        sources = [old.ids[token] for token in piece.old_pieces]
        for parameter in rows:
            parameter[place] = parameter[sources].mean(dim=0)


def _write_model(
    model: EncoderWithHeads, folder: Path, tokenizer: Tokenizer, out: Path, report: dict[str, Any]
) -> None:
    """Write model, tokenizer and report, with what belongs to the old model and does not depend on its vocabulary."""
    settings = read_settings(folder)
    if "settings" in settings:
        settings["settings"] = with_word_vectors(settings["settings"], folder)
    # config.json keeps the keys that are not rewritten, such as label names
    own = {*model.config.as_published(), "architectures", "dtype", "torch_dtype", "position_embedding_type"}
    write_model_folder(
        out,
        model,
        tokenizer,
        extra_config={key: value for key, value in read_config(folder).items() if key not in own},
        settings=settings or None,
        vectors_as=modules_folder(folder),
        report={REPORT: report},
    )
