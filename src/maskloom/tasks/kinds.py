"""The table of kinds of task: one line a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from maskloom.errors import ConfigError
from maskloom.recipe_files import validate_recipe
from maskloom.rows import Rows
from maskloom.tasks.catalog import Kind
from maskloom.tasks.choice.kind import CHOICE
from maskloom.tasks.classification_kinds import classification_kind
from maskloom.tasks.kind import TaskKind
from maskloom.tasks.span.kind import SPAN
from maskloom.tasks.tagging.kind import TAGGING

if TYPE_CHECKING:
    from maskloom.tasks.task import Task

KINDS: Rows[TaskKind] = Rows(
    "task",
    {
        "single": classification_kind("single"),
        "pair": classification_kind("pair"),
        "regression": classification_kind("regression"),
        "multilabel": classification_kind("multilabel"),
        "span": SPAN,
        "tagging": TAGGING,
        "choice": CHOICE,
    },
)


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
