"""R2, R5 and R17, and a part of R7: saves that are killed, damaged or fail, and checkpoints in other formats."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.checking import fresh_folder, verify_checkpoint
from tools.soak.processes import ForkServer
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, Subject, differences, outcome, prepare, pretraining, run_whole

DISK_FAILURES = ("enospc", "eio", "erofs", "edquot")
NUM_TRUNCATIONS, NUM_FLIPS, NUM_DISK_POINTS = 20, 200, 20
_FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
_EVERY = 5
_NEWER_FORMATS = (3, 4, 1000)


@dataclass(frozen=True)
class _Scene:
    """An undisturbed run of 21 steps that saves every 5 steps.

    `passes` is the number of its file operations, `tried` the numbers of those at which it is killed or broken.
    """

    server: ForkServer
    subject: Subject
    alone: Path
    passes: int
    tried: list[int]
    work: Path

    @property
    def expected(self) -> dict[str, str]:
        return outcome(self.alone / RUN)

    def place(self, name: str, *, copied: bool = False) -> Path:
        """Return a new folder to run in, optionally with a copy of the run as it was before its last evaluation."""
        folder = self.work / name
        fresh_folder(folder)
        if copied:
            shutil.copytree(self.alone / RUN, folder / RUN)
            (folder / RUN / "metrics.json").unlink()  # a finished run would not look at its checkpoints
        return folder

    def run(self, folder: Path, *, resume: bool = False, **environment: str) -> tuple[int, str]:
        arguments = self.subject.resumed() if resume else self.subject.arguments
        return self.server.start(arguments, folder, folder / "output.txt", **environment).ended()


@contextmanager
def _scene(budget: Budget) -> Iterator[_Scene]:
    budget.work.mkdir(parents=True, exist_ok=True)
    with ForkServer() as server:
        data = prepare(server, budget.work / "data", num_topics=40)
        subject = pretraining(data, steps=21, save_every=_EVERY, evaluate_every=10)
        alone = budget.work / "alone"
        alone.mkdir()
        log = alone / "passes.txt"
        run_whole(server, subject.arguments, alone, MASKLOOM_FAULT_LOG=str(log))
        points = log.read_text(encoding="utf-8").split()
        passes = sum(name.startswith("files.") for name in points)
        yield _Scene(server, subject, alone, passes, _passes_to_try(points), budget.work)


def _passes_to_try(log: list[str]) -> list[int]:
    """Return the numbers of the file operations to test: the writes of the second save, and all others of the run."""
    steps = [place for place, name in enumerate(log) if name == "training.step"]
    files = [place for place, name in enumerate(log) if name.startswith("files.")]
    is_tried = [log[place] != "files.write" or steps[_EVERY * 2 - 1] < place < steps[_EVERY * 3 - 1] for place in files]
    return [number for number, tried in enumerate(is_tried, start=1) if tried]


def _checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / RUN / "checkpoints" / "phase-1").glob("step-????????"))


def _problem_after_resume(scene: _Scene, folder: Path, *, but: Callable[[str], bool] = lambda _: False) -> str:
    """Return the problems of a run after resuming it, except for differences accepted by `but`."""
    code, said = scene.run(folder, resume=True)
    if code or "Traceback" in said:
        return f"resumed with exit code {code}: {said[-300:]}"
    halves = [problem for path in _checkpoints(folder) if (problem := verify_checkpoint(path))]
    found = [each for each in differences(outcome(folder / RUN), scene.expected) if not but(each)]
    return "; ".join([*halves, *found][:3])


def _is_older_one(difference: str) -> bool:
    """Tell whether an older checkpoint is only missing or extra compared with the undisturbed run."""
    return bool(re.match(r"checkpoints/phase-1/step-000000(15|20)/.* is (too many|missing)", difference))


def broken_saves(budget: Budget) -> Iterator[Trial]:
    """Kill or break a run at every selected file operation; complete checkpoints stay complete, and the run resumes."""
    with _scene(budget) as scene:
        for number in scene.tried:
            for action in ("kill", DISK_FAILURES[number % len(DISK_FAILURES)]):
                folder = scene.place("broken")
                code, said = scene.run(folder, MASKLOOM_FAULTS=f"{action}@files.*#{number}")
                halves = [path.name for path in _checkpoints(folder) if verify_checkpoint(path)]
                detail = f"not whole: {halves}" if halves else ""
                codes = (-9,) if action == "kill" else (0, 74)
                if not detail and (code not in codes or "Traceback" in said):
                    detail = f"exit code {code}: {said[-300:]}"
                # if one save failed and the run continued, an older checkpoint is kept with the newest
                but = _is_older_one if "was not saved" in said else lambda _: False
                yield _trial(f"{action} at pass {number}", detail or _problem_after_resume(scene, folder, but=but))


def tampered(budget: Budget) -> Iterator[Trial]:
    """Damage the newest checkpoint in every way; it is refused by name, and the previous one is used."""
    with _scene(budget) as scene:
        draw = budget.draw("tampered")
        sizes = {name: (_checkpoints(scene.alone)[-1] / name).stat().st_size for name in _FILES}
        damages: list[tuple[str, str, Callable[[bytes], bytes | None]]] = []
        for name in _FILES:
            damages += [(name, "deleted", lambda _: None), (name, "emptied", lambda _: b"")]
            for size in draw.sample(range(sizes[name]), NUM_TRUNCATIONS // len(_FILES)):
                damages.append((name, f"cut to {size}", lambda content, size=size: content[:size]))
            for part in range(NUM_FLIPS // len(_FILES)):
                bit = draw.randrange(8 * (400 if part % 2 and sizes[name] > 400 else sizes[name]))
                damages.append((name, f"bit {bit}", lambda content, bit=bit: _flipped(content, bit)))
        draw.shuffle(damages)
        for name, what, damage in damages:
            folder = scene.place("tampered", copied=True)
            path = _checkpoints(folder)[-1] / name
            content = damage(path.read_bytes())
            path.unlink() if content is None else path.write_bytes(content)
            yield _trial(f"{name} {what}", _problem_of_damage(scene, folder, path))
        for name in _FILES:
            folder = scene.place("tampered", copied=True)
            first, second = (path / name for path in _checkpoints(folder)[-2:])
            before = first.read_bytes()
            first.write_bytes(second.read_bytes())
            second.write_bytes(before)
            code, said = scene.run(folder, resume=True)
            yield _trial(f"{name} swapped", "" if code == 3 and said.count("error: ") == 1 else f"{code}: {said}")


def _flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _problem_of_damage(scene: _Scene, folder: Path, path: Path) -> str:
    code, said = scene.run(folder, resume=True)
    if code:
        return f"exit code {code}: {said[-300:]}"
    if f"warning: checkpoint skipped: {RUN}" not in said or path.parent.name not in said:
        return f"not said: {said[-300:]}"
    return "; ".join(differences(outcome(folder / RUN), scene.expected)[:3])


def failing_disks(budget: Budget) -> Iterator[Trial]:
    """Let the disk fail permanently at a random point; the run ends with exit code 74, and resumes to the bit."""
    with _scene(budget) as scene:
        draw = budget.draw("disks")
        for number in range(NUM_DISK_POINTS):
            failure, at = DISK_FAILURES[number % len(DISK_FAILURES)], draw.randrange(1, scene.passes)
            folder = scene.place("disk")
            code, said = scene.run(folder, MASKLOOM_FAULTS=f"{failure}@files.*#{at}+")
            detail = "" if code == 74 and "Traceback" not in said else f"exit code {code}: {said[-300:]}"
            yield _trial(f"{failure} from pass {at} on", detail or _problem_after_resume(scene, folder))
        folder = scene.place("disk", copied=True)
        shutil.rmtree(folder / RUN / "checkpoints")
        yield _trial("checkpoints removed", _problem_after_resume(scene, folder))


def formats(budget: Budget) -> Iterator[Trial]:
    """Resume from checkpoints in formats newer than the program; no older format was ever released."""
    with _scene(budget) as scene:
        for version in _NEWER_FORMATS:
            folder = scene.place("format", copied=True)
            for path in _checkpoints(folder):
                manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
                (path / "manifest.json").write_text(json.dumps({**manifest, "format_version": version}))
            code, said = scene.run(folder, resume=True)
            is_named = code == 3 and f"format version {version}; this program reads" in said
            yield _trial(f"format {version}", "" if is_named else f"exit code {code}: {said[-300:]}")


def _trial(name: str, problem: str) -> Trial:
    return Trial(name, not problem, problem)


ROWS = [
    Row(
        "R2",
        "a run killed or failing at every write of one save, and at every sync, rename and unlink of all saves",
        "the old or the new checkpoint is valid, never neither; a run that continues ends like an undisturbed one",
        350,
        broken_saves,
    ),
    Row(
        "R5",
        "damage to the newest checkpoint: truncation, bit flips, deletion, swaps",
        "reported; the previous one is used",
        232,
        tampered,
    ),
    Row("R17", "checkpoints of newer formats", "rejected, naming the version", 3, formats),
]
