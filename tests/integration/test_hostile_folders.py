"""No file in a folder can run code, lead out of the folder, block, or exhaust memory."""

import resource
import signal
from pathlib import Path

import pytest

from maskloom.checkpoints.huggingface import load_model
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from tools.fuzzing import escapes, pickles
from tools.fuzzing.seeds import write_model


@pytest.fixture
def _nothing_waits():
    def stop(*_):
        raise TimeoutError("a reader waits for what never comes")

    before, limits = signal.signal(signal.SIGALRM, stop), resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (3 << 30), limits[1]))
    yield
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    signal.signal(signal.SIGALRM, before)


def outcome(read):
    signal.alarm(120)
    try:
        read()
    except (ConfigError, DataError) as error:
        return "" if len(str(error)) < 20_000 else "a message without end"
    except BaseException as error:
        return repr(error)
    finally:
        signal.alarm(0)
    return "accepted"


@pytest.mark.usefixtures("_nothing_waits")
def test_no_pickle_is_opened_wherever_it_lies(tmp_path):
    mark, names, wrong = tmp_path / "mark", [], []
    for name, read in pickles.attempts(tmp_path, mark):
        names.append(name)
        if problem := outcome(read):
            wrong.append(f"{name}: {problem}")
        if mark.exists():
            mark.rmdir()
            wrong.append(f"{name}: ran")
    assert len(names) > 100
    assert set(wrong) <= {"in place of t.txt (text): accepted"}  # one pickle is also plain text


@pytest.mark.parametrize("name", pickles.CODE_FILES)
def test_files_that_hold_code_are_refused_by_name_with_what_to_do(tmp_path, name):
    write_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    what = "a TensorFlow checkpoint" if name.endswith(".index") else "files of this kind can run code"
    with pytest.raises(DataError, match=rf"{name}: {what}.*; convert it to model.safetensors"):
        load_model(tmp_path)
    with pytest.raises(DataError, match=rf"{name}: files of this kind can run code"):
        Predictor.load(tmp_path / name)


def test_the_marks_are_made_where_a_pickle_is_opened(tmp_path):
    import pickle

    pickle.loads(pickles.pickles(tmp_path / "mark")[0])
    assert (tmp_path / "mark").is_dir()


@pytest.mark.slow
@pytest.mark.usefixtures("_nothing_waits")
def test_folders_that_lead_out_or_hold_no_files_are_refused(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong = [f"{name}: {problem}" for name, read in escapes.attempts(tmp_path) if (problem := outcome(read))]
    assert not wrong
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    assert not list(Path(tmp_path.parent).glob("escaped*"))


def test_a_snapshot_of_the_hugging_face_cache_opens(tmp_path):
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "0a1b"
    write_model(snapshot)
    blobs.mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert Predictor.load(snapshot).predict(["the ab"])
    (snapshot / "vocab.txt").unlink()
    (snapshot / "vocab.txt").symlink_to("/etc/passwd")
    with pytest.raises(DataError, match=r"vocab\.txt: is a link to /etc/passwd, outside the folder"):
        Predictor.load(snapshot)


def test_a_link_to_a_whole_model_folder_opens(tmp_path):
    write_model(tmp_path / "model")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert Predictor.load(tmp_path / "link").predict(["the ab"])


def test_a_model_larger_than_memory_is_refused_with_both_figures(tmp_path, monkeypatch):
    write_model(tmp_path)
    monkeypatch.setattr("maskloom.system.resources.available_memory", lambda: 1000)
    with pytest.raises(DataError, match=r"the model takes [\d,]+ bytes of memory, but only 1,000 are available"):
        load_model(tmp_path)


def test_more_layers_than_tensors_are_refused_before_they_are_planned(tmp_path):
    write_model(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"num_hidden_layers": 1', '"num_hidden_layers": 1000'))
    message = (
        r"config\.json: num_hidden_layers = 1000, but there are only \d+ weight tensors; these files do not belong"
    )
    with pytest.raises(DataError, match=message):
        load_model(tmp_path)
