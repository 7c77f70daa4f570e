"""Pickles that would leave a mark when unpickled, in every place where a file is read."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.checking import fresh_folder
from tools.fuzzing.targets import Surroundings, all_targets, prepared

# Names of files that other programs unpickle, or that contain programs.
CODE_FILES = (
    *(
        "pytorch_model.bin",
        "model.pt",
        "model.pth",
        "model.ckpt",
        "model.pkl",
        "model.pickle",
        "model.joblib",
        "model.npy",
    ),
    *("model.pt2", ".metadata", "__0_0.distcp", "bert_model.ckpt.index", "tf_model.h5", "flax_model.msgpack"),
    *("model.pdparams", "pytorch_model-00001-of-00002.bin", "training_args.bin", "optimizer.pt"),
)


class _Mark:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.path),)


def pickles(mark: Path) -> list[bytes]:
    """Return pickles in several formats that create the folder `mark` when they are loaded."""
    import numpy as np
    import torch

    trap = _Mark(mark)
    array = np.empty(1, dtype=object)
    array[0] = trap
    made = [pickle.dumps(trap, protocol) for protocol in (0, 2, 4, 5)]
    for zipped in (False, True):
        file = io.BytesIO()
        torch.save({"bert.embeddings.word_embeddings.weight": trap}, file, _use_new_zipfile_serialization=zipped)
        made.append(file.getvalue())
    for save in (np.save, np.savez):
        file = io.BytesIO()
        save(file, array)
        made.append(file.getvalue())
    return made


def attempts(work: Path, mark: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield (name, function that reads a pickle); each must raise ConfigError or DataError and leave no mark.

    A pickle replaces every file that is read, and is placed under every name that other programs unpickle: as the only
    weights of a model, as a file named in an index, as the model itself, as data and as a vocabulary.
    """
    made, surroundings = pickles(mark), Surroundings(work / "good")
    for number, target in enumerate(all_targets(surroundings)):
        content = made[number % len(made)]
        path = prepared(target, surroundings, work / "case", content)
        yield f"in place of {target.name} ({target.group})", lambda path=path, read=target.read: read(path)
    for number, name in enumerate(CODE_FILES):
        yield from _by_name(surroundings, work / "case", name, made[number % len(made)])


def _by_name(
    surroundings: Surroundings, folder: Path, name: str, content: bytes
) -> Iterator[tuple[str, Callable[[], object]]]:
    import json

    from maskloom.checkpoints.huggingface import load_model
    from maskloom.data.corpus.documents import read_documents
    from maskloom.inference import Predictor
    from maskloom.tasks.kinds import task_kind
    from maskloom.text.vocabulary import Vocabulary

    fresh_folder(folder, surroundings.of("model"))
    (folder / "model.safetensors").unlink()
    path = folder / name
    path.write_bytes(content)
    yield f"{name} as weights", lambda: load_model(folder)
    index = {"weight_map": {"bert.embeddings.word_embeddings.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    yield f"{name} in an index", lambda: load_model(folder)
    yield f"{name} as a model", lambda: Predictor.load(path)
    yield f"{name} as data", lambda: task_kind("single").read(path)
    yield f"{name} as text", lambda: list(read_documents(path))
    yield f"{name} as a vocabulary", lambda: Vocabulary.load(path)
