"""The fuzzing targets: each kind of file with its good seeds, its generator of malformed files, and its reader."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.checking import fresh_folder
from tools.fuzzing import readers, seeds
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
    """One reader: `read(path)` receives the malformed file, named `name`, in a folder that is a copy of `around`.

    `group` is its line in the table.
    """

    group: str
    name: str
    good: Callable[[], Sequence[bytes]]
    read: Callable[[Path], object]
    structured: Make | None = None
    around: str | None = None

    def make(self, draw: random.Random) -> bytes:
        """Return one malformed file, with damaged bytes or wrong values."""
        if self.structured is not None and draw.random() < 0.6:
            content = self.structured(draw)
            return damaged(content, draw) if draw.random() < 0.1 else content
        good = self.good()
        return damaged(draw.choice(good), draw, good)


@dataclass
class Surroundings:
    """Folders that targets are copied from, created on first use."""

    folder: Path
    makers: dict[str, Callable[[Path], None]] = field(
        default_factory=lambda: {
            "model": seeds.write_model,
            "pretrained": lambda folder: seeds.write_model(folder, ("mlm", "nsp"), None),
            "tagger": lambda folder: seeds.write_model(folder, ("bilstm_tagger",), 3),
            "byte_pairs": seeds.write_byte_pairs,
            "corpus": seeds.write_corpus,
            "features": seeds.write_features,
            "sharded": _write_sharded,
        }
    )

    def of(self, name: str) -> Path:
        """Return the named folder, creating it on first use."""
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


def _header(content: bytes) -> dict[str, Any]:
    return json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])


def _changed_toml(tree: dict[str, Any]) -> Make:
    return lambda draw: toml_text(changed_tree(tree, draw)).encode("utf-8", "surrogatepass")


def _changed_header(content: Callable[[], bytes]) -> Make:
    """Return a generator of safetensors files with false headers."""

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
    """Return a generator of corpus manifests with wrong values, mostly with a matching checksum."""

    def make(draw: random.Random) -> bytes:
        from maskloom.data.corpus.manifest import _own_checksum

        tree = changed_tree(json.loads(content()), draw)
        if isinstance(tree, dict) and draw.random() < 0.9:
            try:
                tree["checksum"] = _own_checksum(tree)
            except (TypeError, ValueError):
                tree["checksum"] = ""
        return json_text(tree, draw)

    return make


def all_targets(surroundings: Surroundings) -> list[Target]:
    """Return every target; `surroundings` provides the folders with the good files of some targets."""

    def of(folder: str, name: str) -> Callable[[], Sequence[bytes]]:
        return lambda: [(surroundings.of(folder) / name).read_bytes()]

    def values(folder: str, name: str) -> Make:
        return lambda draw: changed_json(of(folder, name)())(draw)

    return [*_text_targets(), *_table_targets(), *_setting_targets(), *_folder_targets(of, values)]


def _text_targets() -> list[Target]:
    texts, lines = [seeds.TEXT], [seeds.JSON_TEXTS]
    packed = lambda draw: seeds.zipped(damaged(seeds.TEXT, draw))  # noqa: E731
    return [
        Target("text", "t.txt", lambda: texts, readers.read_documents),
        Target("text", "t.txt.gz", lambda: [seeds.zipped(seeds.TEXT)], readers.read_documents, packed),
        Target("text", "t.txt.zst", lambda: [seeds.zstandard_text()], readers.read_documents),
        Target("text JSONL", "t.jsonl", lambda: lines, readers.read_documents, changed_lines(lines)),
        Target("Parquet", "t.parquet", lambda: [seeds.parquet_text()], readers.read_documents),
    ]


def _table_targets() -> list[Target]:
    def table(kind: str, name: str, content: bytes, separator: bytes, group: str, **options: Any) -> Target:
        make = changed_table([content], separator)
        return Target(group, name, lambda: [content], readers.read_task(kind, **options), make)

    def lines(kind: str, content: bytes, group: str = "JSONL") -> Target:
        return Target(group, "d.jsonl", lambda: [content], readers.read_task(kind), changed_lines([content]))

    squad, test = [seeds.SQUAD], [seeds.TEST_ROWS]
    return [
        table("single", "d.csv", seeds.SINGLE, b",", "CSV"),
        table("single", "d.csv", seeds.SINGLE, b",", "CSV", on_bad_rows="skip"),
        table("single", "d.csv", seeds.SINGLE, b",", "CSV", text_column="1", label_column="2"),
        table("regression", "d.csv", seeds.REGRESSION, b",", "CSV"),
        table("single", "d.tsv", seeds.SINGLE_TABS, b"\t", "TSV"),
        table("pair", "d.tsv", seeds.PAIR, b"\t", "TSV"),
        table("single", "d.tsv", seeds.COLA, b"\t", "TSV", format="cola"),
        table("regression", "d.tsv", seeds.STS_B, b"\t", "TSV", format="sts-b"),
        Target("TSV", "d.tsv.gz", lambda: [seeds.zipped(seeds.PAIR)], readers.read_task("pair")),
        Target("TSV", "test.tsv", lambda: test, readers.read_glue_rows, changed_table(test, b"\t")),
        lines("single", seeds.SINGLE_LINES),
        lines("multilabel", seeds.MULTI_LABEL),
        table("tagging", "d.conll", seeds.CONLL, b" ", "CoNLL"),
        table("tagging", "d.conll", seeds.CONLL_TABS, b"\t", "CoNLL"),
        table("tagging", "d.txt", seeds.CONLL, b" ", "CoNLL", on_bad_rows="skip"),
        lines("tagging", seeds.TAG_LINES, "CoNLL"),
        Target("SQuAD", "d.json", lambda: squad, readers.read_task("span"), changed_json(squad)),
        Target("SQuAD", "d.json", lambda: squad, readers.read_task("span", on_bad_rows="skip"), changed_json(squad)),
        Target("SQuAD", "p.json", lambda: [seeds.PREDICTIONS], readers.read_scores, changed_json([seeds.PREDICTIONS])),
        lines("span", seeds.SPAN_LINES, "SQuAD"),
        table("span", "d.csv", seeds.SPAN_TABLE, b",", "SQuAD"),
        table("choice", "d.csv", seeds.SWAG, b",", "choice"),
        table("choice", "d.tsv", seeds.CODAH, b"\t", "choice", format="codah"),
        lines("choice", seeds.HELLASWAG, "choice"),
        Target("label names", "labels.txt", lambda: [seeds.LABEL_NAMES], readers.read_label_names),
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
        good = [toml_text(tree).encode()]
        return Target("recipe", "r.toml", lambda: good, readers.read_recipe(kind), _changed_toml(tree))

    return [
        *(recipe(kind, tree) for kind, tree in recipes.items()),
        Target("recipe", "set.txt", lambda: [seeds.OVERRIDES], readers.read_overrides, lines(seeds.OVERRIDES)),
        Target("recipe", "grid.txt", lambda: [seeds.SPACE], readers.read_space, lines(seeds.SPACE)),
    ]


def _folder_targets(of: Callable[..., Any], values: Callable[..., Make]) -> list[Target]:
    def target(group: str, folder: str, name: str, read: Callable[[Path], object], make: Make | None = None) -> Target:
        make = make or (values(folder, name) if name.endswith(".json") else None)
        return Target(group, name, of(folder, name), read, make, folder)

    weights = "model.safetensors"
    manifests = _changed_manifest(lambda: of("corpus", "manifest.json")()[0])
    return [
        target("vocabulary", "model", "vocab.txt", readers.read_vocabulary),
        target("tokenizer", "model", "tokenizer.json", readers.read_vocabulary),
        target("tokenizer", "model", "tokenizer_config.json", readers.read_tokenizer_settings),
        *(
            target("byte pairs", "byte_pairs", name, readers.read_tokenizer_settings)
            for name in ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json")
        ),
        target("config.json", "model", "config.json", readers.read_predictor),
        target("config.json", "pretrained", "config.json", readers.read_model),
        target("config.json", "tagger", "config.json", readers.read_model),
        target("maskloom.json", "model", "maskloom.json", readers.read_predictor),
        target("weights", "model", weights, readers.read_model, _changed_header(lambda: of("model", weights)()[0])),
        target("weights", "sharded", "model.safetensors.index.json", readers.read_model),
        target("features", "features", "manifest.json", readers.read_features),
        target("features", "features", "offsets.bin", readers.read_features),
        target("corpus", "corpus", "manifest.json", readers.read_corpus, manifests),
        target("corpus", "corpus", "sentence_lengths.bin", readers.read_corpus),
        Target(
            "run folder",
            "run.json",
            lambda: [b'{"inputs": {"a": "b"}}'],
            readers.read_run_folder,
            changed_json([b'{"inputs": {}}']),
        ),
    ]


def prepared(target: Target, surroundings: Surroundings, folder: Path, content: bytes) -> Path:
    """Write a malformed file into a fresh folder together with its surroundings, and return its path."""
    path = fresh_folder(folder, None if target.around is None else surroundings.of(target.around)) / target.name
    path.write_bytes(content)
    return path
