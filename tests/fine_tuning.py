"""Fine-tuning whose files are named one by one."""

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
    """Fine-tune on `train` and `dev`; the other options are those of `maskloom.runs.finetune.finetune`."""
    data = module.LabelledFiles(train, dev, reading or ReadingOptions(), metric)
    return module.finetune(recipe, data=data, **options)
