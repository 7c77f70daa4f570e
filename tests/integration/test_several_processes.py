"""One run on several processes: equal losses, checkpoints that any number can resume, and clear failures."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from maskloom.runs.export import export
from tools.checking import verify_checkpoint
from tools.soak.fleets import Ended, Fleet, free_port, wait_all
from tools.soak.processes import ForkServer, environment
from tools.soak.subjects import pretraining

STEPS = 30
FSDP = ("--set", "training.parallel=fsdp")
MICRO = ("--set", "training.micro_batch_size=2")  # the batch size is 8
NO_DROPOUT = (
    *("--set", "model.config.hidden_dropout_prob=0.0"),
    *("--set", "model.config.attention_probs_dropout_prob=0.0"),
)


@pytest.fixture(scope="module")
def fleet(server: ForkServer) -> Iterator[Fleet]:
    with Fleet(2, server) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def command(run_data: Path) -> list[str]:
    return [*pretraining(run_data, steps=STEPS, save_every=10, evaluate_every=15).arguments]


@pytest.fixture(scope="module")
def alone(fleet: Fleet, command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(fleet, 1, command, tmp_path_factory.mktemp("alone"))


def _run(fleet: Fleet, size: int, command: list[str], folder: Path, code: int = 0, **first: str) -> Path:
    """Run a job to its end and return its run folder; a single process gets no distributed settings."""
    folder.mkdir(exist_ok=True)
    if size == 1:
        running = fleet.first.start(command, folder, folder / "output-0.txt", **first)
        ended = wait_all([running])
    else:
        ended = fleet.run(size, command, folder, own=dict.fromkeys(range(size), first))
    assert {each.code for each in ended} == {code}, "\n".join(each.said for each in ended)
    return folder / "run"


def _losses(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, STEPS + 1))
    return [event["loss"] for event in steps]


def _assert_same(run: Path, alone: Path, *, to_the_bit: bool = False) -> None:
    weights, expected = (load_file(folder / "model" / "model.safetensors") for folder in (run, alone))
    assert weights.keys() == expected.keys()
    if to_the_bit:
        assert all(weights[name].equal(expected[name]) for name in weights)
        assert _losses(run) == _losses(alone)
    assert max(float((weights[name] - expected[name]).abs().max()) for name in weights) < 1e-5
    assert _losses(run) == pytest.approx(_losses(alone), rel=1e-6)


@pytest.mark.parametrize("more", [(), MICRO], ids=["whole parts", "micro-batches"])
def test_two_processes_train_as_one_does(
    fleet: Fleet, command: list[str], alone: Path, tmp_path: Path, more: tuple
) -> None:
    """Dropout is on: its draws depend on the row, not on the process or micro-batch."""
    _assert_same(_run(fleet, 2, [*command, *more], tmp_path), alone)


@pytest.mark.slow
def test_four_processes_train_as_one_does(command: list[str], alone: Path, tmp_path: Path) -> None:
    with Fleet(4) as four:
        _assert_same(_run(four, 4, command, tmp_path), alone)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), FSDP], ids=["ddp", "fsdp"])
def test_two_processes_repeat_to_the_bit(fleet: Fleet, command: list[str], tmp_path: Path, more: tuple) -> None:
    runs = [_run(fleet, 2, [*command, *more], tmp_path / name) for name in ("first", "second")]
    _assert_same(runs[1], runs[0], to_the_bit=True)


@pytest.mark.slow
def test_two_processes_with_a_share_of_the_weights_each_train_as_one_does(
    fleet: Fleet, command: list[str], alone: Path, tmp_path: Path
) -> None:
    run = _run(fleet, 2, [*command, *FSDP], tmp_path)
    _assert_same(run, alone)
    export(run, tmp_path / "exported")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "exported", run / "model")]
    assert weights[0] == weights[1]
    newest = max((run / "checkpoints" / "phase-1").iterdir())
    names = {path.name for path in newest.iterdir()}
    assert names == {"manifest.json", "state.json", ".metadata", "__0_0.distcp", "__1_0.distcp"}


@pytest.mark.slow
def test_state_is_carried_where_weights_are_shared_out(fleet: Fleet, command: list[str], tmp_path: Path) -> None:
    changes = ("objective='carried_lm'", "data.next_sentence=false", "model.architecture='lstm'")
    unknown = ("model.config.num_attention_heads", "model.config.intermediate_size")
    places = {place for place, part in enumerate(command) if part.startswith(unknown)}
    kept = [part for place, part in enumerate(command) if not {place, place + 1} & places]
    carried = [*kept, *(part for change in changes for part in ("--set", change))]
    runs = [_run(fleet, 2, [*carried, *FSDP], tmp_path / "two"), _run(fleet, 1, carried, tmp_path / "one")]
    _assert_same(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), MICRO], ids=["whole parts", "micro-batches"])
def test_machines_with_a_copy_each_that_their_processes_share_train_as_one_does(
    command: list[str], alone: Path, tmp_path: Path, more: tuple
) -> None:
    with Fleet(4) as four:
        hsdp = ("--set", "training.parallel=hsdp")
        of_two = {rank: {"LOCAL_WORLD_SIZE": "2"} for rank in range(4)}
        ended = four.run(4, [*command, *hsdp, *more], tmp_path, own=of_two)
    assert {each.code for each in ended} == {0}, "\n".join(each.said for each in ended)
    _assert_same(tmp_path / "run", alone)


@pytest.mark.slow
def test_parameters_without_a_loss_are_left_alone_by_several_as_by_one(
    fleet: Fleet, command: list[str], tmp_path: Path
) -> None:
    """Without next-sentence prediction no loss depends on the pooler."""
    single = [*command, "--set", "data.next_sentence=false", "--set", f"training.evaluate_every={STEPS}"]
    _assert_same(_run(fleet, 2, single, tmp_path / "two"), _run(fleet, 1, single, tmp_path / "one"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((2, FSDP), (1, ()), id="fsdp-2-to-1"),
        pytest.param((2, ()), (1, ()), id="ddp-2-to-1", marks=pytest.mark.slow),
        pytest.param((1, ()), (2, FSDP), id="1-to-fsdp-2", marks=pytest.mark.slow),
        pytest.param((2, FSDP), (2, ()), id="fsdp-2-to-ddp-2", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_with_another_number_of_processes(
    fleet: Fleet, command: list[str], alone: Path, tmp_path: Path, before: tuple, after: tuple
) -> None:
    size, more = before
    killed = [*command, *more]
    _run(fleet, size, killed, tmp_path, code=-signal.SIGKILL, MASKLOOM_FAULTS="kill@training.step#26")
    size, more = after
    run = _run(fleet, size, [*command, *(more or ("--set", "training.parallel=ddp")), "--resume"], tmp_path)
    said = (tmp_path / "output-0.txt").read_text(encoding="utf-8")
    assert re.search(rf"^phase-1, length 32: continuing at [12]0 of {STEPS}$", said, re.MULTILINE)
    _assert_same(run, alone)
    assert not list(run.rglob("*.tmp*"))


def _ended(ended: list[Ended], rank: int, pattern: str, code: int = 1) -> None:
    assert ended[rank].code == code, ended[rank].said
    assert re.search(pattern, ended[rank].said), ended[rank].said


def test_a_killed_process_ends_the_others_with_its_number(fleet: Fleet, command: list[str], tmp_path: Path) -> None:
    """Torchrun sends SIGTERM to the others when one dies; they still name the lost rank as the reason."""
    job = fleet.start(2, command, tmp_path, own={1: {"MASKLOOM_FAULTS": "kill@training.step#7"}})
    assert job[1].wait() == -signal.SIGKILL
    job[0].send(signal.SIGTERM)
    _ended(wait_all(job), 0, "rank 0 ends: rank 1 was lost")


def _torchrun(command: list[str], folder: Path, of_rank_1: str) -> subprocess.CompletedProcess[str]:
    """Run two processes under torchrun; rank 1 first runs the shell command `of_rank_1`."""
    job = f'[ "$RANK" = 1 ] && {of_rank_1}; exec {shlex.join([sys.executable, "-m", "maskloom", *command])}'
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line = [*torchrun, "--no-python", "bash", "-c", job]
    return subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_a_process_killed_while_weights_are_shared_out_is_named_though_the_others_are_asked_to_stop(
    fleet: Fleet, command: list[str], tmp_path: Path
) -> None:
    job = fleet.start(2, [*command, *FSDP], tmp_path, own={1: {"MASKLOOM_FAULTS": "kill@ranks.share"}})
    assert job[1].wait() == -signal.SIGKILL
    job[0].send(signal.SIGTERM)
    _ended(wait_all(job), 0, "rank 0 ends: rank 1 was lost")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["ranks.groups", "ranks.share"])
def test_a_process_killed_while_torchrun_starts_them_is_named(command: list[str], tmp_path: Path, point: str) -> None:
    done = _torchrun([*command, *FSDP], tmp_path, f"export MASKLOOM_FAULTS=kill@{point}")
    assert done.returncode == 1
    assert "rank 0 ends: rank 1 was lost" in done.stderr


@pytest.mark.slow
def test_the_first_process_killed_in_the_start_is_named_though_it_keeps_the_store(
    fleet: Fleet, command: list[str], tmp_path: Path
) -> None:
    ended = fleet.run(2, [*command, *FSDP], tmp_path, own={0: {"MASKLOOM_FAULTS": "kill@ranks.groups"}})
    _ended(ended, 1, "rank 1 ends: rank 0 was lost")


@pytest.mark.slow
def test_a_process_that_comes_late_is_waited_for(command: list[str], alone: Path, tmp_path: Path) -> None:
    """It comes after 12 s; a rank that has joined counts as lost after 5 s (`rank_timeout` / 3) of silence."""
    done = _torchrun([*command, "--set", "training.rank_timeout=15"], tmp_path, "sleep 12")
    assert done.returncode == 0, done.stderr
    _assert_same(tmp_path / "run", alone)


@pytest.mark.slow
def test_a_hanging_process_is_named_and_ends_all(fleet: Fleet, command: list[str], tmp_path: Path) -> None:
    own = {1: {"MASKLOOM_FAULTS": "hang@training.micro_batch#20"}}
    ended = fleet.run(2, [*command, "--set", "training.rank_timeout=9"], tmp_path, own=own)
    for rank in range(2):
        _ended(ended, rank, r"rank 1 hangs: no progress for \d+ s at fault_rules.py")


@pytest.mark.slow
def test_a_process_that_fails_tells_the_others_why(fleet: Fleet, command: list[str], tmp_path: Path) -> None:
    own = {1: {"MASKLOOM_FAULTS": "exception@training.step#7"}}
    ended = fleet.run(2, command, tmp_path, own=own)
    _ended(ended, 0, "rank 1 failed: RuntimeError: fault point training.step")


def test_a_signal_to_one_process_saves_once_and_ends_all_alike(
    fleet: Fleet, command: list[str], tmp_path: Path
) -> None:
    long = ("--set", "training.steps=500", "--set", "training.save_every=500")
    job = fleet.start(2, [*command, *long], tmp_path)
    log = tmp_path / "run" / "events.jsonl"
    job[0].wait_until(lambda: log.exists() and '"step": 5' in log.read_text())
    job[1].send(signal.SIGUSR1)
    assert [each.code for each in wait_all(job)] == [75, 75]
    saved = list((tmp_path / "run" / "checkpoints" / "phase-1").iterdir())
    assert len(saved) == 1
    assert verify_checkpoint(saved[0]) is None


def test_a_number_of_processes_that_does_not_divide_is_refused(
    fleet: Fleet, command: list[str], tmp_path: Path
) -> None:
    ended = fleet.run(2, [*command, *MICRO, "--set", "training.batch_size=6"], tmp_path)
    for rank in range(2):
        _ended(ended, rank, r"3 micro-batches .* cannot be divided among 2 processes; .* that work: 1, 3", code=3)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_torchrun_starts_all_again_when_the_first_rank_is_killed(
    command: list[str], alone: Path, tmp_path: Path
) -> None:
    """torchrun keeps its store: after the restart, ranks must not use the first start's addresses."""
    fault = '[ "$RANK$TORCHELASTIC_RESTART_COUNT" = 00 ] && export MASKLOOM_FAULTS=kill@training.step#23; '
    job = f"{fault}exec {shlex.join([sys.executable, '-m', 'maskloom', *command])}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    twice = [*torchrun, "--max-restarts", "1", "--no-python", "bash", "-c", job]
    done = subprocess.run(twice, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 was lost" in done.stderr
    _assert_same(tmp_path / "run", alone)


@pytest.mark.slow
def test_nodes_that_have_counted_different_restarts_meet_again(command: list[str], alone: Path, tmp_path: Path) -> None:
    """Each torchrun counts its node's restarts: that of the killed rank one, the other, which may not fail, none."""
    fault = '[ "$RANK$TORCHELASTIC_RESTART_COUNT" = 00 ] && export MASKLOOM_FAULTS=kill@training.step#23; '
    job = f"{fault}exec {shlex.join([sys.executable, '-m', 'maskloom', *command])}"
    nodes, port = [], free_port()
    for number in range(2):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
        torchrun += ["--rdzv-id", "nodes", "--max-restarts", str(1 - number), "--no-python", "bash", "-c", job]
        with (tmp_path / f"node-{number}.txt").open("wb") as file:
            nodes.append(subprocess.Popen(torchrun, cwd=tmp_path, env=environment(), stdout=file, stderr=file))
    try:
        codes = [node.wait(240) for node in nodes]
    finally:
        for node in nodes:  # a torchrun that is asked to stop ends its processes, too
            node.terminate()
            node.wait(60)
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("node-*.txt")]
    _assert_same(tmp_path / "run", alone)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), FSDP], ids=["ddp", "fsdp"])
def test_memory_that_runs_out_on_one_process_halves_micro_batches_at_the_next_start(
    fleet: Fleet, command: list[str], alone: Path, tmp_path: Path, more: tuple
) -> None:
    plain = [*command, *MICRO]
    own = {1: {"MASKLOOM_FAULTS": "enomem@training.micro_batch#47"}}
    ended = fleet.run(2, [*plain, *more], tmp_path, own=own)
    _ended(ended, 1, r"memory ran out on rank 1 of 2 .* in micro-batches of 1")
    _ended(ended, 0, "rank 1 failed: MemoryExhaustedError")
    run = _run(fleet, 2, [*plain, *more, "--resume"], tmp_path)
    _assert_same(run, alone)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (told,) = [event for event in events if event["event"] == "out_of_memory"]
    assert (told["step"], told["micro_batch_size"]) == (21, 1)
