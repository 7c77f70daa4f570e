"""Kinds of task: what the rest of the library knows about each. Torch is imported only when a task is created."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from maskloom.errors import ConfigError, DataError
from maskloom.recipe_files import validate_recipe
from maskloom.rows import Rows, later
from maskloom.sections import Section
from maskloom.tasks import judging
from maskloom.tasks.catalog import Kind
from maskloom.tasks.choices import check_choices, choice_example, iterate_choices
from maskloom.tasks.examples import ReadExamples, ReadingReport, text_example
from maskloom.tasks.labels import check_alike, encode_labels, names_of_task
from maskloom.tasks.reading import iterate_examples
from maskloom.tasks.seq2seq.reading import iterate_sources
from maskloom.tasks.settings import (
    ClassificationSettings,
    DocumentSection,
    DocumentSettings,
    KindSettings,
    Seq2SeqSection,
    Seq2SeqSettings,
    SpanSection,
    SpanSettings,
    TaggingSection,
    TaggingSettings,
)
from maskloom.tasks.span.reading import check_answers, iterate_questions, question_example
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.tagging.reading import iterate_sentences, sentence_example, watch_forms
from maskloom.tasks.tagging.schemes import PLAIN, check_tags, tags_of_task
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING, WordSplitter

if TYPE_CHECKING:
    from maskloom.tasks.task import Task


@dataclass(frozen=True)
class TaskKind:
    """One kind of task: how its files are read, which labels it has, and how the task is created.

    `iterate(path, options, settings, needs_label=, report=)` yields examples; `label_names(train, options, settings)`
    returns the labels in id order; `check(train, dev)` raises DataError for data that nothing can be learned from;
    `make(labels, primary, settings)` returns the task and raises ValueError for a score that it does not have. Settings
    are instances of the `settings` class, with the keys of the recipe's `section`, of `data_settings(train)` and of
    `model_settings(config)`. `examples_at_once` limits how many examples are in memory at a time.
    `example_of(item, number)` creates an example from an item given in Python.

    `takes` describes the input to users; `pipeline_tag` is what a model hub calls the kind. If it `names_labels`, the
    outputs of its models have names. The probabilities of a unit add up to 1 over `softmax_over`: the labels of each
    row, or the rows; None for scores and for independent labels. With `is_windowed`, the units of one example compete
    by their logits. A kind that `reads_tokens` predicts lists of items found in a text, which neither a .csv file of
    predictions nor `auxiliary_lm` supports; files of predictions may also have its `output_suffixes`. A model without
    stored settings is of the kind whose `known_by`, or else `name`, is one of its heads.

    `judge(example, prediction, target, labels)` compares a prediction with the truth for display;
    `targets_by_example(encoded, targets)` converts the targets of a task to one per example. `label_ids(data, names)`
    computes the targets without torch if they depend only on the examples, and raises DataError for an unknown label.
    `first_settings` are used to read a file before more is known; `watch(examples, path, options, section)` passes
    examples through and, at the end, raises DataError for errors that only the whole file reveals.

    A kind that `has_both_orders` reads pairs of texts that may be swapped; `with_pairs` names a kind for pairs, on
    whose files models of this kind may also have been trained. A kind that `reads_folders` accepts a folder as a file,
    and one that `predicts_on_text` accepts raw text whatever the format of its labelled files. With `is_titled`, the
    first of two texts is the title of the second. A kind that `has_decoder` generates texts, which cannot be averaged.
    """

    name: Kind
    iterate: Callable[..., Iterator[Any]]
    check: Callable[[ReadExamples, ReadExamples], None]
    make: Callable[[tuple[str, ...], str | None, Any], Task]
    example_of: Callable[[Any, int], Any]
    judge: Callable[[Any, dict[str, Any], Any, tuple[str, ...]], judging.Verdict]
    label_names: Callable[[ReadExamples, ReadingOptions, Any], tuple[str, ...]] = lambda *_: ()
    data_settings: Callable[[ReadExamples], dict[str, Any]] = lambda _: {}
    model_settings: Callable[[Any], dict[str, Any]] = lambda _: {}
    examples_at_once: int = 4096
    takes: str = "sentences"
    pipeline_tag: str = "text-classification"
    section: type[Section] | None = None
    settings: type[KindSettings] = KindSettings
    names_labels: bool = True
    softmax_over: Literal["labels", "rows"] | None = "labels"
    is_windowed: bool = False
    reads_tokens: bool = False
    output_suffixes: tuple[str, ...] = ()
    known_by: str = ""
    targets_by_example: Callable[[Any, Any], Any] = lambda _, targets: targets
    label_ids: Callable[[ReadExamples, tuple[str, ...]], Any] | None = None
    first_settings: Mapping[str, Any] = field(default_factory=dict)
    watch: Callable[[Iterable[Any], Path, ReadingOptions, Any], Iterator[Any]] | None = None
    has_both_orders: bool = False
    with_pairs: Kind | None = None
    reads_folders: bool = False
    predicts_on_text: bool = False
    is_titled: bool = False
    has_decoder: bool = False

    @property
    def is_scale(self) -> bool:
        """Whether outputs are values on a scale, without probabilities."""
        return not (self.softmax_over or self.names_labels or self.has_decoder)

    def read(
        self,
        path: str | Path,
        options: ReadingOptions | None = None,
        settings: KindSettings | None = None,
        *,
        needs_label: bool = True,
    ) -> ReadExamples:
        """Read a whole file. Raises DataError, with file and line, for invalid data or no usable rows."""
        how, report = (options or ReadingOptions(), settings or self.settings()), ReadingReport(Path(path))
        examples = list(self.iterate(path, *how, needs_label=needs_label, report=report))
        if not examples:
            raise DataError(f"{path}: no usable rows: {report.num_rows} read, dropped: {report.dropped or 'none'}")
        return ReadExamples(examples, report)


def classification_kind(kind: Kind) -> TaskKind:
    """Return the kind single, pair, regression or multilabel."""
    return TaskKind(
        name=kind,
        iterate=lambda path, options, _, **how: iterate_examples(path, kind, options, **how),
        label_names=lambda train, options, _: names_of_task(kind, train, options),
        label_ids=lambda data, names: encode_labels(data, kind, names),
        check=partial(check_alike, kind),
        make=partial(later("maskloom.tasks.classification", "classification_task"), kind),
        example_of=text_example,
        takes="pairs of sentences" if kind == "pair" else "sentences",
        settings=ClassificationSettings,
        names_labels=kind != "regression",
        softmax_over="labels" if kind in ("single", "pair") else None,
        judge={"regression": judging.judge_score, "multilabel": judging.judge_labels}.get(kind, judging.judge_class),
        with_pairs="pair" if kind == "single" else None,
        has_both_orders=kind in ("pair", "regression"),
    )


DOCUMENT = replace(
    classification_kind("multilabel"),
    name="document",
    iterate=lambda path, options, _, **how: iterate_examples(path, "document", options, **how),
    make=later("maskloom.tasks.classification", "document_task"),
    takes="texts, or titles with their texts",
    section=DocumentSection,
    settings=DocumentSettings,
    is_titled=True,
)

SPAN = TaskKind(
    name="span",
    iterate=iterate_questions,
    check=check_answers,
    make=later("maskloom.tasks.span.task", "span_task"),
    example_of=question_example,
    data_settings=lambda train: {"has_unanswerable": any(question.is_impossible for question in train.examples)},
    examples_at_once=512,  # some 20,000 windows for contexts of 4,000 words
    takes="questions with their contexts",
    pipeline_tag="question-answering",
    section=SpanSection,
    output_suffixes=(".json",),
    settings=SpanSettings,
    names_labels=False,
    softmax_over="rows",
    is_windowed=True,
    judge=judging.judge_answer,
    reads_tokens=True,
)

TAGGING = TaskKind(
    name="tagging",
    iterate=iterate_sentences,
    label_names=tags_of_task,
    check=check_tags,
    make=later("maskloom.tasks.tagging.task", "tagging_task"),
    example_of=partial(sentence_example, UNKNOWN_TRAINING),
    data_settings=lambda train: {"words": WordSplitter.learned(one.words for one in train.examples)},
    pipeline_tag="token-classification",
    section=TaggingSection,
    settings=TaggingSettings,
    judge=judging.judge_tags,
    targets_by_example=lambda sentences, targets: sentences.by_sentence(targets),
    first_settings={"trained_scheme": PLAIN},
    watch=watch_forms,
    predicts_on_text=True,
    reads_tokens=True,
    output_suffixes=(".conll", ".txt"),
    known_by="tagger",
)

CHOICE = TaskKind(
    name="choice",
    iterate=lambda path, options, _, **how: iterate_choices(path, options, **how),
    check=check_choices,
    make=later("maskloom.tasks.classification", "choice_task"),
    example_of=choice_example,
    takes="questions with their choices",
    pipeline_tag="multiple-choice",
    names_labels=False,
    softmax_over="rows",
    judge=judging.judge_choice,
    reads_folders=True,
)


SEQ2SEQ = TaskKind(
    name="seq2seq",
    iterate=iterate_sources,
    check=lambda train, dev: None,
    make=later("maskloom.tasks.seq2seq.task", "seq2seq_task"),
    example_of=text_example,
    examples_at_once=512,
    takes="texts",
    pipeline_tag="text2text-generation",
    section=Seq2SeqSection,
    settings=Seq2SeqSettings,
    model_settings=lambda config: {} if config.own_start is None else {"decoder_start": config.own_start},
    names_labels=False,
    softmax_over=None,
    judge=judging.judge_text,
    predicts_on_text=True,
    has_decoder=True,
    known_by="decoder",
)

_CLASSIFICATION = map(classification_kind, ("single", "pair", "regression", "multilabel"))
KINDS: Rows[TaskKind] = Rows(
    "task", {row.name: row for row in (*_CLASSIFICATION, DOCUMENT, SPAN, TAGGING, CHOICE, SEQ2SEQ)}
)


def task_kind(name: str) -> TaskKind:
    """Return the kind with that name; raises ConfigError, listing the known names, for any other."""
    if name not in KINDS:
        raise ConfigError(f"unknown task {name!r:.80}; known: {', '.join(KINDS)}")
    return KINDS[name]


def make_task(
    kind: Kind, labels: Sequence[str] = (), *, primary: str | None = None, settings: Mapping[str, Any] | None = None
) -> Task:
    """Return a task from stored settings; raises ConfigError for a bad setting, ValueError for an unknown score."""
    row = task_kind(kind)
    return row.make(tuple(labels), primary, validate_recipe(row.settings, dict(settings or {}), source="settings"))


def changed(task: Task, **changes: Any) -> Task:
    """Return a copy of a task with some of its settings changed."""
    return task_kind(task.kind).make(task.labels, task.primary, task.settings.model_copy(update=changes))
