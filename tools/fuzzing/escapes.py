"""Folders that lead outside themselves, name code, or contain non-regular files; and decompression bombs."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.checking import fresh_folder
from tools.fuzzing.targets import Surroundings

MODEL_FILES = (
    "config.json",
    "model.safetensors",
    "vocab.txt",
    "tokenizer_config.json",
    "tokenizer.json",
    "maskloom.json",
)
Attempt = tuple[str, Callable[[], object]]


def attempts(work: Path) -> Iterator[Attempt]:
    """Yield (name, read function); each must raise ConfigError or DataError immediately and with little memory."""
    surroundings = Surroundings(work / "good")
    yield from _odd_files(surroundings, work / "case")
    yield from _indexes(surroundings, work / "case")
    yield from _code(surroundings, work / "case")
    yield from _data_that_is_no_file(work / "case")
    yield from bombs(work / "case", 96 << 20)


def _load(folder: Path) -> object:
    from maskloom.inference import Predictor

    return Predictor.load(folder)


def _odd_files(surroundings: Surroundings, folder: Path) -> Iterator[Attempt]:
    """Every file replaced by a link to the same file outside, a pipe, a device, a folder, or a link to itself."""
    good = surroundings.of("model")
    makers: dict[str, Callable[[Path, Path], object]] = {
        "a link out": lambda path, outside: path.symlink_to(outside),
        "a relative link out": lambda path, outside: path.symlink_to(Path("..") / "good" / "model" / outside.name),
        "a link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
        "a pipe": lambda path, outside: os.mkfifo(path),
        "a link to itself": lambda path, outside: path.symlink_to(path.name),
        "a folder": lambda path, outside: path.mkdir(),
    }
    for name in MODEL_FILES:
        for what, make in makers.items():
            path = fresh_folder(folder, good) / name
            path.unlink()
            if name == "tokenizer.json":
                (folder / "vocab.txt").unlink()
            make(path, good / name)
            yield f"{name}: {what}", lambda: _load(folder)


def _indexes(surroundings: Surroundings, folder: Path) -> Iterator[Attempt]:
    """Names of weight files that lead outside the folder, in an index and by links."""
    shard = "model-00001-of-00001.safetensors"
    outside = surroundings.of("sharded") / shard
    for name in (
        f"../good/sharded/{shard}",
        str(outside),
        f"x/../{shard}",
        f"./{shard}",
        "..",
        "",
        f"{shard}\0",
        "C:\\x",
    ):
        index = fresh_folder(folder, surroundings.of("sharded")) / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        content["weight_map"] = dict.fromkeys(content["weight_map"], name)
        index.write_text(json.dumps(content))
        yield f"index: {name!r:.60}", lambda: _load(folder)
    path = fresh_folder(folder, surroundings.of("sharded")) / shard
    path.unlink()
    path.symlink_to(outside)
    yield "index: a part that is a link out", lambda: _load(folder)


def _code(surroundings: Surroundings, folder: Path) -> Iterator[Attempt]:
    """Config keys that name code in the folder, and the code itself."""
    for name, key in (
        ("config.json", "auto_map"),
        ("config.json", "custom_pipelines"),
        ("tokenizer_config.json", "auto_map"),
    ):
        path = fresh_folder(folder, surroundings.of("model")) / name
        path.write_text(json.dumps({**json.loads(path.read_text()), key: {"AutoModel": "modeling_evil.Evil"}}))
        (folder / "modeling_evil.py").write_text("raise SystemExit('ran')\n")
        yield f"{name}: {key}", lambda: _load(folder)


def _data_that_is_no_file(folder: Path) -> Iterator[Attempt]:
    from maskloom.checkpoints.pickled_weights import open_pickled
    from maskloom.config import FinetuneRecipe, load_recipe
    from maskloom.data.corpus.documents import read_documents
    from maskloom.tasks.kinds import task_kind
    from maskloom.tasks.labels import read_label_names
    from maskloom.text.vocabulary import Vocabulary

    readers: dict[str, Callable[[Path], object]] = {
        "d.csv": task_kind("single").read,
        "d.jsonl": task_kind("choice").read,
        "d.conll": task_kind("tagging").read,
        "d.json": task_kind("span").read,
        "d.txt": lambda path: list(read_documents(path)),
        "d.txt.gz": lambda path: list(read_documents(path)),
        "d.parquet": lambda path: list(read_documents(path)),
        "labels.txt": read_label_names,
        "vocab.txt": Vocabulary.load,
        "r.toml": lambda path: load_recipe(FinetuneRecipe, path),
        "pytorch_model.bin": open_pickled,
    }
    for name, read in readers.items():
        path = fresh_folder(folder) / name
        os.mkfifo(path)
        yield f"{name}: a pipe", lambda read=read, path=path: read(path)
        path.unlink()
        path.symlink_to("/dev/zero")
        yield f"{name}: a link to a device", lambda read=read, path=path: read(path)


def bombs(folder: Path, num_bytes: int = 1 << 28) -> Iterator[Attempt]:
    """One endless line, compressed by a factor of a thousand or more, for every reader of compressed files."""
    import zstandard

    from maskloom.checkpoints.pickled_weights import open_pickled
    from maskloom.data.corpus.documents import read_documents
    from maskloom.tasks.kinds import task_kind

    readers: dict[str, Callable[[Path], object]] = {
        "d.txt.gz": lambda path: list(read_documents(path)),
        "d.jsonl.gz": lambda path: list(read_documents(path)),
        "d.csv.gz": task_kind("single").read,
        "d.tsv.gz": task_kind("single").read,
        "d.txt.zst": lambda path: list(read_documents(path)),
        "d.jsonl.zst": lambda path: list(read_documents(path)),
    }
    block = b"a" * (1 << 20)
    for name, read in readers.items():
        path = fresh_folder(folder) / name
        if name.endswith(".gz"):
            with gzip.open(path, "wb", compresslevel=9) as file:
                for _ in range(num_bytes // len(block)):
                    file.write(block)
        else:
            with path.open("wb") as raw, zstandard.ZstdCompressor(level=19).stream_writer(raw) as file:
                for _ in range(num_bytes // len(block)):
                    file.write(block)
        yield f"{name}: a bomb", lambda read=read, path=path: read(path)
    path = fresh_folder(folder) / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data.pkl", "w") as member:
        for _ in range(num_bytes // len(block)):
            member.write(block)
    yield f"{path.name}: a bomb", lambda: open_pickled(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../escaped.pkl", b"\x80\x02}.")
    yield f"{path.name}: a name that leads out", lambda: open_pickled(path)
