"""TensorFlow checkpoints, written by hand and damaged in every way."""

import random

import numpy as np
import pytest
import torch
from tests.tensorflow_files import (
    entry,
    header,
    message,
    number,
    table,
    write_checkpoint,
)

from maskloom.checkpoints.tensor_bundle import open_bundle
from maskloom.errors import DataError

RNG = np.random.default_rng(0)
VARIABLES = {
    **{f"bert/encoder/layer_{n}/output/dense/kernel": RNG.normal(size=(3, n + 1)).astype("float32") for n in range(40)},
    "bert/half": RNG.normal(size=(2, 2)).astype("float16"),
    "bert/double": RNG.normal(size=5),
    "bert/scalar": np.float32(3.5).reshape(()),
    "bert/empty": np.zeros((0, 3), dtype="float32"),
    "global_step": np.array(7, dtype="int64"),
}


@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_variable_comes_back(tmp_path, num_shards):
    write_checkpoint(tmp_path / "model.ckpt", VARIABLES, num_shards=num_shards)
    stored = open_bundle(tmp_path / "model.ckpt.index")
    assert sorted(stored) == sorted(VARIABLES)
    for name, array in VARIABLES.items():
        assert stored[name].shape == array.shape
        assert stored[name].is_float == (array.dtype != "int64")
        assert np.array_equal(stored[name].read().numpy(), array), name
    assert stored["bert/half"].read().dtype == torch.float16


def test_no_cut_or_noise_ends_otherwise_than_in_one_message(tmp_path):
    write_checkpoint(tmp_path / "m", VARIABLES)
    index = tmp_path / "m.index"
    content, draw, refusals = index.read_bytes(), random.Random(1), []
    for trial in range(150):
        changed = bytearray(content)
        if trial % 2:
            del changed[draw.randrange(len(content)) :]
        for _ in range(trial % 5):
            changed[draw.randrange(len(changed) or 1) : draw.randrange(len(content))] = draw.randbytes(
                draw.randrange(9)
            )
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        index.write_bytes(changed)
        try:
            # a changed name or offset may go unnoticed: checksums are not verified
            shapes = [(tensor.shape, tensor.read().shape) for tensor in open_bundle(index).values()]
        except DataError as error:
            refusals.append(str(error))
        else:
            assert all(said == read for said, read in shapes)
    assert len(refusals) > 100
    assert all("m.index" in message or "m.data-" in message for message in refusals)


def test_values_that_are_cut_short_are_refused(tmp_path):
    write_checkpoint(tmp_path / "m", VARIABLES)
    stored, data = open_bundle(tmp_path / "m.index"), tmp_path / "m.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(DataError, match="truncated or from another checkpoint"):
        open_bundle(tmp_path / "m.index")
    with pytest.raises(DataError, match=r"m\.data-00000-of-00001: ends within variable 'global_step'"):
        stored["global_step"].read()


SMALL = np.zeros((2, 2), dtype="float32")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({b"": header(1, endianness=1)}, "big-endian"),
        ({b"": header(1, min_consumer=2)}, "reader of version 2"),
        ({b"": number(1, 0)}, "0 files"),
        ({b"": number(1, 1 << 40)}, "files; 1 to 10,000"),
        ({b"x": entry(SMALL, 0, 0, bytes(12))}, r"'x' of shape \(2, 2\) does not take the stated 12 bytes"),
        ({b"x": entry(SMALL, 0, 1 << 30, bytes(16))}, "truncated or from another checkpoint"),
        ({b"x": entry(SMALL, 5, 0, bytes(16))}, "m.data-00005-of-00001: does not exist"),
        ({b"x": entry(SMALL, 0, 0, bytes(16)) + message(7, b"")}, "'x' is stored in slices"),
        ({b"x": number(1, 1) + message(2, message(2, number(1, 2**64 - 1)))}, "'x' has an impossible shape"),
        ({b"x": number(1, 1) + message(2, message(2, number(1, 1)) * 17)}, "'x' has an impossible shape"),
        ({b"x": number(1, 1) + message(2, number(3, 1))}, "'x' has an unknown shape"),
        ({b"x": number(1, 1) + number(2, 1)}, "found a number instead of a message"),
        ({b"x": b"\xff"}, "truncated"),
        ({b"x": b"\x0b"}, "unknown kind 3"),
        ({b"\xff": entry(SMALL, 0, 0, bytes(16))}, "not UTF-8"),
        ({b"a/.ATTRIBUTES/VARIABLE_VALUE": entry(SMALL, 0, 0, bytes(16))}, "TensorFlow 2"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path, entries, said):
    write_checkpoint(tmp_path / "m", {"y": SMALL}, entries=entries)
    with pytest.raises(DataError, match=said):
        open_bundle(tmp_path / "m.index")


def test_a_table_that_is_none_is_refused(tmp_path):
    path = tmp_path / "m.index"
    for content, said in (
        (b"", "not those of a table"),
        (table([(b"x", b"")]), "no header"),
        (table([(b"b", b""), (b"a", b"")]), "does not come after"),
        (table([(b"x" * 5000, b"")]), "exceeds 4,096 bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=said):
            open_bundle(path)
    with path.open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(DataError, match="larger than 16,777,216 bytes"):
        open_bundle(path)


def test_a_compressed_block_is_refused(tmp_path):
    (tmp_path / "m.index").write_bytes(table([(b"", header(1))], compress=True))
    with pytest.raises(DataError, match=r"the block at \d+ is compressed; TensorFlow never compresses checkpoints"):
        open_bundle(tmp_path / "m.index")
