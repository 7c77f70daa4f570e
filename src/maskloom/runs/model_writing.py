"""Writing complete model folders: weights, tokenizer, what a task needs, and a README.md as model card."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskloom.checkpoints.huggingface import CONFIG, format_of, read_model_config, save_model
from maskloom.checkpoints.published.sentence_transformers import copy_modules
from maskloom.config import CardSection, FinetuneRecipe, PretrainRecipe, recipe_toml
from maskloom.errors import ConfigError
from maskloom.inference.model_folder import SETTINGS_FILE, WORD_VECTORS
from maskloom.models.architectures import architecture_of
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs.display import printable
from maskloom.system.files import copy_files, replacing, replacing_folder, write_json, write_text
from maskloom.system.foreign_files import read_object_inside
from maskloom.tasks.kinds import KINDS
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.checkpointing.checkpoints import REST, check_shapes, checkpoint_weights, step_folders

# OWNER/NAME, unless it looks like a local folder; or one of the first models, which have no owner.
_OWNER = r"(?!(?:models?|outputs?|results?|checkpoints?|runs?|data|tmp)/)[A-Za-z0-9][\w.-]{0,95}"
_HUB_NAME = re.compile(
    rf"{_OWNER}/(?!checkpoint-)[A-Za-z0-9][\w.-]{{0,95}}|bert-(?:base|large)-[\w-]{{1,80}}", re.ASCII
)
_HUB_METRICS = {
    **{name: name for name in ("f1", "precision", "recall", "exact_match", "chrf")},
    **dict.fromkeys(("f1_micro", "f1_macro"), "f1"),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL"), "rouge"),
    "bleu": "sacrebleu",
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}


@dataclass(frozen=True)
class Card:
    """What a model card says: `metrics` were measured on `dataset`; licence and languages come from the recipe.

    `pipeline_tag` and `base_model` are the hub's names for the task and for the model from which training started.
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
        config = read_object_inside(folder, CONFIG)
        named = (config.get("model_type"), *config.get("architectures", ()))
        is_own = any(str(name).lower().startswith("maskloom") for name in named)
        opens = "" if is_own else " and with transformers"
        facts = self._facts() | ({"library_name": "maskloom"} if is_own else {})
        header = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in facts.items())
        text = (
            f"---\n{header}---\n\n# {self.title}\n\n{printable(self.summary)}\n\n"
            f"Opens with `maskloom.load(folder)`{opens}.\n"
        )
        if self.metrics:
            shown = {name: f"{x:.6g}" if x < 999_999.5 else f"{x:.0f}" for name, x in _numbers(self.metrics).items()}
            rows = "\n".join(f"| {name} | {value} |" for name, value in shown.items())
            text += f"\nMeasured on {printable(self.dataset)}:\n\n| metric | value |\n|---|---|\n{rows}\n"
        if self.recipe is not None:
            text += f"\nTrained with maskloom:\n\n```toml\n{recipe_toml(self.recipe)}```\n"
        write_text(folder / "README.md", text)

    def _facts(self) -> dict[str, Any]:
        """Return the hub's metadata; it is written as JSON, which is valid YAML."""
        given = (self.recipe.card if self.recipe is not None else None) or CardSection()
        facts = {
            "library_name": "transformers",
            "tags": ["maskloom", self.title.rpartition(" ")[2].lower()],
            "license": given.license,
            "language": given.language,
            "base_model": given.base_model or self.base_model,
            "pipeline_tag": self.pipeline_tag,
        }
        metrics = [
            {"type": kind, "name": name.replace("_", " "), "value": value}
            for name, value in _numbers(self.metrics).items()
            if (kind := hub_metric(name)) and math.isfinite(value)
        ]
        if metrics and self.pipeline_tag:
            facts["metrics"] = list(dict.fromkeys(metric["type"] for metric in metrics))
            about = {"task": {"type": self.pipeline_tag}, "dataset": {"name": self.dataset, "type": "custom"}}
            facts["model-index"] = [{"name": self.title, "results": [{**about, "metrics": metrics}]}]
        return {key: value for key, value in facts.items() if value is not None}


def hub_metric(name: str) -> str | None:
    """Return a hub's name of one of our scores; None for losses, counts and scores of constant answers."""
    ending = name.rpartition("_")[2]
    return ending if ending in ("accuracy", "perplexity") else _HUB_METRICS.get(name)


def pretraining_card(
    recipe: PretrainRecipe, metrics: Mapping[str, Any], init: Path | None, more: str = "", *, config: ModelConfig
) -> Card:
    """Return the card of a pre-trained model; `more` describes a checkpoint from before the end of the run."""
    name = format_of(config).name
    start = f"{name} ({recipe.model.size})" if init is None else f"{name}, continued from {model_name(init)}"
    head = "decoder" if PRETRAINING[recipe.objective].has_decoder else architecture_of(config).vocabulary_head
    return Card(
        f"Pre-trained {name}",
        f"{start}, trained with objective = {recipe.objective!r}. {more}".rstrip(),
        pipeline_tag=pretrained_tag(head, config),
        base_model=None if init is None else hub_name(init),
        recipe=recipe,
        metrics=metrics,
        dataset="the part of the corpus that was held out",
    )


def finetuning_card(
    recipe: FinetuneRecipe, *, what: str, scores: Mapping[str, Any], base: Path, dev: str, config: ModelConfig
) -> Card:
    """Return the card of a fine-tuned model; `what` says which weights of the run these are."""
    is_new = recipe.from_scratch or recipe.model is not None
    like = "with the vocabulary of" if recipe.model else "in the sizes of"
    start = f"It started from random weights, {like}" if is_new else "It was fine-tuned from"
    return Card(
        f"Fine-tuned {format_of(config).name}",
        f"A model for the kind of task `{recipe.task}`, {what}. {start} {model_name(base)}.",
        pipeline_tag=KINDS[recipe.task].pipeline_tag,
        base_model=None if is_new else hub_name(base),
        recipe=recipe,
        metrics=scores,
        dataset=Path(dev).name,
    )


def pretrained_tag(vocabulary_head: str | None, config: ModelConfig) -> str | None:
    """Return a hub's name for the task of a pre-trained model with that head, or None if it has none."""
    if vocabulary_head == "lm":
        return "text-generation"
    if vocabulary_head == "decoder":
        return KINDS["seq2seq"].pipeline_tag
    return None if vocabulary_head in (None, "bilm") or config.is_causal else "fill-mask"


def model_name(folder: Path) -> str:
    """Return the name of a model folder; for a run's model, the name of the run."""
    folder = folder.resolve()
    return folder.parent.name if folder.name in ("model", "best-model") else folder.name


def hub_name(folder: Path) -> str | None:
    """Return the hub name that a model folder's configuration states, or None.

    A local path does not count, because a hub would link to whatever has that name there.
    """
    named = str(read_object_inside(folder, CONFIG).get("_name_or_path"))
    return named if _HUB_NAME.fullmatch(named) else None


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def check_new_folder(out: Path) -> None:
    """Raise ConfigError unless a folder is new or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder; choose another --out")


def write_model_folder(
    final: Path,
    weights: EncoderWithHeads | Path,
    tokenizer: Tokenizer,
    card: Card | None = None,
    *,
    extra_config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    vectors_as: Path | None = None,
    report: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder that opens here and in transformers, whole or not at all.

    `weights` is a model, or a folder whose config.json and weights are copied. `extra_config` adds keys to config.json,
    `settings` are a task's, `vectors_as` is a folder whose modules.json is copied, and `report` holds JSON values by
    file name. Raises OSError if the disk fails.
    """
    with replacing_folder(final) as folder:
        if isinstance(weights, Path):
            copy_files(weights, folder)
        else:
            save_model(weights, folder, extra_config=dict(extra_config or {}))
        tokenizer.save(folder, num_segments=read_model_config(folder).num_segments)
        if settings is not None:
            own = settings.get("settings") or {}
            if place := (own.get("features") or {}).get("word_vectors"):
                with open(place, "rb") as source, replacing(folder / WORD_VECTORS) as copy:
                    shutil.copyfileobj(source, copy)
                own = {**own, "features": {**own["features"], "word_vectors": WORD_VECTORS}}
            write_json(folder / SETTINGS_FILE, {**settings, "settings": own} if own else settings)
        if vectors_as is not None:
            copy_modules(vectors_as, folder)
        for name, content in (report or {}).items():
            write_json(folder / name, content)
        if card is not None:
            card.write(folder)


def write_best_model(model: EncoderWithHeads, checkpoints: Path, tokenizer: Tokenizer, folder: Path) -> int | None:
    """Write the weights of the checkpoint kept as the best into a model folder, and return its step.

    `model` has those weights afterwards. Returns None if there is none; raises DataError for a changed one.
    """
    newest = next(iter(step_folders(checkpoints)), None)
    kept = newest and json.loads((newest / REST).read_text(encoding="utf-8"))["extra"].get("kept")
    if not kept or not (source := checkpoints / f"step-{kept['step']:08d}").exists():
        return None
    write_model_folder(folder, filled(model, source), tokenizer)
    return kept["step"]


def filled(model: EncoderWithHeads, checkpoint: Path) -> EncoderWithHeads:
    """Give a model the weights of a checkpoint and return it; raises DataError for one of another model, or changed."""
    weights = checkpoint_weights(checkpoint)
    check_shapes(checkpoint, weights, dict(model.named_parameters()))
    model.load_state_dict(weights, strict=False)  # a tied parameter has one of its names there
    return model
