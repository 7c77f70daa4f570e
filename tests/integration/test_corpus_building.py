"""Corpus building from the command line: killed, continued, on a full disk, and with wrong input."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from maskloom.data.corpus.building import CorpusSettings
from maskloom.data.corpus.opening import Corpus
from maskloom.errors import DataError
from maskloom.runs.corpus import build_corpus_from_files
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

pytestmark = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds processes through /proc")

WORDS = [first + middle + last for first in "bdfgkl" for middle in "aeiou" for last in "mnprst"]
NUM_CHARACTERS = 4_500_000  # 9 shards
TIMEOUT = 120
NUM_ATTEMPTS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a vocabulary, a text of several shards, and its corpus as built by one process."""
    folder = tmp_path_factory.mktemp("texts")
    WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS])).save(folder / "vocab")
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=12)) + " ." for _ in range(3_000)]
    size, documents = 0, []
    while size < NUM_CHARACTERS:
        documents.append("\n".join(rng.choices(sentences, k=200)))
        size += len(documents[-1])
    (folder / "text.txt").write_text("\n\n".join(documents))
    build_corpus_from_files(
        folder / "text.txt", vocab=folder / "vocab", out=folder / "whole", settings=CorpusSettings("lines")
    )
    return folder


def command(folder: Path, out: Path, *options: str, text: str = "text.txt", num_workers: int = 2) -> list[str]:
    arguments = [str(folder / text), "--vocab", str(folder / "vocab"), "--out", str(out), "--sentences", "lines"]
    build = [sys.executable, "-m", "maskloom", "corpus", "build"]
    return [*build, *arguments, "--workers", str(num_workers), *options]


def build(folder: Path, out: Path, *options: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(command(folder, out, *options, **more), capture_output=True, text=True, timeout=TIMEOUT)


def in_process(folder: Path, out: Path, *options: str, **more) -> list[str]:
    """Return the command line of a build by one process, for the fixtures `run` and `command`."""
    return command(folder, out, *options, num_workers=1, **more)[3:]


def start(folder: Path, out: Path) -> subprocess.Popen:
    """Start a build in a process group of its own."""
    return subprocess.Popen(
        command(folder, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen) -> bool:
    """Wait until `is_so` holds during a build; return False if the build ends first."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline, "waited too long"
        if process.poll() is not None:
            return False
        time.sleep(0.0005)
    return True


def folder_bytes(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def num_shards(out: Path) -> int:
    return len(list((out / "building").glob("0*.json")))


def processes(*, group: int) -> dict[int, bool]:
    """Return the running processes of a group by id, and whether each was started for encoding."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # the name in brackets is followed by the state, the parent and the group
            state, _, own_group = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            is_worker = b"maskloom.system.worker_processes" in (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if int(own_group) == group and state != "Z":
            found[int(folder.name)] = is_worker
    return found


def assert_all_end(group: int) -> None:
    deadline = time.monotonic() + TIMEOUT / 4
    while found := processes(group=group):
        assert time.monotonic() < deadline, f"processes are left: {found}"
        time.sleep(0.02)


def kill_at(moment: str, folder: Path, out: Path) -> None:
    """Build, and kill all processes of the build with SIGKILL when the folder shows that `moment` has come."""
    moments: dict[str, Callable[[], bool]] = {
        "folder made": lambda: (out / "building").exists(),
        "tokenizer half written": lambda: (out / "vocab.txt").exists(),
        "shard being written": lambda: any((out / "shards").glob(".*.tmp")) if (out / "shards").exists() else False,
        "first shard": lambda: num_shards(out) >= 1,
        "several shards": lambda: num_shards(out) >= 4,
        "lengths being joined": lambda: (out / "sentence_lengths.bin").exists(),
    }
    before = out.with_name("before")
    for _ in range(NUM_ATTEMPTS):
        shutil.rmtree(before, ignore_errors=True)
        if out.exists():
            shutil.copytree(out, before)
        if was_killed_at(moments[moment], folder, out):
            return
        # the build ended before the moment was seen: restore the starting point and try again
        shutil.rmtree(out)
        if before.exists():
            shutil.copytree(before, out)
    pytest.fail(f"the moment was never seen: {moment}")


def was_killed_at(is_so: Callable[[], bool], folder: Path, out: Path) -> bool:
    """Build, and kill the whole group once `is_so` holds; return False if the build ends first."""
    process = start(folder, out)
    try:
        wait_until(is_so, process)
    finally:
        was_alive = process.poll() is None
        if was_alive:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=TIMEOUT)
    assert_all_end(process.pid)
    return was_alive


@pytest.mark.slow
def test_a_build_killed_at_any_moment_continues_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    expected = folder_bytes(folder / "whole")
    out = tmp_path / "out"
    finished: dict[str, int] = {}
    for moment in (
        "folder made",
        "tokenizer half written",
        "shard being written",
        "first shard",
        "several shards",
        "lengths being joined",
    ):
        # each build continues from where the last one was killed
        kill_at(moment, folder, out)
        if not (out / "manifest.json").exists():
            with pytest.raises(DataError, match=r"is unfinished|no manifest\.json|no such folder"):
                Corpus.open(out)
        written = {path.name: path.stat().st_mtime_ns for path in (out / "shards").glob("0*.tokens")}
        recorded = {path.stem for path in (out / "building").glob("0*.json")}
        kept = {name: when for name, when in finished.items() if name in written}
        assert all(written[name] == when for name, when in kept.items()), f"finished shards made again, {moment}"
        finished = {name: when for name, when in written.items() if Path(name).stem in recorded}
    assert len(finished) >= 4
    done = build(folder, out)
    assert done.returncode == 0, done.stderr
    assert folder_bytes(out) == expected
    again = {path.name: path.stat().st_mtime_ns for path in (out / "shards").iterdir()}
    assert all(again[name] == when for name, when in finished.items())


@pytest.fixture
def half_done(folder: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Yield a half-finished build whose main process is stopped, and its folder."""
    for attempt in range(5):
        out = tmp_path / f"out_{attempt}"
        process = start(folder, out)
        try:
            wait_until(lambda out=out: num_shards(out) >= 1, process)
            process.send_signal(signal.SIGSTOP)
            # on a busy machine the signal may come too late
            if process.poll() is None and 1 <= num_shards(out) <= 5:
                yield process, out
                return
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=TIMEOUT)
    pytest.fail("no build could be stopped in its middle")


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_changes_nothing(
    folder: Path, half_done: tuple[subprocess.Popen, Path]
) -> None:
    process, out = half_done
    killed = next(number for number, is_worker in processes(group=process.pid).items() if is_worker)
    os.kill(killed, signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    place = r"shard \d+ \(documents from .*text\.txt, line \d+ to .*text\.txt, line \d+\)"
    assert re.search(rf"worker process {killed}, which was working on {place}, died with exit code -9", errors), errors
    assert "Traceback" not in errors, errors
    assert_all_end(process.pid)
    assert folder_bytes(out) == folder_bytes(folder / "whole")


def test_stopping_from_the_keyboard_leaves_no_process_behind(half_done: tuple[subprocess.Popen, Path]) -> None:
    process, _ = half_done
    os.killpg(process.pid, signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert "Traceback" not in errors, errors
    assert_all_end(process.pid)


@pytest.mark.parametrize("whom", ["first process", pytest.param("all processes", marks=pytest.mark.slow)])
def test_a_scheduler_stops_a_build_with_75_and_the_same_command_goes_on(
    run: Callable[..., str], folder: Path, half_done: tuple[subprocess.Popen, Path], whom: str
) -> None:
    process, out = half_done
    if whom == "first process":
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 75, errors
    assert "stopped by SIGTERM; finished shards are kept, continue with: maskloom corpus build " in errors
    assert "Traceback" not in errors, errors
    assert_all_end(process.pid)
    finished = num_shards(out)
    kept = re.search(r'"num_kept_shards": (\d+)', run(*in_process(folder, out, "--json")))
    assert kept is not None
    assert int(kept[1]) >= min(finished, 1)
    assert folder_bytes(out) == folder_bytes(folder / "whole")


def test_a_scheduler_stops_the_training_of_a_vocabulary_with_75_and_nothing_is_left(folder: Path, tmp_path) -> None:
    out = tmp_path / "vocab"
    arguments = ["vocab", "train", str(folder / "text.txt"), "--size", "600", "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "maskloom", *arguments], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any(tmp_path.glob(".vocab.tmp-*/maskloom-words-*")), process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 75, errors
    assert "stopped by SIGTERM; nothing was written, start again with: maskloom vocab train " in errors
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir() if path.name != ".vocab.run.lock"] == []


def test_a_folder_below_a_file_is_answered_with_a_message(
    command: Callable[..., tuple[int, str]], folder: Path
) -> None:
    code, said = command(*in_process(folder, folder / "text.txt" / "out"))
    assert code in (1, 3)
    assert "text.txt/out" in said
    assert "Traceback" not in said


def test_a_full_disk_is_answered_with_a_message_and_can_be_continued(
    run: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # a file size limit stands in for a full disk; Python ignores the signal that comes with it (SIGXFSZ)
    limited = ["bash", "-c", 'ulimit -f 400; exec "$@"', "bash", *command(folder, out)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 74
    assert f"error: {out}: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    run(*in_process(folder, out))
    assert folder_bytes(out) == folder_bytes(folder / "whole")


def test_exit_codes(run: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    assert '"already_built": true' in run(*in_process(folder, folder / "whole", "--json"))
    (folder / "bad.txt").write_bytes(b"bam \xff\n")
    assert "Traceback" not in run(*in_process(folder, tmp_path / "a", "--workers", "0"), code=2)
    said = run(*in_process(folder, tmp_path / "b", text="bad.txt"), code=3)
    assert "bad.txt, document at line 1: byte 5 (0xff) is not UTF-8" in said
    assert "Traceback" not in said
    said = run(*in_process(folder, tmp_path / "c", "--on-bad-text", "skip", text="bad.txt"), code=3)
    assert "found no documents with any tokens" in said
