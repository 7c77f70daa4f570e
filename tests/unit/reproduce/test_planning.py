"""What an experiment reports before it starts: how long the remaining work will take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maskloom.errors import ConfigError
from maskloom.reproduce import planning
from maskloom.reproduce.probes import Probe
from maskloom.runs.finetune import LabelledFiles


def probe(path, kind: str) -> Probe:
    return Probe("it", kind, LabelledFiles(path, path))


def plan(path, *, kind: str, models: dict[str, bool], arm_model: str, steps: int | None = None) -> Any:
    """Return a plan with one fine-tuning run; `models` says which models are still to be pre-trained."""
    recipe = SimpleNamespace(
        data=SimpleNamespace(max_length=64), training=SimpleNamespace(batch_size=16, epochs=2.0, steps=steps)
    )
    return SimpleNamespace(
        experiment=SimpleNamespace(models=models, recipes={"A": path}),
        jobs=lambda: [(SimpleNamespace(name="arm", model=arm_model), "role", 0)],
        pretrainings=lambda: [(name, 0) for name, is_left in models.items() if is_left],
        pretraining=lambda model, seed: recipe,
        finetuning=lambda arm, probe, seed: recipe,
        probes={"role": probe(path, kind)},
    )


NOTHING_DONE: Any = SimpleNamespace(has=lambda stage: False)


def test_training_files_are_measured_by_rows_and_bytes(tmp_path):
    columns = tmp_path / "train.conll"
    columns.write_text("Anna B-PER\nsleeps O\n\nBob B-PER\n", encoding="utf-8")
    assert planning._size_of(probe(columns, "tagging")) == (columns.stat().st_size / planning._BYTES_PER_TAGGED, 2)
    table = tmp_path / "train.csv"
    table.write_text("text,label\none,a\ntwo,b\n", encoding="utf-8")
    assert planning._size_of(probe(table, "single")) == (table.stat().st_size / planning._BYTES_PER_TOKEN, 4)


def test_steps_of_short_examples_take_longer_than_their_tokens_say(tmp_path, monkeypatch):
    path = tmp_path / "train.conll"
    path.write_text("Anna B-PER\nsleeps O\n\n" * 4000, encoding="utf-8")  # 1.8 tokens per sentence, from bytes
    asked = []

    def timed(plan, model, batch_size=None):
        asked.append(batch_size)
        return {"seconds": 60.0, "tokens_per_second": 1000.0 if batch_size is None else 100.0}

    monkeypatch.setattr(planning, "_timed", timed)
    said = planning.expected(plan(path, kind="tagging", models={"A": True}, arm_model="A"), NOTHING_DONE, 1)
    assert asked == [None, 1]
    tokens = path.stat().st_size / planning._BYTES_PER_TAGGED
    assert said == (
        f"about {planning.in_words(60.0 + 2 * tokens / 100.0)}: 60 seconds of pre-training and "
        f"{planning.in_words(2 * tokens / 100.0)} for 1 run of fine-tuning"
    )


def test_steps_count_in_place_of_epochs(tmp_path, monkeypatch):
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "some words,a\n" * 1000, encoding="utf-8")
    monkeypatch.setattr(planning, "_timed", lambda *_: {"seconds": 0.0, "tokens_per_second": 1.0})
    said = planning.expected(plan(path, kind="single", models={"A": True}, arm_model="A", steps=1000), NOTHING_DONE, 1)
    tokens = path.stat().st_size / planning._BYTES_PER_TOKEN * 16_000 / 1002
    assert said.endswith(f"and {planning.in_words(tokens)} for 1 run of fine-tuning")


def test_a_model_without_room_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "plan_pretraining", lambda *_, **__: {"sizes": [], "too_large": ["mini"]})
    given = SimpleNamespace(pretraining=lambda model, seed: None, corpus=tmp_path)
    with pytest.raises(ConfigError, match="BERT: its weights, gradients and moments take more memory than is free"):
        planning._timed(given, "BERT")


def test_what_is_left_may_be_of_models_made_elsewhere_alone(tmp_path, monkeypatch):
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "some words,a\n" * 1000, encoding="utf-8")
    monkeypatch.setattr(planning, "_timed", lambda *_: {"seconds": 9.0, "tokens_per_second": 10_000.0})
    said = planning.expected(
        plan(path, kind="single", models={"A": False}, arm_model="made elsewhere"), NOTHING_DONE, 1
    )
    assert said.endswith("for 1 run of fine-tuning")
