"""What an experiment runs: its recipes, its runs in order, and how long the remaining ones will take."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.errors import ConfigError, amount
from maskloom.quickstart.journey import Stages
from maskloom.recipe_files import SHIPPED, by_key
from maskloom.reproduce.experiments import Arm, Experiment
from maskloom.reproduce.judging import HELD_OUT_FRACTION
from maskloom.reproduce.probes import Probe
from maskloom.runs.display import in_words
from maskloom.runs.plan import plan_pretraining
from maskloom.runs.pretraining_plan import check_model
from maskloom.runs.recipes import KINDS

# How long to time steps of each model, and the approximate bytes per token in files of examples: four, or eleven
# where each line has a word and three tags.
_TIMED_SECONDS, _BYTES_PER_TOKEN, _BYTES_PER_TAGGED = 1.0, 4, 11
_PUBLISHED = {"pretrain": "bert-base-as-published", "finetune": "finetune-glue-as-published"}


@dataclass(frozen=True)
class Plan:
    """An experiment with everything that it runs on; `probes` are tasks by role."""

    experiment: Experiment
    scale: str
    seeds: Sequence[int]
    out: Path
    corpus: Path
    probes: Mapping[str, Probe]
    overrides: Mapping[str, Sequence[str]]

    def pretraining(self, model: str, seed: int) -> PretrainRecipe:
        """Return a model's recipe; if an arm needs an intermediate checkpoint, one is kept every tenth of the steps."""
        settings = self.experiment.models[model]
        if self.experiment.recipes:
            held_out = f"data.held_out_fraction={HELD_OUT_FRACTION}"
            return self._recipe("pretrain", [held_out, *settings], 0, self.experiment.recipes[model])
        if self.scale == "tiny" and "objective=causal_lm" not in settings:
            settings = ("data.masked_lm_prob=0.3", *settings)  # twice the paper's, as in the quick start
        recipe = self._recipe("pretrain", settings, seed)
        if not self.experiment.is_curve:
            return recipe
        # keep all: the extra save of a run that is stopped must not push out a checkpoint that an arm needs
        kept = {"save_every": max(1, num_steps(recipe) // 10), "keep_checkpoints": 1000}
        return recipe.model_copy(update={"training": recipe.training.model_copy(update=kept)})

    def finetuning(self, arm: Arm, probe: Probe, seed: int) -> FinetuneRecipe:
        """Return the recipe for fine-tuning an arm on a task."""
        kind = [f'task="{probe.kind}"'] if probe.kind else []
        own = () if arm.linear and probe.kind != "tagging" else arm.settings
        return self._recipe("finetune", [*kind, *probe.settings, *own], seed, self.experiment.finetuning)

    def _recipe(self, name: str, settings: Sequence[str], seed: int, path: Path | None = None) -> Any:
        """Return a recipe, by default the scale's, with settings and then the user's own."""
        if path is None and self.scale == "paper":
            path = SHIPPED / f"{_PUBLISHED[name]}.toml"
        path = path or Path(__file__).with_name(f"{self.scale}-{name}.toml")
        changes = [f"seed={seed}", *settings, *self.overrides.get(name, ())]
        return load_recipe(KINDS[name], path, changes, begin=f"{name}.")

    def check(self) -> None:
        """Raise ConfigError if any recipe is invalid, or does not give what the experiment compares."""
        for name, changes in self.overrides.items():
            if "seed" in by_key(changes):
                raise ConfigError(f"--set {name}.seed: every repetition has a seed of its own; leave it out")
        folders = [slug(arm.name) for arm in self.experiment.arms]
        if taken := [name for name in self.experiment.given if folders.count(slug(name)) > 1]:
            raise ConfigError(f"--beside {taken[0]}=FOLDER: another row has this name or a similar one; rename it")
        for model in self.experiment.models:
            recipe = self.pretraining(model, 0)
            check_model(recipe)
            share = recipe.data.held_out_fraction
            if self.experiment.recipes and share != HELD_OUT_FRACTION:
                raise ConfigError(
                    f"pretrain.data.held_out_fraction = {share:g}: losses are compared on the "
                    f"{HELD_OUT_FRACTION:g} of the documents that no recipe trains on; leave it out"
                )
            if self.experiment.is_curve:
                self._check_checkpoints(recipe)
        for arm, role, seed in self.jobs():
            self.finetuning(arm, self.probes[role], seed)

    def _check_checkpoints(self, recipe: PretrainRecipe) -> None:
        what, given = "tenths of the steps are compared", by_key(self.overrides.get("pretrain"))
        for key in ("training.minutes", "training.save_every", "training.keep_checkpoints"):
            if key in given:
                raise ConfigError(f"--set pretrain.{given[key]}: {what}; leave it out")
        if (steps := num_steps(recipe)) % 10:
            raise ConfigError(f"pretrain.training.steps = {steps}: {what}; give a multiple of 10")

    def jobs(self) -> list[tuple[Arm, str, int]]:
        """Return the fine-tuning jobs: arm, role of the task, and seed."""
        return [
            (arm, role, seed)
            for seed in self.seeds
            for arm in self.experiment.arms
            for role, probe in self.probes.items()
            if arm.kind in (None, probe.kind) and probe.kind not in arm.not_for
        ]

    def digest(self) -> str:
        """Return a digest of one seed's recipes: another version may state an experiment differently."""
        one = replace(self, seeds=self.seeds[:1])  # seeds may be added later
        recipes = [one.pretraining(*run) for run in one.pretrainings()]
        recipes += [one.finetuning(arm, one.probes[role], seed) for arm, role, seed in one.jobs()]
        values = "\n".join(recipe.model_dump_json(exclude_defaults=True) for recipe in recipes)
        return hashlib.sha256(values.encode()).hexdigest()[:16]

    def pretrainings(self) -> list[tuple[str, int]]:
        """Return the pre-training jobs: model and seed."""
        seeds = [0] if self.experiment.recipes else self.seeds
        return [(model, seed) for seed in seeds for model in self.experiment.models]

    def model_folder(self, arm: Arm, seed: int) -> Path:
        """Return the run folder of an arm's model, its given folder, or the vocabulary if nothing is pre-trained."""
        if not self.experiment.models:
            return self.out / "vocabulary"
        seed = 0 if self.experiment.recipes else seed
        return self.experiment.given.get(arm.model) or self.out / "pretrained" / slug(arm.model, seed)


def expected(plan: Plan, stages: Stages, num_jobs: int) -> str:
    """Estimate how long the remaining work will take, from timed steps of each model.

    Fine-tuning is assumed to take as long as pre-training on as many tokens in steps of the same size, because small
    steps, as with short examples, are less efficient.
    """
    left = [job for job in plan.jobs() if not stages.has(scoring_stage(*job))]
    if not plan.experiment.models:
        return f"{amount(len(left), 'run')} from scratch left"
    new = [run for run in plan.pretrainings() if not stages.has(pretraining_stage(*run))]
    threads, timed = torch.get_num_threads(), cache(partial(_timed, plan))
    first, has_all_cores = next(iter(plan.experiment.models)), bool(plan.experiment.recipes)
    if num_jobs > 1 and not has_all_cores:
        torch.set_num_threads(1)  # as in each run
    pretraining = sum(timed(model)["seconds"] for model, _ in new) / (1 if has_all_cores else num_jobs)
    finetuning = 0.0
    for arm, role, seed in left:
        (num_tokens, num_rows), whole = _size_of(plan.probes[role]), plan.pretraining(first, 0)
        training = plan.finetuning(arm, plan.probes[role], seed).training
        # models from elsewhere are taken to be as fast as the first one
        rate = timed(arm.model if arm.model in plan.experiment.models else first)["tokens_per_second"]
        few = max(1, round(num_tokens / num_rows * training.batch_size / whole.data.max_length))
        if few < whole.training.batch_size:
            rate *= timed(first, few)["tokens_per_second"] / timed(first)["tokens_per_second"]
        epochs = training.epochs if training.steps is None else training.steps * training.batch_size / num_rows
        finetuning += epochs * num_tokens / rate / num_jobs
    torch.set_num_threads(threads)
    told = [in_words(seconds) for seconds in (pretraining + finetuning, pretraining, finetuning)]
    return f"about {told[0]}: {told[1]} of pre-training and {told[2]} for {amount(len(left), 'run')} of fine-tuning"


def _timed(plan: Plan, model: str, batch_size: int | None = None) -> dict[str, Any]:
    """Time pre-training of a model on this machine, with another batch size if given.

    Raises ConfigError for a model that does not fit into memory.
    """
    recipe = plan.pretraining(model, 0)
    if batch_size is not None:
        few = recipe.training.model_copy(update={"batch_size": batch_size, "micro_batch_size": None})
        recipe = recipe.model_copy(update={"training": few})
    rows = plan_pretraining(recipe, corpus=plan.corpus, seconds=_TIMED_SECONDS)["sizes"]
    if not rows:
        raise ConfigError(f"{model}: its weights, gradients and moments take more memory than is free")
    return rows[0]


def _size_of(probe: Probe) -> tuple[float, int]:
    """Return a training file's approximate number of tokens and its number of rows: lines, or sentences if tagged."""
    path, num_rows = Path(probe.files.train), 1
    with path.open("rb") as file:
        num_rows += sum(not line.strip() for line in file) if probe.kind == "tagging" else sum(1 for _ in file)
    return path.stat().st_size / (_BYTES_PER_TAGGED if probe.kind == "tagging" else _BYTES_PER_TOKEN), num_rows


def pretraining_stage(model: str, seed: int) -> str:
    """Return the name of the stage that pre-trains a model."""
    return f"pre-training {model}, seed {seed}"


def scoring_stage(arm: Arm, role: str, seed: int) -> str:
    """Return the name of the stage that scores an arm on a task."""
    return f"{arm.name} on {role}, seed {seed}"


def num_steps(recipe: PretrainRecipe) -> int:
    """Return the steps of all phases of a recipe."""
    return sum(phase.steps for phase in recipe.phases) or recipe.training.steps


def slug(*parts: object) -> str:
    """Return a folder name made of letters, digits and single hyphens."""
    text = "-".join(str(part).lower() for part in parts)
    return "-".join("".join(sign if sign.isalnum() else " " for sign in text).split())
