"""Model cards: a README.md beside the weights that says what they are and how they came to be, for people and hubs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskloom.config import CardSection, FinetuneRecipe, PretrainRecipe, recipe_toml
from maskloom.files import write_text

# What the hub calls a kind of task; scores are texts of a pair there, too.
PIPELINE_TAGS = {
    "single": "text-classification",
    "pair": "text-classification",
    "regression": "text-classification",
    "multilabel": "text-classification",
    "span": "question-answering",
    "tagging": "token-classification",
    "choice": "multiple-choice",
}


@dataclass(frozen=True)
class Card:
    """What a card says: `metrics` were measured on `dataset`, and `base_model` is where training started.

    `pipeline_tag` is the hub's name for the task. The licence and the languages are those that a person gave in the
    recipe: nothing else knows them.
    """

    title: str
    summary: str
    pipeline_tag: str | None = None
    base_model: str | None = None
    recipe: PretrainRecipe | FinetuneRecipe | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    dataset: str = ""

    def write(self, folder: Path) -> None:
        """Write README.md into a model folder: the facts as YAML, then title, summary, metrics and recipe."""
        header = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in self._facts().items())
        text = (
            f"---\n{header}---\n\n# {self.title}\n\n{self.summary}\n\n"
            "Opens with `maskloom.load(folder)` and with transformers.\n"
        )
        if self.metrics:
            rows = "\n".join(f"| {name} | {value:.6g} |" for name, value in _numbers(self.metrics).items())
            text += f"\nMeasured on {self.dataset}:\n\n| metric | value |\n|---|---|\n{rows}\n"
        if self.recipe is not None:
            text += f"\nTrained with maskloom:\n\n```toml\n{recipe_toml(self.recipe)}```\n"
        write_text(folder / "README.md", text)

    def _facts(self) -> dict[str, Any]:
        """Return the keys of the hub; JSON, in which they are written, is YAML."""
        given = (self.recipe.card if self.recipe is not None else None) or CardSection()
        facts = {
            "library_name": "transformers",
            "tags": ["maskloom", "bert"],
            "license": given.license,
            "language": given.language,
            "base_model": given.base_model or self.base_model,
            "pipeline_tag": self.pipeline_tag,
        }
        finite = {name: value for name, value in _numbers(self.metrics).items() if math.isfinite(value)}
        if finite:
            task = {"type": self.pipeline_tag}
            dataset = {"name": self.dataset, "type": "custom"}
            metrics = [{"type": name, "name": name, "value": value} for name, value in finite.items()]
            result = {"task": task, "dataset": dataset, "metrics": metrics}
            facts["model-index"] = [{"name": self.title, "results": [result]}]
        return {key: value for key, value in facts.items() if value is not None}


def pretraining_card(recipe: PretrainRecipe, metrics: Mapping[str, Any], init: Path | None, more: str = "") -> Card:
    """Return the card of a pre-trained model; `more` is said of a checkpoint that is not the run's end."""
    heads = "masked-LM and next-sentence heads" if recipe.data.next_sentence else "a masked-LM head"
    what = f"A BERT ({recipe.model.size})" if init is None else f"A BERT, continued from {model_name(init)},"
    return Card(
        "Pre-trained BERT",
        f"{what} with {heads}. {more}".rstrip(),
        pipeline_tag="fill-mask",
        base_model=None if init is None else model_name(init),
        recipe=recipe,
        metrics=metrics,
        dataset="the part of the corpus that was held out",
    )


def finetuning_card(recipe: FinetuneRecipe, *, what: str, scores: Mapping[str, Any], base: Path, dev: str) -> Card:
    """Return the card of a fine-tuned model; `what` says which weights of the run these are."""
    return Card(
        "Fine-tuned BERT",
        f"A model for a {recipe.task} task, {what}.",
        pipeline_tag=PIPELINE_TAGS[recipe.task],
        base_model=model_name(base),
        recipe=recipe,
        metrics=scores,
        dataset=Path(dev).name,
    )


def model_name(folder: Path) -> str:
    """Return what a model folder is called: the run's name for a run's model, OWNER/NAME for one of a hub's cache."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.parent.name if folder.name in ("model", "best-model") else folder.name


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
