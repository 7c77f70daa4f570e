"""R11, R16 and R20: two runs in one folder, unusual environments, and runs that are repeated from their folders."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tools.checking import fresh_folder
from tools.soak.processes import CommandLine, ForkServer
from tools.soak.rows import Budget, Row, Trial
from tools.soak.subjects import RUN, finetuning, prepare, pretraining, run_whole, sets

NUM_STARTS, NUM_STALE, NUM_RERUNS = 100, 20, 10
_CLOCK_SET_BACK = "import time\n_now = time.time\ntime.time = lambda: _now() - 400 * 86400\n"
_SURROUNDINGS = {
    "locale C": {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"},
    "locale tr_TR": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    "locale de_DE": {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"},
    **{f"PYTHONHASHSEED {seed}": {"PYTHONHASHSEED": str(seed)} for seed in range(10)},
    "clock set back": {},
    "umask 077": {},
}
_FOLDERS = {"spaces": "a run of mine", "emoji": "Läufe 🚀", "quotes": 'it\'s "one"', "newline": "two\nlines"}


def _weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def two_in_one_folder(budget: Budget) -> Iterator[Trial]:
    """Start two runs in one folder: exactly one trains, and the other names it; then take over stale locks."""
    with ForkServer() as first, ForkServer() as second:
        data = prepare(first, budget.work / "data", num_topics=40)
        subject = pretraining(data, steps=40, save_every=20)
        for number in range(NUM_STARTS):
            folder = budget.work / "both"
            fresh_folder(folder)
            started = time.monotonic()
            running = [
                server.start(subject.arguments, folder, folder / f"{name}.txt")
                for name, server in (("first", first), ("second", second))
            ]
            refused = running[0].wait_until(lambda both=running: next((r for r in both if r.has_ended()), None))
            seconds = time.monotonic() - started
            winner = running[1 - running.index(refused)]
            said = refused.output.read_text(encoding="utf-8")
            named = f"in use by PID {winner.pid} on {socket.gethostname()}" in said
            codes = (refused.wait(), winner.wait())
            detail = f"codes {codes}, refused after {seconds:.2f} s: {said[-200:]}"
            yield Trial(f"start {number + 1}", codes == (1, 0) and named, detail)
        folder = budget.work / "stale"
        folder.mkdir()
        running = first.start(subject.arguments, folder, folder / "output.txt")
        lock = folder / RUN / ".run.lock"
        running.wait_until(lambda: lock.exists() and lock.stat().st_size > 50)
        running.kill()
        running.wait()
        holder = json.loads(lock.read_text(encoding="utf-8"))
        kinds = [{}, {"start": "1", "pid": 1}, {"boot": "another"}]
        for number in range(NUM_STALE):
            (folder / RUN).mkdir(exist_ok=True)
            lock.write_text(json.dumps({**holder, **kinds[number % len(kinds)]}), encoding="utf-8")
            said = run_whole(first, subject.resumed(), folder)
            yield Trial(
                f"stale {number + 1}", ": taking over from " in said and ", which did not finish: " in said, said[-200:]
            )


def odd_surroundings(budget: Budget) -> Iterator[Trial]:
    """Run with unusual locales, hash seeds, clocks, umasks and folder names: the weights must be the same."""
    with ForkServer() as server:
        data = prepare(server, budget.work / "data", num_topics=40)
    subject = pretraining(data, steps=10, save_every=4)
    plain = _run(subject.arguments, budget.work / "plain")
    expected = _weights(budget.work / "plain" / RUN)
    assert plain[0] == 0, plain[1]
    clock = budget.work / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(_CLOCK_SET_BACK, encoding="utf-8")
    (budget.work / "umask").mkdir()
    (budget.work / "umask" / "sitecustomize.py").write_text("import os\nos.umask(0o077)\n", encoding="utf-8")
    extra = {"clock set back": {"PYTHONPATH": str(clock)}, "umask 077": {"PYTHONPATH": str(budget.work / "umask")}}
    for name, environment in _SURROUNDINGS.items():
        folder = budget.work / name.replace(" ", "-")
        code, said = _run(subject.arguments, folder, **environment, **extra.get(name, {}))
        yield Trial(name, code == 0 and _weights(folder / RUN) == expected, f"exit code {code}: {said[-200:]}")
    for name, folder_name in _FOLDERS.items():
        folder = budget.work / folder_name
        code, said = _run(subject.arguments, folder)
        yield Trial(name, code == 0 and _weights(folder / RUN) == expected, f"exit code {code}: {said[-200:]}")
    for length in (300, 4_000):
        arguments = ["x" * length if word == RUN else word for word in subject.arguments]
        code, said = _run(arguments, budget.work / f"long-{length}")
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        yield Trial(f"name of {length}", code in (1, 3) and len(lines) == 1 and "Traceback" not in said, said[-200:])


def _run(arguments, folder: Path, **environment: str) -> tuple[int, str]:
    folder.mkdir(parents=True, exist_ok=True)
    return CommandLine(arguments, folder, folder / "output.txt", **environment).ended()


def reruns(budget: Budget) -> Iterator[Trial]:
    """Repeat runs of both kinds with random settings from their folders: the weights must be bit-identical."""
    with ForkServer() as server:
        data = prepare(server, budget.work / "data", num_topics=40)
        for number in range(NUM_RERUNS):
            draw = budget.draw("rerun", number)
            subject = pretraining(data, steps=draw.randrange(8, 25)) if number % 2 == 0 else finetuning(data, epochs=1)
            folder = budget.work / f"rerun-{number}"
            folder.mkdir()
            settings = (f"seed={draw.randrange(1000)}", f"training.batch_size={draw.choice((4, 8, 12))}")
            run_whole(server, (*subject.arguments, *sets(*settings)), folder)
            code, said = server.start(("rerun", RUN, "--out", "again"), folder, folder / "output.txt").ended()
            sums = re.findall(r"sha256 of \w+ +([0-9a-f]{64})", said)
            same = code == 0 and _weights(folder / RUN) == _weights(folder / "again") and len(set(sums)) == 1
            yield Trial(f"{subject.name} {', '.join(settings)}", same, said[-200:])


ROWS = [
    Row(
        "R11",
        "two runs in one folder at once; stale locks",
        "one trains, the error of the other names it; stale locks are taken over",
        NUM_STARTS + NUM_STALE,
        two_in_one_folder,
    ),
    Row(
        "R16",
        "locales, hash seeds, clock, umask, folder names",
        "the same weights, or a one-line error",
        len(_SURROUNDINGS) + len(_FOLDERS) + 2,
        odd_surroundings,
    ),
    Row("R20", "rerun of run folders", "bit-identical weights", NUM_RERUNS, reruns),
]
