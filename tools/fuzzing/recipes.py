"""Invalid recipes, each with its expected error message."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BadRecipe:
    """TOML text of a recipe of one kind, and a pattern of the expected error message."""

    what: str
    text: str
    refused: str
    kind: str = "PretrainRecipe"


def outcome_of(recipe: BadRecipe, folder: Path) -> str:
    """Return "" when the recipe is refused as expected, otherwise the actual outcome."""
    import maskloom.config as config
    from maskloom.errors import ConfigError
    from maskloom.runs.pretraining_plan import check_model

    path = folder / "recipe.toml"
    path.write_bytes(recipe.text.encode("utf-8", "surrogatepass"))
    check = check_model if recipe.kind == "PretrainRecipe" else None
    try:
        config.load_recipe(getattr(config, recipe.kind), path, check=check)
    except ConfigError as error:
        sound = re.search(recipe.refused, str(error)) and "recipe.toml" in str(error) and len(str(error)) < 20_000
        return "" if sound else f"refused otherwise: {error}"[:500]
    return "accepted"


_TRAINING = "[training]\n"
_MODEL = "[model.config]\n"
_PHASE = "[[phases]]\nmax_length = 65\n"
_FINETUNE = "FinetuneRecipe"

BAD_RECIPES: tuple[BadRecipe, ...] = (
    BadRecipe("a typo", _TRAINING + "learning_rat = 1e-4", "did you mean 'training.learning_rate'"),
    BadRecipe("a typo in a section", "[trainig]\nsteps = 1", "did you mean 'training'"),
    BadRecipe("another word", _TRAINING + "bacth_size = 8", "did you mean 'training.batch_size'"),
    BadRecipe("a key of another section", "[data]\nsteps = 5", "unknown key 'data.steps'"),
    BadRecipe("a key of the other kind", "[span]\nstride = 5", "unknown key 'span'"),
    BadRecipe("nothing like it", "zzz = 1", "unknown key 'zzz'; known keys: "),
    BadRecipe("a text for a number", _TRAINING + 'steps = "10"', "training.steps = '10': .*whole number"),
    BadRecipe("a fraction for a count", _TRAINING + "steps = 1.5", r"training.steps = 1.5: .*whole number"),
    BadRecipe("a truth for a number", _TRAINING + "batch_size = true", "training.batch_size = True: .*whole number"),
    BadRecipe("a list for a number", _TRAINING + "learning_rate = [1e-4]", r"training.learning_rate = \[0.0001\]"),
    BadRecipe("a number for a section", "training = 3", "training = 3: "),
    BadRecipe("a date", _TRAINING + "steps = 2020-01-01", "training.steps = "),
    BadRecipe("negative", _TRAINING + "steps = -1", "training.steps = -1: .*greater"),
    BadRecipe("nought", _TRAINING + "batch_size = 0", "training.batch_size = 0: .*greater"),
    BadRecipe("negative rate", _TRAINING + "learning_rate = -1e-4", "training.learning_rate = -0.0001: .*greater"),
    BadRecipe("negative decay", _TRAINING + "weight_decay = -0.1", "training.weight_decay = -0.1"),
    BadRecipe("1e400", _TRAINING + "learning_rate = 1e400", "training.learning_rate = inf: .*finite"),
    BadRecipe("1e400 steps", _TRAINING + "steps = 1e400", "training.steps = inf"),
    BadRecipe("NaN", _TRAINING + "learning_rate = nan", "training.learning_rate = nan"),
    BadRecipe("minus infinity", "[data]\nmasked_lm_prob = -inf", "data.masked_lm_prob = -inf"),
    BadRecipe("400 digits", _TRAINING + f"steps = 1{'0' * 400}", "training.steps = 1000.*less than"),
    BadRecipe("5,000 digits", _TRAINING + f"steps = {'9' * 5000}", "not valid TOML: a number has too many digits"),
    BadRecipe("a probability above 1", "[data]\nmask_prob = 1.5", "data.mask_prob = 1.5"),
    BadRecipe("probabilities above 1 together", "[data]\nmask_prob = 0.8\nkeep_prob = 0.5", "may not exceed 1"),
    BadRecipe("a length below the least", "[data]\nmax_length = 4", "data.max_length = 4"),
    BadRecipe("a length beyond all", "[data]\nmax_length = 1000001", "data.max_length = 1000001"),
    BadRecipe(
        "warm-up beyond the end",
        _TRAINING + "steps = 100\nwarmup_steps = 101",
        r"training.warmup_steps = 101: it may not exceed training.steps = 100; lower .* training.warmup_steps=10$",
    ),
    BadRecipe(
        "a micro-batch above the batch",
        _TRAINING + "batch_size = 8\nmicro_batch_size = 16",
        r"training.micro_batch_size = 16: it may not exceed training.batch_size = 8; .* training.micro_batch_size=8$",
    ),
    BadRecipe(
        "warm-up beyond a phase",
        _TRAINING + "warmup_steps = 50\n" + _PHASE + "steps = 60\n" + _PHASE + "steps = 40",
        r"training.warmup_steps = 50: it may not exceed phases.1.steps = 40; lower .* training.warmup_steps=4$",
    ),
    BadRecipe(
        "a phase's batch below the micro-batch",
        _TRAINING + "micro_batch_size = 4\n" + _PHASE + "steps = 60\nbatch_size = 2",
        r"training.micro_batch_size = 4: it may not exceed phases.0.batch_size = 2; .* training.micro_batch_size=2$",
    ),
    BadRecipe(
        "a best model of nothing",
        "[data]\nheld_out_fraction = 0.0\n" + _TRAINING + "keep_best = true",
        r"training.keep_best = true: with data.held_out_fraction = 0 ",
    ),
    BadRecipe("no checkpoint kept", _TRAINING + "keep_checkpoints = 0", "training.keep_checkpoints = 0: .*greater"),
    BadRecipe("saved never", _TRAINING + "save_every = 0", "training.save_every = 0: .*greater"),
    BadRecipe("a warm-up share above 1", _TRAINING + "warmup_ratio = 1.5", "training.warmup_ratio = 1.5: .*less"),
    BadRecipe(
        "heads that do not share the width",
        _MODEL + "hidden_size = 100\nnum_attention_heads = 3",
        r"\[model.config\] hidden_size 100 is not divisible by num_attention_heads 3$",
    ),
    BadRecipe("a negative width", _MODEL + "hidden_size = -4", r"\[model.config\] hidden_size = -4: .*greater"),
    BadRecipe("a typo in the model", _MODEL + "hiden_size = 8", "'hiden_size'; did you mean 'hidden_size'"),
    BadRecipe("a text for a width", _MODEL + 'hidden_size = "8"', "hidden_size = '8': .*whole number"),
    BadRecipe("a size of the vocabulary", _MODEL + "vocab_size = 8", "model.config.vocab_size = 8: "),
    BadRecipe(
        "longer than the positions",
        "[data]\nmax_length = 513",
        r"data.max_length = 513: it may not exceed \[model.config\] max_position_embeddings = 512$",
    ),
    BadRecipe(
        "a phase longer than the positions",
        _MODEL + "max_position_embeddings = 64\n" + _PHASE + "steps = 1\n[data]\nmax_length = 64",
        r"phases.0.max_length = 65: it may not exceed \[model.config\] max_position_embeddings = 64$",
    ),
    BadRecipe("one segment for two sentences", _MODEL + "type_vocab_size = 1", "type_vocab_size = 1: .*next_sentence"),
    BadRecipe("an unknown size", '[model]\nsize = "huge"', "model.size = 'huge' is not one of tiny, "),
    BadRecipe("an unknown schedule", _TRAINING + 'schedule = "polynomial"', "training.schedule = 'polynomial'"),
    BadRecipe("beta of 1", _TRAINING + "adam_beta1 = 1.0", "training.adam_beta1 = 1.0"),
    BadRecipe("a phase without steps", "[[phases]]\nmax_length = 64", "phases.0.steps"),
    BadRecipe("a seed too large", "seed = 4294967296", "seed = 4294967296"),
    BadRecipe("a key twice", _TRAINING + "steps = 1\nsteps = 2", "not valid TOML"),
    BadRecipe("not TOML", "steps: 10", "not valid TOML"),
    BadRecipe("depth 10,000", "x = " + "[" * 10_000, "not valid TOML: nested too deeply"),
    BadRecipe("NUL", "x = 1\0", "not valid TOML"),
    BadRecipe("half a surrogate", 'x = "\ud800"', "is not UTF-8"),
    BadRecipe("ten thousand wrong keys", "\n".join(f"k{n} = 1" for n in range(10_000)), "and 9950 more"),
    BadRecipe("two megabytes", "#" * (2 << 20), "larger than 1,048,576 bytes"),
    BadRecipe("features without tagging", 'task = "single"\n[features]\n', r"\[features\] needs task", _FINETUNE),
    BadRecipe("an unknown task", 'task = "translate"', "task = 'translate'", _FINETUNE),
    BadRecipe(
        "a batch beyond all memory",
        _TRAINING + "batch_size = 1000000000000",
        "training.batch_size = 1000000000000",
        _FINETUNE,
    ),
    BadRecipe("more restarts than memory", "restarts = 99999999999\n", "restarts = 99999999999: it must be", _FINETUNE),
    BadRecipe("epochs without end", _TRAINING + "epochs = 1e300", "training.epochs = 1e\\+300", _FINETUNE),
    BadRecipe(
        "warm-up beyond the end, fine-tuning",
        _TRAINING + "steps = 10\nwarmup_steps = 11",
        r"training.warmup_steps = 11: it may not exceed training.steps = 10; lower .* training.warmup_steps=1$",
        _FINETUNE,
    ),
    BadRecipe(
        "weights of classes of spans",
        'task = "span"\nclass_weights = "balanced"',
        "class_weights: .*task = 'span'",
        _FINETUNE,
    ),
    BadRecipe("a negative weight", "[class_weights]\na = -1.0", "class_weights.a = -1.0: .*greater", _FINETUNE),
    BadRecipe("an unknown weighting", 'class_weights = "even"', "class_weights = 'even' is not one of none", _FINETUNE),
    BadRecipe(
        "tuning of a regression",
        'task = "regression"\ntune_on_dev = true',
        "tune_on_dev = true: task = 'regression'",
        _FINETUNE,
    ),
    BadRecipe(
        "layers by no name",
        'task = "tagging"\n[features]\nlayers = "lastt"',
        "features.layers = 'lastt': .*scalar_mix",
        _FINETUNE,
    ),
    BadRecipe("an odd LSTM", 'task = "tagging"\n[features]\nlstm_size = 3', "features.lstm_size = 3", _FINETUNE),
)
