"""What a folder holds: a model, a run, features, a corpus or a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.runs.run_folder import DESCRIPTION, RECIPE, RESULTS, kind_of_run
from maskloom.system.foreign_files import read_json_object
from maskloom.text.tokenizer import TOKEN_FILES


def describe_folder(folder: Path) -> dict[str, Any]:
    """Return the kind of a folder and its main facts; raises DataError for a folder that maskloom does not read."""
    if not folder.is_dir():
        raise DataError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    if (folder / RECIPE).exists():
        return _describe_run(folder)
    if (folder / "config.json").exists():
        return _describe_model(folder)
    if (folder / "features.bin").exists():
        from maskloom.data.feature_files import FeatureFile

        return {"kind": "features", "folder": str(folder), **FeatureFile.open(folder).manifest}
    if (folder / "manifest.json").exists():
        from maskloom.data.corpus.opening import Corpus
        from maskloom.data.corpus.statistics import corpus_statistics

        return {"kind": "corpus", **corpus_statistics(Corpus.open(folder))}
    if any((folder / name).exists() for name in TOKEN_FILES):
        from maskloom.runs.corpus import inspect_vocabulary

        return {"kind": "vocabulary", **inspect_vocabulary(folder)}
    raise DataError(
        f"{folder}: neither a run ({RECIPE}), a model (config.json), features (features.bin), a corpus (manifest.json) "
        f"nor a vocabulary ({', '.join(TOKEN_FILES)})"
    )


def _describe_run(folder: Path) -> dict[str, Any]:
    info: dict[str, Any] = {"kind": "run", "recipe": str(folder / RECIPE)}
    if (folder / DESCRIPTION).exists():
        info |= read_json_object(folder / DESCRIPTION)
    if isinstance(inputs := info.get("inputs"), dict) and "space" in inputs:
        info["kind"] = {"glue": "GLUE"}.get(kind := kind_of_run(info), kind)
    found = (path for place in ("checkpoints", "restarts") for path in (folder / place).rglob("step-*"))
    steps = [path for path in found if path.is_dir() and path.name[5:].isdigit()]  # no save that a kill cut off
    info["checkpoints"] = sorted(f"{path.relative_to(folder).parts[1]}/{path.name}" for path in steps)
    result = next((folder / name for name in RESULTS.values() if (folder / name).exists()), None)
    info["finished"] = result is not None
    if result is not None:
        metrics = info["metrics"] = read_json_object(result)
        if isinstance(best := metrics.get("best"), dict) and isinstance(best.get("scores"), dict):
            info["scores"] = {**best["scores"], "constant answer": best.get("reference")}
    if (folder / "model" / "config.json").exists():
        info["model"] = _describe_model(folder / "model")
    return info


def _describe_model(folder: Path) -> dict[str, Any]:
    from maskloom.checkpoints.huggingface import load_model, read_config
    from maskloom.models.bert_config import OWN_KEYS

    model, _ = load_model(folder)
    config = read_config(folder)
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    known = {**{key: getattr(model.config, key) for key in sizes}, **config}
    # a head tied to the embeddings counts only what it adds
    encoder = {id(parameter): parameter.numel() for parameter in model.encoder.parameters()}
    counts = {"encoder": sum(encoder.values())}
    for name, head in model.heads.items():
        counts[name] = sum(parameter.numel() for parameter in head.parameters() if id(parameter) not in encoder)
    return {
        "kind": "model",
        "folder": str(folder),
        **{key: known[key] for key in (*sizes, "id2label", *OWN_KEYS) if key in known},
        "parameters": {**counts, "all": sum(counts.values())},
    }
