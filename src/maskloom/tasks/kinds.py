"""The table of kinds of task, whose rows need no torch: it is imported when a task is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from maskloom.errors import ConfigError
from maskloom.recipe_files import validate_recipe
from maskloom.rows import Rows
from maskloom.tasks import judging
from maskloom.tasks.catalog import Kind
from maskloom.tasks.choice.reading import check_choices, choice_example, iterate_choices
from maskloom.tasks.examples import text_example
from maskloom.tasks.kind import TaskKind
from maskloom.tasks.labels import check_alike, encode_labels, names_of_task
from maskloom.tasks.reading import iterate_examples
from maskloom.tasks.settings import ClassificationSettings
from maskloom.tasks.span.reading import check_answers, iterate_questions, question_example
from maskloom.tasks.span.settings import SpanSection, SpanSettings
from maskloom.tasks.tagging.reading import iterate_sentences, sentence_example
from maskloom.tasks.tagging.schemes import PLAIN, check_tags, tags_of_task
from maskloom.tasks.tagging.settings import TaggingSection, TaggingSettings
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING, WordSplitter

if TYPE_CHECKING:
    from maskloom.tasks.task import Task


def _later(module: str, function: str) -> Callable[..., Task]:
    """Return what calls a function of tasks that make a task; its module is imported only then."""
    return lambda *given: getattr(import_module(f"maskloom.tasks.{module}"), function)(*given)


def classification_kind(kind: Kind) -> TaskKind:
    """Return one of the kinds single, pair, regression and multilabel."""
    return TaskKind(
        name=kind,
        iterate=lambda path, options, _, **how: iterate_examples(path, kind, options, **how),
        label_names=lambda train, options, _: names_of_task(kind, train, options),
        label_ids=lambda data, names: encode_labels(data, kind, names),
        check=partial(check_alike, kind),
        make=partial(_later("classification", "classification_task"), kind),
        example_of=text_example,
        takes="pairs of sentences" if kind == "pair" else "sentences",
        settings=ClassificationSettings,
        names_labels=kind != "regression",
        softmax_over="labels" if kind in ("single", "pair") else None,
        judge={"regression": judging.judge_score, "multilabel": judging.judge_labels}.get(kind, judging.judge_class),
        with_pairs="pair" if kind == "single" else None,
        has_both_orders=kind in ("pair", "regression"),
    )


SPAN = TaskKind(
    name="span",
    iterate=iterate_questions,
    check=check_answers,
    make=_later("span.task", "span_task"),
    example_of=question_example,
    data_settings=lambda train: {"has_unanswerable": any(question.is_impossible for question in train.examples)},
    examples_at_once=512,  # on contexts of 4,000 words these give some 20,000 windows
    takes="questions with their contexts",
    pipeline_tag="question-answering",
    section=SpanSection,
    settings=SpanSettings,
    names_labels=False,
    softmax_over="rows",
    is_windowed=True,
    judge=judging.judge_answer,
    reads_tokens=True,
    known_by="span",
)

TAGGING = TaskKind(
    name="tagging",
    iterate=iterate_sentences,
    label_names=tags_of_task,
    check=check_tags,
    make=_later("tagging.task", "tagging_task"),
    example_of=partial(sentence_example, UNKNOWN_TRAINING),
    data_settings=lambda train: {"words": WordSplitter.learned(one.words for one in train.examples)},
    pipeline_tag="token-classification",
    section=TaggingSection,
    settings=TaggingSettings,
    judge=judging.judge_tags,
    targets_by_example=lambda sentences, targets: sentences.by_sentence(targets),
    first_settings={"trained_scheme": PLAIN},
    predicts_on_text=True,
    reads_tokens=True,
    known_by="tagger",
)

CHOICE = TaskKind(
    name="choice",
    iterate=lambda path, options, _, **how: iterate_choices(path, options, **how),
    check=check_choices,
    make=_later("choice.task", "choice_task"),
    example_of=choice_example,
    takes="questions with their choices",
    pipeline_tag="multiple-choice",
    names_labels=False,
    softmax_over="rows",
    judge=judging.judge_choice,
    reads_folders=True,
    known_by="choice",
)

_CLASSIFICATION = map(classification_kind, ("single", "pair", "regression", "multilabel"))
KINDS: Rows[TaskKind] = Rows("task", {row.name: row for row in (*_CLASSIFICATION, SPAN, TAGGING, CHOICE)})


def task_kind(name: str) -> TaskKind:
    """Return the kind of that name; raises ConfigError that lists the known ones."""
    if name not in KINDS:
        raise ConfigError(f"task {name!r:.80} is not known; known: {', '.join(KINDS)}")
    return KINDS[name]


def make_task(
    kind: Kind, labels: Sequence[str] = (), *, primary: str | None = None, settings: Mapping[str, Any] | None = None
) -> Task:
    """Return a task with settings as they are stored; raises ConfigError for a setting, ValueError for a score."""
    row = task_kind(kind)
    return row.make(tuple(labels), primary, validate_recipe(row.settings, dict(settings or {}), source="settings"))


def changed(task: Task, **changes: Any) -> Task:
    """Return a task with some of its settings changed."""
    return task_kind(task.kind).make(task.labels, task.primary, task.settings.model_copy(update=changes))
