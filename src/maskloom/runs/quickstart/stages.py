"""Stages of a long job that are done once: what each returned is kept, so that a job started again goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from maskloom.config import ConfigError
from maskloom.files import write_json
from maskloom.folder_lock import LOCK
from maskloom.foreign_files import read_json_object


class Stages:
    """The finished stages of a job in a file: the result of each, a JSON-able dictionary, and the seconds it took."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Open the file or begin one. Raises ConfigError when the job there has other settings or is none of ours."""
        self._path = path
        if path.exists():
            self._held = read_json_object(path)
            if self._held["settings"] != settings:
                raise ConfigError(
                    f"{path.parent} was started with {_listed(self._held['settings'])}, this is {_listed(settings)}; "
                    "choose another --out"
                )
            return
        if path.parent.exists() and (
            not path.parent.is_dir() or any(entry.name != LOCK for entry in path.parent.iterdir())
        ):
            raise ConfigError(f"{path.parent} exists and holds something else; choose an empty or a new --out")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._held = {"settings": settings, "results": {}, "seconds": {}}
        write_json(path, self._held)

    def run(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a stage, doing the work only when it is not there yet."""
        if name not in self._held["results"]:
            started = time.perf_counter()
            result = work()
            self._held["results"][name] = result
            self._held["seconds"][name] = time.perf_counter() - started
            write_json(self._path, self._held)
        return self._held["results"][name]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each finished stage; of one that was interrupted, those since it was taken up again."""
        return dict(self._held["seconds"])


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in settings.items())
