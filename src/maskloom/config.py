"""The recipes, assembled from sections defined where they are used; `recipe_files` reads and writes recipes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.fields import FieldInfo

from maskloom.data.settings import PretrainingData
from maskloom.models.model_config import ModelSection
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.recipe_files import load_recipe as load_recipe
from maskloom.recipe_files import recipe_toml as recipe_toml
from maskloom.recipe_files import validate_recipe as validate_recipe
from maskloom.rows import row_of
from maskloom.sections import Positive, Section, key
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.settings import FeaturesSection, FinetuningData, KindSettings, MixSection, PairSection
from maskloom.training.settings import FinetuneTraining, Phase, TrainingSection

_RATE_OF_NEW = 1e-3
"""The default learning rate of a model that is trained from the start; 5e-5 is for a trained one."""

_Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")]


class CardSection(Section):
    """Facts for the model card that only a person knows, in the terms that model hubs use."""

    license: str | None = key(None, "Licence of the model, such as apache-2.0.", pattern=r"^[a-z0-9][a-z0-9.+-]{0,60}$")
    language: _Language | list[_Language] | None = key(
        None, "Language code of the text, such as en, or a list of codes."
    )
    base_model: str | None = key(
        None,
        "Published name of the model that training starts from; defaults to the name in its files.",
        pattern=r"^[\w.-]+(/[\w.-]+)?$",
    )


class PretrainRecipe(Section):
    """A pre-training run: model, data, training and, optionally, phases with their own sequence lengths."""

    kind: Literal["pretrain"] = key("pretrain", "Kind of run.")
    seed: int = key(0, "Random seed for weights, sampling, masks and dropout.", ge=0, lt=2**32)
    objective: Annotated[str, row_of("objective")] = key(
        "masked_lm",
        "What to predict. masked_lm: masked tokens. causal_lm: each token from the tokens before it. carried_lm: the "
        "same, with a recurrent network whose state carries over between batches. bidirectional_lm: each word from the "
        "words before it and, separately, from the words after it (ELMo). denoising, with a decoder: the original of "
        "a noised text (BART). span_corruption, with a decoder: the missing spans of a text (T5).",
    )
    model: ModelSection = ModelSection()
    data: PretrainingData = PretrainingData()
    training: TrainingSection = TrainingSection()
    card: CardSection | None = None
    phases: list[Phase] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _objective_has_defaults(cls, values: Any) -> Any:
        """Fill in the objective's defaults for keys of [data] and the architecture that it needs."""
        if not isinstance(values, dict) or not isinstance(data := values.get("data", {}), dict):
            return values
        row = PRETRAINING.get(str(values.get("objective", cls.model_fields["objective"].default)))
        needed = "transformer" if row and row.has_decoder else "elmo" if row and row.reads_spelling else None
        if needed and isinstance(model := values.get("model", {}), dict):
            values = {**values, "model": {"architecture": needed, **model}}
        return {**values, "data": {**row.defaults, **data}} if row and row.defaults else values

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        row, what = PRETRAINING[self.objective], f"objective = {self.objective!r}"
        if row.is_causal and self.data.pair_task:
            raise ValueError(f"{what}: data.next_sentence = true needs a bidirectional model")
        if (row.has_decoder or row.reads_spelling) and self.data.next_sentence:
            raise ValueError(f"{what} reads single texts: leave out data.next_sentence = true")
        plain = PretrainingData()
        if given := [name for name in row.unread if getattr(self.data, name) != getattr(plain, name)]:
            raise ValueError(f"{what}: leave out data.{', data.'.join(given)}, not read by this objective")
        for number, phase in enumerate(self.phases):
            is_last = number == len(self.phases) - 1
            training = self.training if is_last else self.training.model_copy(update={"extensions": []})
            training.refuse_contradictions(phase, f"phases.{number}")
        if not self.phases:
            self.training.refuse_contradictions()
        if self.training.keep_best and self.data.held_out_fraction == 0.0:
            raise ValueError("training.keep_best = true: with data.held_out_fraction = 0 there is no loss to choose by")
        return self


class FinetuneRecipe(Section):
    """A fine-tuning run: task, data and training; a section named after a kind of task is read only by that kind.

    `class_weights` weights the loss of each class, of each word tag, or of the positives of each label (multilabel): by
    name, or "balanced" by the counts in train. With a `model` section, training starts from a new model with random
    weights and a vocabulary, not from a model folder.
    """

    kind: Literal["finetune"] = key("finetune", "Kind of run.")
    seed: int = key(0, "Random seed for the new head, data order and dropout.", ge=0, lt=2**32)
    restarts: int = key(1, "Number of runs, with seeds seed, seed + 1, ...; the best on dev is kept.", ge=1, le=10_000)
    keep_restarts: bool = key(False, "Keep the best model of every seed, for an ensemble.")
    tune_on_dev: bool = key(False, "Fit temperature and thresholds on the dev set at the end.")
    task: Annotated[str, row_of("task")] = key("single", f"Kind of task: {', '.join(KINDS)}.")
    class_weights: Literal["none", "balanced"] | dict[str, Positive] = key(
        "none", "Class weights in the loss: none, balanced, or a weight per label."
    )
    auxiliary_lm: float = key(
        0.0,
        "Weight of an auxiliary language-model loss (GPT's lambda); only for left-to-right models.",
        ge=0.0,
        le=100.0,
    )
    from_scratch: bool = key(False, "Start from random weights instead of the model's.")
    bilstm: bool = key(
        False, "Add a randomly initialised BiLSTM between a BERT or an ELMo and its head (Table 5 of the paper)."
    )
    frozen: bool = key(False, "Freeze the encoder: train only the new head, a BiLSTM and an ELMo's mix.")
    model: ModelSection | None = None
    data: FinetuningData = FinetuningData()
    training: FinetuneTraining = FinetuneTraining()
    pair: PairSection = PairSection()
    mix: MixSection = MixSection()
    features: FeaturesSection | None = None
    card: CardSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _new_models_differ(cls, values: Any) -> Any:
        """Use a higher learning rate by default for a new model, and the Transformer if it generates text."""
        if not isinstance(values, dict) or not isinstance(model := values.get("model"), dict):
            return values
        row = KINDS.get(str(values.get("task")))
        usual = {"architecture": "transformer"} if row and row.has_decoder else {}
        training = values.get("training", {})
        more = {"training": {"learning_rate": _RATE_OF_NEW, **training}} if isinstance(training, dict) else {}
        return {**values, **more, "model": {**usual, **model}}

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        kind, settings = KINDS[self.task], self.task_settings(KINDS[self.task].settings)
        if self.features is not None and ("features" not in kind.settings.model_fields or self.from_scratch):
            raise ValueError("[features] needs task = 'tagging' and the weights of a trained model")
        if self.model is not None and (self.features is not None or self.bilstm or self.from_scratch):
            raise ValueError("[model] cannot be combined with [features], bilstm or from_scratch")
        if self.frozen and (self.model is not None or self.features is not None or self.from_scratch):
            raise ValueError("frozen = true cannot be combined with [model], [features] or from_scratch")
        if self.mix.of_encoder and self.model is not None:
            raise ValueError("[mix]: a new model takes its mix from [model.config]; set only mix.l2 here")
        if self.mix.layer_norm and self.features is not None and self.features.layers != "scalar_mix":
            raise ValueError("mix.layer_norm = true: of [features], only layers = 'scalar_mix' are mixed")
        if self.mix.dropout and self.features is not None:
            raise ValueError("mix.dropout: with [features], set features.dropout, which applies to the mixed vectors")
        if self.bilstm and (self.features is not None or self.auxiliary_lm):
            raise ValueError("bilstm = true, which reads in both directions, excludes [features] and auxiliary_lm")
        if self.class_weights != "none" and not kind.names_labels:
            raise ValueError(f"class_weights: task = {self.task!r} has no labels to weight; leave it at 'none'")
        if self.class_weights != "none" and getattr(settings, "crf", False):
            raise ValueError(f"class_weights apply to single tags, but {self.task}.crf = true scores whole sentences")
        for name in ("keep_best", "max_evaluation_instances"):
            if getattr(self.training, name):
                raise ValueError(f"training.{name}: only pre-training reads it; leave it out")
        if self.training.average_checkpoints and self.training.minutes is not None:
            raise ValueError("training.average_checkpoints counts steps: leave out training.minutes")
        if self.keep_restarts and kind.has_decoder:
            raise ValueError(f"keep_restarts = true: models of task = {self.task!r} cannot form an ensemble")
        if self.tune_on_dev and (kind.is_scale or kind.has_decoder):
            raise ValueError(f"tune_on_dev = true: task = {self.task!r} has no temperature or thresholds to fit")
        is_named = "task" in self.model_fields_set  # otherwise --format determines it
        if is_named and self.pair.both_orders and not kind.has_both_orders:
            raise ValueError(f"pair.both_orders = true: task = {self.task!r} does not read pairs of texts")
        if self.auxiliary_lm and (kind.reads_tokens or kind.has_decoder):
            why = "already predicts every token of its targets" if kind.has_decoder else "reads tokens, not sequences"
            raise ValueError(f"auxiliary_lm = {self.auxiliary_lm:g}: task = {self.task!r} {why}")
        if self.frozen and getattr(settings, "source_first", False):
            raise ValueError(f"frozen = true, but {self.task}.source_first = true trains parts of the encoder")
        self.training.refuse_contradictions()
        return self

    def task_settings(self, settings: type[KindSettings]) -> KindSettings:
        """Return the settings of the kind of task, collected from the sections that it reads."""
        section = getattr(self, self.task, None)
        given = dict[str, Any](section) if isinstance(section, Section) else {}
        if self.pair.both_orders:
            given["both_orders"] = True
        if self.features is not None:
            given |= {"features": self.features, "mix_layer_norm": self.mix.layer_norm}
        return settings.model_construct(**given)


def unread_sections(recipe: PretrainRecipe | FinetuneRecipe) -> list[str]:
    """Return a sentence for each section of another objective or kind of task whose defaults the recipe changes."""
    key_name, rows = ("objective", PRETRAINING) if isinstance(recipe, PretrainRecipe) else ("task", KINDS)
    chosen = getattr(recipe, key_name)
    sections = {name: row.section for name, row in rows.items() if name != chosen and row.section is not None}
    changed = [name for name, section in sections.items() if getattr(recipe, name) != section()]
    return [f"[{name}]: ignored, {key_name} = {chosen!r} does not read it" for name in changed]


def _take_sections(recipe: type[Section], own: set[str], rows: Mapping[str, Any]) -> None:
    """Replace a recipe's sections, all keys but its `own`, by those of `rows`, each under the name of its row."""
    fields, sections = recipe.__pydantic_fields__, {name: row.section for name, row in rows.items()}
    for name in [name for name in dict.fromkeys([*fields, *sections]) if name not in own]:
        fields.pop(name, None)
        if (section := sections.get(name)) is not None:
            fields[name] = FieldInfo(annotation=section, default=section())
    recipe.model_rebuild(force=True)


PRETRAINING.on_change(partial(_take_sections, PretrainRecipe, {*PretrainRecipe.model_fields}))
KINDS.on_change(partial(_take_sections, FinetuneRecipe, {*FinetuneRecipe.model_fields}))
