"""GLUE as its files are distributed (Wang et al. 2018): tab-separated, no quoting, test files without labels.

Columns are found by the names of each file's header, so train, dev and test of one task may differ in their columns:
MNLI's label is always `gold_label`, its last column, never one of the annotators' `label1` to `label5`. The diagnostic
set AX is answered by a model of MNLI and has MNLI's labels; `ax` reads the file that is handed out for predictions,
`ax-full` the one with the labels.
"""

from __future__ import annotations

from maskloom.tasks.catalog.row import CatalogRow

_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")

GLUE: tuple[CatalogRow, ...] = (
    CatalogRow(
        name="cola",
        kind="single",
        text="sentence",
        pair=None,
        label="label",
        labels=("0", "1"),
        primary="matthews",
        headerless=("4", None, "2", 4),
        header_marks=("index", "sentence"),
    ),
    CatalogRow(name="sst-2", kind="single", text="sentence", pair=None, label="label", labels=("0", "1")),
    CatalogRow(
        name="mrpc", kind="pair", text="#1 String", pair="#2 String", label="Quality", labels=("0", "1"), primary="f1"
    ),
    CatalogRow(
        name="sts-b",
        kind="regression",
        text="sentence1",
        pair="sentence2",
        label="score",
        primary="pearson",
        label_range=(0.0, 5.0),
    ),
    CatalogRow(
        name="qqp",
        kind="pair",
        text="question1",
        pair="question2",
        label="is_duplicate",
        labels=("0", "1"),
        primary="f1",
        drops_bad_rows=True,
    ),
    CatalogRow(
        name="mnli",
        kind="pair",
        text="sentence1",
        pair="sentence2",
        label="gold_label",
        labels=_INFERENCE,
        no_label="-",
    ),
    CatalogRow(name="qnli", kind="pair", text="question", pair="sentence", label="label", labels=_ENTAILMENT),
    CatalogRow(name="rte", kind="pair", text="sentence1", pair="sentence2", label="label", labels=_ENTAILMENT),
    CatalogRow(name="wnli", kind="pair", text="sentence1", pair="sentence2", label="label", labels=("0", "1")),
    CatalogRow(
        name="ax",
        kind="pair",
        text="sentence1",
        pair="sentence2",
        label="label",
        labels=_INFERENCE,
        primary="matthews",
    ),
    CatalogRow(
        name="ax-full",
        kind="pair",
        text="Premise",
        pair="Hypothesis",
        label="Label",
        labels=_INFERENCE,
        primary="matthews",
    ),
)
