"""A catalog of published data sets: the columns, the labels in id order and the metric of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from maskloom.errors import ConfigError

Kind = str
"""The name of a row of `tasks.kinds.KINDS`."""


@dataclass(frozen=True)
class CatalogRow:
    """File layout and metric of one published data set.

    `text`, `pair` and `label` name columns of the header; files of tagged words use column numbers, from 1, instead.
    For files without a header, `headerless` gives (text, pair, label, number of fields) with column numbers from 1;
    `header_marks` are the first two fields that identify a header in a file that has one after all. `labels` are class
    names in id order. `primary` is the score that selects the best model; None means the default of the kind.
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

# GLUE as distributed (Wang et al. 2018): tab-separated, without quoting; test files have no labels. Columns are looked
# up by name in the header of each file, so train, dev and test of one task may have different columns: MNLI's label is
# always `gold_label`, its last column, never one of the annotators' `label1` to `label5`. The diagnostic set AX has
# MNLI's labels and is predicted with an MNLI model; `ax` reads the file distributed for predictions, `ax-full` the one
# with labels.
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
    # GoEmotions as distributed (Demszky et al. 2020): tab-separated text, comma-separated emotion ids and comment id,
    # without a header or quoting. The published score is macro F1.
    CatalogRow(
        "goemotions", "multilabel", "text", None, "labels", _EMOTIONS, "f1_macro", headerless=("1", None, "2", 3)
    ),
    # CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): one word per line with its part-of-speech, chunk and entity tags.
    # The published score is conlleval's F1. Parts of speech (`--label-column 2`) use a different score, so the row
    # leaves the choice to the tags.
    CatalogRow("conll2003", "tagging", "1", None, "4", primary=None),
    # Multiple choice: the first text, and the start of the second. The reader finds columns by name, or by number for
    # CODAH, which has no header; ARC, CommonsenseQA, COPA and RACE each have their own JSON form (choices.py).
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
    """Return the row with that name, with or without the collection prefix: `glue:rte`, `rte`, `RTE`.

    Raises ConfigError for an unknown name, listing the known ones, and for a row whose kind is not in `kinds`, naming
    that kind.
    """
    key = name.lower()
    row = CATALOG.get(key) or CATALOG.get(f"glue:{key}")
    if row is None:
        raise ConfigError(f"format {name!r:.80} is not in the catalog; known: {', '.join(CATALOG)}")
    if kinds is not None and row.kind not in kinds:
        raise ConfigError(f"format {name!r:.80} is for the task {row.kind}, not {' or '.join(kinds)}")
    return row
