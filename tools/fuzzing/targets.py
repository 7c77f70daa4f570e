"""What is fuzzed: for each kind of file its good seeds, the making of wrong ones, and the reader under test."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.fuzzing import seeds
from tools.fuzzing.mutations import (
    VALUES,
    changed_json,
    changed_lines,
    changed_table,
    changed_tree,
    damaged,
    json_text,
    toml_text,
)

Make = Callable[[random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """One reader: `read(path)` takes the wrong file, called `name` in a folder that is a copy of `around`.

    `group` is the line of the table that it counts for.
    """

    group: str
    name: str
    good: Callable[[], Sequence[bytes]]
    read: Callable[[Path], object]
    structured: Make | None = None
    around: str | None = None

    def make(self, draw: random.Random) -> bytes:
        """Return one wrong file: damaged in its bytes, or in its values."""
        if self.structured is not None and draw.random() < 0.6:
            content = self.structured(draw)
            return damaged(content, draw) if draw.random() < 0.1 else content
        good = self.good()
        return damaged(draw.choice(good), draw, good)


@dataclass
class Surroundings:
    """Folders that targets are copied from, made when they are first asked for."""

    folder: Path
    makers: dict[str, Callable[[Path], None]] = field(
        default_factory=lambda: {
            "model": seeds.write_model,
            "pretrained": lambda folder: seeds.write_model(folder, ("mlm", "nsp"), None),
            "tagger": lambda folder: seeds.write_model(folder, ("bilstm_tagger",), 3),
            "corpus": seeds.write_corpus,
            "features": seeds.write_features,
            "sharded": _write_sharded,
            "numpy": _write_numpy,
        }
    )

    def of(self, name: str) -> Path:
        """Return the folder of that name."""
        path = self.folder / name
        if not path.exists():
            self.makers[name](path)
        return path


def _write_sharded(folder: Path) -> None:
    seeds.write_model(folder)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    names = list(_header((folder / "model-00001-of-00001.safetensors").read_bytes()))
    places = dict.fromkeys((name for name in names if name != "__metadata__"), "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _write_numpy(folder: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file

    seeds.write_model(folder)
    np.savez_compressed(folder / "model.npz", **load_file(folder / "model.safetensors"))  # pyright: ignore[reportArgumentType]
    (folder / "model.safetensors").unlink()


def _header(content: bytes) -> dict[str, Any]:
    return json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])


def _task(kind: str, **options: Any) -> Callable[[Path], object]:
    """Return what fine-tuning does with a file before the first step: reading, labels, checks, encoding."""

    def read(path: Path) -> object:
        from maskloom.tasks.columns import ReadingOptions
        from maskloom.tasks.kinds import task_kind
        from maskloom.text.tokenizer import Tokenizer
        from maskloom.text.vocabulary import Vocabulary

        how = ReadingOptions(**options)
        row = task_kind(kind)
        data = row.read(path, how)
        assert data.report.num_rows == data.report.num_kept + sum(data.report.dropped.values())
        names = row.label_names(data, how, {})
        row.check(data, data)
        task = row.make(names, None, row.data_settings(data))
        return task.encode(data, Tokenizer(Vocabulary(seeds.VOCABULARY), max_length=16), 16, for_training=True)

    return read


def _documents(path: Path) -> object:
    from maskloom.data.documents import read_documents

    return sum(len(document.text) for document in read_documents(path))


def _recipe(kind: str) -> Callable[[Path], object]:
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


def _overrides(path: Path) -> object:
    from maskloom.config import PretrainRecipe, load_recipe

    return load_recipe(PretrainRecipe, None, path.read_bytes().decode("utf-8", "replace").splitlines())


def _space(path: Path) -> object:
    from maskloom.config import FinetuneRecipe
    from maskloom.runs.search_space import ValueRange, grid_settings, parse_space, recipe_with

    space = parse_space(path.read_bytes().decode("utf-8", "replace").splitlines())
    fixed = {key: values for key, values in space.items() if not isinstance(values, ValueRange)}
    return [recipe_with(FinetuneRecipe(), settings, source="grid") for settings in grid_settings(fixed)[:50]]


def _vocabulary(path: Path) -> object:
    from maskloom.runs.vocabulary import inspect_vocabulary
    from maskloom.text.tokenizer import Tokenizer

    if path.name == "vocab.txt":
        inspect_vocabulary(path)
    else:
        path.with_name("vocab.txt").unlink(missing_ok=True)
    tokenizer = Tokenizer.load(path.parent)
    encoding = tokenizer.encode("the ab bing é 中 unknown", "b [MASK]")
    return tokenizer.decode(encoding.ids)


def _tokenizer_settings(path: Path) -> object:
    from maskloom.text.tokenizer import Tokenizer

    return Tokenizer.load(path.parent).encode("the ab")


def _model(path: Path) -> object:
    from maskloom.checkpoints.huggingface import load_model

    return load_model(path.parent)


def _predictor(path: Path) -> object:
    from maskloom.config import ConfigError
    from maskloom.inference import Predictor

    predictor = Predictor.load(path.parent)
    predictor.encode(["the ab", "b"])
    try:
        return predictor.predict(["the ab", "b"])
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None  # the model was read; what it is for is another question


def _predictions_of(path: Path) -> object:
    from maskloom.runs.predict import predict

    return predict(path.parent / "model", path, path.with_name("out.jsonl"))


def _features(path: Path) -> object:
    from maskloom.data.feature_files import FeatureFile

    file = FeatureFile.open(path.parent)
    return file.rows(range(len(file)))


def _corpus(path: Path) -> object:
    from maskloom.data.corpus import Corpus
    from maskloom.data.corpus_lint import lint_corpus
    from maskloom.data.corpus_statistics import corpus_statistics

    corpus = Corpus.open(path.parent)
    lint_corpus(corpus)
    return corpus_statistics(corpus)


def _scores(path: Path) -> object:
    from maskloom.tasks.span.scoring import score_files

    gold = path.with_name("gold.json")
    gold.write_bytes(seeds.SQUAD)
    return score_files(gold, path)


def _label_names(path: Path) -> object:
    from maskloom.tasks.labels import read_label_names

    return read_label_names(path)


def _glue_rows(path: Path) -> object:
    from maskloom.runs.glue.files import check_genres, count_test_rows

    check_genres(path, matched=True)
    return count_test_rows(path)


def _submission(path: Path) -> object:
    from maskloom.runs.glue.check import check_submission

    return check_submission(path, allow_partial=True)


def _run_folder(path: Path) -> object:
    from maskloom.runs.info import describe_folder

    (path.parent / "recipe.toml").write_text("")
    (path.parent / "checkpoints").mkdir(exist_ok=True)
    return describe_folder(path.parent)


def _submission_zip() -> bytes:
    import io
    import zipfile

    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("WNLI.tsv", "index\tprediction\n" + "".join(f"{n}\t0\n" for n in range(146)))
    return held.getvalue()


def _changed_toml(tree: dict[str, Any]) -> Make:
    return lambda draw: toml_text(changed_tree(tree, draw)).encode("utf-8", "surrogatepass")


def _changed_header(content: Callable[[], bytes]) -> Make:
    """Return a maker of safetensors files whose headers lie."""

    def make(draw: random.Random) -> bytes:
        good = content()
        length = struct.unpack("<Q", good[:8])[0]
        header = _header(good)
        names = [name for name in header if name != "__metadata__"]
        if draw.random() < 0.3:
            header[draw.choice(names)]["shape"] = draw.choice(
                ([2**63, 2], [2**32, 2**32], [-1, 8], [0], [10**400], [1] * 99)
            )
        if draw.random() < 0.2:
            first, second = draw.sample(names, 2)
            header[first]["data_offsets"] = header[second]["data_offsets"]
        if draw.random() < 0.3:
            header[draw.choice(names)]["dtype"] = draw.choice(("F99", "F4", "BOOL", "C64", "", None, 3))
        if draw.random() < 0.5:
            header = changed_tree(header, draw)
        text = json_text(header, draw)
        said = draw.choice(
            (len(text), len(text), len(text), 0, 1, 2**62, 2**64 - 1, len(text) + 8, draw.randrange(2**32))
        )
        data = good[8 + length :]
        return struct.pack("<Q", said) + text + draw.choice((data, data, data[:-1], data + b"\0", b""))

    return make


def _changed_manifest(content: Callable[[], bytes]) -> Make:
    """Return a maker of corpus manifests with wrong values under a checksum that fits."""

    def make(draw: random.Random) -> bytes:
        from maskloom.data.corpus_manifest import _own_checksum

        tree = changed_tree(json.loads(content()), draw)
        if isinstance(tree, dict) and draw.random() < 0.9:
            try:
                tree["checksum"] = _own_checksum(tree)
            except (TypeError, ValueError):
                tree["checksum"] = ""
        return json_text(tree, draw)

    return make


def all_targets(surroundings: Surroundings) -> list[Target]:
    """Return every target; `surroundings` holds the folders that some of them take their good files from."""

    def of(folder: str, name: str) -> Callable[[], Sequence[bytes]]:
        return lambda: [(surroundings.of(folder) / name).read_bytes()]

    def values(folder: str, name: str) -> Make:
        return lambda draw: changed_json(of(folder, name)())(draw)

    return [*_text_targets(), *_table_targets(), *_setting_targets(), *_folder_targets(of, values)]


def _text_targets() -> list[Target]:
    texts, lines = [seeds.TEXT], [seeds.JSON_TEXTS]
    packed = lambda draw: seeds.zipped(damaged(seeds.TEXT, draw))  # noqa: E731
    return [
        Target("text", "t.txt", lambda: texts, _documents),
        Target("text", "t.txt.gz", lambda: [seeds.zipped(seeds.TEXT)], _documents, packed),
        Target("text", "t.txt.zst", lambda: [seeds.zstandard_text()], _documents),
        Target("text JSONL", "t.jsonl", lambda: lines, _documents, changed_lines(lines)),
        Target("Parquet", "t.parquet", lambda: [seeds.parquet_text()], _documents),
    ]


def _table_targets() -> list[Target]:
    def table(kind: str, name: str, content: bytes, separator: bytes, group: str, **options: Any) -> Target:
        return Target(group, name, lambda: [content], _task(kind, **options), changed_table([content], separator))

    def lines(kind: str, content: bytes, group: str = "JSONL") -> Target:
        return Target(group, "d.jsonl", lambda: [content], _task(kind), changed_lines([content]))

    squad = [seeds.SQUAD]
    return [
        table("single", "d.csv", seeds.SINGLE, b",", "CSV"),
        table("single", "d.csv", seeds.SINGLE, b",", "CSV", on_bad_rows="skip"),
        table("single", "d.csv", seeds.SINGLE, b",", "CSV", text_column="1", label_column="2", header=True),
        table("regression", "d.csv", seeds.REGRESSION, b",", "CSV"),
        table("single", "d.tsv", seeds.SINGLE_TABS, b"\t", "TSV"),
        table("pair", "d.tsv", seeds.PAIR, b"\t", "TSV"),
        table("single", "d.tsv", seeds.COLA, b"\t", "TSV", format="cola"),
        table("regression", "d.tsv", seeds.STS_B, b"\t", "TSV", format="sts-b"),
        Target("TSV", "d.tsv.gz", lambda: [seeds.zipped(seeds.PAIR)], _task("pair")),
        Target("TSV", "test.tsv", lambda: [seeds.TEST_ROWS], _glue_rows, changed_table([seeds.TEST_ROWS], b"\t")),
        lines("single", seeds.SINGLE_LINES),
        lines("multilabel", seeds.MULTI_LABEL),
        table("tagging", "d.conll", seeds.CONLL, b" ", "CoNLL"),
        table("tagging", "d.conll", seeds.CONLL_TABS, b"\t", "CoNLL"),
        table("tagging", "d.txt", seeds.CONLL, b" ", "CoNLL", on_bad_rows="skip"),
        lines("tagging", seeds.TAG_LINES, "CoNLL"),
        Target("SQuAD", "d.json", lambda: squad, _task("span"), changed_json(squad)),
        Target("SQuAD", "d.json", lambda: squad, _task("span", on_bad_rows="skip"), changed_json(squad)),
        Target("SQuAD", "d.json.gz", lambda: [seeds.zipped(seeds.SQUAD)], _task("span")),
        Target("SQuAD", "p.json", lambda: [seeds.PREDICTIONS], _scores, changed_json([seeds.PREDICTIONS])),
        lines("span", seeds.SPAN_LINES, "SQuAD"),
        table("span", "d.csv", seeds.SPAN_TABLE, b",", "SQuAD"),
        table("choice", "d.csv", seeds.SWAG, b",", "choice"),
        table("choice", "d.tsv", seeds.CODAH, b"\t", "choice"),
        lines("choice", seeds.HELLASWAG, "choice"),
        Target("label names", "labels.txt", lambda: [seeds.LABEL_NAMES], _label_names),
        Target("submission", "s.zip", lambda: [_submission_zip()], _submission),
    ]


def _setting_targets() -> list[Target]:
    recipes = {"PretrainRecipe": seeds.PRETRAIN_RECIPE, "FinetuneRecipe": seeds.FINETUNE_RECIPE}

    def lines(content: bytes) -> Make:
        def make(draw: random.Random) -> bytes:
            rows = content.splitlines()
            place = draw.randrange(len(rows))
            key = rows[place].partition(b"=")[0]
            rows[place] = key + b"=" + str(draw.choice(VALUES)).encode("utf-8", "surrogatepass")
            return b"\n".join(rows)

        return make

    def recipe(kind: str, tree: dict[str, Any]) -> Target:
        return Target("recipe", "r.toml", lambda: [toml_text(tree).encode()], _recipe(kind), _changed_toml(tree))

    return [
        *(recipe(kind, tree) for kind, tree in recipes.items()),
        Target("recipe", "set.txt", lambda: [seeds.OVERRIDES], _overrides, lines(seeds.OVERRIDES)),
        Target("recipe", "grid.txt", lambda: [seeds.SPACE], _space, lines(seeds.SPACE)),
    ]


def _folder_targets(of: Callable[..., Any], values: Callable[..., Make]) -> list[Target]:
    def target(group: str, folder: str, name: str, read: Callable[[Path], object], make: Make | None = None) -> Target:
        make = make or (values(folder, name) if name.endswith(".json") else None)
        return Target(group, name, of(folder, name), read, make, folder)

    weights = "model.safetensors"
    return [
        target("vocabulary", "model", "vocab.txt", _vocabulary),
        target("tokenizer", "model", "tokenizer.json", _vocabulary),
        target("tokenizer", "model", "tokenizer_config.json", _tokenizer_settings),
        target("config.json", "model", "config.json", _predictor),
        target("config.json", "pretrained", "config.json", _model),
        target("config.json", "tagger", "config.json", _model),
        target("maskloom.json", "model", "maskloom.json", _predictor),
        target("weights", "model", weights, _model, _changed_header(lambda: of("model", weights)()[0])),
        target("weights", "sharded", "model.safetensors.index.json", _model),
        target("weights", "numpy", "model.npz", _model),
        target("features", "features", "manifest.json", _features),
        target("features", "features", "offsets.bin", _features),
        target(
            "corpus", "corpus", "manifest.json", _corpus, _changed_manifest(lambda: of("corpus", "manifest.json")()[0])
        ),
        target("corpus", "corpus", "sentence_lengths.bin", _corpus),
        Target(
            "run folder",
            "run.json",
            lambda: [b'{"inputs": {"a": "b"}}'],
            _run_folder,
            changed_json([b'{"inputs": {}}']),
        ),
    ]


def prepared(target: Target, surroundings: Surroundings, folder: Path, content: bytes) -> Path:
    """Return the path of a wrong file in a fresh folder with what belongs around it."""
    shutil.rmtree(folder, ignore_errors=True)
    if target.around is None:
        folder.mkdir(parents=True)
    else:
        shutil.copytree(surroundings.of(target.around), folder)
    path = folder / target.name
    path.write_bytes(content)
    return path
