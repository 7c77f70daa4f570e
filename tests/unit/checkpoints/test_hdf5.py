"""HDF5 files built here byte by byte in h5py's layout; the published ones are in tests/parity."""

import struct
from contextlib import suppress

import numpy as np
import pytest

from maskloom.checkpoints.hdf5 import open_hdf5
from maskloom.errors import DataError

UNDEFINED = 2**64 - 1


def hdf5(groups, *, kind=0x11):
    """Return the bytes of a file with arrays by group and array name; `kind` is the first byte of their data type."""
    content = bytearray(96)

    def put(part):
        while len(content) % 8:
            content.append(0)
        content.extend(part)
        return len(content) - len(part)

    def header(messages):
        packed = b"".join(struct.pack("<HHI", code, len(body), 0) + body for code, body in messages)
        return put(struct.pack("<BBHII4x", 1, 0, len(messages), 1, len(packed)) + packed)

    def array(values):
        first = put(values.tobytes())
        space = struct.pack("<BBB5x", 1, values.ndim, 0) + struct.pack(f"<{values.ndim}Q", *values.shape)
        layout = struct.pack("<BBQQ6x", 3, 1, first, values.nbytes)
        return header([(1, space), (3, struct.pack("<BBHI16x", kind, 0x20, 0, values.itemsize)), (8, layout)])

    def group(children):
        names, places = bytearray(8), []
        for name in children:
            places.append(len(names))
            names += name.encode() + b"\0" * (8 - len(name) % 8)
        heap = put(struct.pack("<4sIQQQ", b"HEAP", 0, len(names), 0, put(bytes(names))))
        entries = b"".join(struct.pack("<QQ24x", *pair) for pair in zip(places, children.values(), strict=True))
        node = put(struct.pack("<4sBBH", b"SNOD", 1, 0, len(children)) + entries)
        tree = put(struct.pack("<4sBBHQQQQQ", b"TREE", 0, 0, 1, UNDEFINED, UNDEFINED, 0, node, 0))
        return header([(0x11, struct.pack("<QQ", tree, heap))])

    parts = {name: group({key: array(each) for key, each in arrays.items()}) for name, arrays in groups.items()}
    root = group(parts)
    content[:24] = struct.pack("<8s5BBB9x", b"\x89HDF\r\n\x1a\n", 0, 0, 0, 0, 0, 8, 8)
    struct.pack_into("<QQ", content, 56, 0, root)
    return bytes(content)


GROUPS = {
    "CNN": {"W_cnn_0": np.arange(24, dtype="<f4").reshape(2, 3, 4), "b": np.array([0.5, -1.0], dtype="<f8")},
    "RNN": {"B": np.ones((3, 0), dtype="<f4")},
}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "weights.hdf5").write_bytes(hdf5(GROUPS))
    return tmp_path / "weights.hdf5"


def test_arrays_have_the_names_of_their_groups(path):
    found = open_hdf5(path)
    expected = {f"{group}/{name}": values for group, arrays in GROUPS.items() for name, values in arrays.items()}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].shape == values.shape
        assert np.array_equal(found[name].read().numpy(), values)


def test_what_is_cut_short_or_changed_is_refused_or_has_another_value(path):
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for length in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"weights\.hdf5: damaged"):
            open_hdf5(path)
    for place in rng.integers(0, len(whole), 300):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with suppress(DataError):
            for tensor in open_hdf5(path).values():
                tensor.read()


def test_integers_and_a_group_that_holds_itself_are_refused(tmp_path, path):
    path.write_bytes(hdf5(GROUPS, kind=0x10))
    with pytest.raises(DataError, match="'CNN/W_cnn_0' is not a contiguous array of 4- or 8-byte floats"):
        open_hdf5(path)
    content = bytearray(hdf5(GROUPS))
    (root,) = struct.unpack_from("<Q", content, 64)
    entry = content.rindex(b"SNOD") + 8
    struct.pack_into("<Q", content, entry + 8, root)
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        open_hdf5(path)
