"""A tiny model, its batches and its session, for tests of what a run saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from maskloom.data.batch import PretrainingBatch
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.training.events import EventLog, read_events
from maskloom.training.session import TrainingSession
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState
from tools.checking import verify_checkpoint

VOCABULARY = 23


def tiny_state(seed: int = 0, *, hidden_size: int = 8, **settings) -> TrainState:
    config = BertConfig.of_size(
        "tiny",
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        num_attention_heads=2,
        intermediate_size=12,
        num_hidden_layers=1,
    )
    return TrainState.fresh(build_model(config, seed=seed), TrainingSection(**settings))


def draw_batch(position: dict[str, int]) -> tuple[PretrainingBatch, dict[str, int]]:
    number = position.get("number", 0)
    rng = np.random.default_rng(number)
    batch = PretrainingBatch(
        token_ids=rng.integers(5, VOCABULARY, 12),
        segment_ids=np.zeros(12, dtype=np.int64),
        lengths=np.array([5, 7]),
        mlm_positions=np.array([1, 2, 8]),
        mlm_labels=rng.integers(5, VOCABULARY, 3),
        nsp_labels=rng.integers(0, 2, 2),
    )
    return batch, {"number": number + 1}


def tiny_session(folder: Path, *, next_batch=draw_batch, objective=None, seed: int = 0, **settings) -> TrainingSession:
    section = TrainingSection(**{"steps": 8, "save_every": 2, "learning_rate": 1e-2, "log_every": 1, **settings})
    state = tiny_state(seed)
    return TrainingSession(
        state=state,
        objective=objective or MaskedLanguageModeling(),
        next_batch=next_batch,
        settings=section,
        seed=3,
        checkpoints=folder / "checkpoints",
        log=EventLog(folder / "events.jsonl"),
        say=lambda _: None,
    )


def run_session(session: TrainingSession) -> None:
    with session.log:
        session.run()


def weights_of(state: TrainState) -> list[torch.Tensor]:
    moments = [v for p in state.model.parameters() for v in state.optimizer.state.get(p, {}).values()]
    return [t.detach().clone() for t in (*state.model.parameters(), *moments)]


def are_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def saved_steps(folder: Path) -> list[int]:
    return [event["step"] for event in read_events(folder / "events.jsonl") if event["event"] == "checkpoint"]


def whole_names(folder: Path) -> list[str]:
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert all(verify_checkpoint(folder / "checkpoints" / name) is None for name in names)
    return names
