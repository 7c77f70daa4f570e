"""Runs resume bit for bit, are repeated from their folder, and survive damage and a full disk."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from maskloom.config import PretrainRecipe, load_recipe
from maskloom.runs.export import export
from maskloom.runs.pretrain import pretrain
from maskloom.system.folder_lock import folder_lock
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training import loop
from maskloom.training.checkpointing.checkpoints import Snapshot, write_checkpoint
from tools.faults.fault_rules import arm

SETTINGS = [
    *("model.size=tiny", "model.config.hidden_size=16", "model.config.num_attention_heads=2"),
    *("model.config.intermediate_size=32", "model.config.num_hidden_layers=1", "data.max_length=24"),
    *("data.held_out_fraction=0.2", "training.steps=14", "training.save_every=4", "training.evaluate_every=4"),
    *("training.batch_size=4", "training.learning_rate=1e-3", "training.num_threads=1", "training.keep_best=true"),
    *("training.keep_checkpoints=3", "training.max_evaluation_instances=8"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data.topics import topics

    from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files

    folder = tmp_path_factory.mktemp("data")
    text = folder / "topics.txt"
    chosen = [" ".join(topic.split())[:3000] for _, topic in sorted(topics.items())[:30]]
    text.write_text("\n\n".join(chosen), encoding="utf-8")
    train_vocabulary_from_files([text], VocabularySettings(300), out=folder / "vocab")
    build_corpus_from_files(text, vocab=folder / "vocab", out=folder / "corpus")
    return folder / "corpus"


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was never interrupted."""
    out = tmp_path_factory.mktemp("alone") / "run"
    pretrain(load_recipe(PretrainRecipe, None, SETTINGS), corpus=corpus, out=out)
    return out


@pytest.fixture
def run_folder(alone: Path, tmp_path: Path) -> Path:
    """Return a copy of that run, for the test to damage."""
    return Path(shutil.copytree(alone, tmp_path / "run"))


def _model(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def _steps(run: Path) -> list[Path]:
    return sorted((run / "checkpoints" / "phase-1").iterdir())


def _start(corpus: Path, out: Path, *more: str) -> list[object]:
    return ["pretrain", "--corpus", corpus, "--out", out, *(word for s in SETTINGS for word in ("--set", s)), *more]


def test_the_best_model_on_held_out_text_is_kept(corpus: Path, tmp_path: Path, monkeypatch) -> None:
    losses, evaluate = iter((3.0, 1.0, 2.0)), loop.evaluate  # at steps 4, 8 and 12
    monkeypatch.setattr(
        "maskloom.runs.pretrain.evaluate", lambda *given: evaluate(*given) | {"mlm_loss": next(losses, 2.0)}
    )
    out = tmp_path / "run"
    pretrain(load_recipe(PretrainRecipe, None, [*SETTINGS, "training.keep_checkpoints=1"]), corpus=corpus, out=out)
    assert [path.name for path in _steps(out)] == ["step-00000008", "step-00000014"]
    export(out, tmp_path / "step-8", step=8)
    places = (tmp_path / "step-8", out / "best-model", out / "model")
    of_step, best, last = ((place / "model.safetensors").read_bytes() for place in places)
    assert of_step == best != last


@pytest.mark.parametrize("kept", [3, 1])
def test_verify_trains_a_stretch_again_and_finds_the_same_bits(command, corpus, run_folder: Path, kept: int) -> None:
    for path in _steps(run_folder)[:-kept]:
        shutil.rmtree(path)
    before = _model(run_folder)
    code, said = command("pretrain", "--corpus", corpus, "--out", run_folder, "--resume", "--verify")
    assert code == 0, said
    assert f"verifying: repeating steps {13 if kept == 3 else 1} to 14" in said
    assert said.count(": identical\n") == 2
    assert "verifying: bit-identical, including the position in the data" in said
    assert _model(run_folder) == before
    assert len(_steps(run_folder)) == kept
    assert not list(run_folder.rglob(".*verify*"))


def test_verify_names_the_first_tensors_that_differ(command, corpus, run_folder: Path) -> None:
    newest = _steps(run_folder)[-1]
    weights = load_file(newest / "model.safetensors")
    name = sorted(weights)[3]
    weights[name].view(-1)[0] += 1e-4
    rest = (newest / "state.json").read_text()
    snapshot = Snapshot(14, weights, load_file(newest / "optimizer.safetensors"), rest)
    write_checkpoint(replace(snapshot, rest=rest.replace('"position": {', '"position": {"more": 1,')), newest.parent)
    code, said = command("pretrain", "--corpus", corpus, "--out", run_folder, "--resume", "--verify")
    assert code == 1
    assert f"repeated steps gave different values: {name} (largest difference 0.0001); position: " in said
    assert "Traceback" not in said
    assert command("pretrain", "--corpus", corpus, "--out", run_folder, "--verify")[0] == 2


def test_a_rerun_gives_the_same_weights(command, alone: Path, tmp_path: Path) -> None:
    code, said = command("rerun", alone, "--out", tmp_path / "again", "--json")
    assert code == 0, said
    result = json.loads(said[said.index("{") :].splitlines()[0])
    assert result["identical"] is True
    assert result["sha256_of_run"] == result["sha256_of_rerun"]
    assert _model(tmp_path / "again") == _model(alone)
    assert command("rerun", alone, "--out", tmp_path / "again")[0] == 3


def test_a_run_folder_is_a_start_as_its_model_is(command, corpus, alone: Path, tmp_path: Path) -> None:
    settings = ("training.steps=2", "training.batch_size=4", "data.max_length=24", "training.num_threads=1")
    more = [word for setting in settings for word in ("--set", setting)]
    for name, init in (("run", alone), ("model", alone / "model")):
        code, said = command("pretrain", "--corpus", corpus, "--init", init, "--out", tmp_path / name, *more)
        assert code == 0, said
    assert _model(tmp_path / "run") == _model(tmp_path / "model")


def test_a_rerun_goes_beside_the_run_when_no_place_is_given(command, alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path / "run")
    code, said = command("rerun", tmp_path / "run")
    assert code == 0, said
    assert _model(tmp_path / "run-rerun") == _model(alone)


def test_vocabularies_corpora_and_folders_of_runs_are_no_runs(command, corpus, alone, tmp_path) -> None:
    for folder in (corpus.parent / "vocab", corpus, alone.parent, tmp_path):
        code, said = command("rerun", folder, "--out", tmp_path / "again")
        assert code == 3
        assert f"{folder} is not the folder of a run" in said


def _changed(run: Path, change) -> None:
    content = json.loads((run / "run.json").read_text())
    change(content)
    (run / "run.json").write_text(json.dumps(content))


def test_a_rerun_refuses_before_the_start_what_would_not_be_the_same(command, corpus, run_folder, tmp_path) -> None:
    out = tmp_path / "again"

    def refused(expected: str) -> None:
        code, said = command("rerun", run_folder, "--out", out)
        assert code == 3, said
        assert expected in said
        assert not out.exists()

    whole = (run_folder / "run.json").read_text()
    _changed(run_folder, lambda content: content["versions"].update(torch="1.0"))
    refused("torch was 1.0, is 2.")
    (run_folder / "run.json").write_text(whole)
    _changed(run_folder, lambda content: content.update(world_size=2))
    refused("trained by 2 processes, this one has 1; start with torchrun --nproc-per-node 2")
    (run_folder / "run.json").write_text(whole)
    data = Path(shutil.copytree(corpus, tmp_path / "data"))
    _changed(run_folder, lambda content: content["paths"].update(corpus=str(data)))
    _changed(run_folder, lambda content: content["inputs"].update(corpus="0123"))
    refused(f"{data}: the corpus of {run_folder} has changed: its checksum was 0123")
    shard = next(data.glob("shards/*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    refused(shard.name)
    shutil.rmtree(data)
    refused("no longer exists")
    for key in ("versions", "hardware"):  # as in a file written by hand
        (run_folder / "run.json").write_text(whole)
        _changed(run_folder, lambda content, key=key: content.pop(key))
        refused(f"error: {run_folder / 'run.json'}: the file is damaged: {key!r} is None, expected dict\n")
    (run_folder / "run.json").write_text(whole)
    _changed(run_folder, lambda content: content["hardware"].pop("threads"))
    refused(f"{run_folder / 'run.json'}: hardware.threads = None: expected the number of threads")
    for paths in ({}, {"corpus": 5}):
        (run_folder / "run.json").write_text(whole)
        _changed(run_folder, lambda content, paths=paths: content.update(paths=paths))
        refused(f"{run_folder / 'run.json'}: paths = {paths}: expected the paths of corpus")
    (run_folder / "run.json").write_text(whole)
    shutil.rmtree(run_folder / "model")
    refused("the run is not finished")


def test_other_weights_of_a_rerun_are_named(command, run_folder: Path, tmp_path: Path) -> None:
    recipe = run_folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("seed = 0", "seed = 1"))
    _changed(run_folder, lambda content: content["versions"].update(numpy="0.1"))
    code, said = command("rerun", run_folder, "--out", tmp_path / "again", "--allow-version-change")
    assert code == 1
    assert "warning: numpy was 0.1" in said
    assert "largest difference" in said


@pytest.mark.parametrize("damaged", [1, 3])
def test_damaged_checkpoints_are_skipped_loudly_until_none_is_left(
    command, corpus, run_folder: Path, damaged: int
) -> None:
    for path in _steps(run_folder)[-damaged:] if damaged == 1 else _steps(run_folder):
        content = bytearray((path / "optimizer.safetensors").read_bytes())
        content[len(content) // 2] ^= 4
        (path / "optimizer.safetensors").write_bytes(content)
    newest, before = _steps(run_folder)[-1], _model(run_folder)
    (run_folder / "metrics.json").unlink()  # as if it had been killed just before its end: a finished run is left alone
    code, said = command("pretrain", "--corpus", corpus, "--out", run_folder, "--resume")
    named = f"{newest / 'optimizer.safetensors'}: its SHA-256 differs from the manifest's"
    assert named in said
    if damaged == 1:
        assert code == 0
        assert f"warning: checkpoint skipped: {named}" in said
        assert _model(run_folder) == before
    else:
        assert code == 3
        assert [line for line in said.splitlines() if line.startswith("error: ")] == said.splitlines()[-1:]


def test_a_disk_that_stays_full_ends_the_run_with_74_and_it_resumes_to_the_bit(
    command, corpus, alone: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "run", tmp_path / "passes"
    arm("enospc@files.write#100+", log=str(log))
    code, said = command(*_start(corpus, out))
    arm()
    assert code == 74, said
    assert "warning: [Errno 28] No space left on device" in said
    assert "Training continues; if the next save fails too, it stops" in said
    assert "error: fault point files.write: No space left on device" in said
    assert "Traceback" not in said
    code, said = command(*_start(corpus, out, "--resume"))
    assert code == 0, said
    assert "continuing at 4 of 14" in said
    assert _model(out) == _model(alone)


def test_a_folder_in_use_is_refused_by_the_name_of_its_holder(command, corpus, run_folder: Path) -> None:
    with folder_lock(run_folder):
        code, said = command("pretrain", "--corpus", corpus, "--out", run_folder, "--resume")
    assert code == 1
    assert f"error: {run_folder} is in use by PID " in said


def test_fine_tuning_is_verified_and_repeated_too(command, alone: Path, tmp_path: Path, monkeypatch) -> None:
    for name, size in (("train", 16), ("dev", 6)):
        rows = ["text,label", *(f"{'good' if n % 3 else 'bad'} film {n},{n % 2}" for n in range(size))]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    settings = ["training.batch_size=4", "training.epochs=3", "training.save_every=2", "training.num_threads=1"]
    settings += ["data.max_length=16", "task=single"]
    start = ["finetune", "--model", alone, "--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv"]
    start += ["--out", tmp_path / "run", *(word for setting in settings for word in ("--set", setting))]
    (tmp_path / "names.txt").write_text("1\n0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    start += ["--labels", "names.txt"]
    arm("eio@files.write#120+")
    assert command(*start)[0] == 74
    arm()
    code, said = command(*start, "--resume", "--verify")
    assert code == 0, said
    assert "verifying: bit-identical" in said
    code, said = command(*start, "--resume", "--verify")
    assert code == 0
    assert "--verify is for unfinished runs, `maskloom rerun` repeats a whole run" in said
    monkeypatch.chdir(alone)  # from where the relative name of the label file does not resolve
    code, said = command("rerun", tmp_path / "run", "--out", tmp_path / "again")
    assert code == 0, said
    assert _model(tmp_path / "again") == _model(tmp_path / "run")
    (tmp_path / "names.txt").write_text("0\n1\n", encoding="utf-8")
    code, said = command("rerun", tmp_path / "run", "--out", tmp_path / "third")
    assert code == 3
    assert f"{tmp_path / 'names.txt'}: the labels of {tmp_path / 'run'} has changed" in said
