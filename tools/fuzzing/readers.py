"""The readers under test: each processes a file as a command would before any training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.fuzzing import seeds


def prepared_task(kind: str, path: Path, dev: Path | None = None, *, encodes: bool = True, **options: Any) -> Any:
    """Do fine-tuning's work on files before the first step: read, label, check, encode; return the training data."""
    from maskloom.tasks.kinds import task_kind
    from maskloom.tasks.tables import ReadingOptions

    how, row = ReadingOptions(**options), task_kind(kind)
    parts = [row.read(part, how) for part in (path, dev) if part is not None]
    train = parts[0]
    assert train.report.num_rows == train.report.num_kept + sum(train.report.dropped.values()), "rows are lost"
    settings = row.settings().model_copy(update=row.data_settings(train))
    names = row.label_names(train, how, settings)
    row.check(train, parts[-1])
    task = row.make(names, None, settings)
    for part in parts if encodes else ():
        task.encode(part, seeds.tokenizer(), 16, for_training=part is train)
    return train


def read_task(kind: str, **options: Any) -> Callable[[Path], object]:
    """Return a function that prepares a task of some kind from its training file."""
    return lambda path: prepared_task(kind, path, **options)


def read_documents(path: Path) -> object:
    """Read the documents of a text file."""
    from maskloom.data.corpus.documents import read_documents

    return sum(len(document.text) for document in read_documents(path))


def read_recipe(kind: str) -> Callable[[Path], object]:
    """Return a function that loads a recipe, resolves its settings, and checks that it survives a round trip."""

    def read(path: Path) -> object:
        import maskloom.config as config

        recipe = config.load_recipe(getattr(config, kind), path)
        settings = recipe.training
        if kind == "PretrainRecipe":
            from maskloom.models.bert import BertConfig

            BertConfig.of_size(recipe.model.size, **recipe.model.config)
            recipe.data.resolved_max_predictions()
        else:
            settings = settings.with_steps(100)
        settings.resolved_warmup_steps()
        again = path.with_name("again.toml")
        again.write_text(config.recipe_toml(recipe), encoding="utf-8")
        assert config.load_recipe(getattr(config, kind), again) == recipe
        return recipe

    return read


def read_overrides(path: Path) -> object:
    """Load a recipe with the lines of the file as overrides."""
    from maskloom.config import PretrainRecipe, load_recipe

    return load_recipe(PretrainRecipe, None, path.read_bytes().decode("utf-8", "replace").splitlines())


def read_space(path: Path) -> object:
    """Parse the lines of the file as a search space, and create recipes from its grid."""
    from maskloom.config import FinetuneRecipe
    from maskloom.runs.search_space import grid_settings, parse_space, recipe_with

    space = parse_space(path.read_bytes().decode("utf-8", "replace").splitlines())
    fixed = {key: values for key, values in space.items() if not isinstance(values, dict)}
    return [recipe_with(FinetuneRecipe(), settings, source="grid") for settings in grid_settings(fixed)[:50]]


def read_vocabulary(path: Path) -> object:
    """Load the vocabulary in the file's folder; encode and decode a text."""
    from maskloom.runs.corpus import inspect_vocabulary
    from maskloom.text.tokenizer import Tokenizer

    if path.name == "vocab.txt":
        inspect_vocabulary(path)
    else:
        path.with_name("vocab.txt").unlink(missing_ok=True)
    tokenizer = Tokenizer.load(path.parent)
    encoding = tokenizer.encode("the ab bing é 中 unknown", "b [MASK]")
    return tokenizer.decode(encoding.ids)


def read_tokenizer_settings(path: Path) -> object:
    """Load the tokenizer from the file's folder, and encode a text."""
    from maskloom.text.tokenizer import Tokenizer

    return Tokenizer.load(path.parent).encode("the ab")


def read_model(path: Path) -> object:
    """Load the model from the file's folder."""
    from maskloom.checkpoints.huggingface import load_model

    return load_model(path.parent)


def read_predictor(path: Path) -> object:
    """Load a predictor from the file's folder, encode texts, and predict."""
    from maskloom.errors import ConfigError
    from maskloom.inference import Predictor

    predictor = Predictor.load(path.parent)
    predictor.encode(["the ab", "b"])
    try:
        return predictor.predict(["the ab", "b"])
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None  # the model was read; its task is another question


def read_features(path: Path) -> object:
    """Read the feature file in the file's folder."""
    from maskloom.data.feature_files import FeatureFile

    file = FeatureFile.open(path.parent)
    return file.rows(range(len(file)))


def read_corpus(path: Path) -> object:
    """Open the corpus in the file's folder, lint it, and compute its statistics."""
    from maskloom.data.corpus.lint import lint_corpus
    from maskloom.data.corpus.opening import Corpus
    from maskloom.data.corpus.statistics import corpus_statistics

    corpus = Corpus.open(path.parent)
    lint_corpus(corpus)
    return corpus_statistics(corpus)


def read_scores(path: Path) -> object:
    """Score a file of predicted answers."""
    from maskloom.tasks.span.reading import score_files

    gold = path.with_name("gold.json")
    gold.write_bytes(seeds.SQUAD)
    return score_files(gold, path)


def read_label_names(path: Path) -> object:
    """Read a file of label names."""
    from maskloom.tasks.labels import read_label_names

    return read_label_names(path)


def read_glue_rows(path: Path) -> object:
    """Check the genres of a GLUE test file, and count its rows."""
    from maskloom.runs.glue.files import check_genres, count_test_rows

    check_genres(path, matched=True)
    return count_test_rows(path)


def read_run_folder(path: Path) -> object:
    """Describe a run folder that contains the file."""
    from maskloom.runs.info import describe_folder

    (path.parent / "recipe.toml").write_text("")
    (path.parent / "checkpoints").mkdir(exist_ok=True)
    return describe_folder(path.parent)
