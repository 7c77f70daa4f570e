"""The order of writing, syncing and renaming, which a kill cannot reveal but a power cut would."""

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.unit.training.tiny_sessions import run_session, tiny_session, tiny_state

from maskloom.inference.model_folder import WORD_VECTORS
from maskloom.runs.model_writing import write_model_folder
from maskloom.system.files import write_json
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.checkpointing.checkpoints import Snapshot, write_checkpoint
from maskloom.training.ranks.ranks import Ranks


class Witness:
    """Watches every sync and rename, and records each one that precedes the sync of what it depends on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[str] = []
        self._synced: dict[int, object] = {}
        self._unsynced_folders: set[Path] = set()
        self._calls = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "rename", lambda source, target: self._rename("rename", Path(source), Path(target)))
        monkeypatch.setattr(os, "replace", lambda source, target: self._rename("replace", Path(source), Path(target)))

    def end(self) -> list[str]:
        """Return the violations: premature renames, and folders that were not synced after a rename."""
        return self.found + [f"{folder} was not synced after a rename" for folder in sorted(self._unsynced_folders)]

    def _fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._synced[path.stat().st_ino] = self._state(path)
        self._unsynced_folders.discard(path)
        if path.name == "manifest.json":
            for name in json.loads(path.read_text())["files"]:
                self._need(path.with_name(name), "the manifest")

    def _rename(self, call: str, source: Path, target: Path) -> None:
        for path in [source, *(source.iterdir() if source.is_dir() else ())]:
            self._need(path, f"the {call} to {target.name}")
        self._calls[call](source, target)
        self._unsynced_folders.add(target.parent)

    def _need(self, path: Path, what: str) -> None:
        if not path.exists() or self._synced.get(path.stat().st_ino) != self._state(path):
            self.found.append(f"{what} came before {path.name} was on disk")

    @staticmethod
    def _state(path: Path) -> object:
        about = path.stat()
        return sorted(os.listdir(path)) if stat.S_ISDIR(about.st_mode) else (about.st_size, about.st_mtime_ns)


def test_a_file_has_its_name_only_when_it_is_on_disk(tmp_path, monkeypatch) -> None:
    witness = Witness(monkeypatch)
    write_json(tmp_path / "a.json", {"a": 1})
    write_json(tmp_path / "a.json", {"a": 2})
    assert witness.end() == []


def test_a_checkpoint_has_its_manifest_when_its_files_are_on_disk_and_its_name_when_all_is(
    tmp_path, monkeypatch
) -> None:
    witness, state = Witness(monkeypatch), tiny_state()
    for step in (1, 1, 2):
        state.step = step
        write_checkpoint(Snapshot.of(state, {}), tmp_path, keep=9)
    assert witness.end() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_model_folder_has_its_name_when_its_word_vectors_are_on_disk(tmp_path, monkeypatch) -> None:
    witness, tokenizer = Witness(monkeypatch), SimpleNamespace(save=lambda *_, **__: None)
    (tmp_path / "vectors.txt").write_text("a 1\n", encoding="utf-8")
    settings = {"settings": {"features": {"word_vectors": str(tmp_path / "vectors.txt")}}}
    write_model_folder(tmp_path / "model", tiny_state().model, cast(Tokenizer, tokenizer), settings=settings)
    assert (tmp_path / "model" / WORD_VECTORS).read_text(encoding="utf-8") == "a 1\n"
    assert witness.end() == []


def test_a_rank_that_is_not_the_first_writes_nothing(tmp_path) -> None:
    session = tiny_session(tmp_path)
    session.ranks = Ranks(rank=1, world_size=2)
    run_session(session)
    assert session.state.step == session.settings.steps
    assert not list(tmp_path.glob("**/step-*"))
    assert not session.log.path.read_text()
