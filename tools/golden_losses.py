"""Golden losses: 20 steps of pre-training and of every kind of task, stored so that no refactor silently changes them.

`python -m tools.golden_losses` compares, `--write` stores the results of this machine. Losses are compared everywhere;
the checksum of the weights only on the class of machine that stored it, as other processors round differently.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from maskloom.checkpoints.huggingface import save_model
from maskloom.config import FinetuneRecipe, PretrainRecipe, validate_recipe
from maskloom.data.corpus.building import CorpusSettings
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.transformer_config import TransformerConfig
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.pretrain import pretrain
from maskloom.runs.run_folder import environment
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary, sentinel
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

STORED = Path(__file__).parents[1] / "tests" / "golden" / "losses.json"
STEPS = 20
_WORDS = [first + second for first in ("ba", "ke", "li", "mo", "tu", "za") for second in ("n", "rd", "st", "lo", "gi")]
_VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *_WORDS, "##s", "##ed", "who", "?", "."])
_CONFIG = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
_TRAINING = {"steps": STEPS, "batch_size": 8, "micro_batch_size": 4, "num_threads": 1, "log_every": 1}
_PRETRAINING: dict[str, dict[str, Any]] = {
    "mlm_nsp": {"data": {"max_length": 32}, "training": {**_TRAINING, "learning_rate": 1e-3}},
    "two_phases_as_published": {
        "data": {"whole_word_masking": True, "short_seq_prob": 0.3},
        "training": {**_TRAINING, "learning_rate": 1e-3, "optimizer": "bert_adam", "schedule": "google"},
        "phases": [{"max_length": 16, "steps": 12}, {"max_length": 48, "steps": 8, "batch_size": 4}],
    },
    "mlm_only": {
        "data": {"max_length": 32, "next_sentence": False, "static_masks": True},
        "training": {**_TRAINING, "learning_rate": 1e-3, "micro_batch_size": 8},
    },
    "causal_lm": {
        "objective": "causal_lm",
        "data": {"max_length": 32},
        "training": {**_TRAINING, "learning_rate": 1e-3},
    },
    "gpt": {
        "objective": "causal_lm",
        "model": {"architecture": "gpt", "size": "tiny", "config": {**_CONFIG, "intermediate_size": 128}},
        "data": {"max_length": 32},
        "training": {**_TRAINING, "learning_rate": 1e-3, "schedule": "cosine"},
    },
    "denoising": {
        "objective": "denoising",
        "denoising": {"mask_rate": 0.1, "delete_rate": 0.1, "infill_rate": 0.2, "rotate_rate": 0.5},
        "data": {"max_length": 32},
        "training": {**_TRAINING, "learning_rate": 1e-3},
    },
    "span_corruption": {
        "objective": "span_corruption",
        "data": {"max_length": 32},
        "training": {**_TRAINING, "learning_rate": 1e-3},
    },
}
_FINETUNING: dict[str, dict[str, Any]] = {
    "single": {"class_weights": "balanced"},
    "pair": {"training": {"optimizer": "bert_adam", "schedule": "google"}},
    "regression": {},
    "multilabel": {},
    "document": {"document": {"similarity": 1.0, "implication": 1.0, "implied_from": 0.3}},
    "span": {"span": {"stride": 8, "max_question_length": 5}},
    "tagging": {},
    "tagging_crf": {"tagging": {"crf": True, "context": "document"}},
    "tagging_features": {"features": {"layers": "scalar_mix", "lstm_size": 8, "lstm_layers": 1}},
    "choice": {},
    "seq2seq": {"seq2seq": {"label_smoothing": 0.1, "max_target_length": 12, "beam": 2}},
}


def machine_class() -> str:
    """Return the machine properties that bit-identical weights require: processor, its widest instructions, torch."""
    model = environment()["hardware"]["processor"]
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def names() -> list[str]:
    """Return the names of all golden runs."""
    return [f"pretrain/{name}" for name in _PRETRAINING] + [f"finetune/{name}" for name in _FINETUNING]


def compute(name: str, folder: Path) -> dict[str, Any]:
    """Train the named run in an empty folder; return its loss at every step and the checksum of its weights."""
    kind, _, which = name.partition("/")
    if kind == "pretrain":
        _pretrain(which, folder)
    else:
        recipe, files = finetuning(which, folder)
        data = LabelledFiles(files["train"], files["dev"])
        finetune(recipe, model=files["model"], data=data, out=folder / "run")
    events = map(json.loads, (folder / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [event["loss"] for event in events if event["event"] == "step"]
    return {"losses": losses, "weights": _checksum(folder / "run" / "model" / "model.safetensors")}


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with safe_open(path, framework="np") as tensors:
        for name in sorted(tensors.keys()):
            digest.update(name.encode())
            digest.update(tensors.get_tensor(name).tobytes())
    return digest.hexdigest()


def _pretrain(name: str, folder: Path) -> None:
    draw = random.Random(1)
    documents = ("\n".join(_sentence(draw) for _ in range(draw.randint(2, 9))) for _ in range(60))
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    sentinels = [sentinel(number) for number in range(2)] if name == "span_corruption" else []
    vocabulary = Vocabulary([*_VOCABULARY.tokens, *sentinels])
    if name == "gpt":
        train_vocabulary_from_files([folder / "text.txt"], VocabularySettings(80, model="bpe"), out=folder / "vocab")
    else:
        WordPieceTokenizer(vocabulary, max_length=64).save(folder / "vocab")
    build_corpus_from_files(
        folder / "text.txt", vocab=folder / "vocab", out=folder / "corpus", settings=CorpusSettings(sentences="lines")
    )
    values = {"model": {"size": "tiny", "config": _CONFIG}, **_PRETRAINING[name]}
    recipe = validate_recipe(PretrainRecipe, values, source=name)
    pretrain(recipe, corpus=folder / "corpus", out=folder / "run")


def finetuning(name: str, folder: Path) -> tuple[FinetuneRecipe, dict[str, Path]]:
    """Return the recipe of a golden fine-tuning run and its files, which are written into an empty folder."""
    config_type = TransformerConfig if name == "seq2seq" else BertConfig
    config = config_type(vocab_size=len(_VOCABULARY), **_CONFIG)
    save_model(build_model(config, (), seed=0), folder / "start")
    WordPieceTokenizer(_VOCABULARY, max_length=64).save(folder / "start")
    values = {**_FINETUNING[name]}
    training = {**_TRAINING, "learning_rate": 1e-3, "evaluate_every": STEPS, **values.pop("training", {})}
    task = name.partition("_")[0]
    recipe = validate_recipe(
        FinetuneRecipe, {"task": task, "data": {"max_length": 24}, "training": training, **values}, source=name
    )
    paths = []
    for part, size in (("train", 40), ("dev", 8)):
        suffix, content = _DATA[task](random.Random(size), size)
        paths.append(folder / f"{part}{suffix}")
        paths[-1].write_text(content, encoding="utf-8")
    return recipe, {"model": folder / "start", "train": paths[0], "dev": paths[1]}


def _sentence(draw: random.Random, low: int = 3, high: int = 9) -> str:
    words = [draw.choice(_WORDS) + draw.choice(("", "", "", "s", "ed")) for _ in range(draw.randint(low, high))]
    return " ".join([*words, "."])


def _jsonl(rows: Iterator[dict[str, Any]]) -> tuple[str, str]:
    return ".jsonl", "".join(json.dumps(row) + "\n" for row in rows)


def _single(draw: random.Random, size: int) -> tuple[str, str]:
    return _jsonl({"text": _sentence(draw), "label": ["no", "yes", "no"][i % 3]} for i in range(size))


def _pair(draw: random.Random, size: int) -> tuple[str, str]:
    return _jsonl({"text_a": _sentence(draw), "text_b": _sentence(draw), "label": "abc"[i % 3]} for i in range(size))


def _regression(draw: random.Random, size: int) -> tuple[str, str]:
    return _jsonl({"text": _sentence(draw), "score": float(i % 5)} for i in range(size))


def _multilabel(draw: random.Random, size: int) -> tuple[str, str]:
    return _jsonl({"text": _sentence(draw), "labels": [["x"], ["x", "y"], [], ["z"]][i % 4]} for i in range(size))


def _document(draw: random.Random, size: int) -> tuple[str, str]:
    return _jsonl(
        {
            "title": _sentence(draw),
            "text": " ".join(_sentence(draw).capitalize() for _ in range(1 + i % 4)),
            "labels": [["x"], ["x", "y"], [], ["z"]][i % 4],
        }
        for i in range(size)
    )


def _tagging(draw: random.Random, size: int) -> tuple[str, str]:
    tags = {"ban": "B-PER", "zan": "B-LOC", "zard": "B-ORG"}
    lines = []
    for _ in range(size):
        lines += [f"{word} {tags.get(word, 'O')}" for word in [*_sentence(draw, 3, 30).split(), "ban", "zan", "zard"]]
        lines.append("")
    return ".conll", "\n".join(lines)


def _span(draw: random.Random, size: int) -> tuple[str, str]:
    paragraphs = []
    for number in range(size):
        context = _sentence(draw, 12, 30)
        word = context.split()[3]
        answer = {"text": word, "answer_start": context.index(word)}
        question = {"id": f"q{number}", "question": "who ?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    return ".json", json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def _choice(draw: random.Random, size: int) -> tuple[str, str]:
    return _jsonl(
        {"question": _sentence(draw), "choices": [_sentence(draw) for _ in range(3)], "label": i % 3}
        for i in range(size)
    )


def _seq2seq(draw: random.Random, size: int) -> tuple[str, str]:
    sentences = [_sentence(draw) for _ in range(size)]
    return _jsonl({"source": text, "target": " ".join(text.split()[::-1])} for text in sentences)


_DATA: dict[str, Callable[[random.Random, int], tuple[str, str]]] = {
    "single": _single,
    "pair": _pair,
    "regression": _regression,
    "multilabel": _multilabel,
    "document": _document,
    "tagging": _tagging,
    "span": _span,
    "choice": _choice,
    "seq2seq": _seq2seq,
}


def main() -> int:
    """Compare every golden run with its stored results, or store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store what this machine computes")
    write = parser.parse_args().write
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    runs, furthest = {}, 0.0
    for name in names():
        with tempfile.TemporaryDirectory() as folder:
            runs[name] = compute(name, Path(folder))
        before = stored.get("runs", {}).get(name)
        if before is not None:
            pairs = list(zip(before["losses"], runs[name]["losses"], strict=True))
            distance = max(abs(one - other) / abs(one) for one, other in pairs)
            furthest = max(furthest, distance)
            same = "the same weights" if before["weights"] == runs[name]["weights"] else "other weights"
            print(f"{name}: {same}; losses differ by at most {distance:.1e} (relative)")
    if write:
        STORED.write_text(json.dumps({"machine": machine_class(), "runs": runs}, indent=1) + "\n", encoding="utf-8")
    return 0 if write or furthest < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
