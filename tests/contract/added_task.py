"""A kind of task added from outside the package; docs/ADDING.md shows this file."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F

from maskloom.objectives.objective import TaskObjective, label_tensor
from maskloom.sections import Section, key
from maskloom.tasks.classification import classification_task
from maskloom.tasks.kinds import classification_kind
from maskloom.tasks.settings import ClassificationSettings


@dataclass(frozen=True)
class Smoothed(TaskObjective):
    """Cross-entropy with label smoothing: part of the target weight is spread evenly over all classes."""

    amount: float

    name: ClassVar[str] = "smoothed"
    head: ClassVar[str] = "classifier"

    def loss_sum_of(self, logits, batch):
        return F.cross_entropy(logits, label_tensor(batch, logits), label_smoothing=self.amount, reduction="sum")


def smoothed_task(labels, primary, settings):
    task = classification_task("single", labels, primary, settings)
    return replace(task, kind="smoothed", objective=Smoothed(settings.amount))


class SmoothedSection(Section):
    """The recipe section [smoothed]."""

    amount: float = key(0.1, "Weight of the targets on all classes alike.", ge=0.0, lt=1.0)


class SmoothedSettings(SmoothedSection, ClassificationSettings):
    """The keys of [smoothed], and those of every classification task."""


SMOOTHED = replace(
    classification_kind("single"),
    name="smoothed",
    make=smoothed_task,
    section=SmoothedSection,
    settings=SmoothedSettings,
)
