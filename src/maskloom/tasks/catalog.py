"""One row a published data set: where its columns stand, its labels in order, and its metric."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from maskloom.errors import ConfigError

Kind = str
"""The name of a row of `tasks.kinds.KINDS`."""


@dataclass(frozen=True)
class CatalogRow:
    """How one published data set stands on disk, and how it is scored.

    Columns are names of the header. `headerless` is (text, pair, label, number of fields), numbers of columns from 1,
    for files that come without a header; `header_marks` are the first two fields that show that a file has one all the
    same. `labels` are class names in the order of their ids. `primary` is the score that picks the best model, None for
    what its kind has by default. Files of tagged words have numbers of columns, from 1, for names.
    """

    name: str
    kind: Kind
    text: str
    pair: str | None
    label: str
    labels: tuple[str, ...] = ()
    primary: str | None = "accuracy"
    headerless: tuple[str, str | None, str, int] | None = None
    header_marks: tuple[str, str] | None = None
    drops_bad_rows: bool = False
    no_label: str | None = None
    label_range: tuple[float, float] | None = None


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")
_EMOTIONS = (
    *("admiration", "amusement", "anger", "annoyance", "approval", "caring", "confusion", "curiosity", "desire"),
    *("disappointment", "disapproval", "disgust", "embarrassment", "excitement", "fear", "gratitude", "grief", "joy"),
    *("love", "nervousness", "optimism", "pride", "realization", "relief", "remorse", "sadness", "surprise"),
    "neutral",
)

# GLUE as its files are distributed (Wang et al. 2018): tab-separated, no quoting, test files without labels. Columns
# are found by the names of each file's header, so train, dev and test of one task may differ in their columns: MNLI's
# label is always `gold_label`, its last column, never one of the annotators' `label1` to `label5`. The diagnostic set
# AX is answered by a model of MNLI and has MNLI's labels; `ax` reads the file that is handed out for predictions,
# `ax-full` the one with the labels.
GLUE: tuple[CatalogRow, ...] = (
    CatalogRow(
        "cola", "single", "sentence", None, "label", _BINARY, "matthews", ("4", None, "2", 4), ("index", "sentence")
    ),
    CatalogRow("sst-2", "single", "sentence", None, "label", _BINARY),
    CatalogRow("mrpc", "pair", "#1 String", "#2 String", "Quality", _BINARY, "f1"),
    CatalogRow("sts-b", "regression", "sentence1", "sentence2", "score", primary="pearson", label_range=(0.0, 5.0)),
    CatalogRow("qqp", "pair", "question1", "question2", "is_duplicate", _BINARY, "f1", drops_bad_rows=True),
    CatalogRow("mnli", "pair", "sentence1", "sentence2", "gold_label", _INFERENCE, no_label="-"),
    CatalogRow("qnli", "pair", "question", "sentence", "label", _ENTAILMENT),
    CatalogRow("rte", "pair", "sentence1", "sentence2", "label", _ENTAILMENT),
    CatalogRow("wnli", "pair", "sentence1", "sentence2", "label", _BINARY),
    CatalogRow("ax", "pair", "sentence1", "sentence2", "label", _INFERENCE, "matthews"),
    CatalogRow("ax-full", "pair", "Premise", "Hypothesis", "Label", _INFERENCE, "matthews"),
)
_OTHERS = (
    # GoEmotions as its files are distributed (Demszky et al. 2020): text, ids of emotions joined by commas, comment id,
    # between tabs, no header, quotes are text. The published score is macro F1.
    CatalogRow(
        "goemotions", "multilabel", "text", None, "labels", _EMOTIONS, "f1_macro", headerless=("1", None, "2", 3)
    ),
    # CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): a word a line, its part of speech, the tag of its phrase and that
    # of its entity. The published score is conlleval's F1. Parts of speech, `--label-column 2`, have another score, so
    # that the row leaves it to the tags.
    CatalogRow("conll2003", "tagging", "1", None, "4", primary=None),
    # Multiple choice: the first text, and what the second begins with. Readers find the columns by name, and CODAH's by
    # number, for it has no header; ARC, CommonsenseQA, COPA and RACE are JSON of their own forms (choice/reading.py).
    CatalogRow("swag", "choice", "sent1", "sent2", "label"),
    CatalogRow("hellaswag", "choice", "ctx_a", "ctx_b", "label"),
    CatalogRow("codah", "choice", "2", None, "7"),
    CatalogRow("cosmosqa", "choice", "context", "question", "label"),
    CatalogRow("arc", "choice", "question.stem", None, "answerKey"),
    CatalogRow("commonsenseqa", "choice", "question.stem", None, "answerKey"),
    CatalogRow("copa", "choice", "premise", "question", "label"),
    CatalogRow("race", "choice", "article", "questions", "answers"),
)
CATALOG: dict[str, CatalogRow] = {f"glue:{row.name}": row for row in GLUE} | {row.name: row for row in _OTHERS}


def catalog_row(name: str, *, kinds: Collection[Kind] | None = None) -> CatalogRow:
    """Return the row of that name, with or without its collection: `glue:rte`, `rte`, `RTE`.

    Raises ConfigError that lists the known names, and one that names its kind for a row of none of `kinds`.
    """
    key = name.lower()
    row = CATALOG.get(key) or CATALOG.get(f"glue:{key}")
    if row is None:
        raise ConfigError(f"format {name!r:.80} is not in the catalog; known: {', '.join(CATALOG)}")
    if kinds is not None and row.kind not in kinds:
        raise ConfigError(f"format {name!r:.80} is of a {row.kind} task, not {' or '.join(kinds)}")
    return row
