"""The phases and the model of a pre-training recipe, determined without torch and without data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maskloom.config import PretrainingData, PretrainRecipe, TrainingSection, unread_sections
from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.data.streams.sentence_pairs import PAIR_TASKS, SentencePairs
from maskloom.errors import ConfigError, DataError
from maskloom.models.architectures import ARCHITECTURES, architecture_of, config_of
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.sections import MOST_STEPS
from maskloom.text.tokenizer import Tokenizer

# Large enough that no special token's id is refused before the size of the vocabulary is known.
_ANY_VOCABULARY = 10_000_000
# Whole-word masking is refused if words have more pieces on average; sentences to look at.
_LONGEST_WORD, _SAMPLE = 20, 10_000


@dataclass(frozen=True)
class PhasePlan:
    """One stretch of pre-training at one sequence length, with all settings resolved."""

    name: str
    data: PretrainingData
    training: TrainingSection

    def data_for(self, config: ModelConfig) -> PretrainingData:
        """Return the settings with the token with which a model of this configuration begins every target."""
        if "decoder_start" not in type(self.data).model_fields:
            return self.data
        return self.data.model_copy(update={"decoder_start": config.own_start})


def pretraining_data(recipe: PretrainRecipe) -> PretrainingData:
    """Return what a recipe's stream and corruption read: the keys of [data] and of its objective's section."""
    section = getattr(recipe, recipe.objective, None)
    return PRETRAINING[recipe.objective].data.model_construct(**dict(recipe.data), **dict(section or ()))


def phase_plans(recipe: PretrainRecipe) -> list[PhasePlan]:
    """Return the phases of a recipe; without [[phases]] tables there is one, with the recipe's own length and steps.

    Phases share a run's minutes in proportion to their tokens. Extensions belong to the last phase.
    """
    training, minutes, own = recipe.training, recipe.training.minutes, pretraining_data(recipe)
    by_clock = {} if minutes is None else {"steps": MOST_STEPS}
    if not recipe.phases:
        return [PhasePlan("phase-1", own, training.model_copy(update=by_clock))]
    plans = []
    tokens = [phase.steps * (phase.batch_size or training.batch_size) * phase.max_length for phase in recipe.phases]
    for number, phase in enumerate(recipe.phases, start=1):
        given = phase.model_dump(exclude_none=True, exclude={"max_length"}) | by_clock
        if minutes is not None:
            given["minutes"] = minutes * tokens[number - 1] / sum(tokens)
        if number < len(recipe.phases):
            given["extensions"] = []
        # A cap on predictions applies to the length for which it was given; at other lengths only the rate counts.
        cap = recipe.data.max_predictions_per_seq if phase.max_length == recipe.data.max_length else None
        data = own.model_copy(update={"max_length": phase.max_length, "max_predictions_per_seq": cap})
        plans.append(PhasePlan(f"phase-{number}", data, training.model_copy(update=given)))
    return plans


def config_for(recipe: PretrainRecipe, tokenizer: Tokenizer) -> ModelConfig:
    """Return the model configuration for a tokenizer, with its special tokens where the recipe names none."""
    vocabulary, special, template = tokenizer.vocabulary, tokenizer.vocabulary.special, tokenizer.template
    marks = (special.pad, special.begin or special.classify, special.end or special.separator)
    ids = [None if token is None else vocabulary.ids[token] for token in marks]
    if PRETRAINING[recipe.objective].has_decoder:  # which reads and writes the marks around a task's texts
        ids[1:] = (next(iter(found), None) for found in (template.begin, template.end))
    return model_config(recipe, vocab_size=len(vocabulary)).with_marks(*ids)


def model_config(recipe: PretrainRecipe, *, vocab_size: int) -> ModelConfig:
    """Return the model's configuration; raises ConfigError for a wrong key or value of [model.config]."""
    if "vocab_size" in recipe.model.config:
        given = recipe.model.config["vocab_size"]
        raise ConfigError(f"model.config.vocab_size = {given!r:.200}: the corpus determines it; leave it out")
    if "causal" in recipe.model.config:
        raise ConfigError("model.config.causal: objective = 'causal_lm' makes a left-to-right model; leave it out")
    more: dict[str, Any] = {"vocab_size": vocab_size}
    if "causal" in ARCHITECTURES[recipe.model.architecture].config_type.model_fields:
        more["causal"] = PRETRAINING[recipe.objective].is_causal
    return config_of(recipe.model, **more)


def heads_of(recipe: PretrainRecipe, config: ModelConfig) -> tuple[str, ...]:
    """Return the heads of the model that a recipe trains."""
    return PRETRAINING[recipe.objective].heads(architecture_of(config).vocabulary_head, pretraining_data(recipe))


def check_model(recipe: PretrainRecipe, init: ModelConfig | None = None) -> None:
    """Raise ConfigError if objective, [model] (or the model `init` in its place), [data] and [[phases]] do not fit."""
    config = model_config(recipe, vocab_size=_ANY_VOCABULARY) if init is None else init
    row, architecture = PRETRAINING[recipe.objective], architecture_of(config)
    whose, model = ("[model.config]", "the model") if init is None else ("the initial model's", "the initial model")
    keys = [f"phases.{number}.max_length" for number in range(len(recipe.phases))] or ["data.max_length"]
    for key, plan in zip(keys, phase_plans(recipe), strict=True):
        if plan.data.max_length > (limit := config.max_position_embeddings):
            most = f"{whose} max_position_embeddings = {limit}"
            raise ConfigError(f"{key} = {plan.data.max_length}: it may not exceed {most}")
    if getattr(config, "bilstm", False):
        raise ConfigError(f"{whose} bilstm = true: fine-tuning adds a BiLSTM: `maskloom finetune --set bilstm=true`")
    for part, needs in (("has_decoder", "trains a decoder"), ("has_state", "carries state")):
        if getattr(row, part) and not getattr(architecture, part):
            known = ", ".join(repr(name) for name, other in ARCHITECTURES.items() if getattr(other, part))
            what = f"objective = {recipe.objective!r} {needs}, but a {architecture.name} has none"
            raise ConfigError(f"{what}; model.architecture must be one of {known}")
    if row.reads_spelling != (spells := architecture.reads_spelling):
        rows, key = ((ARCHITECTURES, "model.architecture"), (PRETRAINING, "objective"))[spells]
        known = ", ".join(repr(name) for name, other in rows.items() if other.reads_spelling)
        read = "words by their characters" if spells else "tokens of a vocabulary"
        models = f"{architecture.name} models read {read}"
        raise ConfigError(f"objective = {recipe.objective!r}: {models}; {key} must be one of {known}")
    if config.is_causal != row.is_causal:
        kind = "left-to-right" if config.is_causal else "bidirectional"
        hint = "; objective = 'causal_lm' trains such models" if config.is_causal else ""
        raise ConfigError(f"objective = {recipe.objective!r}: {model} is {kind}{hint}")
    if recipe.data.next_sentence and config.num_segments < 2:
        has_key = "type_vocab_size" in type(config).model_fields
        what = f"{whose} type_vocab_size = 1" if has_key else f"{model} has no segments"
        raise ConfigError(f"{what}: data.next_sentence = true needs two, for sentences A and B")


def check_corpus(recipe: PretrainRecipe, corpus: Corpus) -> None:
    """Raise ConfigError for special tokens that a corpus lacks and for settings that do not fit it.

    Raises DataError if no training document, or no document that is held out, has the sentences that pairs need.
    """
    special, data, lacks = corpus.vocabulary.special, recipe.data, f"the vocabulary of {corpus.folder} has none"
    hint = "build the corpus with a WordPiece or byte-level vocabulary, or set"
    row = PRETRAINING[recipe.objective]
    if missing := [role for role in row.needs if getattr(special, role) is None]:
        needs = f"objective = {recipe.objective!r} needs a {missing[0]} token"
        raise ConfigError(f"{needs}, but {lacks}; {hint} objective = 'causal_lm'")
    if row.has_decoder and not corpus.tokenizer.template.end:
        raise ConfigError(f"objective = {recipe.objective!r} needs a token that ends a text, but {lacks}")
    if row.reads_spelling and corpus.tokenizer.lowercase:
        why = "the model reads words as they are spelled; train one with `maskloom vocab train --model words --cased`"
        raise ConfigError(f"the vocabulary of {corpus.folder} is lower-cased: {why}")
    for plan in phase_plans(recipe):
        row.corruption(corpus.vocabulary, plan.data, recipe.seed)  # it may refuse a vocabulary
    if data.next_sentence and None in (special.classify, special.separator):
        needs = "a token that represents a pair and one that separates its texts"
        raise ConfigError(f"data.next_sentence = true needs {needs}, but {lacks}; {hint} data.next_sentence = false")
    shortest = min(plan.data.max_length for plan in phase_plans(recipe))
    if data.next_sentence and shortest < (least := corpus.tokenizer.template.num_marks(2) + 2):
        raise ConfigError(f"data.max_length = {shortest}: a pair of texts and its marks need at least {least} tokens")
    if (own := pretraining_data(recipe)).pairs and PAIR_TASKS[own.pairs].least_sentences > 1:
        split = split_documents(corpus, data.held_out_fraction, seed=recipe.seed)
        for kind, documents in zip(("training", "held-out"), split, strict=True):
            try:
                if len(documents):
                    SentencePairs(corpus, documents, own, seed=recipe.seed)
            except DataError as error:
                raise DataError(f"{corpus.folder}, {kind} documents: {error}") from None
    for name in ("short_seq_prob", "static_masks") if row.reads_running_text(corpus) else ():
        if (value := getattr(data, name)) != getattr(PretrainingData(), name):
            raise ConfigError(f"data.{name} = {value!r}: {corpus.folder} is read as running text; leave it out")
    if data.whole_word_masking:
        ids = corpus.sentences(0, min(_SAMPLE, corpus.num_sentences))
        size = len(ids) / max(1, int(corpus.vocabulary.begins_words(ids).sum()))
        if size > _LONGEST_WORD:
            why = f"a word of {corpus.folder} has {size:,.0f} pieces on average, more than are predicted in a row"
            raise ConfigError(f"data.whole_word_masking = true: {why}; set it to false")


def ignored_settings(recipe: PretrainRecipe, *, has_init: bool) -> list[str]:
    """Return a sentence for each setting that is ignored: initial weights, [[phases]] or the objective decide."""
    plain = PretrainRecipe.model_validate({"objective": recipe.objective}).model
    own = [f"model.{key}" for key, value in plain if getattr(recipe.model, key) != value]
    said = [f"{', '.join(own)}: ignored, the initial model has its own sizes"] if has_init and own else []
    said += unread_sections(recipe)
    training, usual = recipe.training, TrainingSection()
    if training.steps != usual.steps and training.minutes is not None and not recipe.phases:
        said.append(f"training.steps = {training.steps}: ignored, the clock ends the run (training.minutes)")
    for name in ("steps", "batch_size", "learning_rate", "warmup_steps") if recipe.phases else ():
        is_given = (value := getattr(training, name)) != getattr(usual, name)
        if is_given and None not in [getattr(phase, name) for phase in recipe.phases]:
            said.append(f"training.{name} = {value}: ignored, every phase has its own {name}")
    data, lengths = recipe.data, [phase.max_length for phase in recipe.phases]
    is_cap = data.max_predictions_per_seq is not None and data.max_length in lengths
    given, known = data.model_fields_set, PretrainingData.model_fields  # a run's own recipe sets all of them
    is_given = data.max_length != PretrainingData().max_length or ("max_length" in given and len(given) < len(known))
    if {*lengths} - {data.max_length} and is_given and not is_cap:
        said.append(f"data.max_length = {data.max_length}: ignored, every phase has its own length")
    others = sorted({length for length in lengths if length != data.max_length})
    if data.max_predictions_per_seq is not None and others:
        said.append(
            f"data.max_predictions_per_seq = {data.max_predictions_per_seq}: applies only to length {data.max_length} "
            f"(data.max_length); phases of length {', '.join(map(str, others))} predict as many tokens as "
            "data.masked_lm_prob asks for"
        )
    return said
