"""Trials proposed by optuna's tree-structured Parzen estimator; its journal lies in the search's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError
from maskloom.files import write_bytes
from maskloom.foreign_files import check_regular
from maskloom.runs.search_space import Space, ValueRange

_ATTEMPTS = 50


class OptunaProposer:
    """Asks optuna for settings and tells it how they went; a journal that exists is continued.

    The sampler is seeded by the number of proposals made, so that a search that was interrupted proposes what it would
    have proposed. Raises ConfigError when optuna is not installed.
    """

    def __init__(self, journal: Path, space: Space, seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigError("optuna is not installed: pip install maskloom[search]") from None
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._space, self._seed = optuna, space, seed
        _mend(journal)
        backend = JournalFileBackend(str(journal), lock_obj=JournalFileOpenLock(str(journal)))
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="search",
            direction="maximize",
            load_if_exists=True,
        )

    def ask(self, tried: list[dict[str, Any]]) -> tuple[dict[str, Any], int] | None:
        """Return settings that no trial in `tried` has, with optuna's number; None when none were found."""
        self._forget_orphans({trial["proposal"] for trial in tried})
        known = {_key(trial["settings"]): trial["proposal"] for trial in tried}
        for _ in range(_ATTEMPTS):
            self._study.sampler = self._optuna.samplers.TPESampler(seed=self._seed + len(self._study.trials))
            trial = self._study.ask()
            settings = {key: self._suggest(trial, key, values) for key, values in self._space.items()}
            earlier = known.get(_key(settings))
            if earlier is None:
                return settings, trial.number
            self.tell(trial.number, self._study.trials[earlier].value)  # it would end as the earlier one did
        return None

    def tell(self, number: int, score: float | None) -> None:
        """Take in a dev score, higher being better, or None for a failure; what it was told before it keeps."""
        if self._study.trials[number].state.is_finished():
            return
        if score is None:
            self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(number, score)

    def _forget_orphans(self, known: set[int]) -> None:
        """Give up proposals that were never written down, because the process was killed in between."""
        for trial in self._study.trials:
            if not trial.state.is_finished() and trial.number not in known:
                self.tell(trial.number, None)

    def _suggest(self, trial: Any, key: str, values: Any) -> Any:
        if isinstance(values, ValueRange):
            if values.kind == "int":
                return trial.suggest_int(key, values.low, values.high)
            return trial.suggest_float(key, values.low, values.high, log=True)
        return trial.suggest_categorical(key, list(values))


def _mend(journal: Path) -> None:
    """Take away what a killed process leaves: its lock, and half a line at the end. A search has one process."""
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists():
        check_regular(journal)
        content = journal.read_bytes()
        if not content.endswith(b"\n"):
            write_bytes(journal, content[: content.rfind(b"\n") + 1])


def _key(settings: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, repr(value)) for key, value in settings.items()))
