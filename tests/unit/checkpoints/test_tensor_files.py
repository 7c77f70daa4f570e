"""Damaged and false weight files are refused before memory is allocated for what they declare."""

import json
import struct
import tracemalloc

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from maskloom.checkpoints.tensor_files import MAX_TENSORS, open_weights
from maskloom.errors import DataError
from tools.fuzzing.headers import lying_files

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]


def write_header(path, header, data=b"", length=None):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


LYING_HEADERS = [
    {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
    {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
    {"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [2]}},
    {"a": 3},
    [],
]


@pytest.mark.parametrize("header", LYING_HEADERS)
def test_lying_headers_are_refused_with_the_file_named(tmp_path, header):
    write_header(tmp_path / "model.safetensors", header, b"\0" * 8)
    with pytest.raises(DataError, match=r"model.safetensors: not a valid safetensors file"):
        open_weights(tmp_path)


def test_headers_that_lie_are_refused_with_little_memory(tmp_path):
    """The memory of the library, which tracemalloc does not see, is measured by row H4 of the soak."""
    wrong = []
    for name, content in lying_files():
        (tmp_path / "model.safetensors").write_bytes(content)
        tracemalloc.start()
        try:
            open_weights(tmp_path)
            wrong.append(f"{name}: accepted")
        except DataError as error:
            if "model.safetensors: not a valid safetensors file: " not in str(error) or len(str(error)) > 1000:
                wrong.append(f"{name}: {error}")
        finally:
            if (peak := tracemalloc.get_traced_memory()[1]) > 100e6:
                wrong.append(f"{name}: {peak:,} bytes")
            tracemalloc.stop()
    assert not wrong


@given(
    shapes=st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 4), max_size=4)), min_size=1, max_size=5)
)
@settings(max_examples=40, deadline=None)
def test_what_the_library_writes_is_read_as_the_library_reads_it(tmp_path_factory, shapes):
    path = tmp_path_factory.mktemp("header") / "model.safetensors"
    save_file({f"t{n}": torch.zeros(shape, dtype=dtype) for n, (dtype, shape) in enumerate(shapes)}, path, {"a": "{b"})
    found = open_weights(path.parent)
    with safe_open(path, framework="pt") as file:
        expected = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert found.keys() == expected.keys()
        for name, stored in found.items():
            assert (stored.shape, stored.is_float) == (expected[name].shape, expected[name].is_floating_point())
            assert torch.equal(stored.read(), expected[name])


def test_as_many_tensors_as_allowed_are_read(tmp_path):
    names = [f"bert.encoder.layer.{number}.attention.self.query.weight" for number in range(MAX_TENSORS)]
    entries = {name: {"dtype": "U8", "shape": [1, 1], "data_offsets": [n, n + 1]} for n, name in enumerate(names)}
    write_header(tmp_path / "model.safetensors", {"__metadata__": {"format": "pt"}, **entries}, bytes(MAX_TENSORS))
    assert open_weights(tmp_path).keys() == set(names)
    entries["more"] = {"dtype": "U8", "shape": [1], "data_offsets": [MAX_TENSORS, MAX_TENSORS + 1]}
    write_header(tmp_path / "model.safetensors", entries, bytes(MAX_TENSORS + 1))
    with pytest.raises(DataError, match=r"model\.safetensors: .*its header names 20,001 tensors; at most 20,000"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": {"dtype": "F32", "shape": [0, 2**40], "data_offsets": [0, 0]}}, "tensor 'a' has no values"),
        ({"a": {"dtype": "U8", "shape": [1] * 17, "data_offsets": [0, 1]}}, r"'a' has 17 dimensions \(at most 16"),
        ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "x": 1}}, "a field that is not of the format"),
    ],
)
def test_what_the_library_would_accept_is_refused(tmp_path, header, message):
    write_header(tmp_path / "model.safetensors", header, bytes(header["a"]["data_offsets"][1]))
    with pytest.raises(DataError, match=message):
        open_weights(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff" * 8, struct.pack("<Q", 2**62) + b"{}", b"PK\x03\x04abcd"])
def test_files_that_are_no_safetensors(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="not a valid safetensors file"):
        open_weights(tmp_path)


def test_a_file_cut_short(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(100.0)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="not a valid safetensors file"):
        open_weights(tmp_path)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_byte_never_ends_in_a_traceback(tmp_path, data):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(4.0), "b": torch.ones(2, 3)}, path)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        for tensor in open_weights(tmp_path).values():
            tensor.read()
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../x.safetensors"}}, "is not the name of a safetensors file in the same folder"),
        ({"weight_map": {"a": "x.bin"}}, "is not the name of a safetensors file"),
        ({"weight_map": {"a": "y.safetensors"}}, "y.safetensors: does not exist"),
        ({"weight_map": {"a": 3}}, "no weight_map"),
        ({}, "no weight_map"),
        ([], "expected a JSON object"),
        ({"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}, "1 tensor that no file holds, such as 'b'"),
        ({"weight_map": {"b": "x.safetensors"}}, "tensor 'a' is in x.safetensors, but the index says None"),
    ],
)
def test_indexes_that_lie(tmp_path, index, message):
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=message):
        open_weights(tmp_path)


def test_a_run_without_a_model_gets_the_command_that_makes_one(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    (run / "recipe.toml").touch()
    with pytest.raises(DataError, match=f"{run}: no weights; this is a run; maskloom export '{run}' --out DIR makes"):
        open_weights(run)
