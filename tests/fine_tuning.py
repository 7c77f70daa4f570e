"""Fine-tuning with the data files as separate arguments."""

from typing import Any

from maskloom.config import FinetuneRecipe
from maskloom.runs import finetune as module
from maskloom.tasks.tables import ReadingOptions


def finetune(
    recipe: FinetuneRecipe,
    *,
    train: Any,
    dev: Any,
    reading: ReadingOptions | None = None,
    metric: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fine-tune on `train` and `dev`; other options go to `maskloom.runs.finetune.finetune`."""
    data = module.LabelledFiles(train, dev, reading or ReadingOptions(), metric)
    return module.finetune(recipe, data=data, **options)
