"""Our steps are timed against peers as shipped and against peers that keep memory as ours do."""

import importlib
import io
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path

import pytest

from maskloom.system import freed_memory

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize(
    ("side", "keeps"),
    [("maskloom, BART", True), ("transformers", False), ("transformers, compiled, keeping memory", True)],
)
def test_a_side_keeps_memory_if_it_is_ours_or_its_name_says_so(side, keeps, monkeypatch):
    from rounds import memory_of

    set_to = []
    monkeypatch.setattr(freed_memory, "_MALLOPT", lambda threshold, size: set_to.append(size))
    with memory_of(side):
        assert bool(set_to) == keeps


def test_rows_of_gpt_name_the_sizes_that_were_measured_beside_the_plain_peer():
    from gpt_speed import COMPILED, KEPT, OURS, PEER, summary_rows

    rates = {OURS: [3.0, 3.0], PEER: [2.0, 2.0], KEPT: [2.5, 2.5], COMPILED: [3.0, 3.0]}
    rows = summary_rows([{"what": "training, base, rows of 512", "rates": rates}])
    assert {row["job"] for row in rows} == {"GPT training step, base"}
    assert [row["result"] for row in rows] == [f"{ratio} times the tokens per second" for ratio in ("1.50", "1.20")]


def test_rows_of_gpt_are_kept_from_runs_on_the_same_machine_and_text_and_name_their_run(tmp_path, monkeypatch):
    import gpt_speed as script

    monkeypatch.setattr(script, "machine_name", lambda *peers: f"a machine with {', '.join(peers)}")
    monkeypatch.setattr("sys.argv", ["benchmarks/gpt_speed.py", "--jobs", "generate"])
    rates = {script.OURS: [3.0] * 5, script.PEER: [2.0] * 5}
    row = {"what": "generation of 128 tokens, mini, 1 prompt", "aims": None, "equal_tokens": 1.0, "rates": rates}
    script.write_files(tmp_path / "page", script.page, script.PEERS, load=0.25, text="a text", results=[row])
    first = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "a machine with transformers; load at the start 0.25." in first
    assert "Training:" not in first
    assert "Measured in" not in first
    assert script.former_results(tmp_path / "page", "another text") == []
    kept = script.former_results(tmp_path / "page", "a text")
    monkeypatch.setattr("sys.argv", ["benchmarks/gpt_speed.py", "--jobs", "train"])
    trained = {"what": "training, mini, rows of 512", "aims": None, "difference": 0.0, "rates": rates}
    script.write_files(tmp_path / "page", script.page, script.PEERS, load=0.0, text="a text", results=[*kept, trained])
    told = (
        "Measured in an earlier run on the same machine (load at the start 0.25, `python benchmarks/gpt_speed.py "
        "--jobs generate`): generation of 128 tokens, mini, 1 prompt."
    )
    second = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert told in second.splitlines()
    assert "Rows per batch, of 128 / 512 tokens: mini 32 / 8." in second
    assert script.former_results(tmp_path / "page", "a text")[0]["run"] == kept[0]["run"]
    monkeypatch.setattr(script, "machine_name", lambda *peers: "another machine")
    assert script.former_results(tmp_path / "page", "a text") == []


def test_the_page_of_gpt_has_a_column_of_the_peak_where_that_was_measured():
    import gpt_speed as script

    row = {"what": "training, mini, rows of 512", "aims": None, "difference": 0.0}
    row |= {"rates": {script.OURS: [30.0] * 5, script.PEER: [20.0] * 5}, "peak": 1000.0, "flops": 10.0}
    content = {"machine": "a machine", "load": 0.0, "command": "a command", "text": "a text", "results": [row]}
    lines = script.page(content).splitlines()
    assert script.PEAK_SAID in lines
    assert {line.count("|") for line in lines if line.startswith("|")} == {8}
    assert "| 30% / 20% |" in lines[-5]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("gpt_speed", ("base", 128)), ("seq2seq_speed", (128,)), ("recurrent_speed", (128,))],
)
def test_each_side_trains_within_the_memory_that_is_its_own(name, arguments, monkeypatch):
    pytest.importorskip("transformers")
    script, entered = importlib.import_module(name), []
    monkeypatch.setattr(script, "WARM_UP", {128: 0}, raising=False)

    @contextmanager
    def kept_memory():
        entered.append(name)
        yield

    peer = script.PEER_BART if name == "seq2seq_speed" else script.PEER
    before = {"recurrent_speed": ("tagger", Path())}.get(name, (Path(), Path()) if name == "gpt_speed" else (Path(),))
    monkeypatch.setattr("transformers.OpenAIGPTLMHeadModel.from_pretrained", lambda *_, **__: None)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for function, result in {
        "kept_memory": kept_memory(),
        "memory_of": kept_memory(),
        "chosen_device": None,
        "rows_of_text": (None, 8),
        "batches_of": None,
        "task_and_batches": (Namespace(heads=["tags"]), None),
        "new_model": None,
        "PackedLstm": Namespace(train=lambda: None),
        "peer_and_loss": (None, None),
        "peer_step": None,
    }.items():
        monkeypatch.setattr(script, function, lambda *_, result=result: result, raising=False)
    script.training_side(peer, *before, *arguments)
    assert entered == [name]


def test_the_peer_of_a_step_keeps_memory_too(monkeypatch):
    from step_sides import Peer

    set_to = []
    monkeypatch.setattr(freed_memory, "_MALLOPT", lambda threshold, size: set_to.append(size))
    with pytest.raises(AttributeError):
        Peer.step(object())
    assert set_to[: len(set_to) // 2] == [2**31 - 1] * len(freed_memory._THRESHOLDS)
