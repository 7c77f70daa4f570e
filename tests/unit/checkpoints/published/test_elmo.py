"""HDF5 files as h5py writes them; the published ones are in tests/parity."""

import json
import sys
from contextlib import suppress

import h5py
import numpy as np
import pytest
import torch

from maskloom.checkpoints.published.elmo import published_elmo, read_arrays
from maskloom.errors import ConfigError, DataError

ARRAYS = {
    "CNN/W_cnn_0": np.arange(24, dtype="<f4").reshape(2, 3, 4),
    "CNN/b": np.array([0.5, -1.0], dtype="<f8"),
    "RNN_0/RNN/B": np.ones((3, 0), dtype="<f4"),
    "char_embed": np.array([0.25, 4.0], dtype="<f2"),
}


def write(path, arrays, **options):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **options)


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "weights.hdf5", ARRAYS)
    return tmp_path / "weights.hdf5"


def test_arrays_have_the_names_of_their_groups(path):
    found = read_arrays(path)
    assert found.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        assert torch.equal(found[name], torch.tensor(values.astype(np.float32)))


def test_what_is_cut_short_or_changed_is_refused_or_has_another_value(path):
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for length in rng.integers(0, len(whole), 30):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"weights\.hdf5: damaged"):
            read_arrays(path)
    for place in rng.integers(0, len(whole), 150):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with suppress(DataError):
            read_arrays(path)


def test_arrays_that_the_file_does_not_hold_as_floats_are_refused(path, tmp_path):
    write(path, {"CNN/a": np.arange(3)})
    with pytest.raises(DataError, match="'CNN/a' is not an uncompressed array of floats in the file itself"):
        read_arrays(path)
    write(path, {"a": np.zeros(2, dtype=">f4")})
    with pytest.raises(DataError, match=r"weights\.hdf5: .* byte order"):
        read_arrays(path)
    write(path, {"a": np.zeros(1 << 20)}, compression="gzip")
    with pytest.raises(DataError, match="'a' is not an uncompressed array"):
        read_arrays(path)
    (tmp_path / "other").write_bytes(bytes(800))
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (100,), "<f8", external=[(str(tmp_path / "other"), 0, 800)])
    with pytest.raises(DataError, match="'a' is not an uncompressed array of floats in the file itself"):
        read_arrays(path)
    layout = h5py.VirtualLayout(shape=(2,), dtype="<f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "b", shape=(2,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("a", layout)
    with pytest.raises(DataError, match="'a' is not an uncompressed array of floats in the file itself"):
        read_arrays(path)


def test_links_out_of_the_file_and_cycles_are_not_followed(path, tmp_path):
    write(tmp_path / "other.hdf5", {"secret": np.ones(2)})
    with h5py.File(path, "a") as file:
        file["out"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/secret")
        file["CNN/self"] = file["CNN"]
    assert read_arrays(path).keys() == ARRAYS.keys()


def test_without_h5py_the_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"weights\.hdf5: reading HDF5 needs h5py; .* pip install 'maskloom\[elmo\]'"):
        read_arrays(path)


def test_arrays_that_cannot_be_weights_are_named(tmp_path):
    options = {
        "lstm": {"projection_dim": 2, "n_layers": 1, "dim": 3, "use_skip_connections": True},
        "char_cnn": {
            "activation": "relu",
            "embedding": {"dim": 2},
            "max_characters_per_token": 5,
            "filters": [[1, 2]],
            "n_highway": 1,
        },
    }
    (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
    biases = [f"RNN_{way}/RNN/MultiRNNCell/Cell0/LSTMCell/B" for way in (0, 1)]
    arrays = {"char_embed": np.full((261, 2), np.nan), "CNN/W_cnn_0": np.zeros(2)}
    write(tmp_path / "weights.hdf5", arrays | {biases[0]: np.zeros(12), biases[1]: np.zeros(3)})
    with pytest.raises(DataError, match=r"weights\.hdf5: ") as raised:
        published_elmo(tmp_path)
    assert {
        "  char_embed: holds values that are not finite",
        "  CNN/W_cnn_0: cannot be of shape (2,)",
        f"  {', '.join(biases)}: cannot be of shape (12,) and (3,)",
        "  CNN_proj/W_proj: missing",
    } <= set(str(raised.value).splitlines())
